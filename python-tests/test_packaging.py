"""The installer of the tarball, archives that are equal, and the Python package that finds the program.

What packages hold and whether they work in clean systems is tested by scripts/package --test.
"""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY, execute

INSTALLED = ["bin/memtrack", "lib/memtrack/libmemtrack_shim.so", "share/man/man1/memtrack.1.gz"]


@pytest.fixture
def unpacked(tmp_path):
    """What the tarball unpacks to, with files that say where they belong."""
    root = tmp_path / "unpacked"
    for name in INSTALLED:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(name)
    shutil.copy(REPOSITORY / "packaging" / "install.sh", root)
    return root


def install(unpacked, *arguments, **options):
    return execute([unpacked / "install.sh", *arguments], **options)


def paths_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_what_is_installed_is_removed_and_nothing_else(unpacked, tmp_path):
    prefix = tmp_path / "a prefix"
    (prefix / "share/man/man1").mkdir(parents=True)
    (prefix / "share/man/man1/other.1").touch()
    before = paths_below(prefix)
    assert install(unpacked, prefix).status == 0
    assert [(prefix / name).read_text() for name in INSTALLED] == INSTALLED
    # In a directory that the installation made.
    (prefix / "bin/other").touch()
    assert install(unpacked, "--uninstall", prefix).status == 0
    assert paths_below(prefix) == sorted([*before, "bin", "bin/other"])


def test_a_prefix_that_was_made_is_removed(unpacked, tmp_path):
    prefix = tmp_path / "prefix"
    assert install(unpacked, prefix).status == 0
    assert install(unpacked, prefix).status == 0  # again, which changes nothing
    assert install(unpacked, "--uninstall", prefix).status == 0
    assert not prefix.exists()


def test_a_newer_version_replaces_an_older_one(unpacked, tmp_path):
    prefix = tmp_path / "prefix"
    (unpacked / "lib/memtrack/old.so").touch()
    assert install(unpacked, prefix).status == 0
    (unpacked / "lib/memtrack/old.so").unlink()
    (unpacked / "bin/memtrack").write_text("newer")
    assert install(unpacked, prefix).status == 0
    assert (prefix / "bin/memtrack").read_text() == "newer" and not (prefix / "lib/memtrack/old.so").exists()
    assert install(unpacked, "--uninstall", prefix).status == 0
    assert not prefix.exists()


def test_the_installer_names_what_it_cannot_do(unpacked, tmp_path):
    nothing = install(unpacked, "--uninstall", tmp_path)
    assert nothing.status == 1 and "was not installed there" in nothing.stderr.decode()
    missing = install(unpacked, tmp_path / "missing" / "prefix")
    assert missing.status != 0 and not (tmp_path / "missing").exists()
    for wrong in [[], ["-x"], [""], ["a", "b"]]:
        usage = install(unpacked, *wrong)
        assert usage.status == 2 and "usage" in usage.stderr.decode()


def test_archives_do_not_depend_on_times_order_or_owners(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "packaging"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    checkout = importlib.import_module("checkout")
    sums = set()
    for number, names in enumerate([("a", "b", "c/d"), ("c/d", "b", "a")]):
        directory = tmp_path / str(number) / "memtrack"
        for name in names:
            checkout.write(directory / name, name, executable=name == "a")
            os.utime(directory / name, (number, number))
            # What the mask of the user makes of it.
            (directory / name).chmod((0o755 if name == "a" else 0o644) & ~(0o077 * number))
        target = tmp_path / f"{number}.tar.gz"
        checkout.archive(directory, target)
        sums.add(hashlib.sha256(target.read_bytes()).hexdigest())
    assert len(sums) == 1


def test_staged_files_follow_the_checkout_in_content_and_mode(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "packaging"))
    checkout = importlib.import_module("checkout")
    monkeypatch.setattr(checkout, "ROOT", tmp_path / "checkout")
    script = tmp_path / "checkout" / "script"
    checkout.write(script, "text")
    for command in ["git init -q", "git add script"]:
        assert execute([*command.split()], cwd=tmp_path / "checkout").status == 0
    staged = checkout.stage(tmp_path / "staged")
    (staged / "left over").touch()
    script.chmod(0o755)  # which leaves its time as it is
    (tmp_path / "checkout" / "unknown to git").touch()
    checkout.stage(staged)
    assert paths_below(staged) == ["script"] and os.access(staged / "script", os.X_OK)


@pytest.fixture
def package_environment(executable):
    """That of a user for whom the package is importable, and the program on PATH."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "PATH": f"{executable.parent}:{os.environ['PATH']}"}


def test_python_m_memtrack_records_with_that_interpreter(package_environment, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable)")
    command = [sys.executable, "-m", "memtrack", "run", "-q", "-o", tmp_path / "capture.bin", script]
    run = execute(command, env=package_environment)
    assert (run.status, run.stdout.decode().strip()) == (0, sys.executable)
    assert (tmp_path / "capture.bin").exists()


def test_an_option_of_the_program_names_no_interpreter(package_environment, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable, *sys.argv[1:])")
    options = ["run", "-q", "-f", "-o", tmp_path / "capture.bin"]
    for own in (["--python", "other"], ["--python=other"]):
        run = execute([sys.executable, "-m", "memtrack", *options, script, *own], env=package_environment)
        assert (run.status, run.stdout.decode().split()) == (0, [sys.executable, *own])


def test_python_m_memtrack_gives_the_status_and_the_arguments_of_the_program(package_environment, tmp_path):
    command = [sys.executable, "-m", "memtrack", "stats", tmp_path / "no capture"]
    assert execute(command, env=package_environment).status == 1
    command = [sys.executable, "-m", "memtrack", "run", "--python", "/nowhere", "-c", "1"]
    assert execute(command, env=package_environment, cwd=tmp_path).status == 127


def test_without_the_program_the_places_are_named(tmp_path):
    code = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('memtrack', run_name='__main__')"
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-c", code, str(REPOSITORY / "python"), "stats"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and "neither on PATH nor in any of" in run.stderr and "Traceback" not in run.stderr
