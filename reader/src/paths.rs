//! Shortens paths for people: `pandas/core/frame.py`, `json/decoder.py`, own files relative to the program's directory, and
//! the program itself by its name.
//!
//! Invariant: only the directory of installation or checkout is removed, never a part of the import name.

use std::borrow::Cow;

use crate::frames::Frames;
use crate::modules::{below_packages, below_standard_library};
use crate::program::without_dots;

/// The path of a source file or of a native object, shortened.
#[must_use]
pub fn short<'p>(frames: &Frames, path: &'p str) -> Cow<'p, str> {
    if let Some(frozen) = path.strip_prefix("<frozen ").and_then(|rest| rest.strip_suffix('>')) {
        return format!("{}.py", frozen.replace('.', "/")).into();
    }
    match without_dots(path) {
        Cow::Borrowed(plain) => short_plain(frames, plain).into(),
        Cow::Owned(plain) => short_plain(frames, &plain).to_owned().into(),
    }
}

/// The same of a path without `.` and `..`, but for what leads above the directory that it is relative to.
fn short_plain<'p>(frames: &Frames, path: &'p str) -> &'p str {
    let programs = || frames.programs().iter();
    let installed = || programs().find_map(|program| program.below_installed_root(path));
    let own = || programs().find_map(|program| program.below_own(path));
    let is_executable = programs().any(|program| program.is_executable(path));
    if let Some((_, name)) = path.rsplit_once('/').filter(|_| is_executable) {
        return name;
    }
    let packages = below_packages(path).or_else(|| below_wheel(path));
    let known = packages.or_else(|| below_standard_library(path)).or_else(installed).or_else(own);
    known.or_else(|| below_native(path)).unwrap_or(path)
}

/// The path below a wheel that pex has unpacked, `installed_wheels/3/b9b3…/mistune-3.0.1-py3-none-any.whl/`, or in its own packages.
fn below_wheel(path: &str) -> Option<&str> {
    let after = |folder: &str| path.find(folder).and_then(|at| path.get(at + folder.len()..));
    let wheels =
        || after("/installed_wheels/").or_else(|| after("/.deps/"))?.split_once(".whl/").map(|(_, below)| below);
    after("/.bootstrap/").filter(|rest| rest.starts_with("pex/")).or_else(wheels)
}

/// The path below the directory of Rust or C++ libraries.
fn below_native(path: &str) -> Option<&str> {
    let after = |folder: &str| path.find(folder).and_then(|at| path.get(at + folder.len()..));
    let rust = path.strip_prefix("/rustc/").and_then(|rest| rest.split_once("/library/")).map(|(_, below)| below);
    // The registry's own folder comes first there.
    let crates = after("/.cargo/registry/src/").and_then(|rest| rest.split_once('/')).map(|(_, below)| below);
    rust.or_else(|| after("/rustlib/src/rust/library/")).or(crates).or_else(|| path.strip_prefix("/usr/include/"))
}

#[cfg(test)]
mod tests {
    use super::short;
    use crate::frames::Frames;
    use crate::program::Program;
    use memtrack_format::meta::Process;

    #[test]
    fn what_says_where_something_is_installed_is_left_out() {
        let mut frames = Frames::new();
        let installed = ["/opt/vendor/mistune", "/opt/vendor/google/type", "/opt/vendor/one.py", "/srv/vendor"];
        let process = Process {
            working_directory: Some(b"/srv".to_vec()),
            own_directories: vec![b"/srv".to_vec()],
            packages: vec![b"/srv/shop".to_vec()],
            import_roots: [b"/opt/vendor", b"/srv/vendor"].map(|root| root.to_vec()).into(),
            installed_directories: installed.map(|path| path.as_bytes().to_vec()).into(),
            ..Process::default()
        };
        frames.add_program(Program::of(&process).into());
        let process = Process { executable: Some(b"/usr/bin/redis-server".to_vec()), ..Process::default() };
        frames.add_program(Program::of(&process).into());
        for (path, expected) in [
            ("/srv/shop/api.py", "shop/api.py"),
            ("/srv/./shop/api.py", "shop/api.py"),
            ("/srv/tools/../shop/api.py", "shop/api.py"),
            ("/srv/venv/lib/python3.11/site-packages/pandas/core/frame.py", "pandas/core/frame.py"),
            ("/home/me/.pex/installed_wheels/3/b9b3/mistune-3.0.1-py3-none-any.whl/mistune/core.py", "mistune/core.py"),
            ("/home/me/.pex/unzipped_pexes/4/803a/.bootstrap/pex/pex.py", "pex/pex.py"),
            ("/opt/vendor/mistune/core.py", "mistune/core.py"),
            ("/opt/vendor/google/type/date.py", "google/type/date.py"),
            ("/opt/vendor/one.py", "one.py"),
            ("/opt/vendor/other.py", "/opt/vendor/other.py"),
            ("/srv/vendor/tool/api.py", "tool/api.py"),
            // Own code has a package of this name, too.
            ("/srv/vendor/shop/api.py", "vendor/shop/api.py"),
            ("/usr/lib/python3.11/json/decoder.py", "json/decoder.py"),
            ("<frozen importlib._bootstrap>", "importlib/_bootstrap.py"),
            ("/rustc/0a1b2c/library/alloc/src/vec/mod.rs", "alloc/src/vec/mod.rs"),
            ("/home/me/.cargo/registry/src/index-1949cf8c6b5b557f/serde-1.0.1/src/de.rs", "serde-1.0.1/src/de.rs"),
            ("/usr/include/c++/12/bits/stl_vector.h", "c++/12/bits/stl_vector.h"),
            ("/usr/bin/redis-server", "redis-server"),
            ("/usr/bin/redis-cli", "/usr/bin/redis-cli"),
            ("/opt/tools/x.py", "/opt/tools/x.py"),
            ("../x.py", "../x.py"),
            ("./../tools/./x.py", "../tools/x.py"),
            ("a/../../x.py", "../x.py"),
            ("..", ".."),
            ("<string>", "<string>"),
            ("", ""),
        ] {
            assert_eq!(short(&frames, path), expected);
        }
    }
}
