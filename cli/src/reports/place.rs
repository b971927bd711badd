//! The place of a finding: a line of own code with its source, and the callers.
//!
//! Invariant: the frames are those of one recorded stack, innermost first.

use memtrack_reader::frames::Frame;
use memtrack_reader::{FrameId, StackId};
use serde_json::{Value, json};

use crate::reports::capture_info::{Capture, quoted};
use crate::reports::display::{joined, place};
use crate::reports::source::Sources;

/// Maximum number of callers in text.
const CALLERS: usize = 4;

/// A line of code.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    function: String,
    file: String,
    line: u32,
    /// The text of the line, if it is known and has not changed.
    source: Option<String>,
    /// Function and location, innermost first: from the line outwards.
    callers: Vec<String>,
    /// The whole stack, innermost first.
    stack: Vec<(String, String, u32)>,
    /// The frames of own code from the line outwards, as indices into the stack.
    own: Vec<usize>,
    /// The line as text.
    name: String,
}

impl Place {
    /// The innermost own-code line of a stack, or its innermost frame.
    pub(crate) fn of(capture: &Capture, stack: StackId, sources: &mut Sources) -> Option<Self> {
        let own = capture.frames.leaf_to_root(stack).position(|frame| capture.is_own(frame)).unwrap_or(0);
        Self::of_frame(capture, stack, own, sources)
    }

    /// This line of a stack, wherever in it it is.
    pub(crate) fn of_line(capture: &Capture, stack: StackId, line: Frame, sources: &mut Sources) -> Option<Self> {
        let is_line = |id: FrameId| Frame { column: line.column, ..capture.frames.frame(id) } == line;
        let number = capture.frames.leaf_to_root(stack).position(is_line)?;
        Self::of_frame(capture, stack, number, sources)
    }

    /// The frame of this number, innermost first.
    fn of_frame(capture: &Capture, stack: StackId, own: usize, sources: &mut Sources) -> Option<Self> {
        let frames: Vec<FrameId> = capture.frames.leaf_to_root(stack).collect();
        let id = *frames.get(own)?;
        let of = |id: FrameId| (capture.frames.function(id), capture.frames.file(id), capture.frames.frame(id));
        let (function, file, frame) = of(id);
        let source = sources.file(file);
        let source = source.line(frame.line).filter(|_| !source.is_changed()).map(|line| line.trim().to_owned());
        let name = |id: FrameId| joined(of(id).0, &place(of(id).2, &capture.path(of(id).1)));
        let owns: Vec<usize> = (own..frames.len()).filter(|at| *at == own || capture.is_own(frames[*at])).collect();
        let callers = owns.iter().skip(1).take(CALLERS).map(|at| name(frames[*at]));
        let stack = frames.iter().map(|id| (of(*id).0.to_owned(), of(*id).1.to_owned(), of(*id).2.line));
        Some(Self {
            function: function.into(),
            file: file.into(),
            line: frame.line,
            source: source.filter(|line| !line.is_empty()),
            callers: callers.collect(),
            stack: stack.collect(),
            name: name(id),
            own: owns,
        })
    }

    /// The line as text.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a function of own code called both.
    pub(crate) fn shares_function(&self, other: &Self) -> bool {
        self.own_functions().any(|own| other.own_functions().any(|theirs| own == theirs))
    }

    /// Whether both are the same line.
    pub(crate) fn is_line_of(&self, other: &Self) -> bool {
        (self.line, &self.function, &self.file) == (other.line, &other.function, &other.file)
    }

    /// Whether both are the same line, reached by the same lines of own code.
    pub(crate) fn has_path_of(&self, other: &Self) -> bool {
        let path = |place: &Self| place.own.iter().map(|at| place.stack[*at].clone()).collect::<Vec<_>>();
        path(self) == path(other)
    }

    fn own_functions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.own.iter().map(|at| (self.stack[*at].0.as_str(), self.stack[*at].1.as_str()))
    }

    pub(crate) fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    pub(crate) fn line(&self) -> u32 {
        self.line
    }

    pub(crate) fn callers(&self) -> &[String] {
        &self.callers
    }

    /// The filters that select what it allocated.
    pub(crate) fn filters(&self) -> String {
        if self.function.starts_with('<') && !self.file.is_empty() {
            return format!("--file {}", quoted(&self.file));
        }
        // Of a part of the name there may be others: every native stack has a `Py_BytesMain`.
        format!("--function {}", quoted(&format!("={}", self.function)))
    }

    pub(crate) fn json(&self) -> Value {
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let frame = |(function, file, line): &(String, String, u32)| json!({"function": function, "file": known(file), "line": Some(*line).filter(|line| *line > 0)});
        let mut value = frame(&(self.function.clone(), self.file.clone(), self.line));
        value["source"] = self.source.clone().into();
        value["stack"] = self.stack.iter().map(frame).collect();
        value
    }
}
