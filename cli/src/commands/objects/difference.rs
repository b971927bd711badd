//! `memtrack objects --diff A B`: which types, and which places that made them, have grown.
//!
//! Invariant: types are the same if their names are, places if function, file and line are.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::report::{place_label, short};
use super::{ObjectPlace, ObjectsArgs, ObjectsRead, ObjectsTarget};
use crate::message;
use crate::terminal::TextFormat;
use crate::text::{TextCell, TextTable, column, left_out};
use crate::units::{count, plural, size};

/// What is said in place of a table without rows.
const NO_TYPE: &str = "nothing has changed: of each type there are as many objects, with as many bytes";
const NO_PLACE: &str = "nothing has changed: each place has made as many objects of each type, with as many bytes";

/// Figures before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GrownSum {
    count: [u64; 2],
    own_bytes: [u64; 2],
    retained: [Option<u64>; 2],
}

/// Function, file and line.
type PlaceKey = (String, String, u32);

/// A type, and the places that made its objects.
#[derive(Debug, Default)]
struct GrownType {
    sum: GrownSum,
    places: BTreeMap<PlaceKey, GrownPlace>,
}

/// What a place made, and its file as it is shown: as the later side shows it, if both have it.
#[derive(Debug, Default)]
struct GrownPlace {
    shown_file: String,
    sum: GrownSum,
}

impl GrownSum {
    fn grown_bytes(&self) -> i128 {
        i128::from(self.own_bytes[1]) - i128::from(self.own_bytes[0])
    }

    fn grown_count(&self) -> i128 {
        i128::from(self.count[1]) - i128::from(self.count[0])
    }

    fn has_changed(&self) -> bool {
        self.grown_bytes() != 0 || self.grown_count() != 0
    }
}

/// Reads both sides and prints the difference.
///
/// # Errors
/// A capture cannot be read or has no picture, a process cannot be read, or standard output cannot be written.
pub(super) fn run(options: &ObjectsArgs, captures: &[PathBuf]) -> Result<u8> {
    let [before, after] = captures else { bail!("--diff takes two captures") };
    let (before, after) = (ObjectsTarget::of(before), ObjectsTarget::of(after));
    // The moment of a program that runs is now, so the moments that were given are those of the captures.
    let at = |target: &ObjectsTarget, at| if target.is_capture() { at } else { None };
    let before = before.read(options, at(&before, options.at.first()))?;
    let after = after.read(options, at(&after, options.at.last()))?;
    let unreadable = before.unreadable + after.unreadable;
    let mut grown: Vec<(String, GrownType)> = by_name(&[before, after]).into_iter().collect();
    grown.retain(|(_, of)| of.sum.has_changed() || of.places.values().any(|place| place.sum.has_changed()));
    grown.sort_by_key(|(_, of)| std::cmp::Reverse((of.sum.grown_bytes(), of.sum.grown_count())));
    let mut out = stdout().lock();
    if options.json {
        writeln!(out, "{:#}", as_json(&grown, unreadable))?;
    } else {
        if unreadable > 0 {
            message::warning(format_args!("unreadable: {}", plural(unreadable, "object", "objects")));
        }
        let rows = options.text.rows;
        let (table, all) = if options.places { table_of_places(&grown, rows) } else { table_of_types(&grown, rows) };
        if all == 0 {
            // A header without a row looks like something that was left out.
            writeln!(out, "{}", if options.places { NO_PLACE } else { NO_TYPE })?;
        } else {
            for line in table.lines(TextFormat::new(options.text.colors.color, true)) {
                writeln!(out, "{line}")?;
            }
        }
        if all > rows {
            writeln!(out, "{}", left_out((all - rows) as u64))?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn by_name(reads: &[ObjectsRead; 2]) -> BTreeMap<String, GrownType> {
    let mut all: BTreeMap<String, GrownType> = BTreeMap::new();
    for (side, read) in reads.iter().enumerate() {
        for of in &read.types {
            let known = all.entry(of.sum.name.clone()).or_default();
            known.sum.count[side] += of.sum.count;
            known.sum.own_bytes[side] += of.sum.own_bytes;
            if let Some(retained) = of.retained {
                *known.sum.retained[side].get_or_insert(0) += retained;
            }
            for ObjectPlace { function, file, shown_file, line, count, own_bytes } in &of.made.places {
                let place = known.places.entry((function.clone(), file.clone(), *line)).or_default();
                place.shown_file.clone_from(shown_file);
                place.sum.count[side] += count;
                place.sum.own_bytes[side] += own_bytes;
            }
        }
    }
    all
}

fn as_json(grown: &[(String, GrownType)], unreadable: u64) -> Value {
    let difference = |[before, after]: [u64; 2]| i128::from(after) - i128::from(before);
    let number = |number: i128| i64::try_from(number).unwrap_or(i64::MAX);
    let place = |(function, file, line): &PlaceKey, sum: &GrownSum| {
        json!({
            "function": function,
            "file": file,
            "line": line,
            "count": number(sum.grown_count()),
            "own_bytes": number(sum.grown_bytes()),
        })
    };
    let row = |(name, of): &(String, GrownType)| {
        let retained = match of.sum.retained {
            [None, None] => None,
            [before, after] => Some(number(difference([before.unwrap_or(0), after.unwrap_or(0)]))),
        };
        let mut places: Vec<_> = of.places.iter().map(|(key, place)| (key, &place.sum)).collect();
        places.retain(|(_, sum)| sum.has_changed());
        places.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.grown_bytes(), sum.grown_count())));
        json!({
            "type": name,
            "count": number(of.sum.grown_count()),
            "own_bytes": number(of.sum.grown_bytes()),
            "retained_bytes": retained,
            "before": {"count": of.sum.count[0], "own_bytes": of.sum.own_bytes[0]},
            "after": {"count": of.sum.count[1], "own_bytes": of.sum.own_bytes[1]},
            "places": places.iter().map(|(key, sum)| place(key, sum)).collect::<Vec<_>>(),
        })
    };
    json!({
        "schema": "memtrack-objects",
        "version": 1,
        "diff": true,
        "types": grown.iter().map(row).collect::<Vec<_>>(),
        "unreadable": unreadable,
    })
}

fn signed(bytes: i128) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", size(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}

fn signed_count(objects: i128) -> String {
    let sign = if objects < 0 { "-" } else { "+" };
    format!("{sign}{}", count(u64::try_from(objects.unsigned_abs()).unwrap_or(u64::MAX)))
}

fn table_of_types(grown: &[(String, GrownType)], rows: usize) -> (TextTable, usize) {
    let titles = [column("Own bytes"), column("Objects"), column("Now"), column("Type").cut()];
    let mut table = TextTable::new(titles);
    let grown: Vec<_> = grown.iter().filter(|(_, of)| of.sum.has_changed()).collect();
    for (name, of) in grown.iter().take(rows) {
        let cells = [signed(of.sum.grown_bytes()), signed_count(of.sum.grown_count()), size(of.sum.own_bytes[1])];
        table.row(cells.into_iter().chain([short(name)]).map(Into::into));
    }
    (table, grown.len())
}

fn table_of_places(grown: &[(String, GrownType)], rows: usize) -> (TextTable, usize) {
    let mut all: Vec<(&str, ObjectPlace, &GrownSum)> = Vec::new();
    for (name, of) in grown {
        for ((function, file, line), GrownPlace { shown_file, sum }) in &of.places {
            if !sum.has_changed() {
                continue;
            }
            let (function, file, shown_file) = (function.clone(), file.clone(), shown_file.clone());
            all.push((name, ObjectPlace { function, file, shown_file, line: *line, count: 0, own_bytes: 0 }, sum));
        }
    }
    all.sort_by_key(|(.., sum)| std::cmp::Reverse((sum.grown_bytes(), sum.grown_count())));
    let titles = [column("Own bytes"), column("Objects"), column("Type").cut(), column("Made at").cut()];
    let mut table = TextTable::new(titles);
    for (name, place, sum) in all.iter().take(rows) {
        let cells = [signed(sum.grown_bytes()), signed_count(sum.grown_count()), short(name)].map(TextCell::from);
        table.row(cells.into_iter().chain([place_label(place).into()]));
    }
    (table, all.len())
}
