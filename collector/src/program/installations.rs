//! Finds where an interpreter's packages are installed, and the roots of imports that editable installations add.
//!
//! Invariant: files are those that the process sees, and what is read is bounded; what cannot be read is left out.

use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::program::process_files::{ProcessFiles, without_dots};

/// Maximum number of bytes that are read of a `.pth` file.
const MOST_BYTES: u64 = 1 << 20;
/// Maximum number of `.pth` files that are read.
const MOST_FILES: usize = 64;

/// Where packages are installed below a prefix.
pub(crate) fn sites(files: &ProcessFiles, prefix: &Path) -> Vec<PathBuf> {
    let all = files.entries(&prefix.join("lib")).into_iter();
    let versions = all.filter(|path| path.to_string_lossy().contains("/python3"));
    versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name))).collect()
}

/// The roots that editable installations add: lines of `.pth` files, and what setuptools' finders map.
pub(crate) fn editable_roots(files: &ProcessFiles, sites: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for site in sites {
        let is_finder = |path: &Path| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"__editable__") && name.ends_with(b"_finder.py")
        };
        let is_one = |path: &PathBuf| path.extension() == Some(OsStr::new("pth")) || is_finder(path);
        for file in files.entries(site).into_iter().filter(is_one).take(MOST_FILES) {
            let mut text = String::new();
            let read = files.open(&file).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
            if read.is_err() {
                continue;
            }
            if is_finder(&file) {
                found.extend(mapped_roots(&text));
            } else {
                // Paths are relative to where the file is.
                let is_path =
                    |line: &&str| !line.is_empty() && !line.starts_with(['#', '_']) && !line.starts_with("import");
                let paths = text.lines().map(str::trim).filter(is_path).map(|line| without_dots(&site.join(line)));
                found.extend(paths.filter(|path| files.is_directory(path) || is_archive(files, path)));
            }
        }
    }
    found
}

/// The directories that the packages of a finder's `MAPPING` are imported from: of `{'a.b': '/srv/src/a/b'}` it is `/srv/src`.
/// A package that lies in a directory of another name has none.
fn mapped_roots(finder: &str) -> Vec<PathBuf> {
    let Some(line) = finder.lines().find(|line| line.starts_with("MAPPING")) else { return Vec::new() };
    let literals: Vec<&str> = line.split('\'').skip(1).step_by(2).collect();
    let (pairs, _) = literals.as_chunks::<2>();
    let root = |[name, path]: &[&str; 2]| {
        let mut root = Path::new(path);
        for part in name.rsplit('.') {
            let file = root.file_stem().filter(|stem| *stem == OsStr::new(part));
            root = file.and(root.parent())?;
        }
        root.is_absolute().then(|| root.to_path_buf())
    };
    pairs.iter().filter_map(root).collect()
}

/// Whether the module can be imported from one of these directories.
pub(crate) fn has_module(files: &ProcessFiles, directories: &[PathBuf], module: &str) -> bool {
    let (folders, last) = module.rsplit_once('.').unwrap_or(("", module));
    directories.iter().any(|directory| {
        let folder = directory.join(folders.replace('.', "/"));
        let path = folder.join(last);
        let is_compiled = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.strip_prefix(last).is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".so"))
        };
        files.is_directory(&path)
            || files.is_file(&path.with_extension("py"))
            || files.entries(&folder).iter().any(is_compiled)
    })
}

/// Whether this is a file that Python imports modules from: a zip archive, with or without a line of a script before it.
pub(crate) fn is_archive(files: &ProcessFiles, path: &Path) -> bool {
    const END: &[u8] = b"PK\x05\x06";
    const LAST: u64 = 1024;
    let last = || -> std::io::Result<Vec<u8>> {
        let mut last = Vec::new();
        let mut file = files.open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST)))?;
        file.take(LAST).read_to_end(&mut last)?;
        Ok(last)
    };
    last().is_ok_and(|last| last.windows(END.len()).any(|bytes| bytes == END))
}

#[cfg(test)]
mod tests {
    use super::{editable_roots, has_module, mapped_roots, sites};
    use crate::program::process_files::ProcessFiles;
    use std::fs;
    use std::path::Path;

    #[test]
    fn editable_installations_add_roots() {
        let files = ProcessFiles::default();
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        let site = base.join("venv/lib/python3.11/site-packages");
        fs::create_dir_all(&site).unwrap();
        fs::create_dir_all(base.join("src")).unwrap();
        let src = base.join("src");
        fs::write(site.join("a.pth"), format!("# comment\nimport x; x.y()\n{}\n../nothing\n", src.display())).unwrap();
        let mapping =
            "MAPPING: dict[str, str] = {'shop': '/srv/lib/shop', 'tool': '/opt/tool.py', 'other': '/opt/code'}\n";
        fs::write(site.join("__editable___shop_1_finder.py"), mapping).unwrap();
        let mut roots = editable_roots(&files, &sites(&files, &base.join("venv")));
        roots.sort();
        let mut expected = [Path::new("/srv/lib"), Path::new("/opt"), &src];
        expected.sort();
        assert_eq!(roots, expected);
        assert_eq!(mapped_roots("MAPPING = {'acme.one': '/srv/acme/one', 'acme.two'}"), [Path::new("/srv")]);
        assert!(mapped_roots("NAMESPACES = {'a': '/b'}").is_empty());
    }

    #[test]
    fn a_module_is_a_file_or_a_directory() {
        let files = ProcessFiles::default();
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("shop/api")).unwrap();
        fs::write(base.path().join("shop/wsgi.py"), "").unwrap();
        fs::write(base.path().join("fast.cpython-312-x86_64-linux-gnu.so"), "").unwrap();
        let directories = ["/nowhere".into(), base.path().to_path_buf()];
        for (module, expected) in [
            ("shop", true),
            ("shop.wsgi", true),
            ("shop.api", true),
            ("fast", true),
            ("redis", false),
            ("shop.x", false),
        ] {
            assert_eq!(has_module(&files, &directories, module), expected, "{module}");
        }
    }
}
