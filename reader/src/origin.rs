//! Classifies frames by whose code they are, and stacks by whose memory they hold.
//!
//! A frame's code is the program's own, a library's, the standard library's, the import system's, or the runtime's (the
//! interpreter, the C, C++ and Rust runtimes). Own code lies below the directories that the capture names
//! ([`Program`]): that of the script; or the working directory for `-m`, `-c`, scripts that
//! `pip` wrote to start a package (`venv/bin/gunicorn`), and sources of native programs. The executable of a native
//! program is own code, too, except what was compiled into it from libraries, what was linked to it without the debug information
//! that the rest has, and what runs before its `main`. Files in
//! `site-packages`, `dist-packages` or the standard library are never own code, unless all code of the program is installed
//! ([`started`]).
//!
//! Memory belongs to whoever requested it. From the outermost frame to the innermost, own code takes it over from its
//! callers, and so does the import system: what a library's module allocates during its import belongs to the import;
//! what own code allocates at the top level of its own module belongs to own code, although an import executes it.
//! Libraries and the standard library take over nothing: a data frame that own code requested belongs to own code.
//!
//! Invariant: every stack has one [`Whose`], which depends only on the [`Origin`]s of its frames.

use crate::frames::{FrameId, Frames, NameId};
use crate::modules::{below_packages, below_standard_library, is_runtime};
use crate::native::{is_interpreter_object, is_place_in};
use crate::plumbing::is_start;
use crate::program::Program;
use crate::started;
use crate::stdlib_names::is_standard;
use crate::text_frames;
use rustc_hash::{FxHashMap, FxHashSet};

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The program's own.
    Own,
    /// A library's: installed, or in a directory that is not the program's.
    Library,
    /// Python's standard library, and frames that are no code, such as the one that names a process.
    Standard,
    /// The import system, which loads modules.
    Import,
    /// The interpreter, or the runtime of C, C++ or Rust.
    Runtime,
}

/// Whose memory a stack holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whose {
    /// Own code asked for it.
    Own,
    /// A library, without own code on the stack.
    Libraries,
    /// The standard library, the interpreter or the runtime alone; what has no stack, too.
    #[default]
    Standard,
    /// Imports: what modules other than own code allocate during their import, and the code objects of all modules.
    Imports,
}

impl Whose {
    /// All of them; every byte belongs to exactly one.
    pub const ALL: [Self; 4] = [Self::Own, Self::Libraries, Self::Standard, Self::Imports];

    /// Its name in options and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Libraries => "libraries",
            Self::Standard => "stdlib",
            Self::Imports => "imports",
        }
    }

    /// Whose memory it is after a call of a frame with this origin.
    const fn with(self, frame: Origin) -> Self {
        match (self, frame) {
            (_, Origin::Own) => Self::Own,
            (_, Origin::Import) => Self::Imports,
            (Self::Standard, Origin::Library) => Self::Libraries,
            _ => self,
        }
    }
}

/// The origin of every frame, by its number.
#[must_use]
pub fn origins(frames: &Frames) -> Vec<Origin> {
    let mut origins = by_directory(frames);
    if !has_own_python(frames, &origins) {
        take_over(&mut origins, started::own_frames(frames));
    }
    origins
}

/// The names of the installed packages that are own code, by their dots; none if own code lies in directories.
#[must_use]
pub fn own_packages(frames: &Frames) -> Vec<&str> {
    if has_own_python(frames, &by_directory(frames)) { Vec::new() } else { started::own_names(frames) }
}

/// Whether code that lies in no installation is own code, because an installed package executes it and none lies in directories.
#[must_use]
pub fn is_own_elsewhere(frames: &Frames) -> bool {
    !has_own_python(frames, &by_directory(frames)) && started::is_own_elsewhere(frames)
}

fn has_own_python(frames: &Frames, origins: &[Origin]) -> bool {
    let is_own = |(id, origin): (FrameId, &Origin)| *origin == Origin::Own && frames.module_id(id).is_none();
    (0..).map(FrameId).zip(origins).any(is_own)
}

/// Makes frames of libraries own code.
fn take_over(origins: &mut [Origin], own: Vec<FrameId>) {
    for id in own {
        if let Some(origin) = origins.get_mut(id.0 as usize).filter(|origin| **origin == Origin::Library) {
            *origin = Origin::Own;
        }
    }
}

/// The same without what is own code because the program was started by its package's script.
fn by_directory(frames: &Frames) -> Vec<Origin> {
    let mut known = Origins::default();
    let mut origins: Vec<_> = (0..).map(FrameId).zip(frames.frames()).map(|(id, _)| known.of(frames, id)).collect();
    for id in linked_libraries(frames, &origins) {
        if let Some(origin) = origins.get_mut(id.0 as usize) {
            *origin = Origin::Library;
        }
    }
    take_over(&mut origins, text_frames::without_caller(frames));
    origins
}

/// Frames of an own object that have no source, where its `main` has one: the program was built with debug information, and they are
/// of libraries that were linked into it without, as of a distribution's `libsqlite3.a`. Where others alone have one, it may be the
/// libraries that have debug information.
fn linked_libraries(frames: &Frames, origins: &[Origin]) -> Vec<FrameId> {
    let own = || {
        let all = (0..).map(FrameId).zip(origins).filter(|(_, origin)| **origin == Origin::Own);
        all.filter_map(|(id, _)| Some((id, frames.module_id(id)?)))
    };
    // Without one the file is the object.
    let has_source = |id: FrameId| !frames.file(id).is_empty() && Some(frames.file(id)) != frames.module(id);
    let is_main = |id: FrameId| frames.function(id) == "main" || frames.function(id).ends_with("::main");
    let built = own().filter(|(id, _)| has_source(*id) && is_main(*id));
    let built: FxHashSet<NameId> = built.map(|(_, object)| object).collect();
    // Of Rust the `main` that the C library calls has none.
    let is_linked = |(id, object): &(FrameId, NameId)| built.contains(object) && !has_source(*id) && !is_main(*id);
    own().filter(is_linked).map(|(id, _)| id).collect()
}

/// A cache of origins.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// By object and file.
    known: FxHashMap<(Option<NameId>, NameId), Origin>,
}

impl Origins {
    /// The origin of a frame.
    pub(crate) fn of(&mut self, frames: &Frames, id: FrameId) -> Origin {
        let place = (frames.module_id(id), frames.frame(id).file);
        if place.0.is_some() && (is_start(frames.function(id)) || is_of_embedded(frames, id)) {
            return Origin::Runtime;
        }
        *self.known.entry(place).or_insert_with(|| match frames.module(id) {
            Some(object) => of_native(frames, object, frames.file(id)),
            None => of_python(frames, frames.file(id)),
        })
    }
}

/// Whose memory every stack holds, by its number; the first is the empty one.
#[must_use]
pub fn whose(frames: &Frames) -> Vec<Whose> {
    let origins = origins(frames);
    let mut all = Vec::with_capacity(frames.stacks().len() + 1);
    all.push(Whose::default());
    // A stack comes after that of its caller.
    for node in frames.stacks() {
        let caller = all.get(node.parent.0 as usize).copied().unwrap_or_default();
        all.push(origins.get(node.frame.0 as usize).map_or(caller, |frame| caller.with(*frame)));
    }
    all
}

/// The origin of Python code in this file.
fn of_python(frames: &Frames, file: &str) -> Origin {
    if is_import_system(file) {
        return Origin::Import;
    }
    if file.is_empty() || file.starts_with("<frozen ") {
        return Origin::Standard;
    }
    if below_packages(file).is_some() {
        return Origin::Library;
    }
    if below_standard_library(file).is_some() {
        return Origin::Standard;
    }
    if let Some(known) = of_archive(frames, file) {
        return known;
    }
    of_rest(frames, file)
}

/// The origin of a file in the archive of a frozen program, if it is not the program's: its name has no directory.
fn of_archive(frames: &Frames, file: &str) -> Option<Origin> {
    let mut versions = frames.programs().iter().filter_map(|program| program.archived()).peekable();
    versions.peek()?;
    let name = file.rsplit('/').next().unwrap_or(file);
    if name.starts_with("pyimod0") {
        return Some(Origin::Import);
    }
    if ["pyiboot", "pyi_rth_", "_pyi_rth_"].iter().any(|start| name.starts_with(start))
        || file.starts_with("PyInstaller/")
    {
        return Some(Origin::Library);
    }
    let is_relative = !file.starts_with(['/', '<']);
    (is_relative && versions.any(|minor| is_standard(file, minor))).then_some(Origin::Standard)
}

/// Whether a native frame is the interpreter's, in an executable that has it in itself: its function has a name of the
/// interpreter's, or none in that of a frozen program, which has only names that libraries need. A program that embeds Python
/// may have been stripped, and its own functions have no names, either.
fn is_of_embedded(frames: &Frames, id: FrameId) -> bool {
    let Some(object) = frames.module(id) else { return false };
    let name = frames.function(id);
    let is_named = is_interpreter_name(name);
    let is_it = |program: &Program| if is_named { program.has_python() } else { program.archived().is_some() };
    (is_named || is_place_in(name, object))
        && frames.programs().iter().any(|program| is_it(program) && program.is_executable(object))
}

/// Whether it is one of the functions that the interpreter has for extensions. What begins an extension is the extension's.
fn is_interpreter_name(name: &str) -> bool {
    let rest = name.strip_prefix('_').unwrap_or(name).strip_prefix("Py").unwrap_or_default();
    rest.starts_with(|next: char| next.is_ascii_uppercase() || next == '_') && !name.starts_with("PyInit_")
}

/// The origin of native code in this object, from this source file.
fn of_native(frames: &Frames, object: &str, source: &str) -> Origin {
    if is_interpreter_object(object) || is_runtime(object) || is_runtime_source(source) {
        return Origin::Runtime;
    }
    if below_packages(object).is_some() || is_library_source(source) {
        return Origin::Library;
    }
    if below_standard_library(object).is_some() {
        return Origin::Standard;
    }
    let programs = frames.programs();
    if programs.iter().any(|program| program.is_executable(object)) {
        return Origin::Own;
    }
    let is_shared = object.ends_with(".so") || object.contains(".so.");
    if is_shared && programs.iter().any(|program| program.has_unpacked(object, programs)) {
        return if object.contains("/lib-dynload/") { Origin::Standard } else { Origin::Library };
    }
    of_rest(frames, if source.starts_with('/') { source } else { object })
}

/// The origin of what is neither installed nor of a standard library.
fn of_rest(frames: &Frames, path: &str) -> Origin {
    let programs = frames.programs();
    // Captures of earlier versions have no directories: what is not installed is the program's.
    let is_own = if programs.is_empty() { !path.starts_with('<') } else { programs.iter().any(|one| one.is_own(path)) };
    if is_own { Origin::Own } else { Origin::Library }
}

/// Whether this file is part of the import system, in any version.
pub(crate) fn is_import_system(file: &str) -> bool {
    if let Some(frozen) = file.strip_prefix("<frozen ") {
        return frozen.starts_with("importlib._bootstrap") || frozen == "zipimport>";
    }
    let below = below_standard_library(file);
    below.is_some_and(|below| {
        matches!(
            below,
            "importlib/__init__.py" | "importlib/_bootstrap.py" | "importlib/_bootstrap_external.py" | "zipimport.py"
        )
    })
}

/// Whether this file is part of a compiler's runtime library.
fn is_runtime_source(file: &str) -> bool {
    file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/library/") || file.contains("/include/c++/")
}

/// Whether this file is the source of a library that was compiled into an object.
fn is_library_source(file: &str) -> bool {
    ["/usr/include/", "/usr/local/include/", "/rust/deps/"].iter().any(|folder| file.starts_with(folder))
        || ["/.cargo/registry/", "/.cargo/git/"].iter().any(|folder| file.contains(folder))
}

#[cfg(test)]
mod tests {
    use super::{Origin, Whose, origins, whose};
    use crate::frames::Frames;
    use crate::program::Program;
    use crate::program::tests::program;
    use memtrack_format::meta::{Process, PythonVersion};

    const IMPORT: &str = "<frozen importlib._bootstrap>";
    const PANDAS: &str = "/venv/lib/python3.11/site-packages/pandas/__init__.py";
    const JSON: &str = "/usr/lib/python3.11/json/decoder.py";

    fn frames() -> Frames {
        let mut frames = Frames::new();
        frames.add_program(program(&["/srv"], &[]).into());
        frames
    }

    fn origin(file: &str, object: Option<&str>) -> Origin {
        let mut frames = frames();
        let id = frames.frame_named("f", file, 1).unwrap();
        object.iter().for_each(|object| frames.set_module(id, object).unwrap());
        origins(&frames)[0]
    }

    #[test]
    fn whose_code_it_is() {
        for (file, expected) in [
            ("/srv/app.py", Origin::Own),
            ("/srv/venv/lib/python3.11/site-packages/six.py", Origin::Library),
            ("/opt/tools/x.py", Origin::Library),
            (JSON, Origin::Standard),
            ("<frozen runpy>", Origin::Standard),
            (IMPORT, Origin::Import),
            ("/usr/lib/python3.8/importlib/__init__.py", Origin::Import),
            ("/usr/lib/python3.11/importlib/metadata/__init__.py", Origin::Standard),
            ("<string>", Origin::Library),
        ] {
            assert_eq!(origin(file, None), expected, "{file}");
        }
        for (file, object, expected) in [
            ("main.c", "/srv/server", Origin::Own),
            ("/srv/src/main.rs", "/target/server", Origin::Own),
            ("/rustc/0a1b/library/alloc/src/vec/mod.rs", "/srv/server", Origin::Runtime),
            ("/usr/include/c++/12/bits/stl_vector.h", "/srv/server", Origin::Runtime),
            ("/usr/include/boost/x.hpp", "/srv/server", Origin::Library),
            ("/home/me/.cargo/registry/src/x/serde-1.0/src/de.rs", "/srv/server", Origin::Library),
            ("crypto/mem.c", "/usr/lib/libssl.so.3", Origin::Library),
            ("malloc.c", "/usr/lib/libc.so.6", Origin::Runtime),
            ("obmalloc.c", "/usr/bin/python3.11", Origin::Runtime),
        ] {
            assert_eq!(origin(file, Some(object)), expected, "{file} in {object}");
        }
    }

    #[test]
    fn what_starts_a_program_is_the_runtimes_wherever_it_is_linked_to() {
        let mut frames = frames();
        let mut id = |function: &str| {
            let id = frames.frame_named(function, "", 0).unwrap();
            frames.set_module(id, "/srv/server").unwrap();
            id
        };
        let [start, main, other] = ["_start", "main", "__libc_start_call_main"].map(&mut id);
        let started = frames.stack_of(&[start, other]).unwrap();
        let own = frames.stack_of(&[start, other, main]).unwrap();
        assert_eq!(origins(&frames), [Origin::Runtime, Origin::Own, Origin::Runtime]);
        assert_eq!([started, own].map(|stack| whose(&frames)[stack.0 as usize]), [Whose::Standard, Whose::Own]);
    }

    #[test]
    fn libraries_without_debug_information_in_an_executable_with_it_are_not_own() {
        let mut frames = frames();
        let mut id = |function: &str, file: &str| {
            let id = frames.frame_named(function, file, 1).unwrap();
            frames.set_module(id, "/srv/server").unwrap();
            id
        };
        let [main, deflate, grow, _] =
            [("main", ""), ("deflateInit_", "/srv/server"), ("grow", ""), ("parse", "json.c")]
                .map(|(function, file)| id(function, file));
        assert_eq!(
            origins(&frames),
            [Origin::Own; 4],
            "a library may have been built with it, and the program without"
        );
        let built = frames.frame_named("main", "server.c", 1).unwrap();
        frames.set_module(built, "/srv/server").unwrap();
        let of = |id: crate::FrameId| origins(&frames)[id.0 as usize];
        assert_eq!([main, deflate, grow].map(of), [Origin::Own, Origin::Library, Origin::Library]);
        assert_eq!(of(built), Origin::Own);
    }

    #[test]
    fn of_a_frozen_program_the_library_and_the_interpreter_are_not_own() {
        let mut frames = Frames::new();
        let process = Process {
            executable: Some(b"/srv/dist/app".to_vec()),
            working_directory: Some(b"/srv".to_vec()),
            own_directories: vec![b"/srv".to_vec()],
            python_version: Some(PythonVersion { hex: 0x030c_01f0 }),
            frozen: true,
            ..Process::default()
        };
        frames.add_program(Program::of(&process).into());
        let (app, internal) = (Some("/srv/dist/app"), "/srv/dist/_internal");
        let [json, ssl, libpython] = ["lib-dynload/_json.cpython-312.so", "libssl.so.3", "libpython3.12.so.1.0"]
            .map(|name| format!("{internal}/{name}"));
        for (function, file, object, expected) in [
            ("decode", "json/decoder.py", None, Origin::Standard),
            ("load", "app.py", None, Origin::Own),
            ("load", "shop/cart.py", None, Origin::Own),
            ("exec_module", "PyInstaller/loader/pyimod02_importers.py", None, Origin::Import),
            ("<module>", "PyInstaller/hooks/rthooks/pyi_rth_inspect.py", None, Origin::Library),
            ("app+0x20cf5f", "/srv/dist/app", app, Origin::Runtime),
            ("PyUnicode_New", "/srv/dist/app", app, Origin::Runtime),
            ("_PyObject_MakeTpCall", "/srv/dist/app", app, Origin::Runtime),
            ("Pyramid", "/srv/dist/app", app, Origin::Own),
            ("scanstring", "", Some(&*json), Origin::Standard),
            ("SSL_new", "", Some(&*ssl), Origin::Library),
            ("list_resize", "", Some(&*libpython), Origin::Runtime),
        ] {
            let id = frames.frame_named(function, file, 1).unwrap();
            object.iter().for_each(|object| frames.set_module(id, object).unwrap());
            assert_eq!(origins(&frames)[id.0 as usize], expected, "{function} in {file}");
        }
    }

    #[test]
    fn what_is_not_of_the_frozen_program_is_as_without_it() {
        let process = |executable: &str, own: &str, frozen| Process {
            executable: Some(executable.into()),
            working_directory: Some(own.into()),
            own_directories: vec![own.into()],
            python_version: Some(PythonVersion { hex: 0x030c_01f0 }),
            frozen,
            ..Process::default()
        };
        let mut frames = Frames::new();
        frames.add_program(Program::of(&process("/usr/bin/python3.12", "/srv", false)).into());
        frames.add_program(Program::of(&process("/srv/dist/app/app", "/srv", true)).into());
        frames.add_program(Program::of(&process("/srv/server", "/srv", false)).into());
        for (function, file, object, expected) in [
            ("fill", "", Some("/srv/libown.so"), Origin::Own),
            ("SSL_new", "", Some("/srv/dist/app/_internal/libssl.so.3"), Origin::Library),
            ("SSL_new", "", Some("/srv/dist/app/libssl.so.3"), Origin::Library),
            ("SSL_new", "", Some("/tmp/_MEIx1y2/libssl.so.3"), Origin::Library),
            ("loads", "", Some("/tmp/_MEIx1y2/lib-dynload/_json.so"), Origin::Standard),
            ("parse", "parser.py", None, Origin::Own),
            ("write", "formatter/html.py", None, Origin::Own),
            ("decode", "json/decoder.py", None, Origin::Standard),
            ("app+0x20cf5f", "", Some("/srv/dist/app/app"), Origin::Runtime),
            // It embeds Python, and was stripped.
            ("server+0x20cf5f", "", Some("/srv/server"), Origin::Own),
            ("PyUnicode_New", "", Some("/srv/server"), Origin::Runtime),
            ("PyInit_shop", "", Some("/srv/server"), Origin::Own),
        ] {
            let id = frames.frame_named(function, file, 1).unwrap();
            object.iter().for_each(|object| frames.set_module(id, object).unwrap());
            assert_eq!(origins(&frames)[id.0 as usize], expected, "{function} in {file} {object:?}");
        }
    }

    #[test]
    fn memory_is_put_down_to_who_asked_for_it() {
        for (files, expected) in [
            (&[][..], Whose::Standard),
            (&[JSON], Whose::Standard),
            (&[JSON, PANDAS, JSON], Whose::Libraries),
            (&["/srv/app.py", PANDAS, JSON], Whose::Own),
            (&["/srv/app.py", IMPORT], Whose::Imports),
            (&["/srv/app.py", IMPORT, PANDAS, JSON], Whose::Imports),
            // A cache that a module of the program fills when it is imported.
            (&["/srv/app.py", IMPORT, "/srv/report.py", PANDAS], Whose::Own),
            (&["/srv/app.py", IMPORT, "/srv/report.py", IMPORT, PANDAS], Whose::Imports),
            (&[PANDAS, "/srv/app.py", PANDAS], Whose::Own),
        ] {
            let mut frames = frames();
            let stack: Vec<_> = files.iter().map(|file| frames.frame_named("f", file, 1).unwrap()).collect();
            let stack = frames.stack_of(&stack).unwrap();
            assert_eq!(whose(&frames)[stack.0 as usize], expected, "{files:?}");
        }
    }
}
