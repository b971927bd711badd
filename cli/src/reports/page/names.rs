//! The frames of a page: names, locations and owners, and source lines if requested.
//!
//! Invariant: every text of a capture is in the string table once, with control characters escaped and very long texts
//! cut.

use std::collections::{BTreeMap, HashMap};
use std::io;

use memtrack_reader::analysis::CallTree;
use memtrack_reader::analysis::diff::SharedFunctions;
use memtrack_reader::frames::Frame;
use memtrack_reader::modules::{ModuleTable, dotted};
use memtrack_reader::origin::{Origin, origins};
use memtrack_reader::plumbing::Plumbing;
use memtrack_reader::{FrameId, Frames};
use serde_json::Value;

use super::columns::PackedColumns;
use crate::cell_names;
use crate::reports::NO_STACK;
use crate::reports::capture_info::visible;
use crate::reports::source::Sources;
use crate::units::count;

/// Number of embedded lines before and after that of a frame.
const SOURCE_REACH: u32 = 4;
/// Maximum number of characters of a name or a source line.
const LONGEST_TEXT: usize = 500;

/// Resolves the keys of a tree to names, and to source lines if requested.
pub(super) struct KeyNames<'a> {
    tables: Vec<FrameTable<'a>>,
    /// For the functions of two captures: one frame of each, and the index of its table. Otherwise keys are frames of
    /// the only table.
    functions: Option<HashMap<u32, (usize, FrameId)>>,
    plumbing: Plumbing,
    sources: Option<Sources>,
}

/// The frames of a capture.
struct FrameTable<'a> {
    frames: &'a Frames,
    origins: Vec<Origin>,
    modules: ModuleTable,
}

impl<'a> FrameTable<'a> {
    fn of(frames: &'a Frames) -> Self {
        Self { frames, origins: origins(frames), modules: ModuleTable::default() }
    }
}

impl<'a> KeyNames<'a> {
    pub(super) fn of_frames(frames: &'a Frames, plumbing: Plumbing, sources: Option<Sources>) -> Self {
        Self { tables: vec![FrameTable::of(frames)], functions: None, plumbing, sources }
    }

    /// The functions of two captures.
    pub(super) fn of_functions(functions: &SharedFunctions, plumbing: Plumbing, frames: [&'a Frames; 2]) -> Self {
        let numbers: HashMap<(&str, &str), u32> =
            functions.list().iter().zip(0..).map(|(known, number)| ((&*known.name, &*known.file), number)).collect();
        let mut known = HashMap::new();
        for (table, frames) in frames.into_iter().enumerate() {
            for id in (0..frames.frames().len() as u32).map(FrameId) {
                if let Some(number) = numbers.get(&(frames.function(id), frames.file(id))) {
                    known.entry(*number).or_insert((table, id));
                }
            }
        }
        let tables = frames.map(FrameTable::of).into();
        Self { tables, functions: Some(known), plumbing, sources: None }
    }

    /// A note about the source lines.
    pub(super) fn note(&self) -> Option<String> {
        let sources = self.sources.as_ref()?;
        let changed = match sources.changed() {
            0 => String::new(),
            1 => "; one file was changed since the recording began, and its lines are not shown".into(),
            changed => format!(
                "; {} files were changed since the recording began, and their lines are not shown",
                count(changed as u64)
            ),
        };
        Some(match sources.recorded() {
            0 => format!("source lines were read from the files when this page was made{changed}"),
            _ => format!(
                "source lines were read from the files while the program ran, or, of files not recorded then, when this \
                 page was made{changed}"
            ),
        })
    }

    /// Writes the frames of these keys, and their source lines.
    pub(super) fn write(&mut self, keys: &[u32], data: &mut PackedColumns) -> io::Result<()> {
        let mut strings = StringTable::default();
        let described: Vec<DescribedFrame> = keys.iter().map(|key| self.describe(*key)).collect();
        let mut texts = |name: &str, text: fn(&DescribedFrame) -> &str| {
            let numbers: Vec<u64> = described.iter().map(|frame| strings.number(text(frame))).collect();
            data.column(name, numbers)
        };
        texts("frameName", |frame| &frame.function)?;
        texts("frameFile", |frame| &frame.file)?;
        texts("frameShort", |frame| &frame.short)?;
        texts("frameModule", |frame| &frame.module)?;
        texts("frameImport", |frame| &frame.import)?;
        data.column("frameLine", described.iter().map(|frame| u64::from(frame.line)))?;
        data.column("frameColumn", described.iter().map(|frame| u64::from(frame.column)))?;
        data.column("frameOrigin", described.iter().map(|frame| frame.origin))?;
        data.column("frameNative", described.iter().map(|frame| u64::from(frame.native)))?;
        data.column("framePlumbing", described.iter().map(|frame| u64::from(frame.plumbing)))?;
        self.write_sources(&described, &mut strings, data)?;
        data.json("strings", &Value::from(strings.list))
    }

    /// Writes the lines around those of the frames, each once, for files that did not change since the recording.
    fn write_sources(
        &mut self,
        described: &[DescribedFrame],
        strings: &mut StringTable,
        data: &mut PackedColumns,
    ) -> io::Result<()> {
        let Some(sources) = &mut self.sources else { return Ok(()) };
        let mut lines: BTreeMap<(u64, u32), u64> = BTreeMap::new();
        for DescribedFrame { file, line, .. } in described {
            let source = sources.file(file);
            if source.is_changed() || *line == 0 || source.line(*line).is_none() {
                continue;
            }
            let file = strings.number(file);
            for at in line.saturating_sub(SOURCE_REACH).max(1)..=line.saturating_add(SOURCE_REACH) {
                let Some(text) = source.line(at) else { continue };
                lines.entry((file, at)).or_insert_with(|| strings.number(text.trim_end()));
            }
        }
        data.steps("sourceFile", lines.keys().map(|(file, _)| *file))?;
        data.column("sourceLine", lines.keys().map(|(_, line)| u64::from(*line)))?;
        data.column("sourceText", lines.values().copied())
    }

    fn describe(&mut self, key: u32) -> DescribedFrame {
        let place = match &self.functions {
            _ if key == CallTree::NO_FRAME => None,
            Some(functions) => functions.get(&key).copied(),
            None => Some((0, FrameId(key))),
        };
        let Some((table, id)) = place else {
            return DescribedFrame { function: NO_STACK.into(), origin: STANDARD, ..DescribedFrame::default() };
        };
        let FrameTable { frames, origins, modules } = &mut self.tables[table];
        let (function, file, object) = (frames.function(id), frames.file(id), frames.module(id));
        // Functions have no line.
        let Frame { line, column, .. } = if self.functions.is_none() { frames.frame(id) } else { Frame::default() };
        let module = match object {
            Some(object) => object.rsplit('/').next().unwrap_or_default(),
            None => modules.of_frame(frames, id).map_or("", |module| modules.name(module)),
        };
        let import = if function == "<module>" { dotted(frames.programs(), file) } else { None };
        DescribedFrame {
            function: function.into(),
            file: file.into(),
            short: cell_names::short(frames, file).into_owned(),
            module: module.into(),
            import: import.unwrap_or_default(),
            line,
            column,
            native: object.is_some(),
            origin: origins.get(id.0 as usize).copied().map_or(STANDARD, number),
            plumbing: match object {
                Some(_) => self.plumbing.skips_native(function),
                None => self.plumbing.skips(function),
            },
        }
    }
}

/// The number of an origin in the page's data.
const fn number(origin: Origin) -> u64 {
    match origin {
        Origin::Own => 0,
        Origin::Library => 1,
        Origin::Standard => STANDARD,
        Origin::Import => 3,
        Origin::Runtime => 4,
    }
}

const STANDARD: u64 = 2;

/// A frame for the page.
#[derive(Default)]
struct DescribedFrame {
    function: String,
    file: String,
    /// The shortened path.
    short: String,
    module: String,
    /// For the top-level code of a module: its import name.
    import: String,
    line: u32,
    column: u32,
    native: bool,
    /// Whose code it is.
    origin: u64,
    /// Whether it is an allocator wrapper.
    plumbing: bool,
}

/// Distinct texts; number 0 is the empty one.
struct StringTable {
    numbers: HashMap<String, u64>,
    list: Vec<String>,
}

impl Default for StringTable {
    fn default() -> Self {
        Self { numbers: HashMap::from([(String::new(), 0)]), list: vec![String::new()] }
    }
}

impl StringTable {
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
