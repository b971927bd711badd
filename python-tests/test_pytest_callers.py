"""The plugin for pytest beside plugins that call the test function, or its parts, by themselves: all that it calls is judged, or the test
says why not.

Each test runs pytest in a process of its own, as in test_pytest_plugin.py.
"""

import json

import pytest

from test_pytest_plugin import outcomes, tests  # noqa: F401

pytest_plugins = ["pytester"]

DJANGO = """
import unittest
from django.test import SimpleTestCase, TestCase, TransactionTestCase

KEPT = []

class Kinds:
    @pytest.mark.limit_memory("8 MB")
    def test_over(self):
        kept = load(9)

    @pytest.mark.limit_leaks("100 kB")
    def test_leaks(self):
        KEPT.append(load(1))

    @pytest.mark.limit_memory("8 MB")
    async def test_async_over(self):
        kept = load(9)

    @pytest.mark.limit_memory("8 MB")
    def test_within(self):
        kept = load(7)

    def test_without(self):
        kept = load(3)

class Plain(Kinds, SimpleTestCase):
    pass

class Rows(Kinds, TestCase):
    pass

class Transactions(Kinds, TransactionTestCase):
    pass

@pytest.mark.limit_memory("8 MB")
@pytest.mark.django_db
def test_function():
    kept = load(9)
"""


@pytest.mark.parametrize("options", [[], ["--memtrack-compare=figures.json"], ["--memtrack-dir=captures"]], ids=" ".join)
def test_cases_of_django(tests, pytester, options):  # noqa: F811
    """pytest-django calls the test case, which looks up its method by itself."""
    pytest.importorskip("pytest_django")
    pytester.makepyfile(settings="DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}")
    result = tests(DJANGO, "-p", "django", "--ds=settings", "-p", "no:asyncio", "-p", "no:anyio", "-rN", *options)
    assert outcomes(result) == {"passed": 6, "failed": 10}, result.stdout.str()
    text = result.stdout.str()
    assert text.count("limit_memory('8 MB'): the test held 9.") == 7
    assert text.count("limit_leaks('100 kB'): what the test leaves grows by 1.0") == 3
    if "compare" in str(options):
        known = json.loads((pytester.path / "figures.json").read_text())["tests"]
        assert len(known) == 16 and known["test_shop.py::Rows::test_without"]["peak_bytes"] // 1_000_000 == 3


def test_a_case_has_its_methods_as_before(tests):  # noqa: F811
    result = tests(
        """
import unittest

class Case(unittest.TestCase):
    def tearDown(self):
        type(self).last = self

    @pytest.mark.limit_memory("8 MB")
    def test_over(self):
        load(9)

def test_after():
    assert "test_over" not in vars(Case.last)
""",
    )
    assert outcomes(result) == {"passed": 1, "failed": 1}, result.stdout.str()


STEPS = """
from pytest_bdd import given, scenario, then, when

KEPT = []

@pytest.mark.limit_memory("8 MB")
@scenario("shop.feature", "large")
def test_over():
    pass

@pytest.mark.limit_leaks("100 kB")
@scenario("shop.feature", "leaking")
def test_leaks():
    pass

@pytest.mark.limit_memory("8 MB")
@scenario("shop.feature", "within")
def test_within():
    pass

@pytest.fixture
def stock():
    yield load(20)

@given("a stock", target_fixture="basket")
def basket(stock):
    return []

@when("many are taken")
def take_many(basket):
    basket.append(load(9))
    yield

@when("one is remembered")
def remember():
    KEPT.append(load(1))

@then("it is done")
def done(basket):
    load(2)
"""
FEATURE = """
Feature: shop
  Scenario: large
    Given a stock
    When many are taken
    Then it is done
  Scenario: leaking
    When one is remembered
  Scenario: within
    Given a stock
    Then it is done
"""


def test_steps_of_a_scenario(tests, pytester):  # noqa: F811
    """pytest-bdd calls steps with the function that calls fixtures. What the fixtures of a step allocate is theirs."""
    pytest.importorskip("pytest_bdd")
    pytester.makefile(".feature", shop=FEATURE)
    result = tests(STEPS, "-p", "pytest-bdd")
    assert outcomes(result) == {"passed": 1, "failed": 2}, result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "limit_memory('8 MB'): the test held 11.* MB*",
            "*load*",
            "*called by take_many at test_shop.py:*",
            "fixtures, not judged: *stock (20.0 MB while the test ran)*",
            "limit_leaks('100 kB'): what the test leaves grows by 1.0* MB*",
            "*called by remember at test_shop.py:*",
        ]
    )


LATE = {
    "modifyitems": """
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.limit_memory("1 MB"))
""",
    "modifyitems, last": """
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.limit_memory("1 MB"))
""",
    "setup": """
def pytest_runtest_setup(item):
    item.add_marker(pytest.mark.limit_memory("1 MB"))
""",
    "fixture": """
@pytest.fixture(autouse=True)
def limited(request):
    request.node.add_marker(pytest.mark.limit_memory("1 MB"))
""",
}
REPLACING = """
import logging

def fail(*_):
    1 / 0

def replace(patch):
    patch.setattr(os, "listdir", fail)
    patch.setattr(os.path, "exists", fail)
    patch.setattr("builtins.open", fail)

@pytest.fixture
def replaced(monkeypatch):
    with monkeypatch.context() as patch:
        replace(patch)
        yield
"""
REPLACED = [
    """
def test_it(monkeypatch):
    replace(monkeypatch)
    kept = load(2)
""",
    """
def test_it(replaced):
    kept = load(2)
""",
    """
def test_it():
    for number in range(1500):
        logging.warning("%d %s", number, "x" * 500)
    kept = load(2)
""",
    """
import warnings

def test_it():
    for number in range(5000):
        warnings.warn(f"{number}: use new", DeprecationWarning)
    kept = load(2)
""",
]


@pytest.mark.parametrize("code", REPLACED, ids=["replaces", "fixture-replaces", "logs", "warns"])
@pytest.mark.parametrize("way", LATE)
def test_limits_that_come_late(tests, pytester, way, code):  # noqa: F811
    """The first one finds everything prepared, as if the marker stood in the source."""
    pytester.makeconftest("import pytest\n" + LATE[way])
    result = tests(REPLACING + code)
    assert outcomes(result) == {"failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["limit_memory('1 MB'): the test held *, *"])
    if "logging" in code:
        result.stdout.fnmatch_lines(["kept by pytest for its report, not judged: log (*)"])
    if "import warnings" in code:
        result.stdout.fnmatch_lines(["kept by pytest for its report, not judged: warnings (*)"])


#: Calls tests before pytest does, as pytest-asyncio-cooperative; what pytest calls afterwards gives the result.
AHEAD = """
import pytest

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    for item in session.items:
        if "ahead" in item.name:
            item.obj()
            item.runtest = lambda: None
    yield
"""
UNSEEN = """
@pytest.mark.limit_memory("8 MB")
def test_ahead():
    kept = load(9)

@pytest.mark.limit_leaks("100 kB")
def test_ahead_too():
    kept = load(9)

@pytest.mark.xfail(reason="known")
@pytest.mark.limit_memory("8 MB")
def test_ahead_known():
    kept = load(9)

def test_ahead_without():
    kept = load(9)

@pytest.mark.limit_memory("8 MB")
def test_skips():
    pytest.skip("not today")
"""


def test_a_call_that_is_not_seen(tests, pytester):  # noqa: F811
    """Its limit holds nothing, so that the test does not pass."""
    pytester.makeconftest(AHEAD)
    result = tests(UNSEEN, "-rN")
    assert outcomes(result) == {"passed": 1, "failed": 2, "xfailed": 1, "skipped": 1}, result.stdout.str()
    assert result.stdout.str().count("memtrack: the limits of this test cannot be checked: its function was not called, or by another plugin") == 2
    result = tests(UNSEEN, "--memtrack")
    result.stdout.fnmatch_lines(["memtrack: *test_shop.py::test_ahead_without: passed without being measured"])


def test_what_calls_nothing_passes_as_ever(tests):  # noqa: F811
    """Tests that unittest skips, and those whose setUp decides what becomes of them."""
    code = """
import unittest

class Case(unittest.TestCase):
    @unittest.skip("not today")
    def test_skipped(self):
        raise AssertionError

    def test_skips(self):
        self.skipTest("not today")

    @unittest.expectedFailure
    def test_expected(self):
        raise AssertionError

class Skips(unittest.TestCase):
    def setUp(self):
        self.skipTest("not today")

    def test_it(self):
        raise AssertionError

@unittest.skip("not today")
class Skipped(unittest.TestCase):
    def test_it(self):
        raise AssertionError

class Fails(unittest.TestCase):
    def setUp(self):
        raise KeyError("broken")

    def test_it(self):
        pass

    @unittest.expectedFailure
    def test_expected(self):
        pass

class Loop(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.skipTest("not today")

    async def test_it(self):
        raise AssertionError
"""
    known = outcomes(tests(code))
    assert known["skipped"] == 5 and known["xfailed"] and "passed" not in known
    result = tests(code, "--memtrack-limit=8MB")
    assert outcomes(result) == known and "cannot be checked" not in result.stdout.str()


def test_a_suite_that_collects_again(tests, pytester):  # noqa: F811
    """What awaits the first limit is there once."""
    pytester.makeconftest("def pytest_runtestloop(session):\n    session.perform_collect()\n")
    assert outcomes(tests("def test_it():\n    pass\n")) == {"passed": 1}


#: While a test is called, its instance is what pytest before 8.2 took for it.
INSTANCE_OF_FUNCTION = """
import pytest

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    kind, known = type(item), type(item).__dict__.get("instance")
    kind.instance = property(lambda self: getattr(self.obj, "__self__", None))
    yield
    if known is None:
        del kind.instance
    else:
        kind.instance = known
"""


@pytest.mark.parametrize("option", ["--memtrack-limit=8MB", "--memtrack"])
def test_the_instance_of_a_test_of_older_pytest(tests, pytester, option):  # noqa: F811
    """Cases that look their method up are measured, and fixtures that a test asks for belong to its instance."""
    pytester.makeconftest(INSTANCE_OF_FUNCTION)
    result = tests(
        """
import unittest

class Case(unittest.IsolatedAsyncioTestCase):
    async def test_async(self):
        pass

class TestClass:
    @pytest.fixture
    def asked(self, request):
        assert request.instance is self
        return self

    def test_method(self, request):
        assert request.getfixturevalue("asked") is self
""",
        option,
    )
    assert outcomes(result) == {"passed": 2} and "without being measured" not in result.stdout.str(), result.stdout.str()


#: Does what a test returns afterwards, as pytest-twisted with a Deferred.
DRIVES = """
import asyncio, inspect, pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    function = pyfuncitem.obj

    def drive(**arguments):
        result = function(**arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        elif hasattr(result, "addCallback"):
            result = result.result()
        return result

    pyfuncitem.obj = drive
    yield
    pyfuncitem.obj = function
"""


@pytest.mark.parametrize("marker", ["limit_memory('50 MB')", "limit_leaks('50 MB')"])
def test_what_a_test_returns_goes_on(tests, pytester, marker):  # noqa: F811
    """Whoever calls the test has it. Where there is something to be done with it, the limit is not checked, and the test says so."""
    pytester.makeconftest(DRIVES)
    code = f"""
class Deferred:
    def __init__(self, result):
        self.result, self.called = result, False
    def addCallback(self, function):
        pass

def fail():
    assert 0, "its own reason"

async def work():
    RAN.append(True)

RAN = []
pytestmark = pytest.mark.{marker}

def test_own_failure():
    return Deferred(fail)

def test_coroutine():
    return work()

def test_done():
    deferred = Deferred(lambda: RAN.append(True))
    deferred.called = True
    return deferred

def test_number():
    return 5

@pytest.mark.limit_memory("50 MB")
def test_after():
    assert RAN == [True, True]
"""
    result = tests(code, "-rN")
    assert outcomes(result) == {"passed": 3, "failed": 2}, result.stdout.str()
    text = result.stdout.str()
    assert text.count("cannot be checked: its function has returned something that goes on (coroutine)") == 1
    assert "its own reason" in text and "returned something that goes on (Deferred)" not in text and "PytestReturnNotNoneWarning" in text


LATE_IN_CALL = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if "late" in item.name:
        item.add_marker(pytest.mark.limit_memory("1 MB"))
"""


@pytest.mark.parametrize(("marker", "options"), [("", []), ('@pytest.mark.limit_memory("1 MB")\n', []), ("", ["--memtrack"])])
def test_a_limit_that_comes_in_the_call(tests, pytester, marker, options):  # noqa: F811
    """Nothing has recorded the test with it by then, so that it does not pass."""
    pytester.makeconftest(LATE_IN_CALL)
    result = tests(f"import pytest\ndef test_late():\n    pass\n\n{marker}def test_other():\n    pass\n", *options)
    assert outcomes(result) == {"passed": 1, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["memtrack: the limits of this test cannot be checked: its marker came after its setup; *"])
