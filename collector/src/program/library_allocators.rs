//! Libraries, and executables, with an allocator of their own under other names than malloc's, as polars has jemalloc.
//!
//! Such a library calls it directly, so its blocks are not seen: only the memory that the allocator takes from the system. It is
//! known by its symbols. One that exports the functions is called through slots, which are redirected; CPython's mimalloc is
//! that of Python's own allocators. Invariant: each file is read once, in pieces of [`PIECE`], and at most [`MOST_BYTES`] of it; of all
//! files at most [`MOST_SYMBOLS`] and [`MOST_NAME_BYTES`], whatever their tables say; never while the process waits.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf::{SHN_UNDEF, SHT_SYMTAB, STT_FUNC, Sym64};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadCache};

use crate::program::own_malloc::{checked_header, defines};
use crate::program::process_files::ProcessFiles;

/// Bytes of names, and of symbols, that are read of a file.
const MOST_BYTES: u64 = 256 << 20;
const PIECE: usize = 1 << 20;
/// Symbols, and bytes of names, that are read of all files of a process.
const MOST_SYMBOLS: u64 = 4 << 20;
const MOST_NAME_BYTES: u64 = 2 << 30;
/// Names of an allocator's functions in a file, which has a few.
const MOST_CANDIDATES: usize = 64;
/// Bytes of the longest name that is looked for, with the ends of its neighbours.
const LONGEST_NAME: usize = 32;
const SYMBOL_BYTES: usize = size_of::<Sym64<LittleEndian>>();
/// Files of a process that are looked at.
const MOST_FILES: usize = 4096;

/// What was found of a process.
#[derive(Debug)]
pub(crate) struct LibraryAllocators {
    files: ProcessFiles,
    seen: HashSet<Vec<u8>>,
    /// As [`memtrack_format::meta::Process::library_allocators`].
    found: Vec<Vec<u8>>,
    left: Left,
}

/// What may still be read.
#[derive(Debug)]
struct Left {
    symbols: u64,
    name_bytes: u64,
}

impl LibraryAllocators {
    pub(crate) fn of(pid: i32) -> Self {
        // The process may have ended when its files are looked at.
        let left = Left { symbols: MOST_SYMBOLS, name_bytes: MOST_NAME_BYTES };
        Self { files: ProcessFiles::of(pid), seen: HashSet::new(), found: Vec::new(), left }
    }

    /// Whether a file of code was not looked at yet.
    pub(crate) fn is_new(&self, path: &[u8]) -> bool {
        path.starts_with(b"/") && self.seen.len() < MOST_FILES && !self.seen.contains(path)
    }

    /// Looks at those of these files that were not looked at yet, while it may go on; all that were found, if there are new ones.
    pub(crate) fn look(&mut self, paths: &[Vec<u8>], may_go_on: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        let known = self.found.len();
        for path in paths {
            if !self.is_new(path) {
                continue;
            }
            let file = self.files.open(Path::new(OsStr::from_bytes(path)));
            let kind = file.ok().and_then(|file| own_allocator(&file, &mut self.left, may_go_on));
            if let Some(kind) = kind {
                self.found.push([kind.as_bytes(), b" ", &**path].concat());
            } else if !may_go_on() {
                // Not all of it was read.
                break;
            }
            self.seen.insert(path.clone());
        }
        (self.found.len() > known).then(|| self.found.clone())
    }
}

/// The allocator that a file has for itself.
fn own_allocator(file: &File, left: &mut Left, may_go_on: &dyn Fn() -> bool) -> Option<&'static str> {
    let (symbols, names) = tables(file)?;
    left.name_bytes = left.name_bytes.checked_sub(names.1)?;
    let candidates = candidates(file, names, may_go_on)?;
    if candidates.is_empty() {
        return None;
    }
    left.symbols = left.symbols.checked_sub(symbols.1 / SYMBOL_BYTES as u64)?;
    let kind = defined(file, symbols, &candidates, may_go_on)?;
    // What is exported is called through slots.
    let others = [&b"malloc"[..], b"Py_Initialize"];
    let exported: Vec<&[u8]> = candidates.iter().map(|one| &*one.name).chain(others).collect();
    (defines(file, &exported) != Some(true)).then_some(kind)
}

/// Where the symbols and their names lie in a file.
fn tables(file: &File) -> Option<((u64, u64), (u64, u64))> {
    let cache = ReadCache::new(file);
    let header = checked_header(&cache)?;
    let sections = header.sections(LittleEndian, &cache).ok()?;
    let table = sections.iter().find(|section| section.sh_type(LittleEndian) == SHT_SYMTAB)?;
    let names = sections.section(table.link(LittleEndian)).ok()?;
    let (symbols, names) = (table.file_range(LittleEndian)?, names.file_range(LittleEndian)?);
    (symbols.1 <= MOST_BYTES && names.1 <= MOST_BYTES).then_some((symbols, names))
}

/// A name of an allocator's function among the names of symbols.
#[derive(Debug)]
struct NameCandidate {
    name: Vec<u8>,
    /// Where it begins; linkers let shorter names begin within it.
    from: u64,
}

/// The first such names, in their order. Where a name is longer than [`LONGEST_NAME`] it is none.
fn candidates(file: &File, (offset, bytes): (u64, u64), may_go_on: &dyn Fn() -> bool) -> Option<Vec<NameCandidate>> {
    let mut found = Vec::new();
    let mut piece = vec![0; PIECE];
    let mut from = 0;
    while from < bytes {
        let length = usize::try_from(bytes - from).unwrap_or(PIECE).min(PIECE);
        let read = &mut piece[..length];
        file.read_exact_at(read, offset.checked_add(from).filter(|_| may_go_on())?).ok()?;
        let mut begin = 0;
        while let Some(length) = read[begin..].iter().position(|&byte| byte == 0) {
            let name = &read[begin..begin + length];
            if kind_of(name).is_some() {
                found.push(NameCandidate { name: name.to_vec(), from: from + begin as u64 });
                if found.len() >= MOST_CANDIDATES {
                    return Some(found);
                }
            }
            begin += length + 1;
        }
        // The last name goes on in the next piece, unless it is too long; its rest has no name's beginning then.
        let whole = if length - begin > LONGEST_NAME { length } else { begin };
        from += if from + length as u64 == bytes || whole == 0 { length } else { whole } as u64;
    }
    Some(found)
}

/// The allocator whose malloc has this name: `_rjem_malloc`, `duckdb_je_malloc`, `mi_malloc`.
fn kind_of(name: &[u8]) -> Option<&'static str> {
    let stem = name.strip_suffix(b"malloc").filter(|_| name.len() <= LONGEST_NAME)?;
    let is = |prefix: &[u8]| {
        let before = stem.strip_suffix(prefix);
        before.is_some_and(|before| before.last().is_none_or(|last| *last == b'_'))
    };
    match () {
        () if is(b"je_") || is(b"rjem_") || is(b"je_arrow_") => Some("jemalloc"),
        () if is(b"mi_") => Some("mimalloc"),
        () => None,
    }
}

/// The allocator of one of these names that is a function in this file.
fn defined(
    file: &File,
    (offset, bytes): (u64, u64),
    candidates: &[NameCandidate],
    may_go_on: &dyn Fn() -> bool,
) -> Option<&'static str> {
    let mut piece = vec![0; PIECE / SYMBOL_BYTES * SYMBOL_BYTES];
    let mut from = 0;
    while from < bytes {
        let length = usize::try_from(bytes - from).unwrap_or(piece.len()).min(piece.len());
        let read = &mut piece[..length];
        file.read_exact_at(read, offset.checked_add(from).filter(|_| may_go_on())?).ok()?;
        for symbol in read.chunks_exact(SYMBOL_BYTES) {
            let (symbol, _) = object::pod::from_bytes::<Sym64<LittleEndian>>(symbol).ok()?;
            let name = u64::from(symbol.st_name(LittleEndian));
            let is_function = symbol.st_type() == STT_FUNC && symbol.st_shndx(LittleEndian) != SHN_UNDEF;
            // They do not overlap, and lie in this order.
            let after = candidates.partition_point(|one| one.from <= name);
            let Some(one) = after.checked_sub(1).map(|at| &candidates[at]).filter(|_| is_function) else { continue };
            let rest = usize::try_from(name - one.from).ok().and_then(|at| one.name.get(at..));
            if let Some(kind) = rest.and_then(kind_of) {
                return Some(kind);
            }
        }
        from += length as u64;
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::{Left, LibraryAllocators, MOST_NAME_BYTES, MOST_SYMBOLS, kind_of};
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    fn own_allocator(path: &Path) -> Option<&'static str> {
        let mut left = Left { symbols: MOST_SYMBOLS, name_bytes: MOST_NAME_BYTES };
        super::own_allocator(&File::open(path).unwrap(), &mut left, &|| true)
    }

    fn built(directory: &Path, source: &str, options: &[&str]) -> PathBuf {
        let (file, library) = (directory.join("l.c"), directory.join("lib one.so"));
        std::fs::write(&file, source).unwrap();
        let options = [&["-shared", "-fPIC", "-O1"], options].concat();
        assert!(Command::new("cc").args(options).arg("-o").arg(&library).arg(&file).status().unwrap().success());
        library
    }

    #[test]
    fn names_of_allocators() {
        for (name, kind) in [
            ("je_malloc", "jemalloc"),
            ("_rjem_malloc", "jemalloc"),
            ("_rjem_je_malloc", "jemalloc"),
            ("duckdb_je_malloc", "jemalloc"),
            ("je_arrow_malloc", "jemalloc"),
            ("mi_malloc", "mimalloc"),
            ("_mi_malloc", "mimalloc"),
        ] {
            assert_eq!(kind_of(name.as_bytes()), Some(kind), "{name}");
        }
        for name in ["malloc", "semi_malloc", "tie_je_mallocx", "je_large_malloc", "xmalloc", "", "mi_malloc_small"] {
            assert_eq!(kind_of(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn libraries_with_a_hidden_allocator() {
        let directory = tempfile::tempdir().unwrap();
        let hidden = "__attribute__((noinline)) static void *NAME(long n) { static char m[99]; return m + n % 9; }\n\
            void *use(long n) { return NAME(n); }\n";
        let build = |source: &str, options: &[&str]| own_allocator(&built(directory.path(), source, options));
        assert_eq!(build(&hidden.replace("NAME", "_rjem_malloc"), &[]), Some("jemalloc"));
        assert_eq!(build(&hidden.replace("NAME", "mi_malloc"), &[]), Some("mimalloc"));
        assert_eq!(build(&hidden.replace("NAME", "semi_malloc"), &[]), None);
        assert_eq!(build(&hidden.replace("NAME", "mi_malloc"), &["-s"]), None, "no symbols");
        assert_eq!(build(&hidden.replace("NAME", "mi_malloc").replace("static void", "void"), &[]), None, "exported");
        assert_eq!(build("void *je_malloc(long n); void *use(long n) { return je_malloc(n); }", &[]), None, "called");
        let python = format!("{}void Py_Initialize(void) {{}}\n", hidden.replace("NAME", "_mi_malloc"));
        assert_eq!(build(&python, &[]), None);
        assert_eq!(own_allocator(Path::new("/dev/zero")), None);
    }

    /// Among so many names that they are read in pieces.
    #[test]
    fn a_name_in_a_later_piece_and_each_library_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut source = String::new();
        for number in 0..9000 {
            source += &format!("int {}_{number};\n", "long_name_of_a_variable".repeat(8));
        }
        source += "__attribute__((noinline)) static void *_rjem_malloc(long n) { return (void *)n; }\n\
            void *use(long n) { return _rjem_malloc(n); }\n";
        let library = built(directory.path(), &source, &[]);
        let path = library.to_str().unwrap().as_bytes();
        let mut allocators = LibraryAllocators::of(std::process::id().cast_signed());
        let found = [b"jemalloc ", path].concat();
        let paths = [path.to_vec(), b"[heap]".to_vec(), b"/absent".to_vec(), b"/dev/zero".to_vec()];
        assert_eq!(allocators.look(&paths, &|| false), None, "while an order waits");
        assert!(allocators.is_new(path));
        assert_eq!(allocators.look(&paths, &|| true), Some(vec![found]));
        assert_eq!(allocators.look(&paths, &|| true), None);
        assert!(!allocators.is_new(path) && !allocators.is_new(b"[heap]"));
    }

    /// A file whose tables say that it has a large number of names of allocators, of sections, or of symbols.
    #[test]
    fn what_tables_say_takes_bounded_memory_and_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lying.so");
        let mut file = File::create(&path).unwrap();
        file.write_all(&std::fs::read("/proc/self/exe").unwrap()[..64]).unwrap();
        // Sections begin behind the header: none but the first, which has their number.
        file.write_all_at(&64_u64.to_le_bytes(), 40).unwrap();
        file.write_all_at(&[64, 0, 0, 0, 0, 0], 58).unwrap();
        file.write_all_at(&(1_u64 << 24).to_le_bytes(), 64 + 32).unwrap();
        file.set_len(2 << 30).unwrap();
        let file = File::open(&path).unwrap();
        let cache = object::ReadCache::new(&file);
        assert!(crate::program::own_malloc::checked_header(&cache).is_none());
        assert_eq!((own_allocator(&path), crate::program::own_malloc::defines(&file, &[b"malloc"])), (None, None));
        let names = directory.path().join("names");
        std::fs::write(&names, b"je_malloc\0".repeat(500_000)).unwrap();
        let names = File::open(&names).unwrap();
        assert_eq!(super::candidates(&names, (0, 5_000_000), &|| true).unwrap().len(), super::MOST_CANDIDATES);
        let mut left = Left { symbols: 0, name_bytes: MOST_NAME_BYTES };
        let hidden = "__attribute__((noinline)) static void *mi_malloc(long n) { static char m[99]; return m + n % 9; }\n\
            void *use(long n) { return mi_malloc(n); }\n";
        let library = built(directory.path(), hidden, &[]);
        assert_eq!(super::own_allocator(&File::open(&library).unwrap(), &mut left, &|| true), None);
        assert_eq!(own_allocator(&library), Some("mimalloc"));
    }
}
