//! How a source file is called in paths: below the directory in which packages are installed, `asyncio/runners.py`; else without
//! directories.
//!
//! Invariant: of a file that is installed no part of the import name is left out.

/// The name of the file with this path.
pub(crate) fn file_name(path: &str) -> &str {
    let after = |folder: &str| path.rfind(folder).map(|at| at + folder.len());
    let packages = after("/site-packages/").max(after("/dist-packages/")).and_then(|at| path.get(at..));
    let below = packages.or_else(|| below_standard_library(path)).filter(|below| !below.is_empty());
    below.unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path))
}

/// What follows `lib/python3.X/`, or `lib64`.
fn below_standard_library(path: &str) -> Option<&str> {
    let (at, folder) =
        ["/lib/python3", "/lib64/python3"].iter().filter_map(|name| Some((path.rfind(name)?, name))).max()?;
    let rest = path.get(at + folder.len()..)?;
    let (version, below) = rest.split_once('/')?;
    version.trim_end_matches('t').chars().all(|char| char.is_ascii_digit() || char == '.').then_some(below)
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn files_are_called_below_the_directory_of_installation() {
        for (path, expected) in [
            ("/srv/venv/lib/python3.11/site-packages/pandas/__init__.py", "pandas/__init__.py"),
            ("/usr/lib/python3/dist-packages/apt/cache.py", "apt/cache.py"),
            ("/usr/lib/python3.13t/asyncio/runners.py", "asyncio/runners.py"),
            ("/usr/lib64/python3.9/runpy.py", "runpy.py"),
            ("/srv/shop/api.py", "api.py"),
            ("<frozen runpy>", "<frozen runpy>"),
            ("", ""),
        ] {
            assert_eq!(file_name(path), expected);
        }
    }
}
