"""Runs tests and writes what became of each to a file, a line for each: name, tab, outcome; a later line replaces an
earlier one of the same name. Usage: outcomes.py FILE unittest MODULE, or outcomes.py FILE pytest ARGUMENT...

A line is written before a test begins, too, so that the file tells which one a crash was in. The file is opened for
each line: tests close descriptors and replace what they like, and this is not to be what they trip over.
"""

import os
import sys
import unittest

OPEN, WRITE, CLOSE, GETPID = os.open, os.write, os.close, os.getpid
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
RESULTS = os.path.abspath(sys.argv[1])
PROCESS = GETPID()


def note(name, outcome):
    if GETPID() != PROCESS:
        return  # a child that a test has forked
    line = f"{name}\t{outcome}\n".encode("utf-8", "backslashreplace")
    descriptor = OPEN(RESULTS, APPEND, 0o600)
    WRITE(descriptor, line)
    CLOSE(descriptor)


class Result(unittest.TextTestResult):
    """Of unittest."""

    def startTest(self, test):
        super().startTest(test)
        self.failed = False
        note(test.id(), "begun")

    def conclude(self, test, outcome):
        note(test.id(), outcome)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.conclude(test, "failed" if self.failed else "passed")

    def addError(self, test, error):
        super().addError(test, error)
        self.conclude(test, "error")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.conclude(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.conclude(test, "skipped")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.conclude(test, "failed as expected")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.conclude(test, "passed unexpectedly")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.failed = True
            self.conclude(subtest, "failed")
            self.conclude(test, "failed")


class Reports:
    """A plugin of pytest."""

    @staticmethod
    def pytest_runtest_logstart(nodeid):
        note(nodeid, "begun")

    @staticmethod
    def pytest_runtest_logreport(report):
        if report.when == "call" or report.outcome != "passed":
            expected = "as expected " if hasattr(report, "wasxfail") else ""
            note(report.nodeid, expected + report.outcome)

    @staticmethod
    def pytest_collectreport(report):
        if report.failed:
            note(report.nodeid, "not collected")


def run_unittest(module):
    from test import support

    support.use_resources = []  # as the standard library's own runner does it: no network, nothing huge
    tests = unittest.defaultTestLoader.loadTestsFromName(module)
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=1)
    return 0 if runner.run(tests).wasSuccessful() else 1


def run_pytest(arguments):
    import pytest

    return int(pytest.main(arguments, plugins=[Reports()]))


if __name__ == "__main__":
    kind, arguments = sys.argv[2], sys.argv[3:]
    sys.argv[1:] = []
    sys.exit(run_unittest(*arguments) if kind == "unittest" else run_pytest(arguments))
