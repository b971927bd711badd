//! Whether a program's executable defines malloc itself, as with an allocator that is linked into it.
//!
//! Its own calls go to that directly, through no slot that memtrack could redirect, so they are not recorded; those of
//! libraries are. The linker lists such a malloc among the dynamic symbols, since the C library has one, too. A library that
//! defines malloc is called through slots. Invariant: for any file at most [`LARGEST_TABLE`] bytes of symbols are read.

use std::fs::File;

use object::elf::{FileHeader64, PT_INTERP, SHN_UNDEF, SHT_DYNSYM, STT_FUNC, STT_GNU_IFUNC, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadCache};

/// Executables with larger tables of dynamic symbols are taken to define none.
const LARGEST_TABLE: u64 = 4 << 20;

/// Files with more sections, of which even very large ones have some thousands, are not read.
const MOST_SECTIONS: u32 = 1 << 16;
/// The same for segments, of which there are a dozen.
const MOST_SEGMENTS: u32 = 1 << 12;

/// Whether this process's executable does. `false`, too, where it cannot be read; and where it is the loader, which was told to run
/// a program and up to glibc 2.32 defines a malloc for itself.
pub(crate) fn is_defined(pid: i32) -> bool {
    let file = File::open(format!("/proc/{pid}/exe"));
    file.ok().and_then(|file| Some(is_program(&file)? && defines(&file, &[b"malloc"])?)).unwrap_or(false)
}

/// Whether the file names a loader that is to load it.
fn is_program(file: &File) -> Option<bool> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
    if header.phnum(LittleEndian, &cache).ok()? > MOST_SEGMENTS {
        return None;
    }
    let segments = header.program_headers(LittleEndian, &cache).ok()?;
    Some(segments.iter().any(|segment| segment.p_type(LittleEndian) == PT_INTERP))
}

/// The header of a file whose table of sections is no larger than linkers make it.
pub(crate) fn checked_header<'f>(cache: &'f ReadCache<&File>) -> Option<&'f FileHeader64<LittleEndian>> {
    let header = FileHeader64::<LittleEndian>::parse(cache).ok()?;
    header.endian().ok()?;
    // It may be in the first section, and be any number.
    (header.shnum(LittleEndian, cache).ok()? <= MOST_SECTIONS).then_some(header)
}

/// Whether the dynamic symbols of this file have a function of one of these names in it.
pub(crate) fn defines(file: &File, functions: &[&[u8]]) -> Option<bool> {
    let cache = ReadCache::new(file);
    let sections = checked_header(&cache)?.sections(LittleEndian, &cache).ok()?;
    let table = sections.iter().find(|section| section.sh_type(LittleEndian) == SHT_DYNSYM)?;
    let names = sections.section(table.link(LittleEndian)).ok()?;
    if table.sh_size(LittleEndian).max(names.sh_size(LittleEndian)) > LARGEST_TABLE {
        return None;
    }
    let symbols: &[Sym64<LittleEndian>] = table.data_as_array(LittleEndian, &cache).ok()?;
    let names = names.data(LittleEndian, &cache).ok()?;
    let is_it = |symbol: &Sym64<LittleEndian>| {
        // One that is called in a library has an address where the executable takes it, and no section.
        let is_here =
            symbol.st_shndx(LittleEndian) != SHN_UNDEF && matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
        let name =
            usize::try_from(symbol.st_name(LittleEndian)).ok().filter(|_| is_here).and_then(|at| names.get(at..));
        let is_named = |function: &&[u8]| name.and_then(|name| name.strip_prefix(*function)?.first()) == Some(&0);
        functions.iter().any(is_named)
    };
    Some(symbols.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    fn in_file(path: &Path) -> Option<bool> {
        super::defines(&std::fs::File::open(path).ok()?, &[b"malloc"])
    }

    const CALLS: &str =
        "#include <stdlib.h>\nvoid *(*volatile get)(size_t) = malloc;\nint main(void) { return !get(9); }\n";
    const DEFINES: &str = "#include <stddef.h>\nstatic char place[1 << 20]; static size_t used;\n\
        void *malloc(size_t size) { used += (size + 15) & -16; return place + used; }\nvoid free(void *block) { (void)block; }\n";

    fn built(directory: &Path, source: &str, options: &[&str]) -> Option<bool> {
        let (file, program) = (directory.join("p.c"), directory.join("p"));
        std::fs::write(&file, source).unwrap();
        let built = Command::new("cc").args(options).arg("-o").arg(&program).arg(&file).status();
        assert!(built.unwrap().success(), "{options:?}");
        in_file(&program)
    }

    #[test]
    fn programs_that_define_malloc_and_those_that_call_it() {
        let directory = tempfile::tempdir().unwrap();
        for options in [&["-O1"][..], &["-O1", "-no-pie", "-fno-pie"], &["-O1", "-s"], &["-O1", "-rdynamic"]] {
            assert_eq!(built(directory.path(), CALLS, options), Some(false), "{options:?}");
            assert_eq!(built(directory.path(), &format!("{DEFINES}{CALLS}"), options), Some(true), "{options:?}");
            let hidden = format!("{DEFINES}{CALLS}").replace("malloc(size_t size)", "own(size_t size)");
            assert_eq!(built(directory.path(), &hidden, options), Some(false), "{options:?}");
        }
        assert_eq!(in_file(Path::new("/dev/null")), None);
    }

    /// As the loader is, which runs programs: it defines malloc, and no loader loads it.
    #[test]
    fn a_program_that_defines_malloc_is_one_that_a_loader_loads() {
        let directory = tempfile::tempdir().unwrap();
        let is_program = |options: &[&str]| {
            assert_eq!(built(directory.path(), &format!("{DEFINES}{CALLS}"), options), Some(true), "{options:?}");
            super::is_program(&std::fs::File::open(directory.path().join("p")).unwrap())
        };
        assert_eq!(is_program(&["-O1"]), Some(true));
        assert_eq!(is_program(&["-O1", "-shared", "-fPIC"]), Some(false));
    }
}
