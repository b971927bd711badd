//! Attributes a stack's memory to a module: that of the innermost frame outside Python's standard library.
//!
//! If `app.py` calls `json.loads`, then `json/decoder.py` allocates, but the application requested it. A module is the
//! first part of the name by which a file is imported. It follows from the path below `site-packages` or
//! `dist-packages`; files below `lib/python3.X` and frozen modules are the standard library; for other files it follows
//! from the import roots and packages in the capture ([`Program`]), or is the file's own name. The module of native
//! code is its loaded object, not a C file; the interpreter and the C and C++ runtimes count as a standard library.
//!
//! Invariant: the result depends only on the stack and on the directories in the capture, and every stack has one.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::event::StackId;
use crate::frames::{FrameId, Frames, NameId};
use crate::native::{ModuleSource, is_interpreter_object};
use crate::program::Program;

/// The name for stacks without any frame outside the standard library.
pub const ROOT: &str = "<root>";

/// A module, by its number in the [`ModuleTable`] it came from. Number 0 is [`ROOT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(u32);

/// The modules found so far; each file name is parsed once.
#[derive(Clone, Debug, Default)]
pub struct ModuleTable {
    of_file: FxHashMap<NameId, Option<FilePlace>>,
    /// By path of a native object.
    of_object: FxHashMap<NameId, Option<FilePlace>>,
    ids: FxHashMap<String, ModuleId>,
    names: Vec<String>,
}

/// The module of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FilePlace {
    /// The first part of its name.
    top: ModuleId,
    /// The whole name.
    whole: ModuleId,
}

impl ModuleTable {
    /// The module of the innermost frame that has one.
    pub fn of_stack(&mut self, frames: &Frames, stack: StackId) -> ModuleId {
        self.place(frames, stack).top
    }

    /// The same by its whole name: `shop.api.views` where the module is `shop`.
    pub fn whole_of_stack(&mut self, frames: &Frames, stack: StackId) -> ModuleId {
        self.place(frames, stack).whole
    }

    /// The module's name.
    #[must_use]
    pub fn name(&self, module: ModuleId) -> &str {
        match module.0.checked_sub(1) {
            Some(index) => self.names.get(index as usize).map_or(ROOT, String::as_str),
            None => ROOT,
        }
    }

    fn place(&mut self, frames: &Frames, stack: StackId) -> FilePlace {
        frames.leaf_to_root(stack).find_map(|frame| self.place_of_frame(frames, frame)).unwrap_or_default()
    }

    /// The module of a frame; `None` for standard libraries and where nothing is known. Use one [`ModuleTable`] for all
    /// frames: it parses each file's name once.
    pub fn of_frame(&mut self, frames: &Frames, frame: FrameId) -> Option<ModuleId> {
        self.place_of_frame(frames, frame).map(|place| place.top)
    }

    fn place_of_frame(&mut self, frames: &Frames, frame: FrameId) -> Option<FilePlace> {
        let object = frames.module_id(frame);
        let (known, name) = match object {
            Some(object) => (&self.of_object, object),
            None => (&self.of_file, frames.frame(frame).file),
        };
        if let Some(&known) = known.get(&name) {
            return known;
        }
        let place = whole_name(frames, frame).map(|whole| {
            let top = if object.is_none() { top(&whole) } else { &whole };
            FilePlace { top: self.numbered(top), whole: self.numbered(&whole) }
        });
        let known = if object.is_some() { &mut self.of_object } else { &mut self.of_file };
        known.insert(name, place);
        place
    }

    fn numbered(&mut self, name: &str) -> ModuleId {
        if let Some(&known) = self.ids.get(name) {
            return known;
        }
        self.names.push(name.to_owned());
        let module = ModuleId(u32::try_from(self.names.len()).unwrap_or(0));
        self.ids.insert(name.to_owned(), module);
        module
    }
}

/// The whole dotted name of a frame's module, which for a native object has one part; `None` for standard libraries and
/// where nothing is known.
fn whole_name(frames: &Frames, frame: FrameId) -> Option<Cow<'_, str>> {
    match frames.module(frame) {
        Some(object) => module_of_object(object).map(Into::into),
        None => whole_module(frames.programs(), frames.file(frame)),
    }
}

fn whole_module<'a>(programs: &[Arc<Program>], file: &'a str) -> Option<Cow<'a, str>> {
    let by_path = module_by_path(file)?;
    let told = dotted(programs, file);
    Some(told.map_or(by_path.into(), Into::into))
}

/// The first part of a dotted name.
fn top(whole: &str) -> &str {
    whole.split('.').next().filter(|top| !top.is_empty()).unwrap_or(whole)
}

/// The module that a native object belongs to; `None` for those that are a standard library.
fn module_of_object(object: &str) -> Option<&str> {
    if is_interpreter_object(object) || is_runtime(object) { None } else { module_by_path(object) }
}

/// How the native objects of each module were found; [`ModuleSource::Process`] if one of them was found by the process.
#[must_use]
pub fn sources(frames: &Frames) -> FxHashMap<&str, ModuleSource> {
    let mut sources = FxHashMap::default();
    for (object, source) in frames.sources() {
        let Some(module) = module_of_object(object) else { continue };
        let known = sources.entry(module).or_insert(source);
        if source == ModuleSource::Process {
            *known = source;
        }
    }
    sources
}

/// Whether the object is a C or C++ runtime library.
pub(crate) fn is_runtime(object: &str) -> bool {
    let file = object.rsplit('/').next().unwrap_or(object);
    let name = file.split_once(".so").map_or(file, |(name, _)| name);
    ["libc", "libm", "libpthread", "libdl", "libstdc++", "libc++", "libgcc_s", "ld-linux-x86-64", "ld-linux-aarch64"]
        .contains(&name)
}

/// The module of a source file, by its path alone.
fn module_by_path(file: &str) -> Option<&str> {
    if file.is_empty() || file.starts_with("<frozen ") {
        return None;
    }
    if let Some(below) = below_packages(file) {
        let top = below.split('/').next().unwrap_or(below);
        return Some(without_extension(top));
    }
    if is_standard_library(file) { None } else { Some(named_after_file(file)) }
}

/// The dotted name of a source file's module: `json.decoder` for `lib/python3.11/json/decoder.py`. The file's own name
/// if no package is known; `None` without a file.
#[must_use]
pub fn dotted(programs: &[Arc<Program>], file: &str) -> Option<String> {
    if let Some(frozen) = file.strip_prefix("<frozen ") {
        return frozen.strip_suffix('>').map(str::to_owned);
    }
    if file.is_empty() || file.starts_with('<') {
        return None;
    }
    let Some(below) = below_packages(file).or_else(|| below_standard_library(file)) else {
        let told = programs.iter().find_map(|program| program.module(file));
        return Some(told.unwrap_or_else(|| named_after_file(file).to_owned()));
    };
    let (folders, name) = below.rsplit_once('/').unwrap_or(("", below));
    let name = Some(without_extension(name)).filter(|name| *name != "__init__");
    let parts: Vec<_> = folders.split('/').chain(name).filter(|part| !part.is_empty()).collect();
    Some(parts.join("."))
}

/// What follows the last `site-packages/` or `dist-packages/`.
pub(crate) fn below_packages(file: &str) -> Option<&str> {
    let after = |folder: &str| file.rfind(folder).map(|at| at + folder.len());
    let start = after("/site-packages/").max(after("/dist-packages/"))?;
    file.get(start..).filter(|below| !below.is_empty())
}

fn is_standard_library(file: &str) -> bool {
    below_standard_library(file).is_some()
}

/// What follows `lib/python3.X/` (also `lib64`) or the zipped library.
pub(crate) fn below_standard_library(file: &str) -> Option<&str> {
    let (mut above, mut rest) = ("", file);
    while let Some((part, below)) = rest.split_once('/') {
        if (above == "lib" || above == "lib64") && is_library_folder(part) {
            return Some(below);
        }
        (above, rest) = (part, below);
    }
    None
}

fn is_library_folder(part: &str) -> bool {
    let Some(version) = part.strip_prefix("python3") else { return false };
    let version = version.strip_suffix(".zip").unwrap_or(version);
    // A final t marks the free-threaded build.
    let minor = version.trim_start_matches('.').trim_end_matches('t');
    !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
}

/// The file's stem; a package's for its `__init__.py` and `__main__.py`.
fn named_after_file(file: &str) -> &str {
    let mut parts = file.rsplit('/');
    let stem = without_extension(parts.next().unwrap_or(file));
    match stem {
        "__init__" | "__main__" => parts.next().filter(|folder| !folder.is_empty()).unwrap_or(stem),
        _ => stem,
    }
}

/// The name up to its last dot: `app` for `app.py`; all of it when nothing would stay.
fn without_extension(name: &str) -> &str {
    name.rsplit_once('.')
        .map_or(name, |(stem, _)| stem)
        .split('.')
        .next()
        .filter(|stem| !stem.is_empty())
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::{ModuleTable, ROOT, dotted};
    use crate::event::StackId;
    use crate::frames::Frames;
    use crate::program::tests::program;

    #[test]
    fn files() {
        let cases = [
            ("/venv/lib/python3.11/site-packages/numpy/core/numeric.py", Some("numpy")),
            ("/usr/lib/python3/dist-packages/yaml/__init__.py", Some("yaml")),
            ("/venv/lib/python3.11/site-packages/six.py", Some("six")),
            ("/venv/lib/python3.11/site-packages/fast.cpython-311-x86_64-linux-gnu.so", Some("fast")),
            ("/usr/lib/python3.11/json/decoder.py", None),
            ("/opt/python/lib64/python3.13t/threading.py", None),
            ("/usr/lib/python311.zip/os.py", None),
            ("<frozen importlib._bootstrap>", None),
            ("", None),
            ("/home/me/app.py", Some("app")),
            ("app.py", Some("app")),
            ("/home/me/shop/__main__.py", Some("shop")),
            ("/home/python3.11/app.py", Some("app")),
            ("/home/me/.py", Some(".py")),
            ("<string>", Some("<string>")),
        ];
        let (mut frames, mut modules) = (Frames::new(), ModuleTable::default());
        for (file, module) in cases {
            let frame = frames.frame_named("f", file, 1).unwrap();
            let found = modules.of_frame(&frames, frame);
            assert_eq!(found.map(|found| modules.name(found)), module, "{file}");
        }
    }

    #[test]
    fn names_that_python_gives_modules() {
        let cases = [
            ("/usr/lib/python3.11/json/decoder.py", Some("json.decoder")),
            ("/usr/lib/python3.11/json/__init__.py", Some("json")),
            ("/usr/lib/python311.zip/os.py", Some("os")),
            ("/venv/lib/python3.11/site-packages/pandas/core/frame.py", Some("pandas.core.frame")),
            ("/venv/lib/python3.11/site-packages/six.py", Some("six")),
            ("/usr/lib/python3/dist-packages/yaml/__init__.py", Some("yaml")),
            ("<frozen importlib._bootstrap>", Some("importlib._bootstrap")),
            ("/home/me/app.py", Some("app")),
            ("/home/me/shop/__main__.py", Some("shop")),
            ("<string>", None),
            ("", None),
        ];
        for (file, module) in cases {
            assert_eq!(dotted(&[], file).as_deref(), module, "{file}");
        }
    }

    #[test]
    fn native_code_goes_by_its_object() {
        let mut frames = Frames::new();
        let mut native = |object: &str, file: &str| {
            let frame = frames.frame_named("f", file, 1).unwrap();
            frames.set_module(frame, object).unwrap();
            frame
        };
        let cases = [
            ("/srv/bin/server", "/usr/include/c++/12/bits/new_allocator.h", Some("server")),
            ("/venv/lib/python3.11/site-packages/numpy/core/_umath.cpython-311.so", "umath.c", Some("numpy")),
            ("/usr/lib/python3.11/lib-dynload/_json.cpython-311.so", "/build/Modules/_json.c", None),
            ("/usr/bin/python3.11", "/build/Objects/obmalloc.c", None),
            ("/usr/lib/libpython3.12.so.1.0", "/build/Objects/listobject.c", None),
            ("/usr/lib/libc.so.6", "./malloc/malloc.c", None),
            ("/usr/lib/libssl.so.3", "crypto/mem.c", Some("libssl")),
        ];
        let made: Vec<_> = cases.iter().map(|(object, file, module)| (native(object, file), module)).collect();
        for (frame, module) in made {
            let mut modules = ModuleTable::default();
            let found = modules.of_frame(&frames, frame);
            assert_eq!(found.map(|found| modules.name(found)), *module);
        }
    }

    #[test]
    fn files_of_one_package_are_one_module() {
        let mut frames = Frames::new();
        frames.add_program(program(&["/srv"], &["/srv/shop"]).into());
        let mut stack = |file: &str| {
            let frame = frames.frame_named("f", file, 1).unwrap();
            frames.stack_of(&[frame]).unwrap()
        };
        let stacks = ["/srv/shop/models.py", "/srv/shop/api/views.py", "/srv/manage.py", "/venv/site-packages/six.py"];
        let stacks = stacks.map(&mut stack);
        let mut modules = ModuleTable::default();
        let [first, whole] = [ModuleTable::of_stack, ModuleTable::whole_of_stack].map(|of| {
            stacks.map(|stack| {
                let module = of(&mut modules, &frames, stack);
                modules.name(module).to_owned()
            })
        });
        assert_eq!(first, ["shop", "shop", "manage", "six"]);
        assert_eq!(whole, ["shop.models", "shop.api.views", "manage", "six"]);
    }

    #[test]
    fn the_nearest_module_outside_the_library_is_taken() {
        let mut frames = Frames::new();
        let mut stack = |files: &[&str]| {
            files.iter().fold(StackId::EMPTY, |parent, file| {
                let frame = frames.frame_named("f", file, 1).unwrap();
                frames.stack_id(parent, frame).unwrap()
            })
        };
        let library = "/usr/lib/python3.11/json/decoder.py";
        let through_library = stack(&["/a/main.py", "/a/app.py", library]);
        let only_library = stack(&["/usr/lib/python3.11/runpy.py", library]);
        let mut modules = ModuleTable::default();
        let mut name = |stack| {
            let module = modules.of_stack(&frames, stack);
            modules.name(module).to_owned()
        };
        assert_eq!(name(through_library), "app");
        assert_eq!(name(only_library), ROOT);
        assert_eq!(name(StackId::EMPTY), ROOT);
    }
}
