//! Whether a program that is no interpreter has one in it, or was started by what unpacks one, and its modules in an archive:
//! as Nuitka and PyInstaller make it.
//!
//! A program that embeds Python is none. Invariant: of a file at most its dynamic symbols and [`MOST_BYTES`] of constants are read.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use object::LittleEndian;
use object::ReadCache;
use object::read::elf::{FileHeader, SectionHeader};

use crate::program::own_malloc;

/// The name of the loader in everything that Nuitka has compiled.
const LOADER: &[u8] = b"nuitka_module_loader";
const MOST_BYTES: u64 = 64 << 20;

/// Whether the process's executable is such a program.
pub(crate) fn is_frozen(pid: i32, environment: &[u8]) -> bool {
    let is_unpacked = |one: &[u8]| one.starts_with(b"_PYI_") || one.starts_with(b"_MEIPASS2=");
    environment.split(|&byte| byte == 0).any(is_unpacked)
        || is_compiled(Path::new(&format!("/proc/{pid}/exe"))).unwrap_or(false)
}

/// Whether it has the interpreter and Nuitka's loader.
fn is_compiled(path: &Path) -> Option<bool> {
    Some(own_malloc::defines(&File::open(path).ok()?, &[b"Py_Initialize"])? && has_loader(path)?)
}

fn has_loader(path: &Path) -> Option<bool> {
    let mut file = File::open(path).ok()?;
    let (offset, size) = constants(&file)?;
    file.seek(SeekFrom::Start(offset)).ok()?;
    let mut bytes = Vec::new();
    file.take(size.min(MOST_BYTES)).read_to_end(&mut bytes).ok()?;
    let mut rest = &bytes[..];
    while let Some(at) = rest.iter().position(|&byte| byte == LOADER[0]) {
        rest = &rest[at..];
        if rest.starts_with(LOADER) {
            return Some(true);
        }
        rest = &rest[1..];
    }
    Some(false)
}

/// Where its constants lie in the file.
fn constants(file: &File) -> Option<(u64, u64)> {
    let cache = ReadCache::new(file);
    let sections = own_malloc::checked_header(&cache)?.sections(LittleEndian, &cache).ok()?;
    let (_, section) = sections.section_by_name(LittleEndian, b".rodata")?;
    section.file_range(LittleEndian)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::is_compiled;

    const EMBEDS: &str = "#include <stdio.h>\nvoid Py_Initialize(void) {}\n\
        int main(int count, char **names) { if (count > 9) puts(\"NAME\"); return names == 0; }\n";

    #[test]
    fn who_embeds_python_is_not_compiled_from_it() {
        let directory = tempfile::tempdir().unwrap();
        let (file, program) = (directory.path().join("p.c"), directory.path().join("p"));
        for (source, expected) in [
            (EMBEDS.to_owned(), false),
            (EMBEDS.replace("NAME", "nuitka_module_loader"), true),
            (EMBEDS.replace("NAME", "nuitka_module_loader").replace("Py_Initialize", "start"), false),
        ] {
            std::fs::write(&file, source).unwrap();
            let built = Command::new("cc").args(["-rdynamic", "-s", "-o"]).arg(&program).arg(&file).status();
            assert!(built.unwrap().success());
            assert_eq!(is_compiled(&program), Some(expected));
        }
        assert_eq!(is_compiled(Path::new("/dev/null")), None);
    }
}
