//! dlopen on behalf of another object: a bare file name is searched for along that object's RPATH and RUNPATH.
//!
//! The real dlopen takes its caller as the object that asks, and that is now the shim. Invariant: the file that is
//! opened is the one that the loader itself would have found; otherwise the loader is asked as the program asked it.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "runs in a dlopen of the program's, outside of other hooks"
)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::interposition::got::Original;
use crate::platform::dladdr::object_at;

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The function that [`open`] calls.
pub(crate) static DLOPEN: Original<Dlopen> = Original::new();

/// `Dl_serinfo` of `dlfcn.h`; `count` of the paths follow it.
#[repr(C)]
struct SearchInfo {
    size: usize,
    count: c_uint,
}

/// `Dl_serpath` of `dlfcn.h`.
#[repr(C)]
struct SearchPath {
    name: *const c_char,
    flags: c_uint,
}

/// More directories than this are not asked for.
const MOST_DIRECTORIES: usize = 4096;

/// Opens `file` as the object that holds the address `caller` would.
pub(super) fn open_for(file: &CStr, flags: c_int, caller: usize) -> *mut c_void {
    let bytes = file.to_bytes();
    if bytes.contains(&b'$') {
        let expanded = expand_origin(bytes, caller);
        return open(expanded.as_deref().unwrap_or(file).as_ptr(), flags);
    }
    if bytes.is_empty() || bytes.contains(&b'/') {
        return open(file.as_ptr(), flags);
    }
    let directories = directories_before_the_default(caller);
    if directories.is_empty() {
        return open(file.as_ptr(), flags);
    }
    let loaded = open(file.as_ptr(), flags | libc::RTLD_NOLOAD);
    if !loaded.is_null() {
        return loaded;
    }
    match directories.iter().find_map(|directory| path_in(directory, bytes)) {
        Some(path) => open(path.as_ptr(), flags),
        None => open(file.as_ptr(), flags),
    }
}

/// The real dlopen.
pub(super) fn open(file: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: null or a string that ends in zero; what the library's constructors do is the caller's wish.
    unsafe { DLOPEN.get()(file, flags) }
}

fn path_in(directory: &CStr, file: &[u8]) -> Option<CString> {
    let path = Path::new(OsStr::from_bytes(directory.to_bytes())).join(OsStr::from_bytes(file));
    if path.is_file() { CString::new(path.into_os_string().as_encoded_bytes()).ok() } else { None }
}

/// The directories searched for the object at `caller` ahead of those that are searched for the shim as well.
/// The last ones of both lists are the system's: between the two the loader asks its cache, and goes on doing so.
fn directories_before_the_default(caller: usize) -> Vec<CString> {
    let mut directories = search_list(object_at(caller));
    let own = search_list(object_at(search_list as *const () as usize));
    let common = directories.iter().rev().zip(own.iter().rev()).take_while(|(one, other)| one == other).count();
    directories.truncate(directories.len().saturating_sub(common));
    directories
}

/// All directories that the loader searches for the object with this handle, in order.
fn search_list(object: *mut c_void) -> Vec<CString> {
    let mut size = SearchInfo { size: 0, count: 0 };
    if object.is_null() || !dlinfo(object, libc::RTLD_DI_SERINFOSIZE, (&raw mut size).cast()) {
        return Vec::new();
    }
    let count = (size.count as usize).min(MOST_DIRECTORIES);
    if count < size.count as usize {
        return Vec::new();
    }
    let words = size.size.div_ceil(size_of::<usize>()).max(2);
    let mut buffer = vec![0_usize; words];
    // The second request wants the answer of the first in its buffer.
    let head = buffer.as_mut_ptr().cast::<SearchInfo>();
    // SAFETY: the buffer has room for the head, and is aligned for it.
    unsafe { head.write(size) };
    if !dlinfo(object, libc::RTLD_DI_SERINFO, head.cast()) {
        return Vec::new();
    }
    let paths = buffer.get(2..).unwrap_or_default().chunks_exact(2).take(count);
    paths.filter_map(|path| copy_name(path.first().copied()?)).collect()
}

/// The name of one path, which lies in the loader's answer.
fn copy_name(address: usize) -> Option<CString> {
    const { assert!(size_of::<SearchPath>() == 2 * size_of::<usize>() && size_of::<SearchInfo>() == 2 * size_of::<usize>()) };
    let name = address as *const c_char;
    // SAFETY: the loader has stored the address of a string that ends in zero, in the buffer it was given.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

fn dlinfo(object: *mut c_void, request: c_int, answer: *mut c_void) -> bool {
    // SAFETY: a loaded object's handle, and room for the answer to this request.
    unsafe { libc::dlinfo(object, request, answer) == 0 }
}

/// Replaces `$ORIGIN` by the directory of the object at `caller`, as the loader would; `None` if there is none.
fn expand_origin(file: &[u8], caller: usize) -> Option<CString> {
    let mut buffer = vec![0_u8; libc::PATH_MAX as usize + 1];
    let object = object_at(caller);
    if object.is_null() || !dlinfo(object, libc::RTLD_DI_ORIGIN, buffer.as_mut_ptr().cast()) {
        return None;
    }
    let origin = CStr::from_bytes_until_nul(&buffer).ok()?.to_bytes();
    CString::new(replace_origin(file, origin)).ok()
}

fn replace_origin(file: &[u8], origin: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(file.len().saturating_add(origin.len()));
    let mut rest = file;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"${ORIGIN}").or_else(|| plain_origin(rest)) {
            result.extend_from_slice(origin);
            rest = after;
        } else {
            result.push(first);
            rest = tail;
        }
    }
    result
}

/// What follows `$ORIGIN`, when it is not the beginning of a longer name.
fn plain_origin(text: &[u8]) -> Option<&[u8]> {
    let after = text.strip_prefix(b"$ORIGIN")?;
    let longer = after.first().is_some_and(|next| next.is_ascii_alphanumeric() || *next == b'_');
    (!longer).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_replaced_in_both_spellings_and_nothing_else_is() {
        assert_eq!(replace_origin(b"$ORIGIN/a.so", b"/opt/x"), b"/opt/x/a.so");
        assert_eq!(replace_origin(b"${ORIGIN}/../$LIB/a.so", b"/opt/x"), b"/opt/x/../$LIB/a.so");
        assert_eq!(replace_origin(b"$ORIGINAL/a.so", b"/opt/x"), b"$ORIGINAL/a.so");
        assert_eq!(replace_origin(b"/plain", b"/opt/x"), b"/plain");
    }

    #[test]
    fn the_search_list_of_this_program_ends_in_the_systems_directories() {
        let list = search_list(object_at(search_list as *const () as usize));
        assert!(list.iter().any(|directory| directory.to_bytes().starts_with(b"/")), "{list:?}");
    }
}
