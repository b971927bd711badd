"""`memtrack run --push` and `--otlp`: profiles of windows, as Pyroscope, Parca and collectors of OpenTelemetry take them, and servers
that are gone, slow, or talk nonsense."""

import base64
import email
import email.policy
import gzip
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse

import pytest

from conftest import PATIENCE, in_one_of

#: It goes on while there is the file `awaited` beside it.
GROWING = """
import os, time
kept, rounds = [], 0
def grow():
    for _ in range(10):
        kept.append(bytes(100_000))
def churn():
    for _ in range(100):
        bytes(50_000)
while rounds < 5 or os.path.exists(os.path.join(os.path.dirname(__file__), "awaited")):
    grow()
    churn()
    time.sleep(0.3)
    rounds += 1
"""
EVERY = ("--push-every", "500ms")


class Server:
    """Stores what is posted to it; `answer` gives the status, or None to close the connection. Programs in `folder` that grow end when
    there are as many posts as are `wanted`."""

    def __init__(self, answer=lambda number: 200, body=b"", headers=(), folder=None, wanted=1):
        self.posts, self.times = [], []
        self.awaited = folder and folder / "awaited"
        if folder:
            self.awaited.touch()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.times.append(time.monotonic())
                content = self.rfile.read(int(self.headers["Content-Length"]))
                status = answer(len(outer.posts))
                outer.posts.append((self.path, self.headers, content))
                if outer.awaited and len(outer.posts) >= wanted:
                    outer.awaited.unlink(missing_ok=True)
                if status is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        if self.awaited:
            self.awaited.unlink(missing_ok=True)


def pushed(record, folder, **how):
    """What `record(server)` gives, and all posts. A recording that itself says that its last windows were not sent is repeated: how many can
    be sent in the time that there is at the end is the machine's matter."""
    for _ in range(5):
        with Server(folder=folder, **how) as server:
            run, capture = record(server)
        if not re.search("windows are not sent|windows? not delivered", told(run)):
            return run, capture, server
    raise AssertionError(told(run))


def program(folder):
    path = folder / "growing.py"
    path.write_text(GROWING)
    return path


def parts(headers, content):
    """The parts of a form by their names."""
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + content, policy=email.policy.HTTP)
    found = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
    return {name: part.get_payload(decode=True) for name, part in found.items()}


def raw(profile, folder):
    """What pprof itself reads in a profile."""
    go = shutil.which("go") or pytest.skip("no go")
    path = folder / "profile.pb.gz"
    path.write_bytes(profile)
    return subprocess.run([go, "tool", "pprof", "-raw", path], capture_output=True, text=True, check=True).stdout


def sums(text):
    """The sum of each sample type."""
    rows = [[int(number) for number in found.split()] for found in re.findall(r"^ *((?:\d+ +){3}\d+):", text, re.M)]
    return [sum(column) for column in zip(*rows, strict=True)] if rows else [0] * 4


def varints(message):
    """The fields of a message by their numbers: integers, or bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            assert key & 7 == 2, key
            length = varint()
            value = message[at : at + length]
            at += length
        found.setdefault(key >> 3, []).append(value)
    return found


def times(profile):
    """time_nanos and duration_nanos, fields 9 and 10 of pprof's Profile."""
    fields = varints(gzip.decompress(profile))
    return fields[9][0], fields[10][0]


def assert_contiguous(spans, began_ns):
    assert spans[0][0] == began_ns
    for (time_ns, duration_ns), (next_ns, _) in zip(spans, spans[1:], strict=False):
        assert time_ns + duration_ns == next_ns and duration_ns > 0


def told(run):
    return run.stderr.decode()


def totals(memtrack, capture):
    stats = json.loads(memtrack("stats", "--json", capture).stdout)
    end = json.loads(memtrack("table", "--json", "--at-exit", capture).stdout)["rows"]
    return stats["allocations"], {"count": sum(row["count"] for row in end), "bytes": sum(row["bytes"] for row in end)}


def test_pyroscope_gets_each_window_once(memtrack, python, tmp_path):
    options = (*EVERY, "--push-label", "env=prod")
    record = lambda server: memtrack.run(python, program(tmp_path), options=("--push", server.url, *options))
    run, capture, server = pushed(record, tmp_path, wanted=4)
    assert run.status == 0
    paths = [urllib.parse.urlsplit(path) for path, _, _ in server.posts]
    queries = [dict(urllib.parse.parse_qsl(path.query)) for path in paths]
    assert {path.path for path in paths} == {"/ingest"} and len(paths) >= 4
    pid = json.loads(memtrack("stats", "--json", capture.path).stdout)["capture"]["pid"]
    host = socket.gethostname()
    for query in queries:
        assert query["name"] == f"growing.py{{host={host},pid={pid},env=prod}}"
        assert query["format"] == "pprof" and query["spyName"] == "memtrack" and int(query["from"]) <= int(query["until"])
    found = [parts(headers, content) for _, headers, content in server.posts]
    types = {name: of["cumulative"] for name, of in json.loads(found[0]["sample_type_config"]).items()}
    assert types == dict.fromkeys(("alloc_objects", "alloc_space", "inuse_objects", "inuse_space"), False)
    spans = [times(part["profile"]) for part in found]
    assert_contiguous(spans, spans[0][0])
    texts = [raw(part["profile"], tmp_path) for part in found]
    assert "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes" in texts[0]
    columns = [sums(text) for text in texts]
    allocated, live = totals(memtrack, capture.path)
    assert [sum(column) for column in zip(*columns, strict=True)][:2] == [allocated["count"], allocated["bytes"]]
    assert columns[-1][2:] == [live["count"], live["bytes"]]
    assert any("grow" in text for text in texts)


def test_windows_of_an_aggregated_recording_have_all_that_its_sums_have(memtrack, python, tmp_path):
    record = lambda server: memtrack.run(python, program(tmp_path), options=("--aggregate", "--push", server.url, *EVERY))
    run, capture, server = pushed(record, tmp_path)
    assert run.status == 0
    found = [parts(headers, content)["profile"] for _, headers, content in server.posts]
    spans = [times(profile) for profile in found]
    assert_contiguous(spans, spans[0][0])
    columns = [sums(raw(profile, tmp_path)) for profile in found]
    allocated, live = totals(memtrack, capture.path)
    assert [sum(column) for column in zip(*columns, strict=True)][:2] == [allocated["count"], allocated["bytes"]]
    assert columns[-1][2:] == [live["count"], live["bytes"]]


def test_parca_gets_profiles_and_labels(memtrack, python, tmp_path):
    options = ("--push-format", "parca", *EVERY, "--push-label", "service=shop")
    record = lambda server: memtrack.run(python, program(tmp_path), options=("--push", f"{server.url}/parca/", *options))
    _, capture, server = pushed(record, tmp_path)
    profiles = []
    for path, headers, content in server.posts:
        assert path == "/parca/profiles/writeraw" and headers["Content-Type"] == "application/json"
        (series,) = json.loads(content)["series"]
        labels = {label["name"]: label["value"] for label in series["labels"]["labels"]}
        assert labels["service"] == "shop" and labels["__name__"] == "memory" and set(labels) == {"__name__", "service", "host", "pid"}
        profiles.append(base64.b64decode(series["samples"][0]["rawProfile"]))
    assert_contiguous([times(profile) for profile in profiles], times(profiles[0])[0])
    columns = [sums(raw(profile, tmp_path)) for profile in profiles]
    allocated, _ = totals(memtrack, capture.path)
    assert sum(column[1] for column in columns) == allocated["bytes"]


def test_a_collector_gets_profiles_of_the_published_schema(memtrack, python, tmp_path):
    service = pytest.importorskip("opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2")
    record = lambda server: memtrack.run(python, program(tmp_path), options=("--otlp", server.url, *EVERY))
    _, capture, server = pushed(record, tmp_path)
    sent = {"alloc_objects": 0, "alloc_space": 0}
    spans, ids, functions = [], set(), set()
    for path, headers, content in server.posts:
        assert path == "/v1development/profiles" and headers["Content-Encoding"] == "gzip"
        assert headers["Content-Type"] == "application/x-protobuf"
        request = service.ExportProfilesServiceRequest.FromString(gzip.decompress(content))
        tables = request.dictionary
        assert tables.string_table[0] == "" and len(set(tables.string_table)) == len(tables.string_table)
        for name in ("mapping", "location", "function", "link", "attribute", "stack"):
            table = getattr(tables, f"{name}_table")
            assert table[0] == type(table[0])(), name
        (of_process,) = request.resource_profiles
        attributes = {one.key: one.value for one in of_process.resource.attributes}
        assert attributes["service.name"].string_value == "growing.py" and attributes["process.pid"].int_value > 0
        (scope,) = of_process.scope_profiles
        assert scope.scope.name == "memtrack"
        window = {}
        for profile in scope.profiles:
            kind = tables.string_table[profile.sample_type.type_strindex]
            window[kind] = sum(value for sample in profile.samples for value in sample.values)
            assert all(len(sample.values) == 1 and sample.values[0] > 0 for sample in profile.samples)
            assert len(profile.profile_id) == 16
            ids.add(profile.profile_id)
            for sample in profile.samples:
                for location in tables.stack_table[sample.stack_index].location_indices:
                    assert location > 0
                    (line,) = tables.location_table[location].lines
                    functions.add(tables.string_table[tables.function_table[line.function_index].name_strindex])
                assert all(0 < index < len(tables.attribute_table) for index in sample.attribute_indices)
        assert list(window) == ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]
        spans.append((scope.profiles[0].time_unix_nano, scope.profiles[0].duration_nano))
        for kind in sent:
            sent[kind] += window[kind]
    allocated, live = totals(memtrack, capture.path)
    assert sent == {"alloc_objects": allocated["count"], "alloc_space": allocated["bytes"]}
    assert window["inuse_space"] == live["bytes"] and {"grow", "churn"} <= functions
    assert len(ids) == 4 * len(server.posts)
    assert_contiguous(spans, spans[0][0])


def test_children_are_sent_with_their_own_pids(memtrack, python, programs, tmp_path):
    options = ("--follow", *EVERY)
    record = lambda server: memtrack.run(python, programs / "tree.py", "forks", options=("--push", server.url, *options))
    run, _, server = pushed(record, tmp_path)
    assert run.status == 0
    names = {dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(path).query))["name"] for path, _, _ in server.posts}
    assert len(names) == 6


def test_the_end_says_how_many_windows_were_delivered(memtrack, python, tmp_path):
    command = ("run", "-f", "-o", "c.bin", *EVERY, "--push")
    record = lambda server: (memtrack(*command, server.url, python, program(tmp_path)), None)
    done, _, server = pushed(record, tmp_path, wanted=2)
    assert done.status == 0 and f"{len(server.posts)} windows delivered to {server.url}" in told(done)


def test_what_fails_is_sent_again(memtrack, python, tmp_path):
    """Every second request fails in another way."""
    ways = {1: 500, 3: None, 5: 429, 7: 503}
    record = lambda server: memtrack.run(python, program(tmp_path), options=("--push", server.url, *EVERY))
    run, capture, server = pushed(record, tmp_path, answer=lambda number: ways.get(number, 200), wanted=max(ways) + 2)
    assert run.status == 0
    delivered = [post for number, post in enumerate(server.posts) if number not in ways]
    spans = [times(parts(headers, content)["profile"]) for _, headers, content in delivered]
    assert_contiguous(spans, spans[0][0])
    columns = [sums(raw(parts(headers, content)["profile"], tmp_path)) for _, headers, content in delivered]
    allocated, _ = totals(memtrack, capture.path)
    assert sum(column[1] for column in columns) == allocated["bytes"]
    assert told(run).count("a window was not delivered") == 1 and "windows not delivered" not in told(run)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_time_is_asked_no_more_before(memtrack, python, tmp_path, status):
    """Neither while the program runs nor at its end, for which it would be too late."""
    with Server(lambda number: status, headers=[("Retry-After", "3600")], folder=tmp_path) as server:
        run, _ = memtrack.run(python, program(tmp_path), options=("--push", server.url, *EVERY))
    assert run.status == 0 and len(server.posts) == 1
    assert re.search(r"(\d+) of \1 windows? not delivered", told(run)), told(run)


def test_a_server_that_fails_gets_few_requests_at_the_end(memtrack, python, tmp_path):
    """Pauses of 0.5, 1, 2 … s, before the end and in the 5 s after it."""
    with Server(lambda number: 500, folder=tmp_path) as server:
        run, _ = memtrack.run(python, program(tmp_path), options=("--push", server.url, *EVERY))
    assert run.status == 0 and server.posts
    pauses = [after - before for before, after in zip(server.times, server.times[1:])]
    grow = lambda some: all(pause >= 0.5 * 2**number for number, pause in enumerate(some))
    # The end cuts one short, begins anew, and has time for three.
    cuts = [at for at in range(len(pauses) + 1) if grow(pauses[:at]) and grow(pauses[at + 1 :])]
    assert any(len(pauses[at + 1 :]) <= 3 for at in cuts), pauses


def is_whole(window):
    """Whether a window was written to its end: behind its head stand as many bytes as that says."""
    head, _, body = window.read_bytes().partition(b"\n")
    return bool(head) and body != b"" and json.loads(head)["length"] == len(body)


def test_what_a_killed_memtrack_has_left_is_sent_by_the_next_one(executable, python, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    statuses = [None]
    script = tmp_path / "waits.py"
    script.write_text("import sys\nkept = []\nprint(1, flush=True)\nfor line in sys.stdin:\n    kept.append(bytes(100_000))\n")
    pid = re.compile(r"pid%3D(\d+)")
    with Server(lambda number: statuses[0]) as server:
        command = [executable, "run", "-f", "-o", tmp_path / "killed.bin", "--push", server.url, "--push-every", "100ms", python, script]
        killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        deadline = time.monotonic() + PATIENCE
        while len(list(tmp_path.glob("memtrack-push-*/[0-9]*"))) < 4 and time.monotonic() < deadline:
            killed.stdin.write(b"\n")
            killed.stdin.flush()
        killed.kill()
        killed.wait()
        killed.stdin.close()
        found = list(tmp_path.glob("memtrack-push-*/[0-9]*"))
        # One was perhaps just being written.
        left = [window for window in found if is_whole(window)]
        assert len(left) >= 3 and len(found) - len(left) <= 1
        [window.unlink() for window in found if window not in left]
        # A recording that sends to another server leaves it alone.
        run = [executable, "run", "-f", "-o", tmp_path / "other.bin"]
        with Server() as other:
            subprocess.run([*run, "--push", other.url, python, script], stdin=subprocess.DEVNULL, check=True)
            assert len(other.posts) == 1
        assert set(tmp_path.glob("memtrack-push-*/[0-9]*")) == set(left)
        # One whose server is still gone leaves it, too, and has not waited for what is no window; a torn one is discarded.
        torn, pipe = (left[0].with_name(name) for name in ("1000000", "1000001"))
        torn.write_bytes(left[0].read_bytes()[:-1])
        os.mkfifo(pipe)
        push = [*run, "--push", server.url, python, script]
        gone = subprocess.run(push, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
        assert f"{len(left)} of a recording that was killed wait for the next one" in gone.stderr
        pipe.unlink()
        assert set(tmp_path.glob("memtrack-push-*/[0-9]*")) == set(left)
        # Nor is it another user's.
        tenant = server.url.replace("http://", "http://tenant:secret@")
        statuses[0], number = 200, len(server.posts)
        subprocess.run([*run, "--push", tenant, python, script], stdin=subprocess.DEVNULL, check=True)
        assert len(server.posts) == number + 1
        statuses[0], number = 200, len(server.posts)
        ended = subprocess.run(push, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        pids = [pid.search(path)[1] for path, _, _ in server.posts[number:]]
    assert len(pids) == len(left) + 1 and len(set(pids)) == 2, pids
    assert f"{len(left)} windows of a recording that was killed wait, too" in ended.stderr
    assert f"{len(left) + 1} windows delivered" in ended.stderr
    assert not list(tmp_path.glob("memtrack-push-*"))


def test_a_server_that_refuses_is_named_once(memtrack, python, tmp_path):
    with Server(lambda number: 401, b"no\x1b[31m such tenant", folder=tmp_path, wanted=2) as server:
        run, _ = memtrack.run(python, program(tmp_path), options=("--push", server.url, *EVERY))
    assert run.status == 0 and "401" in told(run) and "\x1b" not in told(run)
    number = len(server.posts)
    assert f"{number} of {number} windows not delivered to {server.url}" in told(run)


def test_the_first_window_that_is_given_up_is_said_also_after_others_have_waited(memtrack, python, tmp_path):
    with Server(lambda number: 500 if number == 0 else 404, b"no such route", folder=tmp_path, wanted=3) as server:
        run, _ = memtrack.run(python, program(tmp_path), options=("--push", server.url, *EVERY))
    assert run.status == 0 and "500" in told(run)
    assert told(run).count("a window was given up, and is not sent again: the server answers 404 Not Found: no such route") == 1


def test_a_module_is_the_service(memtrack, python, tmp_path):
    command = ("run", "-f", "-o", "c.bin", *EVERY, "--push")
    record = lambda server: (memtrack(*command, server.url, python, "-m", program(tmp_path).stem), None)
    _, _, server = pushed(record, tmp_path, wanted=1)
    path, _, _ = server.posts[0]
    assert "name=growing%7B" in path or "name=growing{" in path, path


def test_rejected_profiles_of_a_collector_are_counted(memtrack, python, tmp_path):
    service = pytest.importorskip("opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2")
    answer = service.ExportProfilesServiceResponse(partial_success={"rejected_profiles": 4, "error_message": "too old"})
    with Server(body=answer.SerializeToString(), folder=tmp_path) as server:
        run, _ = memtrack.run(python, program(tmp_path), options=("--otlp", server.url, *EVERY))
    assert "4 profiles of a window were rejected: too old" in told(run)


@pytest.mark.parametrize("behaviour", ["closed", "silent", "nonsense"])
def test_no_server_keeps_the_program_or_memtrack_for_long(memtrack, python, tmp_path, behaviour):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    # Nobody else is given the port meanwhile.
    if behaviour != "closed":
        listener.listen()
    if behaviour == "nonsense":

        def talk():
            while True:
                try:
                    connection, _ = listener.accept()
                    connection.sendall(b"\xff" * 100_000)
                    connection.close()
                except OSError:
                    return

        threading.Thread(target=talk, daemon=True).start()
    begun = time.monotonic()
    run, capture = memtrack.run(python, program(tmp_path), options=("--push", url, *EVERY))
    took = time.monotonic() - begun
    listener.close()
    assert run.status == 0 and capture.path.exists()
    assert re.search(rf"\d+ of \d+ windows? not delivered to {url}", told(run)), told(run)
    # 5 s at the end, whatever the machine is busy with.
    assert took < 60


def test_a_request_in_flight_is_waited_for_no_longer_than_others(memtrack, python):
    def attempt():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            code = "import time; time.sleep(1); print(time.monotonic())"
            run, _ = memtrack.run(python, "-c", code, options=("--push", url, *EVERY))
            took = time.monotonic() - float(run.stdout)
        assert re.search("windows? not delivered", told(run)), told(run)
        # The request began in the first second, and has 10 s.
        return "" if 4 < took < 8 else f"{took} s: {told(run)}"

    in_one_of(5, attempt)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--push", "https://127.0.0.1:1"), "TLS"),
        (("--push", "localhost:4040"), "expected the root of a server"),
        (("--push", "http://127.0.0.1:1", "--push-every", "0s"), "from 100ms"),
        (("--push", "http://127.0.0.1:1", "--push-label", "a"), "NAME=VALUE"),
        (("--push-format", "parca"), "--push"),
        # What only servers and snapshots have is refused without them.
        (("--push-every", "5s"), "--otlp"),
        (("--push-label", "env=prod"), "--otlp"),
        (("--snapshot-keep", "3"), "--snapshot-every"),
        (("--snapshot-every", "5s", "--snapshot-keep", "0"), "expected a whole number from 1"),
        (("--otlp", "http://127.0.0.1:1", "--dormant"), "--otlp"),
    ],
)
def test_wrong_usage(executable, python, options, said):
    done = subprocess.run([executable, "run", *options, python, "-c", ""], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_password_goes_to_the_server_and_nowhere_else(memtrack, python, tmp_path):
    with Server(lambda number: 401, folder=tmp_path) as server:
        url = server.url.replace("http://", "http://me:secret@")
        run, _ = memtrack.run(python, program(tmp_path), options=("--push", url, *EVERY))
    assert server.posts[0][1]["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()
    assert "secret" not in told(run)
