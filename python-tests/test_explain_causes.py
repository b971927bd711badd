"""`explain` on planted causes: for each of them the right finding stands first, with its line."""

import json
import sys
import textwrap

import pytest

# What programs that allocate as C code does begin with.
C_FUNCTIONS = """
        import ctypes, time
        libc = ctypes.CDLL(None)
        malloc, free = libc.malloc, libc.free
        malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
        def touched(size):
            block = malloc(size)
            ctypes.memset(block, 1, size)
            return block
"""

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
    "held-read": """
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
    "killed-signal": """
        import os, signal, time
        HOLD = []
        def grow():
            HOLD.append(bytearray(4_000_000))  # here
        for _ in range(20):
            grow()
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    "growth-callbacks": """
        import time
        SUBSCRIBERS = []
        class Widget:
            def __init__(self):
                self.pixels = bytes(3000)  # here
                SUBSCRIBERS.append(self.draw)
            def draw(self):
                pass
        for _ in range(1500):
            Widget()
            time.sleep(0.0003)
    """,
    "growth-extension": C_FUNCTIONS + """
        def request():
            malloc(3000)  # here
        for _ in range(1500):
            request()
            time.sleep(0.0003)
    """,
    "growth-exceptions": """
        import time
        FAILED = []
        def handle(number):
            body = bytearray(3000)  # here
            raise ValueError(number)
        for number in range(1500):
            try:
                handle(number)
            except ValueError as error:
                FAILED.append(error)
            time.sleep(0.0003)
    """,
    "growth-generators": """
        import time
        OPEN = []
        def stream():
            buffer = bytearray(3000)  # here
            while True:
                yield len(buffer)
        for _ in range(1500):
            OPEN.append(stream())
            next(OPEN[-1])
            time.sleep(0.0003)
    """,
    "copy-encode": """
        import time
        def read():
            return "x" * 30_000_000
        def send(text):
            return len(text.encode())  # here
        text = read()
        time.sleep(0.2)
        send(text)
        time.sleep(0.2)
    """,
    "copy-numpy": """
        import time, numpy
        def load():
            return numpy.ones(4_000_000)
        def scale(data):
            return data * 2.0  # here
        data = load()
        time.sleep(0.2)
        data = scale(data)
        time.sleep(0.2)
    """,
    "held-join": """
        def receive():
            return [bytes(1_000_000) for _ in range(40)]
        def assemble(parts):
            return b"".join(parts)  # here
        print(len(assemble(receive())))
    """,
    "held-groupby": """
        import numpy, pandas
        def table():
            return pandas.DataFrame({"key": numpy.arange(1_000_000) % 100, "value": numpy.ones(1_000_000)})
        def report(frame):
            return {key: group.copy() for key, group in frame.groupby("key")}  # here
        print(len(report(table())))
    """,
    "held-json": """
        import json
        def parse(text):
            return json.loads(text)  # here
        print(len(parse("[" + ", ".join(['{"number": 1.5, "name": "Anna"}'] * 100_000) + "]")))
    """,
    "held-lines": """
        import tempfile
        def lines(name):
            with open(name) as file:
                return file.readlines()  # here
        with tempfile.NamedTemporaryFile("w") as file:
            file.writelines("x" * 900 + "\\n" for _ in range(30_000))
            file.flush()
            print(len(lines(file.name)))
    """,
    "held-untouched": """
        import time
        def reserve():
            return bytearray(400_000_000)  # here
        buffer = reserve()
        time.sleep(0.1)
    """,
    "held-child": """
        import os, time
        def work():
            return bytearray(60_000_000)  # here
        if os.fork() == 0:
            data = work()
            time.sleep(0.2)
            os._exit(0)
        os.wait()
    """,
    "imports": """
        import numpy  # here
    """,
    # One block in 36 stays: each page has one.
    "pinned": C_FUNCTIONS + """
        def session():
            block = malloc(100)  # here
            ctypes.memset(block, 1, 100)
            return block
        def work():
            scratch, sessions = [], []
            for _ in range(10_000):
                scratch += [touched(100) for _ in range(35)]
                sessions.append(session())
            for block in scratch:
                free(block)
        begun = time.monotonic()
        work()
        # Most of the run, on a busy machine, too.
        time.sleep(max(0.3, 4 * (time.monotonic() - begun)))
    """,
    # The last one of many blocks stays, behind all that is free.
    "retained": C_FUNCTIONS + """
        def work():
            scratch = [touched(3500) for _ in range(20_000)]
            scratch.pop()
            for block in scratch:
                free(block)
        begun = time.monotonic()
        work()
        time.sleep(max(3, 4 * (time.monotonic() - begun)))
    """,
    "retained-arenas": C_FUNCTIONS + """
        import threading
        ready, begun = threading.Barrier(8), time.monotonic()
        def work():
            blocks = [touched(60_000) for _ in range(200)]
            ready.wait()
            blocks.pop()
            for block in blocks:
                free(block)
            time.sleep(max(3, 4 * (time.monotonic() - begun)))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """,
    "tiny": C_FUNCTIONS + """
        def index():
            return [malloc(24) for _ in range(300_000)]  # here
        index()
    """,
    "killed-limit": """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (600_000_000, 600_000_000))
        HOLD = []
        def grow():
            HOLD.append(bytearray(20_000_000))  # here
        while True:
            grow()
    """,
}


def source(directory, text):
    script = directory / "app.py"
    script.write_text(textwrap.dedent(text))
    lines = script.read_text().splitlines()
    return script, next((number for number, line in enumerate(lines, 1) if "# here" in line), None)


def explained(memtrack, tmp_path, text, options=()):
    script, line = source(tmp_path, text)
    outcome, capture = memtrack.run(sys.executable, script, options=["--snapshot-interval", "2", *options])
    assert outcome.status in (0, 1, 137), outcome.stderr
    captures = sorted(capture.path.parent.glob(f"{capture.path.stem}*.bin"))
    return json.loads(capture.reading("explain", "--json", *captures)), line, capture


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cause_stands_first(memtrack, tmp_path, name):
    for needed in ("numpy", "pandas"):
        if needed in PLANTED[name]:
            pytest.importorskip(needed)
    report, line, capture = explained(memtrack, tmp_path, PLANTED[name], ["--follow"] if name == "held-child" else [])
    first = report["findings"][0]
    assert first["id"] == name.split("-")[0], report["findings"]
    assert (first["severity"] == "warning") == (first["id"] in ("growth", "killed")) or first["id"] == "retained", first
    if line is not None:
        assert line in [evidence["line"] for evidence in first["evidence"]], first
    text = capture.reading("explain", capture.path) if name != "held-child" else ""
    assert name == "held-child" or first["title"] in text
