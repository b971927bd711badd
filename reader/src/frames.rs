//! Interned call stacks: names, frames (function, file, line, column), and a tree whose nodes are stacks.
//!
//! A capture repeats a few thousand stacks millions of times, so all later stages pass a [`StackId`] and look frames up
//! only for output. Everything interned is in the capture, so memory is bounded by its size. Native frames with names are
//! frames of their module: several objects may have a function of one header. If names are not looked up, as when a capture is
//! rewritten, they are places: see [`Native`].
//!
//! Invariant: equal contents have equal ids (two stacks with the same frames have one [`StackId`]), ids are dense and
//! in the order of first interning, and a stack has a larger id than its parent.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Error;
use crate::event::StackId;
pub use crate::frame::{Frame, FrameId, NameId, StackNode};
use crate::interner::Interner;
use crate::native::{ModuleSource, NativeModule};
use crate::program::Program;
use crate::stacks::StackTable;

/// The place of a native frame whose name was not looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Native {
    /// Its module: see [`Frames::native_modules`].
    pub module: u32,
    /// Runtime address minus the module's load bias.
    pub offset: u64,
}

/// The tables. Name 0 is the empty string and stack 0 the empty stack, always.
#[derive(Clone, Debug)]
pub struct Frames {
    names: Interner<Arc<str>>,
    frames: Interner<Frame>,
    stacks: StackTable,
    /// The modules of native frames, by their paths.
    modules: FxHashMap<FrameId, NameId>,
    /// Native frames with names, by what they are and the paths of their modules.
    of_modules: FxHashMap<(Frame, NameId), FrameId>,
    /// How the object at a path was found.
    sources: FxHashMap<NameId, ModuleSource>,
    native_modules: Interner<NativeModule>,
    natives: FxHashMap<FrameId, Native>,
    native_ids: FxHashMap<Native, FrameId>,
    /// The processes whose stacks these are, with the directories of their code.
    programs: Vec<Arc<Program>>,
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

impl Frames {
    /// Tables with nothing but the empty name and the empty stack.
    #[must_use]
    pub fn new() -> Self {
        let empty: Arc<str> = Arc::from("");
        Self {
            names: Interner::starting_with(empty),
            frames: Interner::default(),
            stacks: StackTable::default(),
            modules: FxHashMap::default(),
            of_modules: FxHashMap::default(),
            sources: FxHashMap::default(),
            native_modules: Interner::default(),
            natives: FxHashMap::default(),
            native_ids: FxHashMap::default(),
            programs: Vec::new(),
        }
    }

    /// Adds a process whose stacks these are.
    pub fn add_program(&mut self, program: Arc<Program>) {
        if !self.programs.contains(&program) {
            self.programs.push(program);
        }
    }

    /// The processes whose stacks these are. If several of them know a path, the first one counts.
    #[must_use]
    pub fn programs(&self) -> &[Arc<Program>] {
        &self.programs
    }

    /// The id of this name.
    ///
    /// # Errors
    /// [`Error::TooMany`] when the ids are used up; the same holds for the functions below.
    pub fn name_id(&mut self, name: &str) -> Result<NameId, Error> {
        match self.names.id(name) {
            Some(id) => Ok(NameId(id)),
            None => self.names.intern(Arc::from(name), "names").map(NameId),
        }
    }

    /// The id of the frame with these parts, without a column.
    pub fn frame_id(&mut self, function: NameId, file: NameId, line: u32) -> Result<FrameId, Error> {
        self.id_of(Frame { function, file, line, column: 0 })
    }

    /// The id of the frame with these names, without a column.
    pub fn frame_named(&mut self, function: &str, file: &str, line: u32) -> Result<FrameId, Error> {
        let (function, file) = (self.name_id(function)?, self.name_id(file)?);
        self.frame_id(function, file, line)
    }

    /// The id of this frame.
    pub fn id_of(&mut self, frame: Frame) -> Result<FrameId, Error> {
        self.frames.intern(frame, "frames").map(FrameId)
    }

    /// The id of this frame of native code in the module at this path.
    pub fn id_in_module(&mut self, frame: Frame, path: NameId) -> Result<FrameId, Error> {
        if let Some(&known) = self.of_modules.get(&(frame, path)) {
            return Ok(known);
        }
        // Not interned by its text: a function that is compiled into two modules is a frame of each.
        let id = FrameId(self.frames.push(frame, "frames")?);
        self.of_modules.insert((frame, path), id);
        self.modules.insert(id, path);
        Ok(id)
    }

    /// Marks a frame as native code of the module at this path.
    pub fn set_module(&mut self, frame: FrameId, path: &str) -> Result<(), Error> {
        let path = self.name_id(path)?;
        self.modules.insert(frame, path);
        Ok(())
    }

    /// Notes how the object at a path was found; [`ModuleSource::Process`] takes precedence.
    pub fn set_source(&mut self, path: &str, source: ModuleSource) -> Result<(), Error> {
        let path = self.name_id(path)?;
        let known = self.sources.entry(path).or_insert(source);
        if source == ModuleSource::Process {
            *known = source;
        }
        Ok(())
    }

    /// The paths of native objects, and how each was found; unordered.
    pub fn sources(&self) -> impl Iterator<Item = (&str, ModuleSource)> + '_ {
        self.sources.iter().map(|(&path, &source)| (self.name(path), source))
    }

    /// How the object at a path was found.
    #[must_use]
    pub fn source(&self, path: &str) -> Option<ModuleSource> {
        self.sources.get(&NameId(self.names.id(path)?)).copied()
    }

    /// The name that is the path of a native frame's module; `None` for a frame of Python.
    #[must_use]
    pub fn module_id(&self, frame: FrameId) -> Option<NameId> {
        self.modules.get(&frame).copied()
    }

    /// The path of a native frame's module; `None` for a frame of Python.
    #[must_use]
    pub fn module(&self, frame: FrameId) -> Option<&str> {
        self.modules.get(&frame).map(|&path| self.name(path))
    }

    /// The id of a native frame whose name is not looked up: its function is its place, such as `libc.so.6+0x1234`.
    pub fn native_id(&mut self, module: &NativeModule, offset: u64) -> Result<FrameId, Error> {
        let number = match self.native_modules.id(module) {
            Some(known) => known,
            None => self.native_modules.intern(module.clone(), "modules")?,
        };
        let native = Native { module: number, offset };
        if let Some(&known) = self.native_ids.get(&native) {
            return Ok(known);
        }
        let path = String::from_utf8_lossy(&module.path);
        let (function, file) = (self.name_id(&module.place(offset))?, self.name_id(&path)?);
        // Not interned by its text: places of two modules may have the same.
        let id = FrameId(self.frames.push(Frame { function, file, line: 0, column: 0 }, "frames")?);
        self.set_module(id, &path)?;
        self.set_source(&path, module.source)?;
        self.natives.insert(id, native);
        self.native_ids.insert(native, id);
        Ok(id)
    }

    /// The place of this frame, if its name was not looked up.
    #[must_use]
    pub fn native(&self, frame: FrameId) -> Option<Native> {
        self.natives.get(&frame).copied()
    }

    /// Whether there are frames whose names were not looked up.
    #[must_use]
    pub fn has_places(&self) -> bool {
        !self.natives.is_empty()
    }

    /// The modules of native places, in the order of their numbers.
    #[must_use]
    pub fn native_modules(&self) -> &[NativeModule] {
        self.native_modules.items()
    }

    /// Module and offset of this frame, if its name was not looked up.
    #[must_use]
    pub fn place(&self, frame: FrameId) -> Option<(&NativeModule, u64)> {
        let native = self.native(frame)?;
        Some((self.native_modules.get(native.module)?, native.offset))
    }

    /// All places, unordered.
    pub fn natives(&self) -> impl Iterator<Item = Native> + '_ {
        self.natives.values().copied()
    }

    /// The id of the stack in which the stack `parent` has called `frame`. An unknown `parent` counts as the empty
    /// stack.
    pub fn stack_id(&mut self, parent: StackId, frame: FrameId) -> Result<StackId, Error> {
        let parent = if (parent.0 as usize) < self.stacks.len() { parent } else { StackId::EMPTY };
        self.stacks.intern(StackNode { parent, frame }).map(StackId)
    }

    /// The id of the stack with these frames, outermost first.
    pub fn stack_of(&mut self, root_to_leaf: &[FrameId]) -> Result<StackId, Error> {
        root_to_leaf.iter().try_fold(StackId::EMPTY, |parent, &frame| self.stack_id(parent, frame))
    }

    /// Frees the index of stacks, which is most of the memory, for tables that are only read from now on. It is rebuilt
    /// when another stack is interned.
    pub(crate) fn forget_stack_ids(&mut self) {
        self.stacks.forget_ids();
    }

    /// Replaces frames in place. The result must have no equal frames, except places and those of different modules.
    pub(crate) fn relabel(&mut self, changed: impl Fn(Frame) -> Frame) {
        let of_modules = std::mem::take(&mut self.of_modules);
        let in_modules: FxHashSet<FrameId> = of_modules.values().copied().collect();
        self.of_modules = of_modules.into_iter().map(|((frame, path), id)| ((changed(frame), path), id)).collect();
        let is_looked_up = |id| !self.natives.contains_key(&FrameId(id)) && !in_modules.contains(&FrameId(id));
        self.frames.change_all(|frame| *frame = changed(*frame), is_looked_up);
    }

    /// Adds the stacks of other tables, their frames mapped by `changed`; returns the new id of each stack.
    pub fn take_over(&mut self, other: &Self, changed: impl Fn(Frame) -> Frame) -> Result<Vec<StackId>, Error> {
        let names = other.names().map(|name| self.name_id(name)).collect::<Result<Vec<_>, _>>()?;
        let name = |id: NameId| names.get(id.0 as usize).copied().unwrap_or_default();
        let mut frames = Vec::with_capacity(other.frames().len());
        for (id, frame) in (0..).map(FrameId).zip(other.frames()) {
            let frame = changed(*frame);
            let frame = Frame { function: name(frame.function), file: name(frame.file), ..frame };
            frames.push(match (other.place(id), other.module_id(id)) {
                (Some((module, offset)), _) => self.native_id(module, offset)?,
                (None, Some(path)) => self.id_in_module(frame, name(path))?,
                (None, None) => self.id_of(frame)?,
            });
        }
        other.sources().try_for_each(|(path, source)| self.set_source(path, source))?;
        other.programs.iter().for_each(|program| self.add_program(Arc::clone(program)));
        let mut stacks = vec![StackId::EMPTY];
        for node in other.stacks() {
            let parent = stacks.get(node.parent.0 as usize).copied().unwrap_or_default();
            let frame = frames.get(node.frame.0 as usize).copied().unwrap_or_default();
            stacks.push(self.stack_id(parent, frame)?);
        }
        Ok(stacks)
    }

    /// The name; empty for an id that does not exist.
    #[must_use]
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id.0).map_or("", AsRef::as_ref)
    }

    /// The frame; without names and line for an id that does not exist.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> Frame {
        self.frames.get(id.0).copied().unwrap_or_default()
    }

    /// The name of the frame's function.
    #[must_use]
    pub fn function(&self, id: FrameId) -> &str {
        self.name(self.frame(id).function)
    }

    /// The frame's file; empty when unknown.
    #[must_use]
    pub fn file(&self, id: FrameId) -> &str {
        self.name(self.frame(id).file)
    }

    /// The stack's innermost frame and its caller's stack; `None` for the empty stack.
    #[must_use]
    pub fn node(&self, stack: StackId) -> Option<StackNode> {
        self.stacks.node(stack.0)
    }

    /// The stack's frames, innermost first.
    pub fn leaf_to_root(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        std::iter::successors(self.node(stack), |node| self.node(node.parent)).map(|node| node.frame)
    }

    /// The stack's frames, outermost first.
    #[must_use]
    pub fn root_to_leaf(&self, stack: StackId) -> Vec<FrameId> {
        let mut frames: Vec<_> = self.leaf_to_root(stack).collect();
        frames.reverse();
        frames
    }

    /// All names in the order of their ids, the empty one first. Interning them, then frames, then stacks in this order
    /// restores the tables with equal ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.items().iter().map(AsRef::as_ref)
    }

    /// All frames in the order of their ids.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        self.frames.items()
    }

    /// All stacks but the empty one, in the order of their ids; the first has id 1.
    #[must_use]
    pub fn stacks(&self) -> impl ExactSizeIterator<Item = StackNode> + '_ {
        self.stacks_from(StackId(1))
    }

    /// The same, from this one on.
    pub fn stacks_from(&self, StackId(first): StackId) -> impl ExactSizeIterator<Item = StackNode> + '_ {
        // There are no more than numbers of 32 bits.
        let end = self.stacks.len() as u32;
        (first.clamp(1, end)..end).map(|id| self.stacks.node(id).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, FrameId, Frames, ModuleSource, NameId, StackId};

    fn frame(frames: &mut Frames, function: &str, line: u32) -> FrameId {
        frames.frame_named(function, "app.py", line).unwrap()
    }

    #[test]
    fn equal_stacks_have_one_id() {
        let mut frames = Frames::new();
        let (main, work) = (frame(&mut frames, "main", 1), frame(&mut frames, "work", 7));
        let one = frames.stack_of(&[main, work]).unwrap();
        assert_eq!(frames.stack_of(&[main, work]).unwrap(), one);
        assert_ne!(frames.stack_of(&[work, main]).unwrap(), one);
        assert_eq!(frame(&mut frames, "work", 7), work);
        assert_ne!(frame(&mut frames, "work", 8), work);
    }

    #[test]
    fn both_directions() {
        let mut frames = Frames::new();
        let (main, work) = (frame(&mut frames, "main", 1), frame(&mut frames, "work", 7));
        let stack = frames.stack_of(&[main, work, work]).unwrap();
        assert_eq!(frames.root_to_leaf(stack), [main, work, work]);
        assert_eq!(frames.leaf_to_root(stack).collect::<Vec<_>>(), [work, work, main]);
        assert!(frames.root_to_leaf(StackId::EMPTY).is_empty());
        assert_eq!((frames.function(work), frames.file(work), frames.frame(work).line), ("work", "app.py", 7));
    }

    #[test]
    fn ids_that_do_not_exist_are_harmless() {
        let mut frames = Frames::new();
        let main = frame(&mut frames, "main", 1);
        assert_eq!(frames.name(NameId(99)), "");
        assert_eq!(frames.function(FrameId(99)), "");
        assert!(frames.root_to_leaf(StackId(99)).is_empty());
        let orphan = frames.stack_id(StackId(99), main).unwrap();
        assert_eq!(frames.root_to_leaf(orphan), [main]);
    }

    #[test]
    fn forgotten_ids_are_the_same_again() {
        let mut frames = Frames::new();
        let (main, work) = (frame(&mut frames, "main", 1), frame(&mut frames, "work", 7));
        let stack = frames.stack_of(&[main, work]).unwrap();
        frames.forget_stack_ids();
        assert_eq!(frames.stack_of(&[main, work]).unwrap(), stack);
        assert_eq!(frames.stack_of(&[work]).unwrap(), StackId(stack.0 + 1));
    }

    #[test]
    fn what_is_taken_over_is_told_by_the_same() {
        let mut frames = Frames::new();
        let main = frame(&mut frames, "main", 1);
        frames.set_module(main, "/lib/a.so").unwrap();
        frames.set_source("/lib/a.so", ModuleSource::Maps).unwrap();
        let mut other = Frames::new();
        other.take_over(&frames, |frame| frame).unwrap();
        assert_eq!((other.module(main), other.source("/lib/a.so")), (Some("/lib/a.so"), Some(ModuleSource::Maps)));
    }

    /// As of a header: the same line of it is in two libraries, and may be in a file of Python's besides.
    #[test]
    fn one_function_in_two_modules_is_two_frames_also_elsewhere() {
        let mut frames = Frames::new();
        let python = frame(&mut frames, "make", 3);
        let text = frames.frame(python);
        let [a, b] = ["/lib/a.so", "/lib/b.so"].map(|path| {
            let path = frames.name_id(path).unwrap();
            let id = frames.id_in_module(text, path).unwrap();
            assert_eq!(frames.id_in_module(text, path).unwrap(), id);
            id
        });
        let stacks = [python, a, b].map(|id| frames.stack_of(&[id]).unwrap());
        frames.relabel(|frame| Frame { line: frame.line + 1, ..frame });
        assert_eq!(frame(&mut frames, "make", 4), python);
        let path = frames.name_id("/lib/b.so").unwrap();
        assert_eq!(frames.id_in_module(frames.frame(b), path).unwrap(), b);
        let mut other = Frames::new();
        let moved = other.take_over(&frames, |frame| frame).unwrap();
        let leaves = stacks.map(|stack| other.node(moved[stack.0 as usize]).unwrap().frame);
        assert_eq!(leaves.map(|id| other.module(id)), [None, Some("/lib/a.so"), Some("/lib/b.so")]);
        assert_eq!(leaves.map(|id| other.function(id)), ["make"; 3]);
    }

    #[test]
    fn relabelled_frames_are_found_by_what_they_are_called_then() {
        let mut frames = Frames::new();
        let (main, work) = (frame(&mut frames, "main", 1), frame(&mut frames, "work", 7));
        frames.relabel(|frame| Frame { line: frame.line + 1, ..frame });
        assert_eq!((frame(&mut frames, "main", 2), frame(&mut frames, "work", 8)), (main, work));
        assert!(![main, work].contains(&frame(&mut frames, "main", 1)));
    }

    #[test]
    fn tables_can_be_restored_in_order() {
        let mut frames = Frames::new();
        let (main, work) = (frame(&mut frames, "main", 1), frame(&mut frames, "work", 7));
        let stack = frames.stack_of(&[main, work]).unwrap();
        let mut restored = Frames::new();
        for name in frames.names() {
            restored.name_id(name).unwrap();
        }
        for frame in frames.frames() {
            restored.id_of(*frame).unwrap();
        }
        for node in frames.stacks() {
            restored.stack_id(node.parent, node.frame).unwrap();
        }
        assert_eq!(restored.root_to_leaf(stack), [main, work]);
        assert_eq!(restored.function(work), "work");
    }
}
