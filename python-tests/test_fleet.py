"""`memtrack fleet`: tables of several processes, hosts and releases, asked through DuckDB."""

import decimal
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import zipfile

import pytest

from conftest import REPOSITORY

pytest.importorskip("duckdb")

SERVER = """
import sys, time
cache = []
def remember(size):
    cache.append(bytearray(size))
def scratch():
    return [bytes(1000) for _ in range(50)]
for request in range(40):
    remember(int(sys.argv[1]))
    scratch()
    time.sleep(0.005)
"""
RELEASES = {"1.0": 20_000, "2.0": 50_000}
HOSTS = ("web1", "web2")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return tmp_path_factory.mktemp("fleet") / "tables"


@pytest.fixture(scope="module")
def fleet(executable, module_memtrack, tables):
    """Two releases of one service on two hosts."""
    server = tables.parent / "server.py"
    server.write_text(SERVER)
    for release, size in RELEASES.items():
        capture = module_memtrack.record(sys.executable, server, size)
        for host in HOSTS:
            options = ["--host", host, "--release", release, "--window", "20ms", "--no-events"]
            outcome = capture.memtrack("transform", "parquet", "-o", tables, *options, capture.path)
            assert outcome.status == 0, outcome.stderr

    # DuckDB's package is that of this Python.
    def ask(*arguments, path=f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"):
        command = [executable, "fleet", tables, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})

    return ask


def rows(outcome):
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)["rows"]


def test_the_line_that_grows_is_first(fleet, tables):
    import duckdb

    first, *_ = rows(fleet("growth", "--json"))
    assert (first["function"], first["line"], first["hosts"], first["processes"], first["service"]) == ("remember", 5, 2, 4, "server.py")
    # Of 40 requests those between the ends of the first and the last whole window.
    assert 2 * 25 * 70_000 <= first["grown_bytes"] <= 2 * 40 * 70_057
    windows, processes = (f"read_parquet('{tables}/{name}/**/*.parquet')" for name in ("windows", "processes"))
    whole = f"from {windows} w join {processes} p using (process, host) where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)"
    ((lasted_ns,),) = duckdb.sql(f"select sum(lasted) from (select max(w.end_ns) - min(w.end_ns) as lasted {whole} group by process, host)").fetchall()
    assert first["bytes_per_hour_and_process"] == pytest.approx(first["grown_bytes"] / lasted_ns * 3.6e12)
    assert first["file"].endswith("/server.py")
    text = fleet().stdout
    assert "Grown" in text and "remember at " in text.splitlines()[1]


TWICE_IN_A_LINE = """
import time
kept = []
for request in range(40):
    kept.extend((bytes(50_000), bytearray(50_000)))
    time.sleep(0.005)
"""


def test_a_line_that_allocates_twice_has_the_time_of_its_process_once(executable, module_memtrack, tmp_path):
    import duckdb

    server = tmp_path / "server.py"
    server.write_text(TWICE_IN_A_LINE)
    capture = module_memtrack.record(sys.executable, server)
    options = ["--window", "20ms", "--no-events"]
    assert capture.memtrack("transform", "parquet", "-o", tmp_path / "tables", *options, capture.path).status == 0
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    command = [executable, "fleet", tmp_path / "tables", "growth", "--json"]
    grown = rows(subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}))
    (row,) = [row for row in grown if row["line"] == 5 and row["file"].endswith("server.py")]
    windows, processes = (f"read_parquet('{tmp_path}/tables/{name}/**/*.parquet')" for name in ("windows", "processes"))
    whole = f"from {windows} w, {processes} p where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)"
    ((lasted_ns,),) = duckdb.sql(f"select max(w.end_ns) - min(w.end_ns) {whole}").fetchall()
    assert row["bytes_per_hour_and_process"] == pytest.approx(row["grown_bytes"] / lasted_ns * 3.6e12)


def test_the_line_that_holds_more_than_before_is_first(fleet):
    first, *_ = rows(fleet("regression", "--before", "1.0", "--after", "2.0", "--json"))
    assert (first["function"], first["whose"], first["processes_before"], first["processes_after"]) == ("remember", "own", 2, 2)
    assert first["more_bytes"] == 40 * 30_000 == first["after_bytes"] - first["before_bytes"]
    outcome = fleet("regression", "--before", "1.0", "--after", "3'")
    assert (outcome.returncode, outcome.stdout) == (0, "") and "no process" in outcome.stderr
    assert fleet("regression").returncode == 2


def test_releases_and_peaks(fleet):
    most, least = rows(fleet("leaks", "--json"))
    assert (most["release"], least["release"], most["processes"]) == ("2.0", "1.0", 2)
    assert most["leaked_bytes"] - least["leaked_bytes"] == pytest.approx(40 * 30_000, rel=0.2)
    assert "Imports" in fleet("leaks").stdout and "Arenas" in fleet("leaks").stdout
    (peaks,) = rows(fleet("peaks", "--json"))
    assert peaks["median_peak_bytes"] < peaks["p95_peak_bytes"] <= peaks["most_peak_bytes"]
    assert (peaks["processes"], peaks["hosts"]) == (4, 2)


def test_leaks_are_those_of_the_table(executable, module_memtrack, tmp_path):
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    capture = module_memtrack.record(sys.executable, server, 20_000)
    parts = capture.stats()["leaked"]["parts"]
    assert parts["imports"]["bytes"] > 0 and parts["python_arenas"]["bytes"] > 0
    outcome = capture.memtrack("transform", "parquet", "-o", tmp_path / "tables", "--no-events", capture.path)
    assert outcome.status == 0, outcome.stderr
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    command = [executable, "fleet", tmp_path / "tables", "leaks", "--json"]
    (row,) = rows(subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}))
    leaked = sum(parts[whose]["bytes"] for whose in ("own", "libraries", "stdlib"))
    assert (row["leaked_bytes"], row["most_leaked_bytes"]) == (leaked, leaked)
    assert (row["imports_bytes"], row["arenas_bytes"]) == (parts["imports"]["bytes"], parts["python_arenas"]["bytes"])


@pytest.fixture(scope="module")
def sampled(executable, module_memtrack, tmp_path_factory):
    """Two releases that hold the same, by samples; and how to ask."""
    tables = tmp_path_factory.mktemp("sampled") / "tables"
    server = tables.parent / "server.py"
    server.write_text(SERVER.replace("range(40)", "range(150)"))
    for release in RELEASES:
        for host in HOSTS:
            capture = module_memtrack.record(sys.executable, server, 20_000, options=["--sample=64k", "--window", "100ms"])
            options = ["--host", host, "--release", release, "--service", "shop"]
            outcome = capture.memtrack("transform", "parquet", "-o", tables, *options, capture.path)
            assert outcome.status == 0, outcome.stderr
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"

    def ask(*arguments):
        return subprocess.run([executable, "fleet", tables, *arguments], capture_output=True, text=True, env={**os.environ, "PATH": path})

    return ask


def test_figures_of_samples_have_intervals_and_noise_is_no_regression(sampled):
    between = rows(sampled("regression", "--before", "1.0", "--after", "2.0", "--json"))
    # Mappings are exact.
    assert all(row["more_bytes"] > row["more_bytes_margin"] >= 0 for row in between)
    assert not any(row["more_bytes"] < 65536 and row["more_bytes_margin"] > 0 for row in between), "no more than one sample"
    grown, *_ = rows(sampled("growth", "--json"))
    truth, margin = 4 * 150 * 20_057, grown["grown_bytes_margin"]
    # Three times the interval: no more than the samples' error, and the windows at both ends.
    assert grown["function"] == "remember" and 0 < margin < truth / 2
    assert truth / 2 - 3 * margin < grown["grown_bytes"] < truth + 3 * margin
    for row in rows(sampled("leaks", "--json")):
        assert 0 < row["leaked_bytes_margin"] < row["leaked_bytes"]
    (peaks,) = rows(sampled("peaks", "--json"))
    assert 0 < peaks["most_peak_bytes_margin"] < peaks["most_peak_bytes"]
    assert " ± " in sampled("growth").stdout and " ± " in sampled("leaks").stdout


def write_tables(directory, values, service="shop", host="web"):
    """Tables of these rows: `(...), (...) t(column, ...)` by the table's name."""
    import duckdb

    for table, of_table in values.items():
        folder = directory / table / f"service={service}" / f"host={host}"
        folder.mkdir(parents=True)
        of_rows, _, columns = of_table.rpartition(" t(")
        # In these tables each line has one stack.
        stack = ", own_frame as stack" if "own_frame" in columns else ""
        if table == "windows" and "freed_bytes_variance" not in columns:
            # All that was there is freed, and allocated anew.
            stack += ", live_bytes_variance as allocated_bytes_variance, live_bytes_variance as freed_bytes_variance"
        options = "(format parquet, kv_metadata {'memtrack.schema_version': '2'})"
        duckdb.sql(f"copy (select *{stack} from (values {of_rows}) t({columns}) to '{folder}/1.parquet' {options}")


def ask_tables(executable, directory, *query):
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    command = [executable, "fleet", directory, *query, "--json"]
    return rows(subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}))


@pytest.mark.parametrize(
    "sample_bytes, held, variance, is_there",
    [
        # As much may be there unseen, in both processes of the release before: 3 * 64 KiB / 2.
        ("65536", 98_000, 1e6, False),
        ("65536", 99_000, 1e6, True),
        # Mappings are exact, and so is a recording of all allocations.
        ("65536", 98_000, 0, True),
        ("null", 98_000, 0, True),
    ],
)
def test_what_had_no_sample_before_may_have_been_there(executable, tmp_path, sample_bytes, held, variance, is_there):
    duckdb = pytest.importorskip("duckdb")
    values = {
        "processes": f"""(1, '1', {sample_bytes}, 9, 9), (2, '1', {sample_bytes}, 9, 9), (3, '2', {sample_bytes}, 9, 9)
            t(process, release, sample_bytes, finalizing_ns, duration_ns)""",
        "sites": f"""(3, 7, 'own', 'malloc', {held}, {float(variance)})
            t(process, own_frame, whose, allocator, peak_bytes, peak_bytes_variance)""",
        "windows": f"""(3, 0, 1, 7, 0, 0.0), (3, 1, 2, 7, {2 * held}, {float(variance)})
            t(process, window_number, end_ns, own_frame, live_bytes, live_bytes_variance)""",
        "frames": "(7, 'work', 'app.py', 3) t(frame, function, file, line)",
    }
    write_tables(tmp_path, values)
    for query in (("regression", "--before", "1", "--after", "2"), ("growth",)):
        found = ask_tables(executable, tmp_path, *query)
        assert bool(found) == is_there, found


PROCESS = "t(process, release, sample_bytes, peak_bytes, peak_rss_bytes, finalizing_ns, duration_ns)"
SITE = "t(process, own_frame, whose, allocator, peak_bytes, peak_bytes_variance, leaked_bytes, leaked_bytes_variance)"
WINDOW = "t(process, window_number, end_ns, own_frame, live_bytes, live_bytes_variance)"
FRAME = "(7, 'work', 'app.py', 3) t(frame, function, file, line)"


def listed(of_rows):
    return ", ".join(of_rows)


@pytest.mark.parametrize("processes", [2, 12, 40, 200])
def test_noise_that_goes_both_ways_is_no_growth(executable, tmp_path, processes):
    # A line that holds the same everywhere: at the end, estimates are too high in one half of the processes, and too low in the other.
    off = round(0.8 * (2 * 1e10) ** 0.5)
    numbers = range(processes)
    values = {
        "processes": f"{listed(f'({n}, null, 65536, 9, 9, 9, 9)' for n in numbers)} {PROCESS}",
        "sites": f"{listed(f'({n}, 7, null, null, 9, 1.0, 9, 1.0)' for n in numbers)} {SITE}",
        "windows": f"{listed(f'({n}, 0, 1, 7, 900000, 1e10), ({n}, 1, 2, 7, {900000 + (n % 2 * 2 - 1) * off}, 1e10)' for n in numbers)} {WINDOW}",
        "frames": FRAME,
    }
    write_tables(tmp_path, values)
    assert ask_tables(executable, tmp_path, "growth") == []


def test_what_is_live_all_the_time_is_no_chance_of_growth(executable, tmp_path):
    # One stack holds the same all the time, the other adds to what it holds.
    columns = "t(process, window_number, end_ns, own_frame, live_bytes, live_bytes_variance, allocated_bytes_variance, freed_bytes_variance)"
    values = {
        "processes": f"(1, '1', 1000, 9, 9, 9, 9) {PROCESS}",
        "sites": f"(1, 7, 'own', null, 9, 1.0, 9, 1.0), (1, 8, 'own', null, 9, 1.0, 9, 1.0) {SITE}",
        "windows": f"""(1, 0, 1, 8, 300000000, 1e14, 1e14, null), (1, 1, 2, 8, 300000000, 1e14, null, null),
            (1, 0, 1, 7, 100000000, 1e14, 1e14, null), (1, 1, 2, 7, 110000000, 1.09e14, 9e12, null) {columns}""",
        "frames": f"(8, 'cache', 'app.py', 9), {FRAME}",
    }
    write_tables(tmp_path, values)
    (grown,) = ask_tables(executable, tmp_path, "growth")
    assert (grown["function"], grown["grown_bytes"]) == ("work", 10_000_000)
    assert grown["grown_bytes_margin"] == pytest.approx(1.96 * 3e6)
    (leaks,) = ask_tables(executable, tmp_path, "leaks")
    assert leaks["growth_bytes_per_hour_margin"] / leaks["growth_bytes_per_hour"] == pytest.approx(0.588)


def test_every_estimate_has_its_interval(executable, tmp_path):
    # What a process has besides without a sample, too: the highest peak is that of mappings, which are exact.
    values = {
        "processes": f"(1, '1', 1000, 900000, 9, 9, 9), (2, '1', 1000, 700000, 9, 9, 9), (3, '2', null, 500000, 9, 9, 9) {PROCESS}",
        "sites": f"""(1, 7, 'own', 'mmap', 900000, null, 90, null), (2, 7, 'own', 'malloc', 700000, 1e10, 80, 1e4),
            (2, 7, 'imports', 'malloc', 0, null, 70, 1e8), (3, 7, 'own', 'malloc', 500000, null, 60, null) {SITE}""",
        "windows": f"(2, 0, 1, 7, 10, 1e8), (2, 1, 2, 7, 900000, 1e8) {WINDOW}",
        "frames": FRAME,
    }
    write_tables(tmp_path, values)
    (peaks,) = ask_tables(executable, tmp_path, "peaks")
    unseen = (3 + math.log(3)) * 1000
    assert peaks["most_peak_bytes"] == 900_000 and peaks["most_peak_bytes_margin"] == pytest.approx(unseen)
    assert peaks["median_peak_bytes"] == 700_000 and peaks["median_peak_bytes_margin"] == pytest.approx(196_000)
    high = 700_000 + 1e5 * math.sqrt(1.96**2 + 2 * math.log(3))
    assert peaks["p95_peak_bytes_margin"] == pytest.approx(0.1 * (900_000 + unseen) + 0.9 * high - peaks["p95_peak_bytes"])
    by_release = {row["release"]: row for row in ask_tables(executable, tmp_path, "leaks")}
    assert by_release["1"]["leaked_bytes_margin"] == pytest.approx(3000 / 2)
    assert by_release["1"]["most_leaked_bytes_margin"] == pytest.approx((3 + math.log(2)) * 1000)
    assert by_release["1"]["imports_bytes_margin"] == pytest.approx(1.96 * 1e4 / 2)
    assert by_release["1"]["arenas_bytes_margin"] == 0
    assert not any(value for name, value in by_release["2"].items() if name.endswith("_margin"))
    (grown,) = ask_tables(executable, tmp_path, "growth")
    margin = grown["bytes_per_hour_and_process"] * grown["grown_bytes_margin"] / grown["grown_bytes"]
    assert grown["bytes_per_hour_and_process_margin"] == pytest.approx(margin)
    (more,) = ask_tables(executable, tmp_path, "regression", "--before", "2", "--after", "1")
    assert (more["more_bytes"], more["before_bytes_margin"]) == (300_000, 0)
    assert more["more_bytes_margin"] == pytest.approx(98_000) == more["after_bytes_margin"]


@pytest.mark.parametrize("before, allocator, is_there", [("1000", "malloc", False), ("1000", "mmap", True), ("null", "malloc", True)])
def test_what_was_counted_only_after_may_have_been_there_before(executable, tmp_path, before, allocator, is_there):
    """Release 1 has a process whose allocations were all recorded, which held a little, and one like it or of samples; 2 has all recorded."""
    values = {
        "processes": f"(1, '1', null, 9, 9, 9, 9), (2, '1', {before}, 9, 9, 9, 9), (3, '2', null, 9, 9, 9, 9) {PROCESS}",
        "sites": f"(1, 7, 'own', '{allocator}', 100, null, 0, null), (3, 7, 'own', '{allocator}', 1500, null, 0, null) {SITE}",
        "frames": FRAME,
    }
    write_tables(tmp_path, values)
    found = ask_tables(executable, tmp_path, "regression", "--before", "1", "--after", "2")
    assert bool(found) == is_there, found


def test_what_imports_hold_comes_after_what_grows(executable, tmp_path):
    values = {
        "processes": f"(1, null, null, 9, 9, 9, 9) {PROCESS}",
        "sites": f"(1, 7, 'own', 'malloc', 9, null, 9, null), (1, 8, 'imports', 'malloc', 9, null, 9, null) {SITE}",
        "windows": f"(1, 0, 1, 7, 10, null), (1, 1, 2, 7, 20, null), (1, 0, 1, 8, 10, null), (1, 1, 2, 8, 9000, null) {WINDOW}",
        "frames": f"(8, '<module>', 'app.py', 1), {FRAME}",
    }
    write_tables(tmp_path, values)
    grown = ask_tables(executable, tmp_path, "growth")
    assert [(row["function"], row["whose"], row["grown_bytes"]) for row in grown] == [("work", "own", 10), ("<module>", "imports", 8990)]


@pytest.mark.parametrize("service, host", [("7", "2026-11-29"), ("2026-11-29", "7"), ("007", "1.5")])
def test_names_of_services_and_hosts_are_texts(executable, tmp_path, service, host):
    values = {
        "processes": f"(1, null, null, 9, 9, 9, 9) {PROCESS}",
        "sites": f"(1, 7, 'own', 'malloc', 9, null, 9, null) {SITE}",
        "windows": f"(1, 0, 1, 7, 10, null), (1, 1, 2, 7, 20, null) {WINDOW}",
        "frames": FRAME,
    }
    write_tables(tmp_path, values, service, host)
    for query in ("peaks", "leaks", "growth"):
        (row,) = ask_tables(executable, tmp_path, query)
        assert row["service"] == service


def test_exact_figures_have_no_interval(fleet):
    for query in QUERIES:
        for row in rows(fleet(*query, "--json")):
            margins = {name: value for name, value in row.items() if name.endswith("_margin")}
            assert len(margins) > 1 and not any(margins.values()), margins
        assert "±" not in fleet(*query).stdout


QUERIES = (("growth",), ("leaks",), ("peaks",), ("regression", "--before", "1.0", "--after", "2.0"))


def test_spark_gives_the_same_rows(fleet, tables, monkeypatch, tmp_path):
    """The same text of SQL, in Spark's local mode with its own scheduler."""
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("no java")
    # It takes a system on which musl's compiler is installed for one of musl, whose decompressor cannot be loaded.
    (jar,) = (pathlib.Path(sql.__file__).parents[1] / "jars").glob("snappy-java-*.jar")
    name = "libsnappyjava.so"
    with zipfile.ZipFile(jar) as packed:
        (tmp_path / name).write_bytes(packed.read(f"org/xerial/snappy/native/Linux/{platform.machine()}/{name}"))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.xerial.snappy.lib.path={tmp_path} -Dorg.xerial.snappy.lib.name={name}")
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        for table in ("processes", "sites", "windows", "frames"):
            spark.read.parquet(str(tables / table)).createOrReplaceTempView(table)
        spark.sql("select '1.0' as before_release, '2.0' as after_release").createOrReplaceTempView("releases")
        for query in QUERIES:
            expected = rows(fleet(*query, "--json"))
            # Behind DuckDB's views, from the comment on.
            text = fleet(*query, "--sql").stdout.partition("\n-- ")[2].partition("\n")[2].rstrip(";\n")
            found = [row.asDict() for row in spark.sql(text).collect()]
            assert expected and sorted(map(rounded, found)) == sorted(map(rounded, expected)), query
    finally:
        spark.stop()


def rounded(row):
    """A row's values in an order; numbers as far as both engines give them."""
    return [f"{value:.6g}" if isinstance(value, (int, float, decimal.Decimal)) else str(value) for _, value in sorted(row.items())]


def test_modules_beside_the_tables_are_not_run(fleet, tables):
    for name in ("json", "duckdb"):
        (tables / f"{name}.py").write_text("raise SystemExit('run')")
    try:
        assert rows(fleet("peaks", "--json"))
    finally:
        for name in ("json", "duckdb"):
            (tables / f"{name}.py").unlink()


def test_a_query_that_takes_long_has_no_progress_in_its_answer(fleet, tmp_path, monkeypatch):
    # Every query takes longer than this.
    code = """
import duckdb
connect = duckdb.connect
def impatient():
    connection = connect()
    connection.execute("set progress_bar_time = 1")
    return connection
duckdb.connect = impatient
"""
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert rows(fleet("growth", "--json"))


def test_the_query_is_printed_and_errors_say_what_helps(fleet, tmp_path):
    sql = fleet("peaks", "--sql").stdout
    assert "percentile_cont" in sql and "create temp view processes" in sql
    alone = tmp_path / "bin"
    alone.mkdir()
    outcome = fleet(path=str(alone))
    assert outcome.returncode == 1 and "pip install duckdb" in outcome.stderr


def test_a_process_whose_file_is_cut_off_is_in_no_query(fleet, tables, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(tables, copied)
    sites = sorted(copied.glob("sites/**/*.parquet"))
    for site in sites[1:]:
        site.write_bytes(site.read_bytes()[:-100])
    command = [part if part != tables else copied for part in fleet("peaks", "--json").args]
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}
    asked = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert asked.returncode == 0, asked.stderr
    assert "3 files of the tables are not whole and left out, and with them 9 files of the same processes" in asked.stderr.replace("\n", " ")
    told = json.loads(asked.stdout)
    assert told["left_out"] == [str(site.relative_to(copied)) for site in sites[1:]]
    assert [row["processes"] for row in told["rows"]] == [1]
    for site in sites:
        site.write_bytes(b"")
    asked = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert asked.returncode == 1 and "no file of the table processes is whole" in asked.stderr.replace("\n", " ")


@pytest.fixture
def copied(fleet, tables, tmp_path):
    """The tables, and what is said of them."""
    shutil.copytree(tables, tmp_path / "copied")
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}

    def ask(query):
        command = [part if part != tables else tmp_path / "copied" for part in fleet(*query, "--json").args]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return tmp_path / "copied", ask


@pytest.mark.parametrize("table", ["processes", "sites", "windows"])
def test_a_damaged_file_is_named_and_its_process_left_out(copied, table):
    directory, ask = copied
    damaged, *_ = sorted(directory.glob(f"{table}/**/*.parquet"))
    whole = damaged.read_bytes()
    for tenth in range(10):
        content = bytearray(whole)
        content[4 + (len(whole) - 16) * tenth // 10] ^= 0x10
        damaged.write_bytes(content)
        asked = ask(("leaks",))
        assert asked.returncode == 0, asked.stderr
        told = json.loads(asked.stdout)
        assert told["left_out"] == [str(damaged.relative_to(directory))] and sum(row["processes"] for row in told["rows"]) == 3
        assert "it is damaged" in asked.stderr.replace("\n", " ")


def test_a_damaged_file_without_a_checksum_is_named_where_it_ends_the_query(copied):
    directory, ask = copied
    damaged, *_ = sorted(directory.glob("windows/**/*.parquet"))
    content = bytearray(damaged.read_bytes().replace(b"memtrack.checksum", b"memtrack.checkless"[:17]))
    content[4] = 0xFF
    damaged.write_bytes(content)
    asked = ask(("leaks",))
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["left_out"] == [str(damaged.relative_to(directory))]


@pytest.mark.parametrize("column", ["1 as a", "'x' as process"])
def test_a_file_of_others_is_named_and_no_process(copied, column):
    import duckdb

    directory, ask = copied
    folder = directory / "processes" / "day=2026-11-30" / "service=foreign" / "host=x"
    folder.mkdir(parents=True)
    duckdb.sql(f"copy (select {column}) to '{folder}/foreign.parquet'")
    asked = ask(("peaks",))
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert told["left_out"] == [str((folder / "foreign.parquet").relative_to(directory))] and [row["processes"] for row in told["rows"]] == [4]
    assert "found no memtrack.schema_version in its metadata" in asked.stderr.replace("\n", " ")


def test_json_is_as_its_schema(fleet):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((REPOSITORY / "docs" / "schemas" / "memtrack-fleet-1.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(fleet("growth", "--json").stdout))
