//! Objects as text and as JSON.
//!
//! Invariant: what a picture leaves out is said with it.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use memtrack_objects::TypeSum;
use serde_json::{Value, json};

use super::places::{ObjectAge, ObjectPlace, ObjectSum, ObjectThread};
use super::{HolderPath, KnownOfCollector, ObjectsArgs, ObjectsOfType, ObjectsRead, PictureOrigin, PlacedShare};
use crate::message;
use crate::reports::capture_info::{quoted_path, visible};
use crate::terminal::TextFormat;
use crate::text::{Label, TextCell, TextTable, column, entry, left_out};
use crate::units::{count, duration, percent, plural, size};

/// A place stands in the table of types if it has made one in so many of a type's objects, or of their bytes.
const LEAST_PART: u64 = 20;
/// The values of attributes are told of from so many of the objects' bytes on.
const LEAST_VALUES: u64 = 20;

/// Prints a table, with what shows who keeps the objects, and on standard error what the picture is. `target`: what was read.
///
/// # Errors
/// A write error.
pub(super) fn print(options: &ObjectsArgs, read: &ObjectsRead, target: &Path, out: &mut impl Write) -> Result<()> {
    tell(read);
    let rows = options.text.rows;
    let format = TextFormat::new(options.text.colors.color, true);
    let (table, all) = match &read.paths {
        Some(paths) => (table_of_paths(paths, rows, format), paths.len()),
        None if options.places => table_of_places(read, rows),
        None if options.threads => table_of_threads(read, rows),
        None if options.ages => table_of_ages(read, rows),
        None if options.generations => (table_of_generations(read, rows), read.types.len()),
        None => (table_of_types(read, rows), read.types.len()),
    };
    for line in table.lines(format) {
        writeln!(out, "{line}")?;
    }
    let rest = all.saturating_sub(rows);
    if rest > 0 {
        writeln!(out, "{}", left_out(rest as u64))?;
    }
    if read.paths.is_none() {
        say_partial_sizes(read, rows);
        say_value_bytes(read);
    }
    if let types @ [_, _, ..] = &read.why_types[..] {
        let names: Vec<String> =
            types.iter().map(|(name, number)| format!("{} {}", visible(name), count(*number))).collect();
        message::note(format_args!("objects of {} types: {}", names.len(), names.join(", ")));
    }
    if read.paths.is_none() && options.at.is_empty() {
        writeln!(out, "\nWho keeps them: memtrack objects --why TYPE {}", quoted_path(target))?;
    }
    Ok(())
}

/// Says what the picture is, and what it cost.
fn tell(read: &ObjectsRead) {
    let objects = count(read.objects);
    match &read.moment {
        PictureOrigin::Running { pause_ns: Some(pause_ns) } => {
            message::note(format_args!("{objects} objects; the program stood still for {}", duration(*pause_ns)));
        }
        PictureOrigin::Running { pause_ns: None } => {
            message::note(format_args!("{objects} objects; the program stood still while it was read"));
        }
        PictureOrigin::Stored { when, pause_ns } => {
            let pause = duration(*pause_ns);
            message::note(format_args!("{objects} objects {when}; the program stood still for {pause}"));
        }
    }
    if let Some(placed) = read.placed {
        message::note(share(read, placed));
    }
    if read.misses_large {
        message::note(
            "the program's memory allocator is not glibc's: objects of more than 512 bytes that only C code holds are not \
             found; they are if it is recorded from its start, by 'memtrack run'",
        );
    }
    if !read.is_consistent {
        message::warning(
            "the garbage collector was at work each time that the program was stopped: objects may be missing; try again",
        );
    }
    if read.unreadable > 0 {
        message::warning(format_args!("unreadable: {}", plural(read.unreadable, "object", "objects")));
    }
}

/// Says of which types in the table the bytes are not those that `sys.getsizeof` gives.
fn say_partial_sizes(read: &ObjectsRead, rows: usize) {
    let partial = read.types.iter().take(rows).filter(|of| of.sum.is_size_partial);
    let names: Vec<String> = partial.map(|of| short(&of.sum.name)).collect();
    if !names.is_empty() {
        message::note(format_args!(
            "without what their own __sizeof__ adds, which is not executed: {}",
            names.join(", "),
        ));
    }
}

/// Says how much the attributes of instances take, which `sys.getsizeof` leaves out, where that is much.
fn say_value_bytes(read: &ObjectsRead) {
    let all: u64 = read.types.iter().map(|of| of.sum.value_bytes).sum();
    let Some(most) = read.types.iter().max_by_key(|of| of.sum.value_bytes) else { return };
    if all < read.own_bytes / LEAST_VALUES {
        return;
    }
    message::note(format_args!(
        "own bytes are those of sys.getsizeof: without {} for the attributes of instances, {} of them of {}",
        size(all),
        size(most.sum.value_bytes),
        short(&most.sum.name),
    ));
}

/// How many objects have a place.
fn share(read: &ObjectsRead, placed: PlacedShare) -> String {
    let (of_objects, of_bytes) =
        (percent(placed.sum.count, read.objects), percent(placed.sum.own_bytes, read.own_bytes));
    let which = if placed.is_exact {
        "others were made before recording began, or are part of a file. That of a float, a frame, a small dict, list or tuple may be \
         that of an earlier one whose block CPython used again"
    } else {
        "only those in a block of malloc, or with items, bytes or keys in one; all have one with 'memtrack run \
         --trace-python-allocators'"
    };
    format!("{of_objects} of the objects, {of_bytes} of their bytes, have the place that made them: {which}")
}

/// The report as JSON.
pub(super) fn as_json(read: &ObjectsRead) -> Value {
    let has_references = read.known != KnownOfCollector::Nothing;
    let has_generations = read.known == KnownOfCollector::Generations;
    let row = |of: &ObjectsOfType| {
        json!({
            "type": of.sum.name,
            "classes": of.sum.classes,
            "count": of.sum.count,
            "tracked": of.sum.tracked,
            "generations": has_generations.then_some(of.sum.lists.generations),
            "frozen": has_references.then_some(of.sum.lists.frozen),
            "references": has_references.then_some(of.sum.references),
            "immortal": has_references.then_some(of.sum.immortal),
            "conservative": has_references.then_some(of.sum.is_conservative),
            "size_partial": of.sum.is_size_partial,
            "own_bytes": of.sum.own_bytes,
            "value_bytes": of.sum.value_bytes,
            "retained_bytes": of.retained,
            "places": of.made.places.iter().map(place_as_json).collect::<Vec<_>>(),
            "threads": of.made.threads.iter().map(thread_as_json).collect::<Vec<_>>(),
            "ages": of.made.ages.iter().map(age_as_json).collect::<Vec<_>>(),
        })
    };
    let path = |path: &HolderPath| {
        json!({
            "path": path.example,
            "pattern": path.pattern,
            "count": path.count,
            "own_bytes": path.own_bytes,
            "known": path.is_known,
            "held_by": path.held_by,
        })
    };
    let pause_ns = match &read.moment {
        PictureOrigin::Running { pause_ns } => *pause_ns,
        PictureOrigin::Stored { pause_ns, .. } => Some(*pause_ns),
    };
    let why_type = |(name, count): &(String, u64)| json!({"type": name, "count": count});
    let share = |placed: PlacedShare| json!({"count": placed.sum.count, "own_bytes": placed.sum.own_bytes, "exact": placed.is_exact});
    json!({
        "schema": "memtrack-objects",
        "version": 1,
        "pause_ns": pause_ns,
        "consistent": read.is_consistent,
        "misses_large": read.misses_large,
        "count": read.objects,
        "own_bytes": read.own_bytes,
        "placed": read.placed.map(share),
        "types": read.types.iter().map(row).collect::<Vec<_>>(),
        "why": read.paths.as_ref().map(|paths| paths.iter().map(path).collect::<Vec<_>>()),
        "why_types": read.paths.as_ref().map(|_| read.why_types.iter().map(why_type).collect::<Vec<_>>()),
        "unreadable": read.unreadable,
    })
}

fn place_as_json(place: &ObjectPlace) -> Value {
    json!({
        "function": place.function,
        "file": place.file,
        "line": place.line,
        "count": place.count,
        "own_bytes": place.own_bytes,
    })
}

fn thread_as_json(ObjectThread { tid, name, sum }: &ObjectThread) -> Value {
    json!({"thread": tid, "name": name, "count": sum.count, "own_bytes": sum.own_bytes})
}

fn age_as_json(ObjectAge { min_ms, max_ms, sum }: &ObjectAge) -> Value {
    json!({"min_ms": min_ms, "max_ms": max_ms, "count": sum.count, "own_bytes": sum.own_bytes})
}

/// A type without the module that needs no mention.
pub(super) fn short(name: &str) -> String {
    visible(name.strip_prefix("builtins.").unwrap_or(name)).to_string()
}

/// The same of all types of that name, and how many they are.
fn with_classes(sum: &TypeSum) -> String {
    let name = short(&sum.name);
    if sum.classes > 1 { format!("{name}, {} classes", count(sum.classes)) } else { name }
}

/// A place in one line.
pub(super) fn place_label(place: &ObjectPlace) -> Label {
    let file = &place.shown_file;
    let at = if place.line > 0 { format!("{file}:{}", place.line) } else { file.clone() };
    Label::new(visible(&place.function).to_string(), visible(&at).to_string(), false)
}

fn table_of_types(read: &ObjectsRead, rows: usize) -> TextTable {
    let has_places = read.types.iter().any(|of| !of.made.places.is_empty());
    let title = read.types.iter().any(|of| of.retained.is_some()).then(|| column("Retained"));
    let made = has_places.then(|| column("Most made at").cut());
    let titles = [column("Own bytes")].into_iter().chain(title);
    let titles = titles.chain([column("Objects"), column("Type").cut()]).chain(made);
    let mut table = TextTable::new(titles);
    for of in read.types.iter().take(rows) {
        let cells = [size(of.sum.own_bytes)].into_iter().chain(of.retained.map(size));
        let cells = cells.chain([count(of.sum.count), with_classes(&of.sum)]).map(TextCell::from);
        let made_at = of.made.places.first().and_then(|place| most_made_at(place, &of.sum));
        table.row(cells.chain(made_at.map(TextCell::from)));
    }
    table
}

fn table_of_generations(read: &ObjectsRead, rows: usize) -> TextTable {
    let has_generations = read.known == KnownOfCollector::Generations;
    let has_frozen = read.types.iter().any(|of| of.sum.lists.frozen > 0);
    let listed = if has_generations { ["Gen 0", "Gen 1", "Gen 2"].as_slice() } else { &["Listed"] };
    let counts = ["Objects"].iter().chain(listed).chain(has_frozen.then_some(&"Frozen"));
    let counts = counts.chain(&["Unlisted", "References"]).map(|title| column(title));
    let bytes = column("Own bytes").optional(1);
    let mut table = TextTable::new([bytes].into_iter().chain(counts).chain([column("Type").cut()]));
    for ObjectsOfType { sum, .. } in read.types.iter().take(rows) {
        let listed = if has_generations { sum.lists.generations.to_vec() } else { vec![sum.tracked] };
        let frozen = has_frozen.then_some(sum.lists.frozen);
        let unlisted = sum.count.saturating_sub(sum.tracked + sum.lists.frozen);
        let counts = [sum.count].into_iter().chain(listed).chain(frozen).chain([unlisted]);
        let cells = [size(sum.own_bytes)].into_iter().chain(counts.map(count)).chain([references(sum)]);
        table.row(cells.chain([with_classes(sum)]).map(Into::into));
    }
    table
}

/// References of the objects that end.
fn references(sum: &TypeSum) -> String {
    if sum.immortal == sum.count { "immortal".into() } else { count(sum.references) }
}

/// The place that made most objects of a type; how many, or of how many bytes, unless it made half of them.
/// `None`: it has made few of both, so that it would say nothing of the type.
fn most_made_at(place: &ObjectPlace, all: &TypeSum) -> Option<Label> {
    let is_part = |part: u64, whole: u64| part >= whole.div_ceil(LEAST_PART);
    if !is_part(place.count, all.count) && !is_part(place.own_bytes, all.own_bytes) {
        return None;
    }
    let label = place_label(place);
    Some(if place.count >= all.count.div_ceil(2) {
        label
    } else if is_part(place.count, all.count) {
        label.behind(format!("{} in ", count(place.count)))
    } else {
        label.behind(format!("{} in ", size(place.own_bytes)))
    })
}

fn table_of_places(read: &ObjectsRead, rows: usize) -> (TextTable, usize) {
    let mut all: Vec<(&str, &ObjectPlace)> = Vec::new();
    for of in &read.types {
        all.extend(of.made.places.iter().map(|place| (&*of.sum.name, place)));
    }
    all.sort_by_key(|(_, place)| std::cmp::Reverse(place.own_bytes));
    let titles = [column("Own bytes"), column("Objects"), column("Type").cut(), column("Made at").cut()];
    let mut table = TextTable::new(titles);
    for (name, place) in all.iter().take(rows) {
        let cells = [size(place.own_bytes), count(place.count), short(name)].map(TextCell::from);
        table.row(cells.into_iter().chain([place_label(place).into()]));
    }
    (table, all.len())
}

fn table_of_threads(read: &ObjectsRead, rows: usize) -> (TextTable, usize) {
    let text = |thread: &ObjectThread| visible(format!("{} {}", thread.tid, thread.name).trim_end()).to_string();
    let made = |of: &ObjectsOfType| of.made.threads.iter().map(|thread| (thread.sum, text(thread))).collect();
    table_of_parts(read, made, "Made by thread", rows)
}

fn table_of_ages(read: &ObjectsRead, rows: usize) -> (TextTable, usize) {
    let made = |of: &ObjectsOfType| of.made.ages.iter().map(|age| (age.sum, age_text(age))).collect();
    table_of_parts(read, made, "Made before the picture", rows)
}

/// A row for each type and part of its objects, the largest first.
fn table_of_parts(
    read: &ObjectsRead,
    parts: impl Fn(&ObjectsOfType) -> Vec<(ObjectSum, String)>,
    title: &'static str,
    rows: usize,
) -> (TextTable, usize) {
    let of_type = |of| parts(of).into_iter().map(|(sum, text)| (sum, short(&of.sum.name), text)).collect::<Vec<_>>();
    let mut all: Vec<_> = read.types.iter().flat_map(of_type).collect();
    all.sort_by_key(|(sum, ..)| std::cmp::Reverse(sum.own_bytes));
    let number = all.len();
    let mut table = TextTable::new([column("Own bytes"), column("Objects"), column("Type").cut(), column(title).cut()]);
    for (sum, name, text) in all.into_iter().take(rows) {
        table.row([size(sum.own_bytes), count(sum.count), name, text].map(Into::into));
    }
    (table, number)
}

/// A class of ages in words.
fn age_text(age: &ObjectAge) -> String {
    let time = |ms: u64| match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{} s", ms / 1_000),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..86_400_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    };
    match (age.min_ms, age.max_ms) {
        (0, Some(max)) => format!("less than {}", time(max)),
        (min, Some(max)) => format!("{} to {}", time(min), time(max)),
        (min, None) => format!("{} or more", time(min)),
    }
}

/// Who holds the first object of a path stands below it, in as many lines as it takes.
fn table_of_paths(paths: &[HolderPath], rows: usize, format: TextFormat) -> TextTable {
    let mut table = TextTable::new([column("Own bytes"), column("Objects"), column("Held by, for example").cut()]);
    let widest = paths.iter().take(rows).map(|path| count(path.count).len()).max().unwrap_or(0).max("Objects".len());
    let before = "  Own bytes".len() + "  ".len() + widest + "  ".len();
    let beside = TextFormat { width: format.width.map(|width| width.saturating_sub(before)), ..format };
    for path in paths.iter().take(rows) {
        let cells = [size(path.own_bytes), count(path.count), visible(path.told()).to_string()];
        table.row(cells.map(Into::into));
        for line in path.held_by.iter().flat_map(|held_by| entry("", 4, held_by, beside)) {
            table.row([String::new(), String::new(), line].map(Into::into));
        }
    }
    table
}
