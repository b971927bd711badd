//! What fuzzing has found worth keeping, run as an ordinary test: see `fuzz/` and `scripts/fuzz`.

#[path = "../../fuzz/src/checks.rs"]
mod checks;

use std::path::Path;

/// Runs a check on each file of its corpus.
fn run(target: &str, check: fn(&[u8])) {
    let directory: std::path::PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "fuzz", "corpus", target].iter().collect();
    let entries = std::fs::read_dir(&directory).expect("a corpus");
    let files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert!(files.len() > 20, "{} has {} files", directory.display(), files.len());
    files.iter().for_each(|file| check(&read(file)));
}

fn read(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn records() {
    run("records", checks::records);
}

#[test]
fn columns() {
    run("columns", checks::columns);
}

#[test]
fn captures() {
    run("capture", checks::capture);
}

#[test]
fn line_tables() {
    run("lines", checks::lines);
}
