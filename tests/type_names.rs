//! One meaning for each name: no two types of the workspace share one.
//!
//! Read from the sources. Two types in one file are the variants of a conditional compilation; a crate's `Error` is named
//! with its crate; the messages of pprof have the names that its format gives them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::collect_sources;

/// The folders of the workspace's crates.
const CRATES: [&str; 8] = ["format", "seccomp", "transport", "shim", "collector", "reader", "cli", "tests"];

/// Files whose types have names that somebody else gave them: a format, and a module that is compiled with a model.
const GIVEN_NAMES: [&str; 2] = ["cli/src/export/pprof/message.rs", "tests/chain_model.rs"];

#[test]
fn no_two_types_share_a_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    CRATES.iter().for_each(|name| collect_sources(&root.join(name), &root, &mut files));
    let shared = shared_names(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
    assert!(shared.is_empty(), "each of these types needs a name of its own:\n{}", shared.join("\n"));
}

#[test]
fn a_shared_name_is_found() {
    let files = [
        ("a.rs", "pub struct Place;\n#[cfg(x)]\nenum Twice {}\n#[cfg(not(x))]\nstruct Twice;\nenum Error {}"),
        ("b.rs", "impl X {\n    type Place = u8;\n}\nenum Error {}\n// struct Twice"),
        ("c.rs", "mod tests {\n    pub(crate) enum Place<T> {}\n}"),
    ];
    assert_eq!(shared_names(files.into_iter()), ["Place: a.rs:1, c.rs:2"]);
}

/// The names that types of several files have, each with all its places.
fn shared_names<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in files.filter(|(path, _)| !GIVEN_NAMES.contains(path)) {
        for (at, line) in text.lines().enumerate() {
            if let Some(name) = defined_type(line).filter(|name| *name != "Error") {
                places.entry(name).or_default().push((path, at + 1));
            }
        }
    }
    let in_several_files = |places: &Vec<(&str, usize)>| places.iter().any(|(path, _)| *path != places[0].0);
    let shared = places.into_iter().filter(|(_, places)| in_several_files(places)).map(|(name, places)| {
        let places: Vec<String> = places.iter().map(|(path, line)| format!("{path}:{line}")).collect();
        format!("{name}: {}", places.join(", "))
    });
    shared.collect()
}

/// The name of the type that a line defines; an indented `type` belongs to a trait.
fn defined_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let visible = code.strip_prefix("pub").map_or(code, |rest| match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')').map_or("", |(_, rest)| rest).trim_start(),
        None => rest.trim_start(),
    });
    let (keyword, rest) = visible.split_once(' ')?;
    let defines = ["struct", "enum", "union", "trait"].contains(&keyword) || (keyword == "type" && code == line);
    let end = rest.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| defines && !name.is_empty())
}
