//! `memtrack fleet`: what tables of many processes say, as text or JSON.
//!
//! Invariant: every figure is the engine's; here they only get units.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::fleet::{FleetArgs, FleetQuery};
use crate::fleet::{FileCheck, FleetRow, WholeFiles, ask, script, whole_files};
use crate::message;
use crate::reports::capture_info::visible;
use crate::terminal::TextFormat;
use crate::text::{TextCell, TextTable, column};
use crate::units::{count, plural, size};

/// So many files that are left out are named.
const MOST_NAMED: usize = 5;

/// Asks and prints.
///
/// # Errors
/// There are no tables or no engine, or standard output cannot be written.
pub(crate) fn run(options: &FleetArgs) -> Result<u8> {
    let (mut script, mut whole) = prepare(options, if options.sql { FileCheck::Ends } else { FileCheck::Checksum })?;
    if options.sql {
        write!(stdout(), "{script}")?;
        return Ok(0);
    }
    let mut answer = ask(&options.directory, &script);
    if answer.is_err() {
        // Files of earlier versions have no checksum.
        let known = whole.as_ref().map_or(0, |whole| whole.broken.len());
        if whole_files(&options.directory, options.query, FileCheck::Pages).is_some_and(|all| all.broken.len() > known)
        {
            (script, whole) = prepare(options, FileCheck::Pages)?;
            answer = ask(&options.directory, &script);
        }
    }
    let rows = answer?;
    let mut out = stdout().lock();
    if options.json {
        let left_out: Vec<_> =
            whole.iter().flat_map(|whole| &whole.broken).map(|(file, _)| file.to_string_lossy()).collect();
        writeln!(out, "{:#}", json!({"schema": "memtrack-fleet", "version": 1, "left_out": left_out, "rows": rows}))?;
    } else if rows.is_empty() {
        message::note(nothing(options.query, are_all_aggregated(&options.directory)));
    } else {
        for line in table(options.query, &rows).lines(TextFormat::new(options.colors.color, true)) {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    Ok(0)
}

/// The query for the files that are whole, and which these are where some are not; says which are left out.
fn prepare(options: &FleetArgs, check: FileCheck) -> Result<(String, Option<WholeFiles>)> {
    let releases = [&options.before, &options.after].map(|release| release.as_deref().unwrap_or_default());
    let whole = whole_files(&options.directory, options.query, check);
    if let Some(whole) = &whole {
        message::warning(left_out(whole));
    }
    let script = script(&options.directory, options.query, releases, whole.as_ref())?;
    Ok((script, whole))
}

/// Which files are left out, and what goes with them.
fn left_out(whole: &WholeFiles) -> String {
    let beside = match whole.beside {
        0 => String::new(),
        files => format!(", and with them {} of the same processes", plural(files as u64, "file", "files")),
    };
    let number = whole.broken.len() as u64;
    let verb = if number == 1 { "is" } else { "are" };
    let mut text = format!("{} of the tables {verb} not whole and left out{beside}:", plural(number, "file", "files"));
    for (file, why) in whole.broken.iter().take(MOST_NAMED) {
        text += &format!("\n{}: {why}", visible(&file.to_string_lossy()));
    }
    if whole.broken.len() > MOST_NAMED {
        text += &format!("\nand {} more", count((whole.broken.len() - MOST_NAMED) as u64));
    }
    text
}

/// Whether all captures in the tables are aggregated: they alone have no snapshots.
fn are_all_aggregated(directory: &Path) -> bool {
    !directory.join("snapshots").is_dir()
}

/// What it means that there is no row.
fn nothing(query: FleetQuery, are_all_aggregated: bool) -> &'static str {
    match query {
        FleetQuery::Growth if are_all_aggregated => {
            "nothing grew between the first and the last whole window of a process; these captures keep the windows that they were \
             recorded with: record with shorter ones ('memtrack run --window')"
        }
        FleetQuery::Growth => {
            "nothing grew between the first and the last whole window of a process; shorter windows are made by \
             'memtrack transform parquet --window' of captures that are not aggregated"
        }
        FleetQuery::Regression => {
            "nothing holds more, or one of the releases has no process; 'memtrack fleet DIR leaks' lists them"
        }
        FleetQuery::Leaks | FleetQuery::Peaks => "there are no processes in the tables",
    }
}

fn table(query: FleetQuery, rows: &[FleetRow]) -> TextTable {
    let titles = query.columns().iter().map(|(_, title)| column(title));
    let place_title = query.has_places().then(|| column("Line of own code"));
    let mut table = TextTable::new(titles.chain(place_title));
    for row in rows {
        let cells = query.columns().iter().map(|(name, _)| cell(name, row));
        table.row(cells.chain(query.has_places().then(|| place(row).into())));
    }
    table
}

/// A figure of samples has the half of its 95 % interval beside it.
fn cell(name: &str, row: &FleetRow) -> TextCell {
    let value = row.get(name);
    let number = value.and_then(Value::as_f64);
    let margin = row.get(&format!("{name}_margin")).and_then(Value::as_f64).filter(|margin| *margin > 0.0);
    let margin = margin.map_or_else(String::new, |margin| format!(" ± {}", size(margin as u64)));
    match (number, value.and_then(Value::as_str)) {
        (Some(number), _) if name.contains("bytes") => {
            let sign = if number < 0.0 { "-" } else { "" };
            format!("{sign}{}{margin}", size(number.abs() as u64)).into()
        }
        (Some(number), _) => count(number as u64).into(),
        (None, Some(text)) => visible(text).to_string().into(),
        (None, None) => "-".into(),
    }
}

/// Function, file and line of a row.
fn place(row: &FleetRow) -> String {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let Some(function) = text("function") else { return "<no stack>".into() };
    let mut place = visible(function).to_string();
    if let Some(file) = text("file") {
        place += &format!(" at {}", visible(file));
        if let Some(line) = row.get("line").and_then(Value::as_u64) {
            place += &format!(":{line}");
        }
    }
    place
}
