//! Queries over tables of many processes, which DuckDB answers.
//!
//! The SQL stands in files of its own, in what DuckDB and Spark have in common, on views named after the tables. Nothing of
//! an engine is built in: the program `duckdb` is run, or Python with its package. Invariant: an engine gets names of
//! tables and two quoted texts, nothing else.

mod table_files;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

pub(crate) use table_files::{FileCheck, WholeFiles};

use crate::args::fleet::FleetQuery;

/// Tables that queries may use.
const TABLES: [&str; 4] = ["processes", "sites", "windows", "frames"];
/// Answers a script on standard input by JSON; ends with this status where there is no package.
const PYTHON: &str = "
import sys
# The directory of the tables may come from anywhere: it is no place for modules.
sys.path[:] = [path for path in sys.path if path]
import json
try:
    import duckdb
except ImportError:
    sys.exit(86)
try:
    connection = duckdb.connect()
    # Without a file of the program it takes itself for a shell, and after two seconds prints a bar between the answer's lines.
    connection.execute('set enable_progress_bar = false')
    cursor = connection.execute(sys.stdin.read())
    names = [column[0] for column in cursor.description]
    print(json.dumps([dict(zip(names, row)) for row in cursor.fetchall()], default=float))
except duckdb.Error as error:
    sys.exit(str(error))
";
const NO_PACKAGE: i32 = 86;

/// A row of an answer, by name of the column.
pub(crate) type FleetRow = Map<String, Value>;

impl FleetQuery {
    /// Its SQL.
    fn sql(self) -> &'static str {
        match self {
            Self::Growth => include_str!("fleet/growth.sql"),
            Self::Regression => include_str!("fleet/regression.sql"),
            Self::Leaks => include_str!("fleet/leaks.sql"),
            Self::Peaks => include_str!("fleet/peaks.sql"),
        }
    }

    /// The columns of its answer, and their titles.
    pub(crate) fn columns(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Growth => &[
                ("grown_bytes", "Grown"),
                ("bytes_per_hour_and_process", "Per hour and process"),
                ("hosts", "Hosts"),
                ("processes", "Processes"),
                ("whose", "Whose"),
                ("service", "Service"),
            ],
            Self::Regression => &[
                ("more_bytes", "More"),
                ("before_bytes", "Before"),
                ("after_bytes", "After"),
                ("processes_before", "Processes before"),
                ("processes_after", "After"),
                ("whose", "Whose"),
                ("service", "Service"),
            ],
            Self::Leaks => &[
                ("processes", "Processes"),
                ("leaked_bytes", "Leaked by each"),
                ("most_leaked_bytes", "Most"),
                ("imports_bytes", "Imports"),
                ("arenas_bytes", "Arenas"),
                ("growth_bytes_per_hour", "Growth per hour"),
                ("service", "Service"),
                ("release", "Release"),
            ],
            Self::Peaks => &[
                ("processes", "Processes"),
                ("hosts", "Hosts"),
                ("median_peak_bytes", "Median peak"),
                ("p95_peak_bytes", "95 % of peaks to"),
                ("most_peak_bytes", "Most"),
                ("p95_peak_rss_bytes", "95 % of resident to"),
                ("service", "Service"),
            ],
        }
    }

    /// Whether its rows have a line of code.
    pub(crate) fn has_places(self) -> bool {
        matches!(self, Self::Growth | Self::Regression)
    }
}

/// How tables are read. The names of folders are texts: else the service `7` is a number, and a host may be a date.
const OPTIONS: &str = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true";

/// Adds a column that older tables do not have.
const LATER_OF_PROCESSES: &str = " union all by name select cast(null as bigint) as sample_bytes where false";

/// The SQL of a query, with the views that it needs, for DuckDB in the directory of the tables; with a list of files where `whole` says
/// that some are to be left out.
///
/// # Errors
/// The directory has not the tables, or no file of one of them is whole.
pub(crate) fn script(
    directory: &Path,
    query: FleetQuery,
    releases: [&str; 2],
    whole: Option<&WholeFiles>,
) -> Result<String> {
    let is_there = |table: &&str| directory.join(table).is_dir();
    if !TABLES.iter().filter(|table| **table != "windows").all(is_there) {
        bail!(
            "{}: expected a directory with tables of 'memtrack transform parquet', found no {}",
            directory.display(),
            TABLES.iter().find(|table| !is_there(table)).unwrap_or(&"tables")
        );
    }
    let mut script = String::new();
    for table in TABLES {
        let files = whole.map(|whole| whole.of_table(table));
        if let Some([]) = files
            && table != "windows"
        {
            bail!("{}: no file of the table {table} is whole", directory.display());
        }
        // Aggregated captures have no windows.
        let rows = if is_there(&table) && files.is_none_or(|files| !files.is_empty()) {
            let later = if table == "processes" { LATER_OF_PROCESSES } else { "" };
            let files = files.map_or_else(|| format!("'{table}/**/*.parquet'"), list);
            format!("* from read_parquet({files}, {OPTIONS}){later}")
        } else {
            "cast(null as bigint) as process, '' as service, '' as host, 0 as window_number, 0 as end_ns, 0 as stack, 0 as own_frame, 0 \
             as live_bytes, 0.0 as live_bytes_variance where false"
                .to_owned()
        };
        script += &format!("create temp view {table} as select {rows};\n");
    }
    let [before, after] = releases.map(|release| release.replace('\'', "''"));
    script +=
        &format!("create temp view releases as select '{before}' as before_release, '{after}' as after_release;\n");
    script += query.sql().trim_end();
    script += ";\n";
    Ok(script)
}

/// Files as a list of SQL.
fn list(files: &[PathBuf]) -> String {
    let quoted = files.iter().map(|file| format!("'{}'", file.display().to_string().replace('\'', "''")));
    format!("[{}]", quoted.collect::<Vec<_>>().join(", "))
}

/// The files that are whole, where some are not; those of tables that the query does not read are looked at less.
pub(crate) fn whole_files(directory: &Path, query: FleetQuery, check: FileCheck) -> Option<WholeFiles> {
    let is_read = |table: &str| query.sql().split_whitespace().any(|word| word == table);
    WholeFiles::find(directory, &TABLES, |table| if is_read(table) { check } else { FileCheck::Ends })
}

/// The rows that DuckDB answers, in the directory of the tables.
///
/// # Errors
/// There is no DuckDB, or it reports an error.
pub(crate) fn ask(directory: &Path, script: &str) -> Result<Vec<FleetRow>> {
    let engines: [(&str, &[&str]); 2] = [("duckdb", &["-json", "-batch"]), ("python3", &["-c", PYTHON])];
    for (program, arguments) in engines {
        let output = match run(program, arguments, directory, script) {
            Ok(output) if output.status.code() == Some(NO_PACKAGE) => continue,
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("{program}: cannot be run")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("{program}: {}", without_sql(&String::from_utf8_lossy(&output.stderr)));
        }
        // The program prints nothing where there is no row.
        let text = if text.trim().is_empty() { "[]" } else { text.trim() };
        return serde_json::from_str(text)
            .with_context(|| format!("{program}: expected JSON, found {} bytes", text.len()));
    }
    bail!(
        "DuckDB is not there: neither the program 'duckdb' nor Python's package; 'pip install duckdb' installs it. With --sql the \
         query is printed, for any engine"
    )
}

/// What an engine says, without the line of the query that it shows: that is not the user's.
fn without_sql(said: &str) -> String {
    let lines = said.trim().lines().take_while(|line| !line.starts_with("LINE "));
    lines.filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n")
}

fn run(program: &str, arguments: &[&str], directory: &Path, script: &str) -> std::io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // An engine that ends without reading says why by itself.
        let _ = input.write_all(script.as_bytes());
    }
    child.wait_with_output()
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{FleetQuery, script, without_sql};

    #[test]
    fn leaks_are_without_all_arenas_and_mappings_are_exact() {
        let quoted = |is_one: fn(Allocator) -> bool| {
            let names = Allocator::ALL.into_iter().filter(|allocator| is_one(*allocator)).map(Allocator::name);
            names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
        };
        let (leaks, regression) = (FleetQuery::Leaks.sql(), FleetQuery::Regression.sql());
        assert!(leaks.contains(&format!("allocator in ({})", quoted(Allocator::is_python_arena))), "{leaks}");
        assert!(regression.contains(&format!("allocator not in ({})", quoted(Allocator::is_mapping))), "{regression}");
    }

    #[test]
    fn errors_do_not_show_the_query() {
        let said =
            "Conversion Error: Could not convert string 'x' to INT64\n\nLINE 18:     from windows w\n             ^\n";
        assert_eq!(without_sql(said), "Conversion Error: Could not convert string 'x' to INT64");
        assert_eq!(without_sql("Error: one\ntwo\n"), "Error: one\ntwo");
    }

    #[test]
    fn a_release_is_a_text_whatever_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let error = script(directory.path(), FleetQuery::Peaks, ["", ""], None).unwrap_err().to_string();
        assert!(error.contains("found no processes"), "{error}");
        for table in ["processes", "sites", "frames"] {
            std::fs::create_dir(directory.path().join(table)).unwrap();
        }
        let text = script(directory.path(), FleetQuery::Regression, ["1'; drop", "2"], None).unwrap();
        assert!(text.contains("select '1''; drop' as before_release, '2' as after_release;"), "{text}");
        assert!(text.contains("from read_parquet('sites/**/*.parquet'"), "{text}");
        assert!(text.contains("create temp view windows as select cast(null"), "{text}");
    }
}
