//! Libraries, and executables, with an allocator of their own under other names than malloc's, as polars has jemalloc.
//!
//! Such a library calls it directly, so its blocks are not seen: only the memory that the allocator takes from the system. It is
//! known by its symbols. One that exports the functions is called through slots, which are redirected; CPython's mimalloc is
//! that of Python's own allocators. Invariant: each file is read once, in pieces of [`PIECE`], and at most [`MOST_BYTES`] of it; never
//! while the process waits.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, SHN_UNDEF, SHT_SYMTAB, STT_FUNC, Sym64};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadCache};

use crate::own_malloc::defines;

/// Bytes of names, and of symbols, that are read of a file.
const MOST_BYTES: u64 = 256 << 20;
const PIECE: usize = 1 << 20;
/// Bytes of the longest name that is looked for, with the ends of its neighbours.
const LONGEST_NAME: usize = 32;
const SYMBOL_BYTES: usize = size_of::<Sym64<LittleEndian>>();
/// Files of a process that are looked at.
const MOST_FILES: usize = 4096;

/// What was found of a process.
#[derive(Debug)]
pub(crate) struct LibraryAllocators {
    /// Where its files are.
    root: PathBuf,
    seen: HashSet<Vec<u8>>,
    /// As [`memtrack_format::meta::Process::library_allocators`].
    found: Vec<Vec<u8>>,
}

impl LibraryAllocators {
    pub(crate) fn of(pid: i32) -> Self {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        let is_ours = identity(&root).is_none_or(|root| Some(root) == identity(Path::new("/")));
        // The process may have ended by then, and its link with it.
        let root = if is_ours { PathBuf::from("/") } else { root };
        Self { root, seen: HashSet::new(), found: Vec::new() }
    }

    /// Looks at files of code that were not looked at yet; all that were found, if there are new ones.
    pub(crate) fn look<'a>(&mut self, paths: impl Iterator<Item = &'a [u8]>) -> Option<Vec<Vec<u8>>> {
        let known = self.found.len();
        for path in paths.filter(|path| path.starts_with(b"/")) {
            if self.seen.len() >= MOST_FILES || !self.seen.insert(path.to_vec()) {
                continue;
            }
            let file = self.root.join(OsStr::from_bytes(&path[1..]));
            if let Some(kind) = own_allocator(&file) {
                self.found.push([kind.as_bytes(), b" ", path].concat());
            }
        }
        (self.found.len() > known).then(|| self.found.clone())
    }
}

/// The allocator that a file has for itself.
fn own_allocator(path: &Path) -> Option<&'static str> {
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    let (symbols, names) = tables(&file)?;
    let candidates = candidates(&file, names)?;
    if candidates.is_empty() {
        return None;
    }
    let kind = defined(&file, symbols, &candidates)?;
    // What is exported is called through slots.
    let exports = |name: &[u8]| defines(path, name) == Some(true);
    let is_seen = exports(b"malloc") || exports(b"Py_Initialize") || candidates.iter().any(|one| exports(&one.name));
    (!is_seen).then_some(kind)
}

/// Where the symbols and their names lie in a file.
fn tables(file: &File) -> Option<((u64, u64), (u64, u64))> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
    header.endian().ok()?;
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

/// All such names. Where a name is longer than [`LONGEST_NAME`] it is none.
fn candidates(file: &File, (offset, bytes): (u64, u64)) -> Option<Vec<NameCandidate>> {
    let mut found = Vec::new();
    let mut piece = vec![0; PIECE];
    let mut from = 0;
    while from < bytes {
        let length = usize::try_from(bytes - from).unwrap_or(PIECE).min(PIECE);
        let read = &mut piece[..length];
        file.read_exact_at(read, offset + from).ok()?;
        let mut begin = 0;
        while let Some(length) = read[begin..].iter().position(|&byte| byte == 0) {
            let name = &read[begin..begin + length];
            if kind_of(name).is_some() {
                found.push(NameCandidate { name: name.to_vec(), from: from + begin as u64 });
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
fn defined(file: &File, (offset, bytes): (u64, u64), candidates: &[NameCandidate]) -> Option<&'static str> {
    let mut piece = vec![0; PIECE / SYMBOL_BYTES * SYMBOL_BYTES];
    let mut from = 0;
    while from < bytes {
        let length = usize::try_from(bytes - from).unwrap_or(piece.len()).min(piece.len());
        let read = &mut piece[..length];
        file.read_exact_at(read, offset + from).ok()?;
        for symbol in read.chunks_exact(SYMBOL_BYTES) {
            let (symbol, _) = object::pod::from_bytes::<Sym64<LittleEndian>>(symbol).ok()?;
            let name = u64::from(symbol.st_name(LittleEndian));
            let is_function = symbol.st_type() == STT_FUNC && symbol.st_shndx(LittleEndian) != SHN_UNDEF;
            let kind =
                |one: &NameCandidate| kind_of(one.name.get(usize::try_from(name.checked_sub(one.from)?).ok()?..)?);
            if let Some(kind) = candidates.iter().filter(|_| is_function).find_map(kind) {
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

    use super::{LibraryAllocators, kind_of, own_allocator};

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
        assert_eq!(allocators.look([path, b"[heap]", b"/absent"].into_iter()), Some(vec![found]));
        assert_eq!(allocators.look([path].into_iter()), None);
    }
}
