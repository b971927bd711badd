#!/usr/bin/env python3
"""Prints everything a program can see of how it was started, as JSON."""

import json
import os
import resource
import signal
import sys


def terminal(descriptor):
    if not os.isatty(descriptor):
        return None
    return list(os.get_terminal_size(descriptor)), os.tcgetpgrp(descriptor) == os.getpgrp()


def signals():
    """Signal: disposition, for those that have one of their own; and what is blocked."""
    handlers = {number: str(signal.getsignal(number)) for number in range(1, signal.NSIG)}
    return {number: handler for number, handler in handlers.items() if "SIG_DFL" not in handler}, sorted(
        signal.pthread_sigmask(signal.SIG_BLOCK, [])
    )


def environment_of_children():
    with os.popen("env") as output:
        return output.read()


def descriptors():
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))


seen = {
    "argv": sys.argv,
    "orig_argv": getattr(sys, "orig_argv", None),
    "path": sys.path,
    "name": __name__,
    "file": globals().get("__file__"),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "spec": str(globals().get("__spec__") and __spec__.name),
    "executable": sys.executable,
    "prefix": sys.prefix,
    "flags": str(sys.flags),
    "environment": dict(os.environ),
    "environment_order": list(os.environ),
    "environment_of_children": environment_of_children(),
    "directory": os.getcwd(),
    "terminals": [terminal(descriptor) for descriptor in range(3)],
    "descriptors": descriptors(),
    "signals": signals(),
    "limits": [resource.getrlimit(limit) for limit in range(16)],
    "umask": os.umask(0o22),
    "session_leader": os.getsid(0) == os.getpid(),
    "children": open("/proc/thread-self/children").read(),
}
print(json.dumps(seen, indent=1, sort_keys=True, default=str))
print("input:", sys.stdin.read() if not sys.stdin.isatty() else "terminal")
