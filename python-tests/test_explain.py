"""`explain`: programs without a fault get no warning; its commands, sums, and programs that were killed for memory."""

import importlib.util
import json
import re
import json.decoder
import os
import pathlib
import shutil
import sys

import pytest

from conftest import REPOSITORY, execute, until
from test_explain_causes import PLANTED, explained, source

# Programs of others, which do what they are for.
HEALTHY_PROGRAMS = {
    "json": [sys.executable, "-m", "test", "test_json"],
    "containers": [sys.executable, "-m", "test", "test_dict", "test_list", "test_set", "test_heapq"],
    "pydoc": [sys.executable, "-m", "pydoc", "asyncio"],
    "mypy": [sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", "/dev/null", "app.py"],
    "django": [sys.executable, "-m", "django", "check", "--settings", "settings"],
    "pytest": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "app.py"],
    "pygments": [sys.executable, "-m", "pygments", "-l", "python", "-f", "html", json.decoder.__file__],
    "pandas": [sys.executable, "-c", "import pandas; print(pandas.DataFrame({'a': range(100_000)}).describe())"],
    "git": ["git", "-c", "safe.directory=*", "log", "--stat", "-100"],
    "sqlite3": [
        "sqlite3",
        ":memory:",
        "create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000) "
        "insert into t select x, hex(x) from c; create index i on t(b); select count(*) from t where b > '8';",
    ],
    "perl": ["perl", "-e", 'my %words; $words{$_ % 5000} .= "x" for 1 .. 200000; print scalar(keys %words);'],
    "sort": ["sort", "-o", "/dev/null", REPOSITORY / "Cargo.lock"],
}

HEALTHY = {
    "a cache that is full": """
        import functools, time
        @functools.lru_cache(maxsize=100)
        def value(key):
            return bytearray(3000)
        for key in range(1500):
            value(key)
            time.sleep(0.0003)
    """,
    "a table that is built once": """
        import time
        TABLE = [bytearray(3000) for _ in range(1500)]
        for _ in range(400):
            time.sleep(0.001)
    """,
    "requests": """
        import json, time
        for number in range(800):
            json.loads(json.dumps({"number": [number] * 200}))
            time.sleep(0.0005)
    """,
    "imports": "import asyncio, email, http.client, xml.dom.minidom, sqlite3",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_gets_no_warning(memtrack, tmp_path, name):
    report, _, _ = explained(memtrack, tmp_path, HEALTHY[name])
    assert [finding for finding in report["findings"] if finding["severity"] != "note"] == []


@pytest.mark.parametrize("name", HEALTHY_PROGRAMS)
def test_programs_of_others_get_no_warning(memtrack, tmp_path, name):
    command = HEALTHY_PROGRAMS[name]
    if command[0] == sys.executable and command[1] == "-m":
        importlib.util.find_spec(command[2]) or pytest.skip(f"no {command[2]}")
    elif command[0] != sys.executable:
        shutil.which(command[0]) or pytest.skip(f"no {command[0]}")
    (tmp_path / "app.py").write_text("import json\n\n\ndef test_app() -> None:\n    assert json.dumps({}) == '{}'\n")
    (tmp_path / "settings.py").write_text("SECRET_KEY = 'x'\nINSTALLED_APPS = ['django.contrib.contenttypes', 'django.contrib.auth']\n")
    if name == "git" and not (REPOSITORY / ".git").exists():
        pytest.skip("this is no repository")
    directory = REPOSITORY if name == "git" else tmp_path
    outcome, capture = memtrack.run(*command, cwd=directory, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert outcome.status == 0, outcome.stderr.decode()
    report = json.loads(capture.reading("explain", "--json", capture.path))
    assert [finding for finding in report["findings"] if finding["severity"] != "note"] == []


# What is kept for ever, all at once, and more that is live for a moment only.
BURST = """
    SESSIONS = {}
    def remember():
        for number in range(600):
            SESSIONS[number] = bytearray(30_000)  # here
    def report():
        table = [str(number) for number in range(1_000_000, 1_500_000)]
        return len(table)
    remember()
    report()
"""


def test_a_leak_in_a_burst_is_named_beside_what_holds_most(memtrack, tmp_path):
    report, line, _ = explained(memtrack, tmp_path, BURST, ["--trace-python-allocators"])
    evidence = {finding["id"]: finding["evidence"] for finding in reversed(report["findings"])}
    # Whoever holds most is named by its many small blocks, and does not hide the others.
    assert evidence["tiny"][0]["line"] == line + 2, report["findings"]
    assert evidence["held"][0]["line"] == line, report["findings"]
    [leaked] = [each for each in evidence["held"] if each["text"].startswith("not given back: ")]
    assert leaked["bytes"] >= 600 * 30_000 and leaked["text"].endswith(" of what leaked")


def test_what_imports_reserve_does_not_thin_the_share_of_a_leak(memtrack, tmp_path):
    """As of numpy, whose import reserves 78 MB that nobody touches."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "reserves.py").write_text("""
import ctypes
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
TABLE = LIBC.malloc(80_000_000)
""")
    program = f"""
    import sys
    sys.path.append({str(library)!r})
    import reserves
    KEPT = b"x" * 40_000_000  # here
    """
    report, line, _ = explained(memtrack, tmp_path, program)
    [held] = [finding for finding in report["findings"] if finding["id"] == "held"]
    assert held["evidence"][0]["line"] == line, report["findings"]
    [leaked] = [each["text"] for each in held["evidence"] if each["text"].startswith("not given back: ")]
    assert 95 < float(re.search("([0-9.]+) % of what leaked", leaked)[1]) <= 100, leaked


def test_its_commands_run_as_they_stand(memtrack, tmp_path):
    report, _, capture = explained(memtrack, tmp_path, PLANTED["growth-cache"])
    for finding in report["findings"]:
        command = finding["command"]
        assert command.startswith("memtrack ")
        outcome = execute(["sh", "-c", f"'{memtrack.executable}' {command[len('memtrack '):]}"])
        assert outcome.status == 0 and outcome.stdout, (command, outcome.stderr)


def test_sums_have_findings_too(memtrack, tmp_path):
    script, line = source(tmp_path, PLANTED["held-read"])
    capture = memtrack.record(sys.executable, script, options=["--aggregate"])
    report = json.loads(capture.reading("explain", "--json", capture.path))
    assert report["findings"][0]["evidence"][0]["line"] == line
    assert any("without --aggregate" in text for text in report["not_seen"])


def is_removed(group):
    """A process that was killed is in its group until all of it is gone."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def limited_group():
    """A control group with a memory limit, of whichever version the machine lets us make."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = pathlib.Path(root) / f"memtrack-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text("120000000")
            yield group
            until("its process is gone", lambda: is_removed(group))
            return
        group.rmdir()
    pytest.skip("no control group can be made here")


def test_the_killer_for_memory_is_named(memtrack, tmp_path, limited_group):
    script, line = source(tmp_path, PLANTED["killed-signal"].replace("range(20)", "range(1000)"))
    capture = tmp_path / "capture.bin"
    words = memtrack.command("run", "-q", "-o", capture, sys.executable, script)
    outcome = execute(["sh", "-c", f'echo $$ > {limited_group}/cgroup.procs && exec "$@"', "sh", *words])
    assert outcome.status == 137
    report = json.loads(memtrack("explain", "--json", capture).stdout)
    first = report["findings"][0]
    assert first["id"] == "killed" and "the OOM killer" in first["title"] and "120 MB" in first["title"], first
    assert line in [evidence["line"] for evidence in first["evidence"]], first
    [last] = [evidence for evidence in first["evidence"] if evidence["text"].startswith("last large request: 4.00 MB")]
    assert (last["line"], last["bytes"], last["count"]) == (line, 4_000_001, 1)
    stats = json.loads(memtrack("stats", "--json", capture).stdout)["capture"]
    assert stats["exit_status"] == 137 and "the OOM killer" in stats["end_reason"]
