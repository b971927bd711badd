"""System calls with a time limit go on, whatever memtrack does in the process meanwhile."""

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "programs" / "timed_waits.c"


@pytest.mark.skipif(not os.path.exists("/usr/bin/gcc"), reason="no compiler")
@pytest.mark.parametrize("allocating", ["0", "1", "3"])
def test_no_wait_is_interrupted_by_attaching_and_detaching(executable, tmp_path, allocating):
    subprocess.run(["gcc", "-O1", "-pthread", "-o", tmp_path / "waits", SOURCE], check=True)
    program = subprocess.Popen([tmp_path / "waits", allocating], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "ready\n"
    for _ in range(20):
        recorded = [executable, "attach", "-q", "-f", "-o", tmp_path / "a.bin", "--duration", "10ms", str(program.pid)]
        subprocess.run(recorded, check=True)
    text, _ = program.communicate()
    assert program.returncode == 0 and text.split() == ["0"] * 9
