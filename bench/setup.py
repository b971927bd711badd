"""Makes the virtual environment that the Python loads run in, from pinned versions."""

import os
import pathlib
import subprocess
import sys

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "requirements.txt"


def default_directory():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "memtrack-bench"


def python_of(directory):
    """The environment's interpreter, where it was made."""
    python = pathlib.Path(directory) / "venv" / "bin" / "python"
    return str(python) if python.exists() else None


def install(directory):
    environment = pathlib.Path(directory) / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = python_of(directory)
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)], check=True)
    print(f"{python} has what the loads need; beside it they use, where they are installed: cc, c++, rustc, heaptrack, "
          "redis-server and redis-benchmark, sqlite3, gcc's cc1plus, perl and node")
