//! What has to hold for any text whatever in place of `/proc/PID/maps`: for the fuzz target, and for the collector's tests
//! on the corpus.
//!
//! Invariant: the function returns for every input; it panics only where a promise is broken.

use memtrack_collector::maps::{FileMapping, Maps, parse};

/// Mappings rise, are found, and are what the system would have to write for them; a cut loses one line.
pub(crate) fn maps(data: &[u8]) {
    let maps = parse(data);
    let lines = data.split_inclusive(|&byte| byte == b'\n').count() as u64;
    assert!(maps.files.len() as u64 + maps.malformed <= lines, "more than lines");
    assert!(maps.files.iter().map(|file| file.path.len()).sum::<usize>() <= data.len(), "more than the text");
    assert!(maps.files.array_windows().all(|[one, other]| one.end <= other.start), "an overlap");
    for file in &maps.files {
        assert!(file.start < file.end && file.inode != 0 && file.path.starts_with(b"/"), "{file:?}");
        assert!([file.start, file.end - 1].iter().all(|&address| maps.at(address) == Some(file)), "{file:?}");
        let spellings = file.spellings();
        assert!(spellings.len() <= 4 && spellings[0] == file.path, "{file:?}");
        assert!(spellings.iter().all(|path| path.len() <= file.path.len()), "{file:?}");
    }
    let again: Vec<u8> = maps.files.iter().flat_map(line).collect();
    assert_eq!(parse(&again), Maps { malformed: 0, ..maps.clone() }, "written and read again");
    let cut = parse(data.get(..data.len() / 2).unwrap_or_default());
    assert!(maps.files.starts_with(&cut.files) && cut.malformed <= maps.malformed + 1, "a cut is no beginning");
}

/// As the system writes it.
fn line(mapping: &FileMapping) -> Vec<u8> {
    let FileMapping { start, end, executable, offset, device: (major, minor), inode, path } = mapping;
    let execute = if *executable { 'x' } else { '-' };
    let fields = format!("{start:08x}-{end:08x} r-{execute}p {offset:08x} {major:02x}:{minor:02x} {inode} ");
    [format!("{fields:<73}").as_bytes(), path, b"\n"].concat()
}
