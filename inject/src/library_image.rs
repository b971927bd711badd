//! The library's file as a process gets it.
//!
//! The library names `libdl.so.2` among those that it needs, since before glibc 2.34 `dlsym` is there. Later C libraries have it
//! themselves; there the name is replaced by that of the C library, so that no further file is looked for in the process's file
//! system, where it need not be, and none stays mapped.
//!
//! Invariant: nothing but one name in the table of names changes, and only in a file that is what it is expected to be.

use crate::object::{u16_at, u32_at, u64_at};

/// A name with the end of the one before it, and what replaces it: as long, and the empty rest is never looked up.
const SEPARATE: &[u8; 12] = b"\0libdl.so.2\0";
const WHOLE: &[u8; 12] = b"\0libc.so.6\0\0";

const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// Bytes of an entry of the dynamic section, and of a program header.
const ENTRY: usize = 16;
const HEADER: usize = 56;

/// The file for a process whose C library has the functions of libdl.
pub(crate) fn without_libdl(image: &[u8]) -> Vec<u8> {
    let mut image = image.to_vec();
    let names = names(&image).and_then(|(start, end)| image.get_mut(start..end));
    if let Some(names) = names
        && let Some(at) = names.windows(SEPARATE.len()).position(|window| window == SEPARATE)
        && let Some(name) = names.get_mut(at..at + WHOLE.len())
    {
        name.copy_from_slice(WHOLE);
    }
    image
}

/// Where the table of names is, which lies in the first segment: addresses there are places in the file.
fn names(image: &[u8]) -> Option<(usize, usize)> {
    let (headers, count) = (usize::try_from(u64_at(image, 32)?).ok()?, usize::from(u16_at(image, 56)?));
    let headers = image.get(headers..)?.chunks_exact(HEADER).take(count);
    let dynamic = headers.clone().find(|header| u32_at(header, 0) == Some(PT_DYNAMIC))?;
    let (start, size) = (usize::try_from(u64_at(dynamic, 8)?).ok()?, usize::try_from(u64_at(dynamic, 32)?).ok()?);
    let entries = image.get(start..start.checked_add(size)?)?.chunks_exact(ENTRY);
    let value = |tag| entries.clone().find(|entry| u64_at(entry, 0) == Some(tag)).and_then(|entry| u64_at(entry, 8));
    let (start, size) = (usize::try_from(value(DT_STRTAB)?).ok()?, usize::try_from(value(DT_STRSZ)?).ok()?);
    Some((start, start.checked_add(size)?))
}

#[cfg(test)]
mod tests {
    use super::without_libdl;

    #[test]
    fn what_is_no_library_stays_as_it_is() {
        for image in [&b""[..], b"\x7fELF", b"\0libdl.so.2\0", &[0xff; 200]] {
            assert_eq!(without_libdl(image), image);
        }
    }
}
