//! Whether a program that is about to be executed can load the shim; if not, its environment stays as it is, since
//! nobody would take memtrack's variables out of it.
//!
//! Reads the file's headers by system calls only, possibly in the child of a vfork. Invariant: where the headers do not
//! tell (a script, an unreadable file), the answer is yes.

#![expect(clippy::disallowed_methods, reason = "whoever executes a program by its name reads PATH, too")]

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use crate::platform::errno::Errno;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// More program headers than any linker writes.
const MOST_HEADERS: usize = 512;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// More entries than the dynamic section of a program has.
const MOST_ENTRIES: u64 = 512;
/// A library that ends the program unless it is the very first one.
const ADDRESS_SANITIZER: &[u8] = b"libasan.so";
const CLASS_64: u8 = 2;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// Longest path that is looked at.
const LONGEST: usize = 4096;

/// Whether the program at a path can.
pub(crate) fn at(path: *const c_char) -> bool {
    if path.is_null() {
        return true;
    }
    let _errno = Errno::keep();
    // SAFETY: the caller's string, which ends in zero.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    // SAFETY: the caller's string, which ends in zero.
    let file = unsafe { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return true;
    }
    let answer = in_file(file, name);
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    answer
}

/// Whether the program of a name can, which is looked for in PATH where it is no path.
pub(crate) fn named(name: *const c_char) -> bool {
    if name.is_null() {
        return true;
    }
    let _errno = Errno::keep();
    // SAFETY: the caller's string, which ends in zero.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if bytes.contains(&b'/') {
        return at(name);
    }
    // SAFETY: a name that ends in zero; whoever executes a program reads the environment, too.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if path.is_null() {
        return true;
    }
    // SAFETY: the value of a variable, which ends in zero.
    let directories = unsafe { CStr::from_ptr(path) }.to_bytes().split(|byte| *byte == b':');
    let mut room = [0; LONGEST];
    for directory in directories {
        let directory = if directory.is_empty() { b"." } else { directory };
        let Some(path) = join(&mut room, directory, bytes) else { continue };
        // SAFETY: a string that ends in zero.
        if unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0 {
            return at(path.as_ptr());
        }
    }
    true
}

fn join<'a>(room: &'a mut [u8; LONGEST], directory: &[u8], name: &[u8]) -> Option<&'a CStr> {
    let parts = [directory, b"/", name, b"\0"];
    let text = parts.iter().flat_map(|part| part.iter());
    let length = parts.iter().map(|part| part.len()).sum();
    room.iter_mut().zip(text).for_each(|(place, byte)| *place = *byte);
    CStr::from_bytes_with_nul(room.get(..length)?).ok()
}

/// Whether the program in an open file can.
pub(crate) fn in_file(file: c_int, name: &[u8]) -> bool {
    let _errno = Errno::keep();
    let mut header = [0; HEADER];
    if !read(file, &mut header, 0) || !header.starts_with(b"\x7fELF") {
        return true;
    }
    let is_foreign = header.get(4) != Some(&CLASS_64) || number(&header, 18, 2) != u64::from(MACHINE);
    !is_foreign && !runs_as_another(file) && has_loader(file, &header, name) && !must_come_first(file, &header)
}

/// Whether it runs with another user's privileges, so that the loader ignores what it is given.
fn runs_as_another(file: c_int) -> bool {
    let mut status = MaybeUninit::<libc::stat64>::zeroed();
    // SAFETY: writes to a live local of its type.
    let known = unsafe { libc::fstat64(file, status.as_mut_ptr()) } == 0;
    // SAFETY: all zeroes is a valid value, and the call wrote nothing else.
    let status = unsafe { status.assume_init() };
    // SAFETY: no arguments, cannot fail.
    let (user, group) = (unsafe { libc::geteuid() }, unsafe { libc::getegid() });
    let by_user = status.st_mode & libc::S_ISUID != 0 && status.st_uid != user;
    let by_group = status.st_mode & libc::S_ISGID != 0 && status.st_gid != group;
    known && (by_user || by_group)
}

/// One line of a table in the file: of the program headers, or of the dynamic section.
struct TableLine([u8; PROGRAM_HEADER]);

impl TableLine {
    fn read(file: c_int, at: u64) -> Option<Self> {
        let mut bytes = [0; PROGRAM_HEADER];
        read(file, &mut bytes, at).then_some(Self(bytes))
    }

    fn word(&self, at: usize) -> u64 {
        number(&self.0, at, 8)
    }
}

/// The program headers of a type.
fn headers(file: c_int, header: &[u8; HEADER], kind: u32) -> impl Iterator<Item = TableLine> {
    let (table, count) = (number(header, 32, 8), number(header, 56, 2));
    let lines = (0..count.min(MOST_HEADERS as u64))
        .map_while(move |index| TableLine::read(file, table.wrapping_add(index.wrapping_mul(PROGRAM_HEADER as u64))));
    lines.filter(move |line| number(&line.0, 0, 4) == u64::from(kind))
}

/// Whether it needs a library that puts up with none before it.
fn must_come_first(file: c_int, header: &[u8; HEADER]) -> bool {
    let Some(dynamic) = headers(file, header, PT_DYNAMIC).next() else { return false };
    let entry = |index: u64| {
        let mut bytes = [0; 16];
        let at = dynamic.word(8).wrapping_add(index.wrapping_mul(16));
        (read(file, &mut bytes, at)).then(|| (number(&bytes, 0, 8), number(&bytes, 8, 8))).filter(|(tag, _)| *tag != 0)
    };
    let entries = || (0..MOST_ENTRIES).map_while(entry);
    let Some((_, strings)) = entries().find(|(tag, _)| *tag == DT_STRTAB) else { return false };
    let place = headers(file, header, PT_LOAD).find_map(|load| {
        let inside = strings.checked_sub(load.word(16)).filter(|inside| *inside < load.word(32))?;
        Some(load.word(8).wrapping_add(inside))
    });
    let Some(place) = place else { return false };
    entries().filter(|(tag, _)| *tag == DT_NEEDED).any(|(_, name)| {
        let mut text = [0; ADDRESS_SANITIZER.len()];
        read(file, &mut text, place.wrapping_add(name)) && text == ADDRESS_SANITIZER
    })
}

/// Whether it names a loader of the C library's kind, or is one.
fn has_loader(file: c_int, header: &[u8; HEADER], name: &[u8]) -> bool {
    let (table, size, count) = (number(header, 32, 8), number(header, 54, 2), number(header, 56, 2));
    if size as usize != PROGRAM_HEADER {
        return true;
    }
    for index in 0..count.min(MOST_HEADERS as u64) {
        let mut entry = [0; PROGRAM_HEADER];
        if !read(file, &mut entry, table.wrapping_add(index.wrapping_mul(size))) {
            return true;
        }
        if number(&entry, 0, 4) as u32 == PT_INTERP {
            let mut loader = [0; 128];
            let length = (number(&entry, 32, 8) as usize).min(loader.len());
            let text = loader.get_mut(..length).unwrap_or_default();
            return !read(file, text, number(&entry, 8, 8)) || !text.windows(7).any(|window| window == b"ld-musl");
        }
    }
    let file_name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    file_name.starts_with(b"ld-linux") || file_name == b"ld.so"
}

/// Fills `bytes` from the file.
fn read(file: c_int, bytes: &mut [u8], offset: u64) -> bool {
    let Ok(offset) = libc::off_t::try_from(offset) else { return false };
    // SAFETY: the buffer is writable for the length that is given.
    let got = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), bytes.len(), offset) };
    got == bytes.len().cast_signed()
}

/// A little-endian number of so many bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let field = bytes.get(at..).unwrap_or_default().iter().take(length);
    field.rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use super::{at, named};
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn programs_are_told_apart() {
        // Nobody's, not even of a process of this id that is long gone.
        let (pid, now) = (std::process::id(), memtrack_transport::clock::monotonic_ns());
        let directory = std::env::temp_dir().join(format!("memtrack-loadable-{pid}-{now}"));
        std::fs::create_dir(&directory).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            at(CString::new(path.as_os_str().as_bytes()).unwrap().as_ptr())
        };
        let shell = std::fs::read("/bin/sh").unwrap();
        assert!(write("shell", &shell));
        let mut without_loader = shell.clone();
        without_loader[56..58].fill(0);
        assert!(!write("static", &without_loader));
        assert!(write("ld-linux-x86-64.so.2", &without_loader));
        let mut foreign = shell;
        foreign[18] ^= 1;
        assert!(!write("foreign", &foreign));
        assert!(write("script", b"#!/bin/sh\n"));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(named(c"sh".as_ptr()) && named(c"no-such-program".as_ptr()));
    }
}
