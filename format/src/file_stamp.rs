//! File stamps: identify the file of a module that has no build-id by its inode number, size and modification time.
//!
//! When names are looked up, another file may be at the module's path; a stamp that differs shows it. In a capture a stamp
//! takes the place of the build-id: 32 bytes, little-endian, with a magic number that no build-id begins with:
//!
//! ```text
//! 0   8  magic: 00 'n' 'o' ' ' 'i' 'd' 00 ff
//! 8   8  number of the file in its file system
//! 16  8  size in bytes
//! 24  8  time of the last change of its content, in nanoseconds since 1970; signed
//! ```
//!
//! Invariant: `split(&join(id, stamp))` gives both back, and a build-id comes first: where there is one, no stamp is kept.

/// The first bytes of a stamp.
const MAGIC: [u8; 8] = *b"\0no id\0\xff";

/// Inode number, size and modification time of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// Its number in its file system.
    pub inode: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When its content was changed last, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// The bytes of the build-id field: the build-id, else the stamp, else nothing.
#[must_use]
pub fn join(build_id: &[u8], stamp: Option<FileStamp>) -> Vec<u8> {
    match stamp.filter(|_| build_id.is_empty()) {
        Some(FileStamp { inode, size, modified_ns }) => {
            [MAGIC, inode.to_le_bytes(), size.to_le_bytes(), modified_ns.to_le_bytes()].concat()
        }
        None => build_id.to_vec(),
    }
}

/// Build-id (empty if there is none) and stamp in the bytes of a build-id field.
#[must_use]
pub fn split(bytes: &[u8]) -> (&[u8], Option<FileStamp>) {
    let stamp = bytes.strip_prefix(&MAGIC).and_then(|rest| {
        let (parts, []) = rest.as_chunks::<8>() else { return None };
        let [inode, size, modified] = parts else { return None };
        let modified_ns = i64::from_le_bytes(*modified);
        Some(FileStamp { inode: u64::from_le_bytes(*inode), size: u64::from_le_bytes(*size), modified_ns })
    });
    (if stamp.is_some() { &[] } else { bytes }, stamp)
}

#[cfg(test)]
mod tests {
    use super::{FileStamp, join, split};
    use proptest::prelude::*;

    #[test]
    fn a_build_id_comes_first() {
        let stamp = FileStamp { inode: 7, size: 1 << 40, modified_ns: -1 };
        assert_eq!(split(&join(&[], Some(stamp))), (&[][..], Some(stamp)));
        assert_eq!(split(&join(&[1, 2], Some(stamp))), (&[1, 2][..], None));
        assert_eq!(split(&join(&[], None)), (&[][..], None));
    }

    proptest! {
        #[test]
        fn what_is_no_stamp_is_a_build_id(cut in 0usize..32, more in proptest::collection::vec(any::<u8>(), 1..9)) {
            let whole = join(&[], Some(FileStamp::default()));
            prop_assert_eq!(split(&whole[..cut]), (&whole[..cut], None));
            let longer = [whole, more].concat();
            prop_assert_eq!(split(&longer), (&longer[..], None));
        }
    }
}
