//! Replaces names by numbered stand-ins.
//!
//! Names are numbered in the order of their appearance, since hashes could be guessed. Parts that reveal nothing about
//! a program stay: the directories that mark a path as a library's or a package's, suffixes of file names, and names
//! that interpreters and compilers give to scopes. What reports know by its name keeps what they know it by: the
//! runtimes' objects are called as before, and plumbing by the pattern that it matches (`std::f12`, `sqlite3Malloc_f3`).
//!
//! Invariant: within one anonymizer equal names have equal stand-ins, and different names different ones; and each
//! stand-in is to a report what the name is: [`plumbing`], and of the same [`origin`](crate::origin).

use memtrack_format::aggregate::Aggregate;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;
use memtrack_format::symbols::{ModuleSymbols, OffsetSymbols, Symbol};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::modules::is_runtime;
use crate::native::{NativeModule, is_interpreter_object};
use crate::plumbing;
use crate::program::{SENT, is_identifier};

/// Path components that stay.
const FOLDERS: [&str; 20] = [
    "",
    ".",
    "..",
    "usr",
    "local",
    "lib",
    "lib64",
    "site-packages",
    "dist-packages",
    "importlib",
    // Sources of the runtimes of C++ and Rust, and of libraries that are compiled into programs.
    "include",
    "c++",
    "rustc",
    "rustlib",
    "rust",
    "library",
    "src",
    ".cargo",
    "registry",
    "git",
];
/// What IPython puts before the number of a cell.
const CELL: &str = "<ipython-input-";
/// What the system puts behind the path of a file that was deleted.
const DELETED: &str = " (deleted)";
/// Modules of Python that import others or start programs: by their names reports distinguish imports from own code.
const IMPORTERS: [&str; 5] = ["importlib", "_bootstrap", "_bootstrap_external", "zipimport", "runpy"];
/// Files whose module is called by their directory.
const PACKAGE_FILES: [&str; 2] = ["__init__", "__main__"];
/// File name suffixes that stay.
const ENDS: [&str; 12] = ["py", "pyc", "pyx", "so", "zip", "c", "h", "cc", "cpp", "cxx", "hpp", "rs"];
/// Names that interpreters and compilers give.
const SCOPES: [&str; 15] = [
    "",
    SENT,
    "<module>",
    "<lambda>",
    "<listcomp>",
    "<dictcomp>",
    "<setcomp>",
    "<genexpr>",
    "<locals>",
    "<unknown>",
    "<string>",
    "<stdin>",
    "__init__",
    "__call__",
    "__new__",
];

/// The stand-ins so far.
#[derive(Debug, Default)]
pub struct Anonymizer {
    words: FxHashMap<String, usize>,
    arguments: FxHashMap<Vec<u8>, usize>,
    builds: FxHashMap<Vec<u8>, u32>,
}

impl Anonymizer {
    /// A function's name, scope by scope.
    pub fn function(&mut self, name: &str) -> String {
        if SCOPES.contains(&name) {
            return name.into();
        }
        let parts: Vec<_> = name.split('.').map(|part| self.word(part, "f", &SCOPES)).collect();
        parts.join(".")
    }

    /// A path, part by part.
    pub fn file(&mut self, path: &str) -> String {
        if SCOPES.contains(&path) {
            return path.into();
        }
        if let Some(frozen) = path.strip_prefix("<frozen ") {
            let frozen = frozen.trim_end_matches('>');
            let is_importer = frozen.split('.').all(|part| IMPORTERS.contains(&part));
            let name = if is_importer { frozen.to_owned() } else { self.function(frozen) };
            return format!("<frozen {name}>");
        }
        if path.starts_with('<') {
            // Of text, and no path, which it must not become.
            let number = self.word(path, "n", &[]);
            let start = if path.starts_with(CELL) { CELL } else { "<" };
            return format!("{start}{number}>");
        }
        let (path, deleted) = path.strip_suffix(DELETED).map_or((path, ""), |path| (path, DELETED));
        let mut parts = Vec::new();
        let mut of_kernel = false;
        for part in path.split('/') {
            parts.push(if is_kernel(part) { part.to_owned() } else { self.part(part, of_kernel) });
            of_kernel = is_kernel(part);
        }
        parts.join("/") + deleted
    }

    /// A thread's name.
    pub fn thread(&mut self, name: &str) -> String {
        self.word(name, "thread-", &[""])
    }

    /// Marks at the same times.
    #[must_use]
    pub fn marks(&mut self, marks: &[Mark]) -> Vec<Mark> {
        marks.iter().map(|mark| Mark { name: self.word(&mark.name, "mark-", &[]), ..*mark }).collect()
    }

    /// A native module: its path, and a numbered build-id, which distinguishes modules and matches no file.
    #[must_use]
    pub fn module(&mut self, module: &NativeModule) -> NativeModule {
        let (path, build_id) = (self.path(&module.path), self.build(&module.identity()));
        NativeModule { path, build_id, stamp: None, ..module.clone() }
    }

    /// The names of native code.
    #[must_use]
    pub fn symbols(&mut self, names: &[ModuleSymbols]) -> Vec<ModuleSymbols> {
        names.iter().map(|named| self.named(named)).collect()
    }

    fn named(&mut self, named: &ModuleSymbols) -> ModuleSymbols {
        let mut place = |place: &OffsetSymbols| {
            let symbols = place.symbols.iter().map(|symbol| Symbol {
                function: self.native(&symbol.function).into(),
                file: self.file(&symbol.file).into(),
                line: symbol.line,
            });
            OffsetSymbols { offset: place.offset, symbols: symbols.collect() }
        };
        let places = named.places.iter().map(&mut place).collect();
        ModuleSymbols { path: self.path(&named.path), build_id: self.build(&named.build_id), places }
    }

    /// A function's name that is no path of scopes, but may hold whole types.
    fn native(&mut self, name: &str) -> String {
        let Some(pattern) = plumbing::pattern(name) else { return self.word(name, "f", &["", "main"]) };
        if plumbing::is_of_known_words(name) {
            return name.into();
        }
        let number = self.word(name, "f", &[]);
        let Some((start, end)) = pattern.rsplit_once('*') else { return format!("{pattern}({number})") };
        let between = if start.ends_with(|last: char| last.is_ascii_alphanumeric()) { "_" } else { "" };
        format!("{}{between}{number}{end}", start.replace('*', ""))
    }

    fn path(&mut self, path: &[u8]) -> Vec<u8> {
        self.file(&String::from_utf8_lossy(path)).into_bytes()
    }

    fn build(&mut self, build_id: &[u8]) -> Vec<u8> {
        if build_id.is_empty() {
            return Vec::new();
        }
        let next = u32::try_from(self.builds.len()).unwrap_or(u32::MAX);
        self.builds.entry(build_id.to_vec()).or_insert(next).to_be_bytes().to_vec()
    }

    /// The metadata of the process, without arguments, paths, and texts that may contain any.
    #[must_use]
    pub fn process(&mut self, process: &Process) -> Process {
        let mut process = process.clone();
        let line = std::mem::take(&mut process.command_line);
        process.command_line = line.into_iter().map(|argument| self.argument(argument)).collect();
        for path in [&mut process.executable, &mut process.working_directory, &mut process.script] {
            *path = path.take().map(|path| self.path(&path));
        }
        let Process { own_directories, import_roots, packages, installed_directories, .. } = &mut process;
        for list in [own_directories, import_roots, packages, installed_directories] {
            list.iter_mut().for_each(|path| *path = self.path(path));
        }
        for entry in &mut process.library_allocators {
            let at = entry.iter().position(|&byte| byte == b' ').map_or(0, |space| space + 1);
            *entry = [&entry[..at], &self.path(&entry[at..])].concat();
        }
        // As folders, so that they go on being those of paths.
        for name in &mut process.started_packages {
            let folders = String::from_utf8_lossy(name).replace('.', "/");
            *name = self.file(&folders).replace('/', ".").into_bytes();
        }
        let removed = |text: &mut Option<Vec<u8>>| {
            if text.is_some() {
                *text = Some(b"a reason that was removed".to_vec());
            }
        };
        removed(&mut process.python_note);
        removed(&mut process.stop_reason);
        removed(&mut process.objects_note);
        process.anonymized = true;
        process
    }

    fn argument(&mut self, argument: Vec<u8>) -> Vec<u8> {
        let next = self.arguments.len() + 1;
        format!("argument-{}", self.arguments.entry(argument).or_insert(next)).into_bytes()
    }

    fn part(&mut self, part: &str, of_kernel: bool) -> String {
        if FOLDERS.contains(&part) || is_interpreter(part) {
            return part.into();
        }
        let (mut renamed, mut is_version) = (Vec::new(), false);
        for (at, word) in part.split('.').enumerate() {
            let begins = at == 0 && part.len() > word.len();
            let stays = match at {
                0 => is_runtime(part) || begins && (IMPORTERS.contains(&word) || PACKAGE_FILES.contains(&word)),
                _ => ENDS.contains(&word) || is_version && is_number(word),
            };
            is_version = word == "so" || is_version && is_number(word);
            renamed.push(match word {
                "" => String::new(),
                _ if stays || is_interpreter(word) => word.to_owned(),
                _ if of_kernel && is_number(word) => self.word(word, "", &[]),
                // What begins so is a runtime's library, whatever follows.
                _ if at == 1 && is_runtime(part) && word.starts_with("so") => self.word(word, "so", &[]),
                _ => self.word(word, kind_of(word), &[]),
            });
        }
        renamed.join(".")
    }

    fn word(&mut self, word: &str, kind: &str, stay: &[&str]) -> String {
        if stay.contains(&word) {
            return word.into();
        }
        let next = self.words.len() + 1;
        format!("{kind}{}", self.words.entry(word.into()).or_insert(next))
    }
}

/// Whether this is what a Python interpreter, its library or the folder or archive of its modules is called.
fn is_interpreter(part: &str) -> bool {
    let name = part.strip_prefix("lib").unwrap_or(part);
    let Some(version) = name.strip_prefix("python") else { return false };
    let numbers = |text: &str| text.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
    let (version, rest) = version.split_once(".so").unwrap_or((version, ""));
    let version = version.strip_suffix(".zip").unwrap_or(version);
    // Letters of builds: for debugging, with its own allocator, without the lock of the interpreter.
    numbers(version.trim_end_matches(['d', 'm', 't', 'u'])) && numbers(rest)
}

/// Whether this is the folder of the cells of a kernel of IPython.
fn is_kernel(part: &str) -> bool {
    part.strip_prefix("ipykernel_").is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What stands before the number of a part of a path: it can be in a module's name where the part can.
fn kind_of(word: &str) -> &'static str {
    match (is_interpreter_object(word), is_identifier(word)) {
        (false, true) => "n",
        (false, false) => "n-",
        (true, true) => "python3_n",
        (true, false) => "python3-n",
    }
}

/// The sums with stand-ins. A name that is a function's and a file's gets one for each.
#[must_use]
pub fn anonymized_aggregate(aggregate: &Aggregate, anonymizer: &mut Anonymizer) -> Aggregate {
    let mut renamed = aggregate.clone();
    let mut names = vec![String::new()];
    let mut known = FxHashMap::from_iter([(String::new(), 0)]);
    let mut id_of = |name: String| {
        *known.entry(name.clone()).or_insert_with(|| {
            names.push(name);
            u32::try_from(names.len() - 1).unwrap_or(0)
        })
    };
    let old = |id: u32| aggregate.names.get(id as usize).map_or("", String::as_str);
    // A place is called by its module and offset, which a reader makes anew.
    let places: FxHashSet<u32> = aggregate.places.iter().map(|place| place.frame).collect();
    for (at, (function, file, _)) in (0..).zip(&mut renamed.frames) {
        let named = if places.contains(&at) { String::new() } else { anonymizer.function(old(*function)) };
        *function = id_of(named);
        *file = id_of(anonymizer.file(old(*file)));
    }
    for module in &mut renamed.modules {
        let known = NativeModule { path: module.path.clone(), ..NativeModule::default() };
        let known = known.with_identity(&module.build_id);
        let NativeModule { path, build_id, .. } = anonymizer.module(&known);
        (module.path, module.build_id) = (path, build_id);
    }
    for (_, name) in &mut renamed.threads {
        *name = anonymizer.thread(name);
    }
    renamed.names = names;
    renamed
}
