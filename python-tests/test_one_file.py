"""The program is one file: it records wherever it is copied to, and nobody can make it load another library."""

import os
import shutil
import subprocess

import pytest

from conftest import Capture, execute

LIBRARY = "libmemtrack_shim.so"
LD_PRELOAD = "import os; print(open('/proc/self/maps').read().count('libmemtrack_shim.so') > 0)"


@pytest.fixture
def copied(executable, tmp_path):
    """Runs a copy of the program that has nothing beside it; gives the outcome and the libraries it has written."""
    folder = tmp_path / "somewhere else"
    folder.mkdir()
    program = shutil.copy2(executable, folder / "memtrack")

    def run(cache, *target, **variables):
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(tmp_path), **variables}
        environment.pop("MEMTRACK_SHIM", None)
        command = [program, "run", "-q", "-f", "-o", tmp_path / "capture.bin", *target]
        done = execute(command, env=environment, cwd=tmp_path)
        return done, sorted(cache.glob(f"memtrack/*/{LIBRARY}"))

    return run


def test_a_copy_of_the_program_records_and_keeps_its_library(copied, memtrack, tmp_path):
    for _ in range(2):
        done, libraries = copied(tmp_path / "cache", "-c", LD_PRELOAD)
        assert (done.status, done.stdout) == (0, b"True\n"), done.stderr
        assert len(libraries) == 1
    assert libraries[0].parent.stat().st_mode & 0o777 == 0o700
    assert Capture(memtrack, tmp_path / "capture.bin").stats()["allocations"]["count"] > 0


@pytest.mark.parametrize("how", ["altered", "cut", "link", "directory"])
def test_a_library_that_was_tampered_with_is_never_loaded(copied, tmp_path, how):
    _, (library,) = copied(tmp_path / "cache", "-c", "pass")
    good = library.read_bytes()
    elsewhere = tmp_path / "elsewhere.so"
    elsewhere.write_bytes(good)
    if how == "altered":
        library.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    elif how == "cut":
        library.write_bytes(good[:5000])
    else:
        library.unlink()
        library.symlink_to(elsewhere) if how == "link" else library.mkdir()
    script = f"print([line.split()[-1] for line in open('/proc/self/maps') if '{LIBRARY}' in line or 'elsewhere' in line][0])"
    done, _ = copied(tmp_path / "cache", "-c", script, HOME=str(tmp_path / "home"))
    assert done.status == 0, done.stderr
    loaded = done.stdout.decode().strip()
    assert open(loaded, "rb").read() == good
    if how == "directory":
        assert loaded.startswith(str(tmp_path / "home"))
    else:
        assert loaded == str(library) and not library.is_symlink()


@pytest.mark.parametrize("cache", ["with blank", "a:b", "file/below"])
def test_a_cache_that_cannot_serve_gives_way_to_the_next_place(copied, tmp_path, cache):
    (tmp_path / "file").write_text("")
    done, libraries = copied(tmp_path / cache, "-c", LD_PRELOAD, HOME=str(tmp_path / "home"))
    assert (done.status, done.stdout, libraries) == (0, b"True\n", [])
    assert list(tmp_path.glob(f"home/.cache/memtrack/*/{LIBRARY}"))


def test_a_program_runs_unrecorded_where_no_place_can_be_written(executable, tmp_path):
    """In a mount namespace that is read-only throughout."""
    script = """
        mount --make-rprivate / || exit 77
        mkdir -p -m 700 /tmp/memtrack-$(id -u)  # another test may make it meanwhile
        for copies in /tmp /var/tmp /dev/shm; do  # of earlier runs
            ! [ -d $copies/memtrack-$(id -u) ] || mount -t tmpfs -o ro tmpfs $copies/memtrack-$(id -u) || exit 77
        done
        mount -o remount,bind,ro / || exit 77
        for point in /tmp /var/tmp /dev/shm /run; do ! mountpoint -q $point || mount -o remount,bind,ro $point || exit 77; done
        if touch /dev/shm/x /tmp/x 2>/dev/null; then exit 77; fi
        env -u HOME -u XDG_RUNTIME_DIR XDG_CACHE_HOME=/nowhere "$0" run -- sh -c 'echo it ran; exit 7'
    """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, executable], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace to be had")
    assert (done.returncode, done.stdout) == (7, "it ran\n"), done.stderr
    assert "without recording" in done.stderr and "/nowhere/memtrack (" in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr


def test_a_library_of_another_version_is_refused_before_the_program_starts(executable, copied, tmp_path):
    _, (library,) = copied(tmp_path / "cache", "-c", "pass")
    other = tmp_path / "other.so"
    identity = b"memtrack " + execute([executable, "-V"]).stdout.split()[1] + b"\0"
    other.write_bytes(library.read_bytes().replace(identity, b"memtrack 9" + identity[10:]))
    marker = tmp_path / "marker"
    environment = {**os.environ, "MEMTRACK_SHIM": str(other)}
    done = execute([executable, "run", "-o", tmp_path / "b.bin", "--", "touch", marker], env=environment)
    assert done.status == 1 and not marker.exists()
    assert b"this is the library of memtrack 9" in done.stderr and str(other).encode() in done.stderr


def test_the_version_names_what_was_built(executable):
    lines = execute([executable, "--version"]).stdout.decode().splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["commit", "features", "glibc", "shim"]
    assert lines[0].split()[0] == "memtrack" and len(lines[0].split()) == 2
    assert execute([executable, "-V"]).stdout.decode().splitlines() == lines
