//! Code that an interpreter was given as text, by a call of C and not of Python: what `run_string` gives to a subinterpreter,
//! or a program that embeds Python to its own.
//!
//! Its frames have the file `<string>`, as have those of functions that libraries make by `exec` (named tuples, data classes),
//! which are no own code of a script. The former have no caller in Python: they are own code, as with `-c`, from the
//! outermost one inwards up to the first frame of a file. Not so what libraries give to an interpreter, as `multiprocessing`
//! does to start a worker: no line of it is the program's.
//!
//! Invariant: a stack without such an outermost frame changes nothing.

use rustc_hash::FxHashSet;

use crate::frames::{FrameId, Frames};

const TEXT: &str = "<string>";

/// Where a stack has got to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// It has no frame of Python yet.
    Outside,
    /// All its frames of Python are of text.
    Text,
    Beyond,
}

/// What a worker's text calls: in a package that starts workers, one of these modules.
const PACKAGES: [&str; 3] = ["multiprocessing", "billiard", "loky/backend"];
const STARTS: [&str; 5] = ["spawn", "forkserver", "resource_tracker", "semaphore_tracker", "popen_loky_posix"];

/// Such frames.
pub(crate) fn without_caller(frames: &Frames) -> Vec<FrameId> {
    let (mut found, mut of_workers) = (FxHashSet::default(), FxHashSet::default());
    if !(0..).map(FrameId).zip(frames.frames()).any(|(id, _)| is_text(frames, id)) {
        return Vec::new();
    }
    let mut depths = Vec::with_capacity(frames.stacks().len() + 1);
    depths.push(Depth::Outside);
    // A stack comes after that of its caller.
    for node in frames.stacks() {
        let caller = depths.get(node.parent.0 as usize).copied().unwrap_or(Depth::Beyond);
        let depth = match caller {
            Depth::Beyond => Depth::Beyond,
            _ if frames.module_id(node.frame).is_some() => caller,
            _ if is_text(frames, node.frame) => Depth::Text,
            _ => Depth::Beyond,
        };
        if depth == Depth::Text && is_text(frames, node.frame) {
            found.insert(node.frame);
        }
        if depth == Depth::Beyond && caller == Depth::Text && starts_worker(frames.file(node.frame)) {
            of_workers.extend(frames.root_to_leaf(node.parent));
        }
        depths.push(depth);
    }
    // In one line there are calls at several columns: what starts the worker is imported there, too.
    let line = |id: &FrameId| (frames.function(*id), frames.frame(*id).line);
    let of_workers: FxHashSet<_> = of_workers.iter().filter(|id| is_text(frames, **id)).map(line).collect();
    found.into_iter().filter(|id| !of_workers.contains(&line(id))).collect()
}

/// Whether text that calls this file directly was written by a library, to start a process of its own.
fn starts_worker(file: &str) -> bool {
    let mut parts = file.strip_suffix(".py").unwrap_or(file).rsplitn(2, '/');
    let (module, folder) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_in =
        |package: &&str| folder.strip_suffix(*package).is_some_and(|above| above.is_empty() || above.ends_with('/'));
    STARTS.contains(&module) && PACKAGES.iter().any(is_in)
}

/// Whether it is a frame of Python, of code that was given as text.
pub(crate) fn is_text(frames: &Frames, id: FrameId) -> bool {
    frames.module_id(id).is_none() && frames.file(id) == TEXT
}

#[cfg(test)]
mod tests {
    use crate::frames::{Frame, Frames};
    use crate::origin::{Origin, Whose, origins, whose};
    use crate::program::tests::program;

    #[test]
    fn text_that_starts_a_worker_is_not_own_code() {
        const START: (&str, &str) = ("<module>", "<string>");
        for (file, expected) in [
            ("/usr/lib/python3.12/multiprocessing/spawn.py", Origin::Library),
            ("/usr/lib/python3.8/multiprocessing/resource_tracker.py", Origin::Library),
            ("/v/site-packages/joblib/externals/loky/backend/resource_tracker.py", Origin::Library),
            ("/usr/lib/python3.12/multiprocessing/context.py", Origin::Own),
            ("/v/site-packages/notmultiprocessing/spawn.py", Origin::Own),
        ] {
            let mut frames = Frames::new();
            frames.add_program(program(&["/srv"], &[]).into());
            let mut id = |(function, file): (&str, &str)| frames.frame_named(function, file, 1).unwrap();
            let ids = [START, ("main", file), ("decode", "/usr/lib/python3.12/json/decoder.py")].map(&mut id);
            frames.stack_of(&ids[..1]).unwrap();
            let whole = frames.stack_of(&ids).unwrap();
            let of_whole = if expected == Origin::Own { Whose::Own } else { Whose::Libraries };
            assert_eq!((origins(&frames)[0], whose(&frames)[whole.0 as usize]), (expected, of_whole), "{file}");
        }
    }

    #[test]
    fn at_no_column_of_its_line_text_that_starts_a_worker_is_own_code() {
        let mut frames = Frames::new();
        frames.add_program(program(&["/srv"], &[]).into());
        let [start, spawn] = [("<module>", "<string>"), ("spawn_main", "/usr/lib/python3.12/multiprocessing/spawn.py")]
            .map(|(function, file)| frames.frame_named(function, file, 1).unwrap());
        let Frame { function, file, line, .. } = frames.frame(start);
        let import = frames.id_of(Frame { function, file, line, column: 1 }).unwrap();
        frames.stack_of(&[import]).unwrap();
        frames.stack_of(&[start, spawn]).unwrap();
        assert_eq!(origins(&frames)[import.0 as usize], Origin::Library);
    }

    #[test]
    fn text_without_a_caller_in_python_is_own_code() {
        const RUN: (&str, &str) = ("_PyEval_Vector", "/usr/bin/python3.13");
        const MODULE: (&str, &str) = ("<module>", "<string>");
        const INNER: (&str, &str) = ("inner", "<string>");
        const FIELDS: (&str, &str) = ("__init__", "<string>");
        const VENDOR: (&str, &str) = ("make", "/v/site-packages/vendor.py");
        for (stack, of_last, expected) in [
            (&[MODULE, INNER][..], Origin::Own, Whose::Own),
            (&[RUN, MODULE, RUN, INNER], Origin::Own, Whose::Own),
            (&[MODULE, VENDOR, FIELDS], Origin::Library, Whose::Own),
            (&[VENDOR, FIELDS], Origin::Library, Whose::Libraries),
            (&[("main", "/srv/app.py"), FIELDS], Origin::Library, Whose::Own),
        ] {
            let mut frames = Frames::new();
            frames.add_program(program(&["/srv"], &[]).into());
            let mut id = |(function, file): &(&str, &str)| {
                let id = frames.frame_named(function, file, 1).unwrap();
                if file.ends_with("python3.13") {
                    frames.set_module(id, file).unwrap();
                }
                id
            };
            let ids: Vec<_> = stack.iter().map(&mut id).collect();
            let last = ids.last().unwrap().0 as usize;
            let stack = frames.stack_of(&ids).unwrap();
            assert_eq!((origins(&frames)[last], whose(&frames)[stack.0 as usize]), (of_last, expected), "{ids:?}");
        }
    }
}
