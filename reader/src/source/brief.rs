//! Reduces stacks to the frames that reports of places and modules need.
//!
//! A capture may have millions of stacks of which such a report distinguishes ten thousand. It needs the innermost
//! frame, the module of the stack, and whose memory it is; besides the innermost frame, the latter depend on the files
//! of a few frames only. So a brief stack has those frames alone, in their order, and one frame per file stands for all
//! frames of that file, except the innermost frame, and frames of code that was given as text.
//!
//! Invariant: for a brief stack [`Breakdown`](crate::analysis::Breakdown) and [`kept`](crate::analysis::kept) have the results
//! of the whole stack.

use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::event::StackId;
use crate::frames::{FrameId, Frames, NameId};
use crate::modules::ModuleTable;
use crate::origin::{Origin, Origins};
use crate::started::{PackageSet, StartedPackages};
use crate::text_frames::is_text;

/// The tables of reduced stacks.
#[derive(Debug, Default)]
pub(super) struct BriefStacks {
    modules: ModuleTable,
    origins: Origins,
    started: StartedPackages,
    /// The frame that represents a native object or a source file with one origin.
    of_file: FxHashMap<(Option<NameId>, NameId, Origin), FrameId>,
    /// Each stack as a caller, whose innermost frame may be represented by another.
    callers: FxHashMap<StackId, StackId>,
    known: FxHashMap<(StackId, FrameId), StackId>,
}

impl BriefStacks {
    /// The brief stack of a call of `frame` from the brief stack `parent`.
    pub(super) fn stack_id(&mut self, frames: &mut Frames, parent: StackId, frame: FrameId) -> Result<StackId, Error> {
        let caller = match self.callers.get(&parent) {
            Some(&known) => known,
            None => self.caller(frames, parent)?,
        };
        if let Some(&known) = self.known.get(&(caller, frame)) {
            return Ok(known);
        }
        let mut path = frames.root_to_leaf(caller);
        path.push(frame);
        let told: Vec<FrameId> = self.told(frames, &path).into_iter().map(|at| path[at]).collect();
        let stack = frames.stack_of(&told)?;
        self.known.insert((caller, frame), stack);
        Ok(stack)
    }

    fn caller(&mut self, frames: &mut Frames, stack: StackId) -> Result<StackId, Error> {
        let mut path = frames.root_to_leaf(stack);
        if let Some(leaf) = path.last_mut().filter(|leaf| !is_text(frames, **leaf)) {
            let file = (frames.module_id(*leaf), frames.frame(*leaf).file, self.origins.of(frames, *leaf));
            *leaf = *self.of_file.entry(file).or_insert(*leaf);
        }
        let caller = frames.stack_of(&path)?;
        self.callers.insert(stack, caller);
        Ok(caller)
    }

    /// Which of these frames, outermost first, are needed.
    fn told(&mut self, frames: &Frames, path: &[FrameId]) -> Vec<usize> {
        let is_python = |at: &usize| frames.module_id(path[*at]).is_none();
        let mut has_module = |at: &usize| self.modules.of_frame(frames, path[*at]).is_some();
        let all = 0..path.len();
        let python = [all.clone().find(is_python), all.clone().rfind(is_python)];
        let mut told = vec![path.len() - 1];
        told.extend(python.into_iter().flatten().chain(all.clone().rfind(&mut has_module)));
        // That there is any of a module is asked, too; the innermost of them mostly tells.
        if !told.iter().any(|at| is_python(at) && has_module(at)) {
            told.extend(all.clone().find(|at| is_python(at) && has_module(at)));
        }
        // Whose memory it is: the innermost frame that takes it over tells, or any of a library.
        let origins: Vec<Origin> = path.iter().map(|frame| self.origins.of(frames, *frame)).collect();
        let last = |origin| origins.iter().rposition(|of| *of == origin);
        let library = origins.iter().position(|of| *of == Origin::Library);
        told.extend([last(Origin::Own), last(Origin::Import), library].into_iter().flatten());
        // Which of the started packages are own code is known when all frames are.
        let started: Vec<_> = path.iter().map(|frame| self.started.of(frames, *frame)).collect();
        let any = started.iter().fold(PackageSet::default(), |set, packages| set.with(*packages));
        told.extend(any.numbers().filter_map(|number| started.iter().rposition(|packages| packages.has(number))));
        // Which frames of text are own code other stacks may tell, and where files begin.
        let is_given = |at: &usize| origins[*at] == Origin::Library && is_text(frames, path[*at]);
        if all.clone().any(|at| is_given(&at)) {
            told.extend(all.clone().filter(is_given));
            told.extend(all.clone().find(|at| is_python(at) && !is_given(at)));
        }
        told.sort_unstable();
        told.dedup();
        told
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_format::meta::Process;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::BriefStacks;
    use crate::analysis::{Breakdown, GroupRow, kept};
    use crate::event::StackId;
    use crate::frames::{FrameId, Frames};
    use crate::origin::whose;
    use crate::program::Program;

    const FILES: [&str; 9] = [
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
        "/usr/lib/python3.11/os.py",
        "/usr/lib/python3.11/json/decoder.py",
        "/app/start.py",
        "/venv/lib/python3.11/site-packages/flask/app.py",
        "/usr/bin/python3.so",
        "/lib/libc.so",
        "/venv/lib/python3.11/site-packages/numpy/core.so",
    ];

    /// Two frames of each file.
    fn all_frames(frames: &mut Frames) -> Vec<FrameId> {
        let mut ids = Vec::new();
        for (file, line) in FILES.into_iter().flat_map(|file| [(file, 1), (file, 2)]) {
            let id = frames.frame_named("f", file, line).unwrap();
            if file.ends_with(".so") {
                frames.set_module(id, file).unwrap();
            }
            ids.push(id);
        }
        ids
    }

    fn row(stack: StackId) -> GroupRow {
        GroupRow::example(stack, Allocator::PymallocMalloc, 1, 1)
    }

    #[test]
    fn whose_memory_it_is_stays_in_brief_stacks_of_text_and_started_packages() {
        let program = Process {
            own_directories: vec![b"/srv".to_vec()],
            started_packages: vec![b"shop".to_vec(), b"flask".to_vec()],
            ..Process::default()
        };
        let files = [
            "<string>",
            "/v/site-packages/shop/a.py",
            "/v/site-packages/six.py",
            FILES[0],
            FILES[4],
            FILES[5],
            FILES[6],
        ];
        let mut random = 1_u32;
        let mut next = |most: usize| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) as usize % most
        };
        for _ in 0..200 {
            let (mut frames, mut brief) = (Frames::new(), BriefStacks::default());
            frames.add_program(Program::of(&program).into());
            let ids: Vec<_> =
                (0..14).map(|at| frames.frame_named("f", files[at / 2], at as u32 % 2).unwrap()).collect();
            ids[12..].iter().for_each(|id| frames.set_module(*id, files[6]).unwrap());
            let used = 1 + next(ids.len());
            let paths: Vec<Vec<_>> = (0..8).map(|_| (0..next(9)).map(|_| ids[next(used)]).collect()).collect();
            for path in paths {
                let whole = frames.stack_of(&path).unwrap();
                let mut stack = StackId::EMPTY;
                for &frame in &path {
                    stack = brief.stack_id(&mut frames, stack, frame).unwrap();
                }
                let whose = whose(&frames);
                assert_eq!(whose[stack.0 as usize], whose[whole.0 as usize], "{path:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_stack_in_brief_is_told_like_the_whole(paths in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..20)) {
            let (mut frames, mut brief) = (Frames::new(), BriefStacks::default());
            let ids = all_frames(&mut frames);
            for path in paths {
                let path: Vec<_> = path.into_iter().map(|at| ids[at as usize % ids.len()]).collect();
                let whole = row(frames.stack_of(&path).unwrap());
                let stack = path.iter().fold(StackId::EMPTY, |parent, &frame| brief.stack_id(&mut frames, parent, frame).unwrap());
                let short = row(stack);
                prop_assert!(frames.root_to_leaf(stack).len() <= 8);
                prop_assert_eq!(Breakdown::of([short], &frames), Breakdown::of([whole], &frames));
                prop_assert_eq!(kept(&[short], &frames), kept(&[whole], &frames));
            }
        }
    }
}
