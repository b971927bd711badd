//! Describes a loaded object for native frames: its segments, unwind tables, path and build-id.
//!
//! Invariant: called under the loader's lock, which keeps the object loaded meanwhile.

#![expect(clippy::disallowed_types, reason = "runs at start-up and in a dlopen only, outside of hooks")]

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;

use libc::{PT_LOAD, PT_NOTE};
use memtrack_format::file_stamp::{self, FileStamp};

use super::modules::Description;
use crate::platform::loaded_object::{LoadedObject, Range, build_id, holds};

const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// What the kernel appends to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// Describes an object.
pub(super) fn of(object: &LoadedObject<'_>) -> Description {
    let segments: Vec<Range> = object.of_type(PT_LOAD).collect();
    let loaded = |range: &Range| segments.iter().any(|segment| holds(segment, range.start, range.len()));
    let path = path(object);
    let build_id = object.of_type(PT_NOTE).filter(loaded).find_map(|notes| build_id(&notes));
    let (path, build_id) = match build_id {
        Some(build_id) => (path, build_id.to_vec()),
        None => without_build_id(object, path),
    };
    let unwind_header = object.of_type(PT_GNU_EH_FRAME).find(loaded);
    Description { bias: object.base, unwind_header, path, build_id, segments }
}

/// Path and identity of an object that has no build-id. Where its file was deleted, another one may have its path by now: it
/// gets the path that the kernel shows, with the mark of a deleted file, and no stamp.
fn without_build_id(object: &LoadedObject<'_>, path: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    match mapped_file(object.range().start).filter(|mapped| mapped.ends_with(DELETED) && *mapped != path) {
        Some(deleted) => (deleted, Vec::new()),
        None => {
            let identity = file_stamp::join(&[], stamp(&path));
            (path, identity)
        }
    }
}

/// What the file system says of a file, by which another one will be told from it.
fn stamp(path: &[u8]) -> Option<FileStamp> {
    let found = std::fs::metadata(OsStr::from_bytes(path)).ok().filter(|_| path.starts_with(b"/"))?;
    let modified_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
    Some(FileStamp { inode: found.ino(), size: found.size(), modified_ns })
}

/// The loader has no name for the program itself.
fn path(object: &LoadedObject<'_>) -> Vec<u8> {
    // SAFETY: null, or the loader's copy of the name, which ends in zero.
    let name = (object.name != 0).then(|| unsafe { CStr::from_ptr(object.name as *const libc::c_char) });
    match name.map(CStr::to_bytes) {
        None | Some(b"") => mapped_file(object.range().start).unwrap_or_default(),
        Some(name) if name.starts_with(b"/") || !name.contains(&b'/') => name.to_vec(),
        Some(name) => {
            let here = std::env::current_dir().unwrap_or_default().into_os_string().into_vec();
            [here.as_slice(), b"/", name].concat()
        }
    }
}

/// The file that is mapped at an address: the system's word for the program is the loader, where that was started.
fn mapped_file(address: usize) -> Option<Vec<u8>> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        // Start and end, rights, offset, device, node, and after spaces the path.
        let range = std::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let path = line.iter().position(|&byte| byte == b'/').and_then(|path| line.get(path..))?;
        (start..end).contains(&address).then(|| path.to_vec())
    })
}
