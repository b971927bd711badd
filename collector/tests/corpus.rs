//! What fuzzing has found worth keeping, run as an ordinary test: see `fuzz/` and `scripts/fuzz`.

#[path = "../../fuzz/src/maps.rs"]
mod maps;

#[test]
fn maps_of_processes() {
    let directory: std::path::PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "fuzz", "corpus", "maps"].iter().collect();
    let entries = std::fs::read_dir(&directory).expect("a corpus");
    let files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert!(files.len() > 10, "{} has {} files", directory.display(), files.len());
    for file in files {
        maps::maps(&std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
}
