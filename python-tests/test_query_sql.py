"""`memtrack query` against DuckDB, which is asked the same of the parquet tables: two computations, one answer."""

import json
import sys

import pytest

from conftest import PROGRAMS

duckdb = pytest.importorskip("duckdb")

# Every allocation of the heap with the free that ended it: the next event of its address.
LIVES = """
create view lives as
with heap as (
    select *, lead(kind) over ends as next_kind, lead("order") over ends as next_order, lead(time_ns) over ends as next_ns,
        lead(tid) over ends as next_tid
    from '@events/**/*.parquet' where kind in ('alloc', 'free')
    window ends as (partition by address order by "order")
)
select *, coalesce(next_ns, (select max(time_ns) from '@events/**/*.parquet')) - time_ns as lived_ns from heap where kind = 'alloc'
"""
# Stacks with all of their frames, innermost first.
FRAMES = """
create view calls as
with recursive up(stack, here, level) as (
    select stack, stack, 0 from '@stacks/**/*.parquet'
    union all select up.stack, s.caller, level + 1 from up join '@stacks/**/*.parquet' s on s.stack = up.here where s.caller is not null
)
select up.stack, level, f.* from up join '@stacks/**/*.parquet' s on s.stack = up.here join '@frames/**/*.parquet' f on f.frame = s.frame
"""
NOT_MAPPED = 'not (allocator = mmap or allocator = mremap or allocator ~ "_arena$")'

QUESTIONS = {
    "bytes >= 50kB and bytes < 1MiB": "select count(*), sum(size) from lives where size >= 50000 and size < 1048576",
    "function = produce or function ~ '^lin.er$'": """
        select count(*), sum(size) from lives where stack in (select stack from calls where regexp_matches(function, '^(produce|lin.er)$'))""",
    "file ~ 'threading[.]py$' and allocator != calloc": """
        select count(*), sum(size) from lives where allocator != 'calloc'
        and stack in (select stack from calls where file like '%threading.py')""",
    "cross_thread and thread = producer": """
        select count(*), sum(size) from lives where next_kind = 'free' and next_tid != tid
        and tid = (select tid from '@threads/**/*.parquet' where name = 'producer')""",
    "lifetime > 2ms and freed and size > 100B": "select count(*), sum(size) from lives where next_kind = 'free' and lived_ns > 2000000 and size > 100",
    "time >= {early}ns and time < {late}ns and allocator !~ '^re'": """
        select count(*), sum(size) from lives where time_ns >= {early} and time_ns < {late} and not starts_with(allocator, 're')""",
}


@pytest.fixture(scope="module")
def capture(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", options=["--allocation-timestamps"])


@pytest.fixture(scope="module")
def tables(capture):
    directory = capture.path.parent / "sql.tables"
    outcome = capture.memtrack("transform", "parquet", "-f", "-o", directory, capture.path)
    assert outcome.status == 0, outcome.stderr
    connection = duckdb.connect()
    ask = lambda text: connection.execute(text.replace("@", f"{directory}/"))
    for view in (LIVES, FRAMES):
        ask(view)
    return ask


def matched(capture, expression):
    found = json.loads(capture.reading("query", "--json", f"({expression}) and {NOT_MAPPED}", capture.path))
    return found["matched"]["count"], found["matched"]["bytes"]


@pytest.mark.parametrize("expression", QUESTIONS)
def test_the_answers_are_those_of_a_database(capture, tables, expression):
    # Some of what is recorded, however long the program was kept waiting.
    (times,) = tables("select quantile_disc(time_ns, [0.1, 0.6]) from lives").fetchone()
    moments = dict(zip(("early", "late"), times))
    question, expression = QUESTIONS[expression].format(**moments), expression.format(**moments)
    ((count, size),) = tables(question).fetchall()
    assert matched(capture, expression) == (count, size or 0)
    assert count > 0, "the question is about something"


@pytest.mark.parametrize("by, key, column", [("allocator", "allocator", "allocator"), ("thread", "tid", "tid")])
def test_groups_are_those_of_a_database(capture, tables, by, key, column):
    found = json.loads(capture.reading("query", "--json", "--by", by, NOT_MAPPED, capture.path))
    groups = {row[key]: (row["count"], row["bytes"]) for row in found["rows"]}
    expected = {row[0]: tuple(row[1:]) for row in tables(f"select {column}, count(*), sum(size) from lives group by 1").fetchall()}
    assert groups == expected
