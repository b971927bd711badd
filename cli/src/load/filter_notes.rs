//! What is said of filters: how much they select, and of a name that no thread, function or file has, the names that there are.
//!
//! Invariant: nothing is said of a name that something in one of the captures has.

use std::collections::BTreeSet;

use memtrack_reader::Filter;
use memtrack_reader::analysis::Tally;
use memtrack_reader::frames::{Frame, NameId};

use crate::message;
use crate::reports::capture_info::Capture;
use crate::text::visible;
use crate::units::{count, size};

/// Maximum number of names that are listed.
const LISTED: usize = 8;

/// Prints how much the filters selected.
pub(crate) fn note_filtered(kept: Tally, all: Tally) {
    message::note(format_args!(
        "filters: showing {} of {} allocations, {} of {}",
        count(kept.count),
        count(all.count),
        size(kept.bytes),
        size(all.bytes)
    ));
}

/// Says which names of the filter nothing in these captures has, each of which comes with the sum of all its allocations.
pub(super) fn note_unmatched(filter: &Filter, captures: &[(Capture, Tally)]) {
    if captures.iter().any(|(_, all)| all.count != 0) {
        sentences(filter, captures).iter().for_each(message::note);
    }
}

fn sentences(filter: &Filter, captures: &[(Capture, Tally)]) -> Vec<String> {
    let mut said = Vec::new();
    for wanted in &filter.threads {
        let threads = || captures.iter().flat_map(|(capture, _)| &capture.threads);
        if threads().all(|thread| thread.name != *wanted && thread.tid.to_string() != *wanted) {
            let names = threads().map(|thread| &*thread.name).collect();
            said.push(format!("no thread is named '{wanted}'; threads: {}", listed(&names)));
        }
    }
    for wanted in &filter.functions {
        let functions = || names_of(captures, |frame| frame.function);
        let name = wanted.strip_prefix('=').filter(|name| !name.is_empty());
        match name {
            Some(name) if functions().all(|function| function != name) => {
                let parts = functions().filter(|function| contains(function, name)).collect();
                said.push(format!("no function is named '{name}'{}", similar(&parts)));
            }
            None if functions().all(|function| !function.contains(&**wanted)) => {
                let other_case = functions().filter(|function| contains(function, wanted)).collect();
                said.push(format!("no function has '{wanted}' in its name{}", similar(&other_case)));
            }
            _ => {}
        }
    }
    for wanted in &filter.files {
        let files = || names_of(captures, |frame| frame.file);
        if files().all(|file| !file.contains(&**wanted)) {
            let other_case = files().filter(|file| contains(file, wanted)).collect();
            said.push(format!("no file has '{wanted}' in its path{}", similar(&other_case)));
        }
    }
    said
}

/// The names of all frames in these captures.
fn names_of(captures: &[(Capture, Tally)], field: fn(&Frame) -> NameId) -> impl Iterator<Item = &str> {
    captures
        .iter()
        .flat_map(move |(Capture { frames, .. }, _)| frames.frames().iter().map(move |frame| frames.name(field(frame))))
}

/// Whether the text has these words, in capitals or not.
fn contains(text: &str, words: &str) -> bool {
    text.to_lowercase().contains(&words.to_lowercase())
}

/// The end of a sentence about a name that nothing has.
fn similar(names: &BTreeSet<&str>) -> String {
    if names.is_empty() { String::new() } else { format!("; similar: {}", listed(names)) }
}

/// Some of the names, and how many more there are.
fn listed(names: &BTreeSet<&str>) -> String {
    let some = names.iter().take(LISTED).map(|name| visible(name)).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use memtrack_reader::Filter;
    use memtrack_reader::analysis::Tally;

    use super::sentences;
    use crate::reports::fixture;

    /// What is said of a filter with these names of threads, functions and files.
    fn said(threads: &[&str], functions: &[&str], files: &[&str]) -> Vec<String> {
        let [threads, functions, files] =
            [threads, functions, files].map(|names| names.iter().map(|&name| name.into()).collect());
        let filter = Filter { threads, functions, files, ..Filter::default() };
        sentences(&filter, &[(fixture::capture(), Tally { count: 1, bytes: 1, ..Tally::default() })])
    }

    #[test]
    fn what_nothing_is_named_is_said_with_the_names_that_there_are() {
        assert_eq!(said(&["MainThread"], &[], &[]), ["no thread is named 'MainThread'; threads: main, pool-0"]);
        assert_eq!(said(&[], &["=read"], &[]), ["no function is named 'read'; similar: Reader.read"]);
        assert_eq!(
            said(&[], &["WORK"], &["none.py"]),
            ["no function has 'WORK' in its name; similar: work", "no file has 'none.py' in its path"]
        );
    }

    #[test]
    fn of_what_is_there_nothing_is_said() {
        assert_eq!(said(&["main", "107"], &["=work", "ead"], &["app.py"]), [""; 0]);
    }
}
