"""A tree of Python processes, made in the way that the first argument names.

Worker n keeps n blocks of 100,000 + n bytes, made in `work`; every way makes workers 1 to 5 (50 for "many").
"""

import os
import signal
import subprocess
import sys
import threading

HERE = os.path.abspath(__file__)


def work(number):
    held = [bytes(100_000 + number) for _ in range(number)]
    return len(held)


def multiprocessing_way(method):
    import multiprocessing

    context = multiprocessing.get_context(method)
    workers = [context.Process(target=work, args=(number,)) for number in range(1, 6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def fork_one(number, then=lambda: None):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(number)
            then()
            status = 0
        finally:
            os._exit(status)
    return child


def forks(count=5):
    children = [fork_one(number) for number in range(1, count + 1)]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def from_thread():
    thread = threading.Thread(target=forks)
    thread.start()
    thread.join()


def prefork():
    """Workers that wait for work, and are killed, as a server's are: 3 at once, then 2 in the place of the first."""
    for numbers in ((1, 2, 3), (4, 5)):
        read, write = os.pipe()
        workers = [fork_one(number, lambda: (os.write(write, b"x"), signal.pause())) for number in numbers]
        for _ in numbers:
            os.read(read, 1)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)


def subprocesses():
    for number in range(1, 6):
        subprocess.run([sys.executable, HERE, "work", str(number)], check=True)


def shell():
    script = "".join(f'"{sys.executable}" "{HERE}" work {number} || exit 1\n' for number in range(1, 5))
    subprocess.run(["/bin/sh", "-c", script], check=True)
    assert os.system(f'"{sys.executable}" "{HERE}" work 5') == 0


def replaces():
    """Five programs in one process, after each other."""
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    work(number)
    if number < 5:
        os.execv(sys.executable, [sys.executable, HERE, "replaces", str(number + 1)])


def surroundings():
    """What a child finds in its environment, in its order, and which descriptors are open in it."""
    code = "import os; print(list(os.environ.items())); print(os.listdir('/proc/self/fd'))"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    child = os.fork()
    if child == 0:
        os.execv("/bin/sh", ["sh", "-c", "env; ls /proc/self/fd"])
    os.waitpid(child, 0)


if __name__ == "__main__":
    way = sys.argv[1]
    if way == "work":
        work(int(sys.argv[2]))
    elif way in ("fork", "spawn", "forkserver"):
        multiprocessing_way(way)
    else:
        {
            "forks": forks,
            "many": lambda: forks(50),
            "from_thread": from_thread,
            "prefork": prefork,
            "subprocesses": subprocesses,
            "shell": shell,
            "replaces": replaces,
            "surroundings": surroundings,
        }[way]()
    print(way, "done", flush=True)
