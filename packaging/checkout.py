"""What is packaged: the files of the checkout, their version, commit and time.

Why: packages hold what git knows, and nothing that happens to lie beside it. Invariant: every time and order that
goes into an artifact comes from here, so that two builds of one commit are equal.
"""

import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Everything that is made on the way, kept between two runs.
WORK = Path(os.environ.get("MEMTRACK_PACKAGE_WORK", ROOT / "target" / "package"))
# Another machine than this takes Rust's standard library for it, its gcc, and qemu's user-mode emulator.
MACHINE = os.environ.get("MEMTRACK_PACKAGE_MACHINE") or platform.machine()


class Failure(Exception):
    """What went wrong, for the user."""


def say(text):
    print(f"package: {text}", file=sys.stderr, flush=True)


def output(*command, **options):
    """What a command prints; a Failure where it does not end well."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode:
        raise Failure(f"status {done.returncode} from: {' '.join(map(str, command))}")
    return done.stdout


def run(*command, **options):
    """Runs a command; what it prints is for the user."""
    done = subprocess.run([str(word) for word in command], check=False, **options)
    if done.returncode:
        raise Failure(f"status {done.returncode} from: {' '.join(map(str, command))}")


def command_of(program):
    """The words that run a program made for MACHINE here."""
    return (
        [program] if platform.machine() == MACHINE else [f"qemu-{MACHINE}", "-L", f"/usr/{MACHINE}-linux-gnu", program]
    )


def need(program, package):
    if not shutil.which(program):
        raise Failure(f"{program} is needed (on Debian: apt-get install {package})")


@lru_cache(maxsize=None)
def metadata():
    """The workspace and its dependencies, as cargo knows them."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    command += ["--filter-platform", f"{MACHINE}-unknown-linux-gnu"]
    return json.loads(output(*command, cwd=ROOT))


@lru_cache(maxsize=None)
def version():
    return next(package["version"] for package in metadata()["packages"] if package["name"] == "memtrack-cli")


@lru_cache(maxsize=None)
def commit():
    """The commit; with `-dirty` where the files are not those of a commit."""
    name = output("git", "rev-parse", "--short=12", "HEAD", cwd=ROOT).strip()
    return name + "-dirty" if output("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT) else name


@lru_cache(maxsize=None)
def epoch():
    """The time that all files get: SOURCE_DATE_EPOCH, else that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or output("git", "log", "-1", "--format=%ct", cwd=ROOT))


def stage(directory):
    """Copies the files that git knows. Times are kept, so that cargo compiles only what has changed."""
    names = output("git", "ls-files", "-z", cwd=ROOT).split("\0")
    names = {name for name in names if name and (ROOT / name).is_file()}
    for old in [path for path in directory.rglob("*") if path.is_file() or path.is_symlink()]:
        if str(old.relative_to(directory)) not in names:
            old.unlink()
    for name in names:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.stat().st_mtime_ns != (ROOT / name).stat().st_mtime_ns:
            shutil.copy2(ROOT / name, target)
        shutil.copymode(ROOT / name, target)
    return directory


def empty(directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def write(path, text, executable=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o755 if executable else 0o644)


def archive(directory, target):
    """A .tar.gz of a directory, its name included: sorted, of one time and owner."""

    def plain(member):
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = epoch()
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with open(target, "wb") as file, compressed(file) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for path in [directory, *sorted(directory.rglob("*"))]:
            tar.add(path, str(path.relative_to(directory.parent)), recursive=False, filter=plain)


def compressed(file):
    """A gzip stream into `file` that holds neither time nor name."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0)
