//! Whether a program's executable defines malloc itself, as with an allocator that is linked into it.
//!
//! Its own calls go to that directly, through no slot that memtrack could redirect, so they are not recorded; those of
//! libraries are. The linker lists such a malloc among the dynamic symbols, since the C library has one, too. A library that
//! defines malloc is called through slots. Invariant: for any file at most [`LARGEST_TABLE`] bytes of symbols are read.

use std::fs::File;
use std::path::Path;

use object::elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadCache};

/// Executables with larger tables of dynamic symbols are taken to define none.
const LARGEST_TABLE: u64 = 4 << 20;

/// Whether this process's executable does. `false`, too, where it cannot be read.
pub(crate) fn is_defined(pid: i32) -> bool {
    in_file(Path::new(&format!("/proc/{pid}/exe"))).unwrap_or(false)
}

fn in_file(path: &Path) -> Option<bool> {
    defines(path, b"malloc")
}

/// Whether the dynamic symbols of this file have a function of this name in it.
pub(crate) fn defines(path: &Path, function: &[u8]) -> Option<bool> {
    let file = File::open(path).ok()?;
    let cache = ReadCache::new(&file);
    let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
    header.endian().ok()?;
    let sections = header.sections(LittleEndian, &cache).ok()?;
    let table = sections.iter().find(|section| section.sh_type(LittleEndian) == SHT_DYNSYM)?;
    let names = sections.section(table.link(LittleEndian)).ok()?;
    if table.sh_size(LittleEndian).max(names.sh_size(LittleEndian)) > LARGEST_TABLE {
        return None;
    }
    let symbols = sections.symbols(LittleEndian, &cache, SHT_DYNSYM).ok()?;
    let is_it = |symbol: &object::elf::Sym64<LittleEndian>| {
        // One that is called in a library has an address where the executable takes it, and no section.
        symbol.st_shndx(LittleEndian) != SHN_UNDEF
            && matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC)
            && symbols.symbol_name(LittleEndian, symbol).is_ok_and(|name| name == function)
    };
    Some(symbols.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::in_file;

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
}
