//! Whether a program can be tracked, as far as its file tells.
//!
//! The library comes in through the dynamic loader of glibc. A program without one, or with another, or that runs with
//! privileges (where the loader ignores the environment) runs as it is, without anything of memtrack in its
//! environment. Invariant: the file is foreign; at most its headers are read.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// More bytes than the dynamic section of a program has.
const MAX_DYNAMIC: u64 = 1 << 13;
/// A library that ends the program unless it is the very first one.
const ADDRESS_SANITIZER: &[u8] = b"libasan.so";
const CLASS_64: u8 = 2;
const HEADER_LEN: usize = 64;
const PROGRAM_HEADER_LEN: usize = 56;
/// More program headers than any linker writes.
const MAX_PROGRAM_HEADERS: u16 = 512;

/// Why nothing can be recorded of the program at `path`; `None` for what can be tracked and for what is no ELF file.
pub(super) fn untrackable(path: &Path) -> Option<String> {
    let reason = if runs_with_privileges(path) {
        "it runs with the privileges of another user (setuid or setgid), where the system ignores LD_PRELOAD"
    } else {
        file_reason(path)?
    };
    Some(reason.into())
}

fn runs_with_privileges(path: &Path) -> bool {
    let (Ok(file), Ok(own)) = (fs::metadata(path), fs::metadata("/proc/self")) else { return false };
    let setuid = file.mode() & libc::S_ISUID != 0 && file.uid() != own.uid();
    let setgid = file.mode() & libc::S_ISGID != 0 && file.mode() & libc::S_IXGRP != 0 && file.gid() != own.gid();
    setuid || setgid
}

fn file_reason(path: &Path) -> Option<&'static str> {
    let mut file = File::open(path).ok()?;
    let mut header = [0; HEADER_LEN];
    file.read_exact(&mut header).ok()?;
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    if header[4] != CLASS_64 || u16_at(&header, 18) != own_machine() {
        return Some("it is a program for another architecture than memtrack");
    }
    match interpreter(&mut file, &header) {
        None if is_loader(path) => None,
        None => Some("it is statically linked, so that no library can be loaded into it"),
        Some(interpreter) if contains(&interpreter, b"ld-musl") => Some("it uses musl; only glibc is supported so far"),
        Some(_) if must_come_first(&mut file, &header) => {
            Some("it is built with AddressSanitizer, whose library tolerates no other before it")
        }
        Some(_) => None,
    }
}

/// The machine number of memtrack's own kind of program.
fn own_machine() -> u16 {
    if cfg!(target_arch = "aarch64") { 183 } else { 62 }
}

/// The dynamic loader is a program without an interpreter that loads libraries all the same.
fn is_loader(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld-linux") || name == "ld.so"
}

fn interpreter(file: &mut File, header: &[u8; HEADER_LEN]) -> Option<Vec<u8>> {
    let entries = program_headers(file, header)?;
    let entry = entries.iter().find(|entry| u32_at(*entry, 0) == PT_INTERP)?;
    part(file, u64_at(entry, 8), u64_at(entry, 32).min(256))
}

fn program_headers(file: &mut File, header: &[u8; HEADER_LEN]) -> Option<Vec<[u8; PROGRAM_HEADER_LEN]>> {
    if usize::from(u16_at(header, 54)) != PROGRAM_HEADER_LEN {
        return None;
    }
    let count = u64::from(u16_at(header, 56).min(MAX_PROGRAM_HEADERS));
    let table = part(file, u64_at(header, 32), count * PROGRAM_HEADER_LEN as u64)?;
    Some(table.as_chunks().0.to_vec())
}

/// What stands in the file from a place on, up to its end.
fn part(file: &mut File, from: u64, length: u64) -> Option<Vec<u8>> {
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whether it needs a library that puts up with none before it.
fn must_come_first(file: &mut File, header: &[u8; HEADER_LEN]) -> bool {
    needs(file, header, ADDRESS_SANITIZER).unwrap_or(false)
}

/// Whether it needs a library whose name begins so.
fn needs(file: &mut File, header: &[u8; HEADER_LEN], library: &[u8]) -> Option<bool> {
    let headers = program_headers(file, header)?;
    let dynamic = headers.iter().find(|entry| u32_at(*entry, 0) == PT_DYNAMIC)?;
    let dynamic = part(file, u64_at(dynamic, 8), u64_at(dynamic, 32).min(MAX_DYNAMIC))?;
    let entries = || dynamic.chunks_exact(16).map(|entry| (u64_at(entry, 0), u64_at(entry, 8)));
    let strings = entries().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let place = headers.iter().filter(|entry| u32_at(*entry, 0) == PT_LOAD).find_map(|load| {
        let inside = strings.checked_sub(u64_at(load, 16)).filter(|inside| *inside < u64_at(load, 32))?;
        u64_at(load, 8).checked_add(inside)
    })?;
    let mut names = entries().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(|(_, name)| place.checked_add(name));
    Some(names.any(|name| part(file, name, library.len() as u64).is_some_and(|text| text == library)))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::{array, file_reason};
    use std::fs;
    use std::path::Path;

    #[test]
    fn dynamic_static_and_foreign_programs() {
        assert_eq!(file_reason(Path::new("/bin/sh")), None);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        // The header of the shell, but without program headers: as a static program is.
        let mut program = fs::read("/bin/sh").unwrap();
        program[56..58].fill(0);
        fs::write(&path, &program).unwrap();
        assert!(file_reason(&path).unwrap().contains("statically linked"));
        program[4] = 1;
        fs::write(&path, &program).unwrap();
        assert!(file_reason(&path).unwrap().contains("another architecture"));
        for text in ["", "#!/bin/sh\n", "\x7fELF"] {
            fs::write(&path, text).unwrap();
            assert_eq!(file_reason(&path), None);
        }
    }

    #[test]
    fn reading_past_the_end_is_zero() {
        assert_eq!(array::<4>(&[1, 2], 0), [0; 4]);
        assert_eq!(array::<4>(&[1, 2], 9), [0; 4]);
    }
}
