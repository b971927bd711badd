//! Names that say nothing, one for each that said something.
//!
//! Words are numbered as they come: hashes of names could be guessed. What says nothing about a program stays: the folders
//! that make a path a library's or a package's, the ends of file names, and what interpreters call their own scopes; so
//! reports still tell the program's modules from those of others.
//!
//! Invariant: within one anonymizer equal names have equal stand-ins, different names different ones.

use memtrack_format::aggregate::Aggregate;
use memtrack_format::meta::Process;
use rustc_hash::FxHashMap;

/// Parts of paths that stay.
const FOLDERS: [&str; 9] = ["", ".", "..", "usr", "local", "lib", "lib64", "site-packages", "dist-packages"];
/// Ends of file names that stay.
const ENDS: [&str; 5] = ["py", "pyc", "pyx", "so", "zip"];
/// Names that interpreters and compilers give.
const SCOPES: [&str; 14] = [
    "",
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

/// Gives stand-ins.
#[derive(Debug, Default)]
pub struct Anonymizer {
    words: FxHashMap<String, usize>,
    arguments: FxHashMap<Vec<u8>, usize>,
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
            return format!("<frozen {}>", self.function(frozen.trim_end_matches('>')));
        }
        let parts: Vec<_> = path.split('/').map(|part| self.part(part)).collect();
        parts.join("/")
    }

    /// A thread's name.
    pub fn thread(&mut self, name: &str) -> String {
        self.word(name, "thread-", &[""])
    }

    /// What is known of the process, without its arguments, its paths, and texts that may have any in them.
    #[must_use]
    pub fn process(&mut self, process: &Process) -> Process {
        let mut process = process.clone();
        let line = std::mem::take(&mut process.command_line);
        process.command_line = line.into_iter().map(|argument| self.argument(argument)).collect();
        process.executable = process.executable.map(|path| self.file(&String::from_utf8_lossy(&path)).into_bytes());
        let removed = |text: &mut Option<Vec<u8>>| {
            if text.is_some() {
                *text = Some(b"a reason that was removed".to_vec());
            }
        };
        removed(&mut process.python_note);
        removed(&mut process.stop_reason);
        process.anonymized = Some(1);
        process
    }

    fn argument(&mut self, argument: Vec<u8>) -> Vec<u8> {
        let next = self.arguments.len() + 1;
        format!("argument-{}", self.arguments.entry(argument).or_insert(next)).into_bytes()
    }

    fn part(&mut self, part: &str) -> String {
        let version = part
            .strip_prefix("python3")
            .is_some_and(|rest| rest.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()));
        if version {
            return part.into();
        }
        match part.rsplit_once('.') {
            Some((stem, end)) if ENDS.contains(&end) => {
                let stems = ["__init__", "__main__"];
                format!("{}.{end}", self.word(stem, "n", &stems))
            }
            _ => self.word(part, "n", &FOLDERS),
        }
    }

    fn word(&mut self, word: &str, kind: &str, stay: &[&str]) -> String {
        if stay.contains(&word) {
            return word.into();
        }
        let next = self.words.len() + 1;
        format!("{kind}{}", self.words.entry(word.into()).or_insert(next))
    }
}

/// Sums with other names. A name that is a function's and a file's gets one for each.
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
    for (function, file, _) in &mut renamed.frames {
        *function = id_of(anonymizer.function(old(*function)));
        *file = id_of(anonymizer.file(old(*file)));
    }
    for (_, name) in &mut renamed.threads {
        *name = anonymizer.thread(name);
    }
    renamed.names = names;
    renamed
}
