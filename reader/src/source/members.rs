//! Files with several captures, and the names of those: `all.bin#2` is the second capture in `all.bin`.
//!
//! Every command that takes a path accepts such a name. Invariant: a file whose own name is `all.bin#2` takes
//! precedence.

use std::ops::Range;
use std::path::{Path, PathBuf};

use memtrack_format::header;

use super::file::OpenCaptureFile;
use crate::error::Error;

/// The captures of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Their names: the file's own, if it is one capture.
    pub paths: Vec<PathBuf>,
    /// How many more there were before the file was cut.
    pub missing: usize,
}

/// The captures in the file at `path`.
///
/// # Errors
/// As for [`super::CaptureReader::open`].
pub fn members(path: impl AsRef<Path>) -> Result<Members, Error> {
    let path = path.as_ref();
    let alone = || Members { paths: vec![path.to_owned()], missing: 0 };
    if of_several(path).is_some() {
        return Ok(alone());
    }
    let file = OpenCaptureFile::open(path)?;
    let Some(places) = file.members()? else { return Ok(alone()) };
    // Of a capture that is cut within its header nothing is there.
    let there = places.iter().filter(|place| place.start + header::LEN as u64 <= file.len()).count();
    let named = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("#{number}"));
        PathBuf::from(name)
    };
    Ok(Members { paths: (1..=there).map(named).collect(), missing: places.len() - there })
}

/// Opens one capture: a file of one, or one of a file of several.
pub(super) fn open(path: &Path) -> Result<OpenCaptureFile, Error> {
    let unusable = |expected, found: String, remedy| Error::Unusable { file: path.to_owned(), expected, found, remedy };
    if let Some((whole, number)) = of_several(path) {
        let file = OpenCaptureFile::open(&whole)?;
        let Some(places) = file.members()? else {
            let remedy = "name it without '#' and a number";
            return Err(unusable("a file of several captures", "one capture".to_owned(), remedy));
        };
        return match number.checked_sub(1).and_then(|place| places.get(place)) {
            Some(place) => file.member(path, place),
            None => Err(unusable(
                "a capture in a merged file",
                format!("a file of {} captures", places.len()),
                "check the number",
            )),
        };
    }
    let file = OpenCaptureFile::open(path)?;
    let several: Option<Vec<Range<u64>>> = file.members()?;
    match several {
        None => Ok(file),
        Some(places) => Err(unusable(
            "one capture",
            format!("{} captures in one file", places.len()),
            "name one of them, such as merged.bin#1",
        )),
    }
}

/// The file and the number in a name of this kind.
fn of_several(path: &Path) -> Option<(PathBuf, usize)> {
    if path.exists() {
        return None;
    }
    let (whole, number) = path.to_str()?.rsplit_once('#')?;
    Some((whole.into(), number.parse().ok()?)).filter(|(whole, _): &(PathBuf, usize)| whole.exists())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use memtrack_format::block::{BlockHeader, BlockKind};
    use memtrack_format::members::encode;
    use memtrack_format::meta::Process;

    use super::members;
    use crate::rewrite::CaptureBlocks;
    use crate::source::CaptureReader;

    fn capture(pid: u32) -> Vec<u8> {
        let mut blocks = CaptureBlocks::new(Vec::new()).unwrap();
        blocks.process(&Process { pid: Some(pid), ..Process::default() }, 0).unwrap();
        blocks.finish(true).unwrap()
    }

    fn pids(path: &Path) -> Vec<Option<u32>> {
        let opened =
            members(path).unwrap().paths.into_iter().map(|path| CaptureReader::open(path).unwrap().process().pid);
        opened.collect()
    }

    /// The blocks of the second would be taken for those of the first.
    #[test]
    fn captures_one_behind_the_other_are_refused() {
        let (first, second) = (capture(7), capture(8));
        let cut = [&first[..first.len() - 10], &second].concat();
        let with_bytes_between = [&first[..], b"between", &second].concat();
        let no_more_than_its_header = [&first[..], &second[..16]].concat();
        for bytes in [[&first[..], &second].concat(), cut, with_bytes_between, no_more_than_its_header] {
            let error = CaptureReader::of_bytes(&bytes).unwrap_err().to_string();
            assert!(error.contains("another capture behind it") && error.contains("memtrack merge"), "{error}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("all.bin");
        let mut blocks = CaptureBlocks::new(Vec::new()).unwrap();
        blocks.block(BlockHeader::plain(BlockKind::Members), &encode(&[first.len() as u64])).unwrap();
        fs::write(&path, [blocks.finish(false).unwrap(), first, second].concat()).unwrap();
        assert!(members(&path).unwrap_err().to_string().contains("another capture behind it"));
    }

    #[test]
    fn other_bytes_behind_a_complete_capture_leave_it_complete() {
        let whole = capture(7);
        let found = |bytes: &[u8]| {
            let opened = CaptureReader::of_bytes(bytes).unwrap();
            (opened.complete(), opened.bytes_behind(), opened.lost().blocks, opened.process().pid)
        };
        assert_eq!(found(&whole), (true, 0, 0, Some(7)));
        for bytes in [[0; 100], [0xff; 100]] {
            assert_eq!(found(&[&whole[..], &bytes].concat()), (true, 100, 0, Some(7)));
        }
        assert_eq!(found(&[&whole[..whole.len() - 1], &[0; 100]].concat()).1, 0, "the end is damaged");
    }

    #[test]
    fn each_is_found_and_cuts_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("all.bin");
        let parts = [capture(7), capture(8), capture(9)];
        let lengths = parts.each_ref().map(|part| part.len() as u64);
        let mut blocks = CaptureBlocks::new(Vec::new()).unwrap();
        blocks.block(BlockHeader::plain(BlockKind::Members), &encode(&lengths)).unwrap();
        let mut bytes = blocks.finish(false).unwrap();
        bytes.extend(parts.concat());
        fs::write(&path, &bytes).unwrap();
        assert_eq!(pids(&path), [Some(7), Some(8), Some(9)]);
        let error = CaptureReader::open(&path).unwrap_err().to_string();
        assert!(error.contains("3 captures in one file"), "{error}");
        assert!(CaptureReader::open(directory.path().join("all.bin#4")).is_err());
        assert!(CaptureReader::open(directory.path().join("all.bin#0")).is_err());
        assert!(CaptureReader::open(directory.path().join("all.bin#2")).unwrap().complete());

        fs::write(&path, &bytes[..bytes.len() - parts[2].len() - 10]).unwrap();
        let found = members(&path).unwrap();
        assert_eq!((found.paths.len(), found.missing), (2, 1));
        assert!(!CaptureReader::open(&found.paths[1]).unwrap().complete());
        assert!(CaptureReader::open(&found.paths[0]).unwrap().complete());

        for cut in 1..=parts[2].len() {
            fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
            let found = members(&path).unwrap();
            assert_eq!(found.paths.len() + found.missing, 3);
            let opened = found.paths.iter().map(CaptureReader::open).collect::<Result<Vec<_>, _>>();
            assert!(opened.is_ok(), "{cut} bytes are missing: {opened:?}");
        }

        bytes[16 + 56] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(members(&path).unwrap_err().to_string().contains("corrupt capture index"));
    }
}
