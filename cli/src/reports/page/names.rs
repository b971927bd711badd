//! The frames of a page: their names, places and modules, and their source lines where these are wanted.
//!
//! Invariant: every text of a capture that a page shows is in the list of strings once, with control characters made
//! visible, and cut where it is very long.

use std::collections::HashMap;
use std::sync::Arc;

use memtrack_reader::analysis::CallTree;
use memtrack_reader::analysis::diff::Functions;
use memtrack_reader::modules::module_of_file;
use memtrack_reader::native::is_interpreter;
use memtrack_reader::program::Program;
use memtrack_reader::{FrameId, Frames};

use crate::reports::NO_STACK;
use crate::reports::facts::visible;
use crate::reports::source::Sources;
use crate::units::count;

/// Characters of a name or a source line that are shown.
const LONGEST_TEXT: usize = 500;

/// Where the names of a tree's keys come from, and source lines where they are wanted.
pub(super) struct Names<'a> {
    tables: Tables<'a>,
    native: Native,
    programs: Vec<Arc<Program>>,
    sources: Option<Sources>,
}

/// Functions of native code, by name and file: their modules, and whether they are the interpreter's own.
type Native = HashMap<(String, String), (String, bool)>;

enum Tables<'a> {
    Frames(&'a Frames),
    Functions(&'a Functions),
}

impl<'a> Names<'a> {
    pub(super) fn of_frames(frames: &'a Frames, sources: Option<Sources>) -> Self {
        Self { tables: Tables::Frames(frames), native: native([frames]), programs: frames.programs().into(), sources }
    }

    /// The functions of two captures, whose frames tell which of them are native.
    pub(super) fn of_functions(functions: &'a Functions, frames: [&Frames; 2]) -> Self {
        let programs = frames.map(Frames::programs).concat();
        Self { tables: Tables::Functions(functions), native: native(frames), programs, sources: None }
    }

    /// What has to be said of the source lines.
    pub(super) fn note(&self) -> Option<String> {
        let changed = self.sources.as_ref().map_or(0, Sources::changed);
        (changed > 0).then(|| {
            format!(
                "{} source files were changed after the recording: their lines may be others",
                count(changed as u64)
            )
        })
    }

    /// Name, file, line, column, module, source line and kind of a key; texts by their numbers, 0 for none. Kinds are 0
    /// for Python, 1 for native code, and 2 for native code of the interpreter.
    pub(super) fn describe(&mut self, key: u32, strings: &mut Strings) -> [u64; 7] {
        let (function, file, line, column) = match &self.tables {
            _ if key == CallTree::NO_FRAME => (NO_STACK, "", 0, 0),
            Tables::Frames(frames) => {
                let (id, frame) = (FrameId(key), frames.frame(FrameId(key)));
                (frames.function(id), frames.file(id), frame.line, frame.column)
            }
            Tables::Functions(functions) => {
                let (function, file) = functions.get(key).unwrap_or((NO_STACK, ""));
                (function, file, 0, 0)
            }
        };
        let native =
            if self.native.is_empty() { None } else { self.native.get(&(function.to_owned(), file.to_owned())) };
        let kind = native.map_or(0, |(_, interpreter)| if *interpreter { 2 } else { 1 });
        let of_file = || module_of_file(&self.programs, file).unwrap_or_default();
        let module = native.map_or_else(of_file, |(module, _)| module.clone());
        let source = self.sources.as_mut().and_then(|sources| sources.file(file).line(line)).unwrap_or("").trim();
        let [function, file, module, source] = [function, file, &module, source].map(|text| strings.number(text));
        [function, file, u64::from(line), u64::from(column), module, source, kind]
    }
}

/// The native functions among these frames.
fn native<const N: usize>(tables: [&Frames; N]) -> Native {
    let frames =
        tables.into_iter().flat_map(|frames| (0..frames.frames().len() as u32).map(move |id| (frames, FrameId(id))));
    frames
        .filter_map(|(frames, id)| {
            let module = frames.module(id)?.rsplit('/').next()?.to_owned();
            let function = (frames.function(id).to_owned(), frames.file(id).to_owned());
            Some((function, (module, is_interpreter(frames, id))))
        })
        .collect()
}

/// Each text once; number 0 is the empty one.
pub(super) struct Strings {
    numbers: HashMap<String, u64>,
    pub(super) list: Vec<String>,
}

impl Default for Strings {
    fn default() -> Self {
        Self { numbers: HashMap::from([(String::new(), 0)]), list: vec![String::new()] }
    }
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let shown: String = visible(text).chars().take(LONGEST_TEXT).collect();
        self.list.push(shown);
        let number = self.list.len() as u64 - 1;
        self.numbers.insert(text.to_owned(), number);
        number
    }
}
