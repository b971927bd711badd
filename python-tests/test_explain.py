"""`explain`: planted causes stand first, with their line; programs without a fault get no warning."""

import json
import os
import pathlib
import sys
import textwrap

import pytest

from conftest import execute

# Each has the line that is to be named marked with `# here`, and the kind of finding.
PLANTED = {
    "growth-cache": """
        import time
        CACHE = {}
        def lookup(key):
            CACHE[key] = bytearray(3000)  # here
        for key in range(1500):
            lookup(key)
            time.sleep(0.0003)
    """,
    "growth-closure": """
        import time
        HANDLERS = []
        def register(number):
            data = [number] * 500  # here
            HANDLERS.append(lambda: data)
        for number in range(1500):
            register(number)
            time.sleep(0.0003)
    """,
    "growth-cycle": """
        import gc, time
        gc.disable()
        class Node:
            def __init__(self):
                self.me, self.payload = self, [0] * 400  # here
        for _ in range(1500):
            Node()
            time.sleep(0.0003)
    """,
    "growth-thread": """
        import threading, time
        RESULTS = []
        def work():
            for _ in range(1500):
                RESULTS.append(bytearray(3000))  # here
                time.sleep(0.0003)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """,
    "copy": """
        import time
        def load():
            return bytearray(30_000_000)
        def checksum(data):
            return sum(bytes(data)[::100_000])  # here
        data = load()
        time.sleep(0.2)
        checksum(data)
        time.sleep(0.2)
    """,
    "held": """
        def read(name):
            with open(name, "rb") as file:
                return file.read(20_000_000)  # here
        print(len(read("/dev/zero")))
    """,
    "churn": """
        def work():
            return len(bytearray(1 << 20))  # here
        for _ in range(5_000):
            work()
    """,
    "killed": """
        import os, signal, time
        HOLD = []
        def grow():
            HOLD.append(bytearray(4_000_000))  # here
        for _ in range(20):
            grow()
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
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


def source(directory, text):
    script = directory / "app.py"
    script.write_text(textwrap.dedent(text))
    lines = script.read_text().splitlines()
    return script, next((number for number, line in enumerate(lines, 1) if "# here" in line), None)


def explained(memtrack, tmp_path, text):
    script, line = source(tmp_path, text)
    outcome, capture = memtrack.run(sys.executable, script, options=["--snapshot-interval", "2"])
    assert outcome.status in (0, 137), outcome.stderr
    return json.loads(capture.reading("explain", "--json", capture.path)), line, capture


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cause_stands_first(memtrack, tmp_path, name):
    report, line, capture = explained(memtrack, tmp_path, PLANTED[name])
    first = report["findings"][0]
    assert first["id"] == name.split("-")[0], report["findings"]
    assert (first["severity"] == "warning") == (first["id"] in ("growth", "killed")), first
    assert line in [evidence["line"] for evidence in first["evidence"]], first
    text = capture.reading("explain", capture.path)
    assert first["title"] in text and f"app.py:{line}" in text


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_gets_no_warning(memtrack, tmp_path, name):
    report, _, _ = explained(memtrack, tmp_path, HEALTHY[name])
    assert [finding for finding in report["findings"] if finding["severity"] != "note"] == []


def test_its_commands_run_as_they_stand(memtrack, tmp_path):
    report, _, capture = explained(memtrack, tmp_path, PLANTED["growth-cache"])
    for finding in report["findings"]:
        command = finding["command"]
        assert command.startswith("memtrack ")
        outcome = execute(["sh", "-c", f"'{memtrack.executable}' {command[len('memtrack '):]}"])
        assert outcome.status == 0 and outcome.stdout, (command, outcome.stderr)


def test_sums_have_findings_too(memtrack, tmp_path):
    script, line = source(tmp_path, PLANTED["held"])
    capture = memtrack.record(sys.executable, script, options=["--aggregate"])
    report = json.loads(capture.reading("explain", "--json", capture.path))
    assert report["findings"][0]["evidence"][0]["line"] == line
    assert any("without --aggregate" in text for text in report["not_seen"])


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
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("no control group can be made here")


def test_the_killer_for_memory_is_named(memtrack, tmp_path, limited_group):
    script, line = source(tmp_path, PLANTED["killed"].replace("range(20)", "range(1000)"))
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
