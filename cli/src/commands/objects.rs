//! `memtrack objects`: the Python objects of a running program, by type, and who keeps them alive, as text or JSON.
//!
//! Invariant: the program goes on as it was, and what it cost is said.

use std::io::{Write, stdout};

use anyhow::{Context, Result, bail};
use memtrack_inject::{FreezeCost, ProcessView, freeze};
use memtrack_objects::{HolderPath, Holders, ObjectPicture, PythonRuntime, TypeSum};
use serde_json::{Value, json};

use crate::args::objects::ObjectsArgs;
use crate::message;
use crate::reports::capture_info::visible;
use crate::terminal::TextFormat;
use crate::text::{TextTable, column, left_out};
use crate::units::{count, duration, size};

/// What was read while the program, or its copy, stood still.
struct ReadObjects {
    types: Vec<TypeSum>,
    /// By number of the type.
    retained: Option<Vec<u64>>,
    paths: Option<Vec<HolderPath>>,
    objects: usize,
    unreadable: u64,
    cost: FreezeCost,
}

/// Reads and prints.
///
/// # Errors
/// The process may not be read or is no Python program, there is no object that was asked for, or standard output cannot
/// be written.
pub(crate) fn run(options: &ObjectsArgs) -> Result<u8> {
    let of_process = || format!("process {}", options.pid);
    let view = ProcessView::of_running(options.pid).with_context(of_process)?;
    let runtime = PythonRuntime::find(&view).with_context(of_process)?;
    let read = |view: &ProcessView, cost: FreezeCost| read(options, view, &runtime, cost);
    let objects = freeze(options.pid, options.hold, &|view| runtime.is_at_rest(view), read).with_context(of_process)?;
    if let (Some(wanted), Some([])) = (&options.why, objects.paths.as_deref()) {
        bail!("{}: there is no object of a type or at an address '{wanted}'", of_process());
    }
    let mut out = stdout().lock();
    if options.json {
        writeln!(out, "{:#}", as_json(&objects))?;
    } else {
        tell(&objects);
        let (table, all) = match &objects.paths {
            Some(paths) => (table_of_paths(paths, options.text.rows), paths.len()),
            None => (table_of_types(&objects, options.text.rows), objects.types.len()),
        };
        for line in table.lines(TextFormat::new(options.text.colors.color, true)) {
            writeln!(out, "{line}")?;
        }
        let rest = all.saturating_sub(options.text.rows);
        if rest > 0 {
            writeln!(out, "{}", left_out(rest as u64))?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn read(options: &ObjectsArgs, view: &ProcessView, runtime: &PythonRuntime, cost: FreezeCost) -> ReadObjects {
    let picture = ObjectPicture::read(view, runtime);
    let holders = (options.retained || options.why.is_some()).then(|| Holders::find(&picture));
    let paths = holders.as_ref().zip(options.why.as_ref());
    ReadObjects {
        types: picture.by_type(),
        retained: holders.as_ref().filter(|_| options.retained).map(Holders::retained_by_type),
        paths: paths.map(|(holders, wanted)| holders.paths(view, runtime, &picture.find(wanted))),
        objects: picture.count(),
        unreadable: picture.unreadable,
        cost,
    }
}

/// Says what the picture is, and what it cost.
fn tell(objects: &ReadObjects) {
    let how = if objects.cost.is_copied {
        format!("the program stood still for {}", duration(nanoseconds(objects.cost)))
    } else {
        "the program stood still while it was read".into()
    };
    message::note(format_args!("{} objects; {how}", count(objects.objects as u64)));
    if !objects.cost.was_ready {
        message::warning(
            "the garbage collector was at work each time that the program was stopped: objects may be missing; try again",
        );
    }
    if objects.unreadable > 0 {
        message::warning(format_args!("unreadable: {} objects", count(objects.unreadable)));
    }
}

fn nanoseconds(cost: FreezeCost) -> u64 {
    u64::try_from(cost.pause.as_nanos()).unwrap_or(u64::MAX)
}

/// What a type retains, if that was asked for.
fn retained(objects: &ReadObjects, of: &TypeSum) -> Option<u64> {
    objects.retained.as_ref()?.get(of.number as usize).copied()
}

fn as_json(objects: &ReadObjects) -> Value {
    let row = |of: &TypeSum| {
        json!({
            "type": of.name,
            "count": of.count,
            "tracked": of.tracked,
            "own_bytes": of.own_bytes,
            "retained_bytes": retained(objects, of),
            "places": [],
        })
    };
    let path = |path: &HolderPath| json!({"path": path.example, "pattern": path.pattern, "count": path.count, "known": path.is_known});
    json!({
        "schema": "memtrack-objects",
        "version": 1,
        "pause_ns": objects.cost.is_copied.then(|| nanoseconds(objects.cost)),
        "consistent": objects.cost.was_ready,
        "types": objects.types.iter().map(row).collect::<Vec<_>>(),
        "why": objects.paths.as_ref().map(|paths| paths.iter().map(path).collect::<Vec<_>>()),
        "unreadable": objects.unreadable,
    })
}

fn table_of_types(objects: &ReadObjects, rows: usize) -> TextTable {
    let title = objects.retained.as_ref().map(|_| column("Retained"));
    let titles = [column("Own bytes")].into_iter().chain(title);
    let mut table = TextTable::new(titles.chain([column("Objects"), column("Type").cut()]));
    for of in objects.types.iter().take(rows) {
        let name = of.name.strip_prefix("builtins.").unwrap_or(&of.name);
        let cells = [size(of.own_bytes)].into_iter().chain(retained(objects, of).map(size));
        table.row(cells.chain([count(of.count), visible(name).to_string()]).map(Into::into));
    }
    table
}

fn table_of_paths(paths: &[HolderPath], rows: usize) -> TextTable {
    let mut table = TextTable::new([column("Objects"), column("Held by, for example").cut()]);
    for path in paths.iter().take(rows) {
        table.row([count(path.count), visible(&path.example).to_string()].map(Into::into));
    }
    table
}
