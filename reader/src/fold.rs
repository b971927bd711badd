//! Folds stacks for people: imports become one frame, and functions that only pass allocations on are left out.
//!
//! Reports for people show folded stacks; JSON and exports do not. In a folded stack
//!  - the frames of the import system are one frame, `import numpy`. A library's module that is executed is that frame,
//!    with the line that its execution had reached; own modules keep their frame, since their lines matter. What an
//!    extension module imports stands below a frame [`NAMELESS_IMPORT`] of its own: no frame of Python's has the module's name;
//!  - frames of the runtime and of [`Plumbing`] are left out, unless the stack has no others. So the innermost frame is
//!    the stack's *place*: the code of the program or of a library that allocated.
//!
//! Invariant: groups and their sums do not change, only their stacks, and no stack that had frames loses all of them.

use crate::analysis::Analysis;
use crate::error::Error;
use crate::event::StackId;
use crate::frames::{FrameId, Frames};
use crate::modules::dotted;
use crate::origin::{Origin, origins};
use crate::plumbing::Plumbing;
use rustc_hash::FxHashMap;

/// The name of an import's frame if the imported module is unknown: what the import system needs for itself, and modules without
/// code of Python's.
pub const NAMELESS_IMPORT: &str = "finding and loading modules";
/// What the names of imports begin with if the module is known.
const IMPORT: &str = "import ";

/// Whether this is the name of the folded frame of an import.
#[must_use]
pub fn is_import(function: &str) -> bool {
    function == NAMELESS_IMPORT || function.starts_with(IMPORT)
}

/// Folds the stacks of all groups.
///
/// # Errors
/// [`Error::TooMany`] when there are more stacks than this version can hold.
pub fn fold(analysis: &mut Analysis, frames: &mut Frames, plumbing: &Plumbing) -> Result<(), Error> {
    let mut folder = Folder::new(frames, plumbing);
    analysis.groups.try_change_stacks(|stack| folder.folded(stack))
}

/// The folded form of every stack, by its number. Recorded stacks do not change; folded ones are appended to the
/// tables.
///
/// # Errors
/// As [`fold`].
pub fn all_folded(frames: &mut Frames, plumbing: &Plumbing) -> Result<Vec<StackId>, Error> {
    let recorded = frames.stacks().len();
    let mut folder = Folder::new(frames, plumbing);
    (0..).take(recorded + 1).map(|stack| folder.folded(StackId(stack))).collect()
}

/// Folds stacks one by one.
#[derive(Debug)]
pub struct Folder<'a> {
    frames: &'a mut Frames,
    kinds: Vec<FrameFate>,
    known: KnownStacks,
    imports: FxHashMap<FrameId, [FrameId; 2]>,
}

/// The stacks that are folded, by number. In two lists, since there may be tens of millions.
#[derive(Debug)]
struct KnownStacks {
    stacks: Vec<StackId>,
    states: Vec<Option<FoldState>>,
}

impl KnownStacks {
    /// Of so many stacks, of which none is folded.
    fn of(number: usize) -> Self {
        Self { stacks: vec![StackId::EMPTY; number], states: vec![None; number] }
    }

    fn get(&self, StackId(stack): StackId) -> Option<Folded> {
        let state = (*self.states.get(stack as usize)?)?;
        Some(Folded { stack: *self.stacks.get(stack as usize)?, state })
    }

    fn set(&mut self, StackId(stack): StackId, folded: Folded) {
        let place = (self.stacks.get_mut(stack as usize), self.states.get_mut(stack as usize));
        if let (Some(known), Some(state)) = place {
            (*known, *state) = (folded.stack, Some(folded.state));
        }
    }
}

/// What folding does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameFate {
    /// It stays.
    Kept,
    /// It stays. If the import system executes it as a module, it names the import.
    Module { own: bool },
    /// Left out if a frame that stays called it; else kept until one that stays follows.
    Runtime,
    /// Left out, unless the stack has no other frames.
    Plumbing,
    /// A frame of the import system.
    Import(ImportStep),
}

/// What a frame of the import system does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportStep {
    /// It looks for a module, and imports it where it is not there: an import begins.
    Find,
    /// It loads the module that was found.
    Load,
    /// Something else.
    Other,
}

impl ImportStep {
    fn of(function: &str) -> Self {
        match function {
            "_find_and_load" => Self::Find,
            "_load_unlocked" => Self::Load,
            _ => Self::Other,
        }
    }
}

/// A folded stack, or a prefix of one.
#[derive(Clone, Copy, Debug)]
struct Folded {
    stack: StackId,
    state: FoldState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoldState {
    /// It has a frame that stays.
    Solid,
    /// It has only frames that are left out as soon as one stays.
    Weak,
    /// Its newest frames are the import system's, and the imported module is not known yet.
    Importing {
        /// Whether the module is being loaded. What then begins another import is an extension module: no code of
        /// Python's runs between.
        loads: bool,
    },
}

impl<'a> Folder<'a> {
    /// A folder of these tables' stacks; folded stacks are appended to the tables.
    pub fn new(frames: &'a mut Frames, plumbing: &Plumbing) -> Self {
        let kinds = kinds(frames, plumbing);
        let mut known = KnownStacks::of(frames.stacks().len() + 1);
        known.set(StackId::EMPTY, Folded { stack: StackId::EMPTY, state: FoldState::Weak });
        Self { frames, kinds, known, imports: FxHashMap::default() }
    }

    /// The stack, folded.
    ///
    /// # Errors
    /// As [`fold`].
    pub fn folded(&mut self, stack: StackId) -> Result<StackId, Error> {
        let mut waiting = Vec::new();
        let mut at = stack;
        let mut folded = loop {
            match self.known.get(at) {
                Some(known) => break known,
                // A stack that folding appended is already folded.
                None if at.0 as usize >= self.known.states.len() => return Ok(stack),
                None => {
                    waiting.push(at);
                    at = self.frames.node(at).map_or(StackId::EMPTY, |node| node.parent);
                }
            }
        };
        while let Some(next) = waiting.pop() {
            let Some(node) = self.frames.node(next) else { break };
            folded = self.with(folded, node.frame)?;
            self.known.set(next, folded);
        }
        match folded.state {
            FoldState::Importing { .. } => self.unknown_import(folded.stack),
            FoldState::Solid | FoldState::Weak => Ok(folded.stack),
        }
    }

    /// The folded stack of a call of this frame from the folded stack `parent`.
    fn with(&mut self, caller: Folded, frame: FrameId) -> Result<Folded, Error> {
        let kind = self.kinds.get(frame.0 as usize).copied().unwrap_or(FrameFate::Kept);
        let solid = if caller.state == FoldState::Weak { StackId::EMPTY } else { caller.stack };
        let stack = match (kind, caller.state) {
            (FrameFate::Import(ImportStep::Find), FoldState::Importing { loads: true }) => {
                let stack = self.unknown_import(solid)?;
                return Ok(Folded { stack, state: FoldState::Importing { loads: false } });
            }
            (FrameFate::Import(step), state) => {
                let loads = step == ImportStep::Load || state == FoldState::Importing { loads: true };
                return Ok(Folded { stack: solid, state: FoldState::Importing { loads } });
            }
            (FrameFate::Runtime, FoldState::Weak) => {
                let stack = self.frames.stack_id(caller.stack, frame)?;
                return Ok(Folded { stack, state: FoldState::Weak });
            }
            (FrameFate::Plumbing, FoldState::Weak) if caller.stack == StackId::EMPTY => {
                let stack = self.frames.stack_id(StackId::EMPTY, frame)?;
                return Ok(Folded { stack, state: FoldState::Weak });
            }
            (FrameFate::Runtime | FrameFate::Plumbing, _) => return Ok(caller),
            (FrameFate::Module { own }, FoldState::Importing { .. }) => {
                let [import, executed] = self.import(frame)?;
                match own {
                    true => {
                        let stack = self.frames.stack_id(solid, import)?;
                        self.frames.stack_id(stack, frame)?
                    }
                    false => self.frames.stack_id(solid, executed)?,
                }
            }
            (FrameFate::Kept, FoldState::Importing { .. }) => {
                let stack = self.unknown_import(solid)?;
                self.frames.stack_id(stack, frame)?
            }
            (FrameFate::Kept | FrameFate::Module { .. }, FoldState::Solid | FoldState::Weak) => {
                self.frames.stack_id(solid, frame)?
            }
        };
        Ok(Folded { stack, state: FoldState::Solid })
    }

    fn unknown_import(&mut self, caller: StackId) -> Result<StackId, Error> {
        let frame = self.frames.frame_named(NAMELESS_IMPORT, "", 0)?;
        self.frames.stack_id(caller, frame)
    }

    /// The import frames of this module: without a source position, and with the line that its execution had reached.
    fn import(&mut self, module: FrameId) -> Result<[FrameId; 2], Error> {
        if let Some(&known) = self.imports.get(&module) {
            return Ok(known);
        }
        let name = dotted(self.frames.programs(), self.frames.file(module));
        let function = self.frames.name_id(&name.map_or(NAMELESS_IMPORT.into(), |name| format!("{IMPORT}{name}")))?;
        let (nowhere, frame) = (self.frames.name_id("")?, self.frames.frame(module));
        let import = self.frames.frame_id(function, nowhere, 0)?;
        let executed = self.frames.id_of(crate::frames::Frame { function, column: 0, ..frame })?;
        self.imports.insert(module, [import, executed]);
        Ok([import, executed])
    }
}

/// What becomes of each frame.
fn kinds(frames: &Frames, plumbing: &Plumbing) -> Vec<FrameFate> {
    let origins = origins(frames);
    let mut skipped = FxHashMap::default();
    (0..)
        .map(FrameId)
        .zip(origins)
        .map(|(id, origin)| {
            let (name, native) = (frames.frame(id).function, frames.module_id(id).is_some());
            let is_skipped = *skipped.entry((name, native)).or_insert_with(|| match native {
                true => plumbing.skips_native(frames.name(name)),
                false => plumbing.skips(frames.name(name)),
            });
            match origin {
                _ if is_skipped => FrameFate::Plumbing,
                Origin::Import => FrameFate::Import(ImportStep::of(frames.name(name))),
                Origin::Runtime => FrameFate::Runtime,
                _ if !native && frames.name(name) == "<module>" => FrameFate::Module { own: origin == Origin::Own },
                _ => FrameFate::Kept,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Folder;
    use crate::event::StackId;
    use crate::frames::{FrameId, Frames};
    use crate::plumbing::Plumbing;
    use crate::program::tests::program;
    use regex::Regex;

    /// `function` or `function in file`, or of native code `function in object!file`.
    fn frame(frames: &mut Frames, text: &str) -> FrameId {
        let (function, file) = text.split_once(" in ").unwrap_or((text, "app.py"));
        let (object, file) = file.split_once('!').map_or((None, file), |(object, file)| (Some(object), file));
        let id = frames.frame_named(function, file, 7).unwrap();
        object.iter().for_each(|object| frames.set_module(id, object).unwrap());
        id
    }

    fn folded(stack: &[&str], more: &str) -> String {
        let mut frames = Frames::new();
        frames.add_program(program(&["/srv"], &["/srv/shop"]).into());
        let ids: Vec<_> = stack.iter().map(|text| frame(&mut frames, text)).collect();
        let stack = frames.stack_of(&ids).unwrap();
        let plumbing = Plumbing::with(if more.is_empty() { vec![] } else { vec![Regex::new(more).unwrap()] });
        let folded = Folder::new(&mut frames, &plumbing).folded(stack).unwrap();
        let frames = &frames;
        let text = |id: FrameId| match frames.file(id).rsplit('/').next() {
            Some("") | None => frames.function(id).to_owned(),
            Some(file) => format!("{} in {file}", frames.function(id)),
        };
        frames.root_to_leaf(folded).into_iter().map(text).collect::<Vec<_>>().join(", ")
    }

    const FIND: &str = "_find_and_load in <frozen importlib._bootstrap>";
    const LOAD: &str = "_load_unlocked in <frozen importlib._bootstrap>";
    const EXEC: &str = "exec_module in <frozen importlib._bootstrap_external>";
    const NUMPY: &str = "<module> in /v/site-packages/numpy/core/__init__.py";

    #[test]
    fn imports_are_one_frame() {
        let main = "main in /srv/app.py";
        for (stack, expected) in [
            (&[main, FIND, EXEC, NUMPY][..], "main in app.py, import numpy.core in __init__.py"),
            (
                &[main, FIND, EXEC, NUMPY, "load in /v/site-packages/numpy/x.py"],
                "main in app.py, import numpy.core in __init__.py, load in x.py",
            ),
            (&[main, FIND, EXEC], "main in app.py, finding and loading modules"),
            (&[FIND, EXEC, NUMPY, FIND], "import numpy.core in __init__.py, finding and loading modules"),
            // A package's own import comes before the module of it is loaded; an extension module imports while it is.
            (&[main, FIND, FIND, LOAD, EXEC, NUMPY], "main in app.py, import numpy.core in __init__.py"),
            (
                &[main, FIND, LOAD, EXEC, FIND, LOAD, EXEC, NUMPY],
                "main in app.py, finding and loading modules, import numpy.core in __init__.py",
            ),
            (
                &[main, FIND, LOAD, EXEC, FIND],
                "main in app.py, finding and loading modules, finding and loading modules",
            ),
            (
                &[main, FIND, "<module> in /srv/shop/report.py"],
                "main in app.py, import shop.report, <module> in report.py",
            ),
            (
                &[main, FIND, "eval in /usr/bin/python3!ceval.c", NUMPY],
                "main in app.py, import numpy.core in __init__.py",
            ),
            (
                &[main, FIND, "run in /v/site-packages/hooks.py", NUMPY],
                "main in app.py, finding and loading modules, run in hooks.py, <module> in __init__.py",
            ),
            (&["<module> in /srv/app.py", main], "<module> in app.py, main in app.py"),
        ] {
            assert_eq!(folded(stack, ""), expected);
        }
    }

    #[test]
    fn plumbing_and_the_runtime_are_left_out() {
        let [start, main] = ["_start in /lib/libc.so.6!start.c", "main in /srv/server!main.cpp"];
        let [grow, new] = [
            "std::vector<int>::push_back in /srv/server!v.h",
            "operator new(unsigned long) in /lib/libstdc++.so.6!new.cc",
        ];
        for (stack, expected) in [
            (&[start, main, grow, new][..], "main in main.cpp"),
            (
                &[start, main, grow, "Item::Item() in /srv/server!item.cpp", new],
                "main in main.cpp, Item::Item() in item.cpp",
            ),
            (&[start], "_start in start.c"),
            (&[start, new], "_start in start.c"),
            (&[new], "operator new(unsigned long) in new.cc"),
            (&[grow, new, main], "main in main.cpp"),
            (&[], ""),
        ] {
            assert_eq!(folded(stack, ""), expected);
        }
        assert_eq!(folded(&[start, main, "make in /srv/server!a.c"], "^make$"), "main in main.cpp");
    }

    #[test]
    fn a_folded_stack_stays_as_it_is() {
        let mut frames = Frames::new();
        let ids = [frame(&mut frames, "main in app.py"), frame(&mut frames, FIND)];
        let stack = frames.stack_of(&ids).unwrap();
        let mut folder = Folder::new(&mut frames, &Plumbing::default());
        let once = folder.folded(stack).unwrap();
        assert_eq!((folder.folded(once).unwrap(), folder.folded(StackId::EMPTY).unwrap()), (once, StackId::EMPTY));
    }
}
