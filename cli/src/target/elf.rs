//! Checks from a program's file whether it can be recorded.
//!
//! glibc's dynamic loader loads the shim. Programs without this loader, and programs with privileges (for which it
//! ignores the environment), run unrecorded, without memtrack's variables in their environment. Invariant: the file is
//! untrusted; only its headers are read.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use object::elf::{DT_NEEDED, DT_STRTAB, EM_AARCH64, EM_X86_64, FileHeader64, Machine, PT_LOAD, ProgramHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{LittleEndian, ReadCache, ReadRef};

/// Reads the bytes of an ELF file on demand.
type Bytes<'f> = ReadCache<&'f File>;
type Segment = ProgramHeader64<LittleEndian>;

/// A library that aborts the program unless it is loaded first (AddressSanitizer).
const ADDRESS_SANITIZER: &[u8] = b"libasan.so";
/// More program headers than any linker writes.
const MAX_PROGRAM_HEADERS: u16 = 512;
/// Upper bound for the size of PT_INTERP and of the dynamic section.
const MAX_SEGMENT: u64 = 1 << 13;

/// The ELF machine number that memtrack is built for.
const OWN_MACHINE: Machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
/// Size of the ELF header in bytes.
const HEADER_LEN: u64 = 64;

/// Why the program at `path` cannot be recorded; `None` if it can, or if it is not an ELF file.
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
    let file = File::open(path).ok()?;
    let bytes = ReadCache::new(&file);
    if bytes.read_bytes_at(0, HEADER_LEN).ok()?.get(..4)? != b"\x7fELF" {
        return None;
    }
    let other = Some("it is built for a different architecture than memtrack");
    let Ok(header) = FileHeader64::<LittleEndian>::parse(&bytes) else { return other };
    if header.endian().is_err() || header.e_machine(LittleEndian) != OWN_MACHINE {
        return other;
    }
    let segments = segments(header, &bytes).unwrap_or_default();
    match interpreter(segments, &bytes) {
        None if is_loader(path) => None,
        None => Some("it is statically linked, so LD_PRELOAD has no effect"),
        Some(interpreter) if contains(interpreter, b"ld-musl") => Some("it uses musl; only glibc is supported so far"),
        Some(_) if needs(segments, &bytes, ADDRESS_SANITIZER).unwrap_or(false) => {
            Some("it uses AddressSanitizer, whose runtime must be the first library loaded")
        }
        Some(_) => None,
    }
}

/// Whether it is the dynamic loader: it has no PT_INTERP and still loads libraries.
fn is_loader(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld-linux") || name == "ld.so"
}

fn segments<'b>(header: &FileHeader64<LittleEndian>, bytes: &'b Bytes<'_>) -> Option<&'b [Segment]> {
    let is_usual = header.e_phnum(LittleEndian) <= MAX_PROGRAM_HEADERS;
    header.program_headers(LittleEndian, bytes).ok().filter(|_| is_usual)
}

fn interpreter<'b>(segments: &[Segment], bytes: &'b Bytes<'_>) -> Option<&'b [u8]> {
    segments.iter().filter(|segment| is_small(segment)).find_map(|one| one.interpreter(LittleEndian, bytes).ok()?)
}

fn is_small(segment: &Segment) -> bool {
    segment.p_filesz(LittleEndian) <= MAX_SEGMENT
}

/// Whether it needs (DT_NEEDED) a library whose name begins with `library`.
fn needs(segments: &[Segment], bytes: &Bytes<'_>, library: &[u8]) -> Option<bool> {
    let entries = segments
        .iter()
        .filter(|segment| is_small(segment))
        .find_map(|segment| segment.dynamic(LittleEndian, bytes).ok()?)?;
    let values =
        |tag| entries.iter().filter(move |entry| entry.tag(LittleEndian) == tag).map(|one| one.val(LittleEndian));
    let strings = values(DT_STRTAB).next()?;
    let place = segments.iter().filter(|segment| segment.p_type(LittleEndian) == PT_LOAD).find_map(|load| {
        let inside = strings.checked_sub(load.p_vaddr(LittleEndian))?;
        load.p_offset(LittleEndian).checked_add(inside).filter(|_| inside < load.p_filesz(LittleEndian))
    })?;
    let begins_so = |name: u64| {
        let text = bytes.read_bytes_at(place.checked_add(name)?, library.len() as u64).ok()?;
        Some(text == library)
    };
    Some(values(DT_NEEDED).any(|name| begins_so(name).unwrap_or(false)))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::file_reason;
    use std::fs;
    use std::path::Path;

    #[test]
    fn dynamic_static_and_foreign_programs() {
        assert_eq!(file_reason(Path::new("/bin/sh")), None);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        // The header of /bin/sh without program headers, like that of a static program.
        let mut program = fs::read("/bin/sh").unwrap();
        program[56..58].fill(0);
        fs::write(&path, &program).unwrap();
        assert!(file_reason(&path).unwrap().contains("statically linked"));
        program[4] = 1;
        fs::write(&path, &program).unwrap();
        assert!(file_reason(&path).unwrap().contains("different architecture"));
        for text in ["", "#!/bin/sh\n", "\x7fELF"] {
            fs::write(&path, text).unwrap();
            assert_eq!(file_reason(&path), None);
        }
    }
}
