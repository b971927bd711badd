//! Reads from a library's file its identity and the glibc version that it needs.
//!
//! Invariant: the file is untrusted: it is read in pieces of bounded size, and not executed.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use memtrack_collector::identity::{IDENTITY, IDENTITY_LEN, IDENTITY_SYMBOL, describe};
use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol, ReadCache, ReadRef};

/// Refuses a library that was not built together with this program.
///
/// # Errors
/// The file cannot be read, is not memtrack's library, or is of another version.
pub(super) fn check(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{}: cannot read memtrack's library", path.display()))?;
    match identity(&ReadCache::new(file)) {
        Some(identity) if identity == IDENTITY => Ok(()),
        found => bail!(
            "{}: this is the library of {}, and this program is {}; install both from the same build",
            path.display(),
            found.as_ref().and_then(describe).as_deref().unwrap_or("another program or an older memtrack"),
            describe(&IDENTITY).unwrap_or_default()
        ),
    }
}

fn identity<'f>(bytes: impl ReadRef<'f>) -> Option<[u8; IDENTITY_LEN]> {
    let elf = ElfFile64::<LittleEndian, _>::parse(bytes).ok()?;
    let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(IDENTITY_SYMBOL))?;
    let mut found = elf.segments().filter_map(|segment| {
        let data = segment.data_range(symbol.address(), IDENTITY_LEN as u64).ok()??;
        data.try_into().ok()
    });
    found.next()
}

/// The newest glibc version of any symbol that this program needs, as `2.34`; `None` if its file cannot be read.
pub(crate) fn needed_glibc() -> Option<String> {
    let bytes = ReadCache::new(File::open("/proc/self/exe").ok()?);
    newest_glibc(&bytes).map(|(major, minor)| format!("{major}.{minor}"))
}

fn newest_glibc<'f>(bytes: impl ReadRef<'f>) -> Option<(u32, u32)> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let sections = header.sections(LittleEndian, bytes).ok()?;
    let mut newest = None;
    for section in sections.iter() {
        let Ok(Some((mut needs, link))) = section.gnu_verneed(LittleEndian, bytes) else { continue };
        let strings = sections.strings(LittleEndian, bytes, link).ok()?;
        while let Ok(Some((_, mut versions))) = needs.next() {
            while let Ok(Some(version)) = versions.next() {
                let name = version.name(LittleEndian, strings).ok()?;
                newest = newest.max(std::str::from_utf8(name).ok().and_then(glibc_version));
            }
        }
    }
    newest
}

fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::{check, glibc_version, needed_glibc, newest_glibc};

    #[test]
    fn a_file_that_is_not_the_library_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text.so");
        std::fs::write(&text, "no library").unwrap();
        for path in [text.as_path(), "/bin/sh".as_ref()] {
            let error = check(path).unwrap_err().to_string();
            assert!(error.contains("another program") && error.contains(env!("CARGO_PKG_VERSION")), "{error}");
        }
        let error = check(&directory.path().join("absent.so")).unwrap_err();
        assert!(format!("{error:#}").contains("No such file"), "{error:#}");
    }

    #[test]
    fn versions_of_glibc_are_compared_as_numbers() {
        assert!(glibc_version("GLIBC_2.34") > glibc_version("GLIBC_2.9"));
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_version("GLIBC_PRIVATE"), None);
        let needed = needed_glibc().unwrap();
        assert!(needed.starts_with("2.") && needed.len() > 3, "{needed}");
        assert_eq!(newest_glibc(b"no ELF file".as_slice()), None);
    }
}
