//! Code that an interpreter was given as text, by a call of C and not of Python: what `run_string` gives to a subinterpreter,
//! or a program that embeds Python to its own.
//!
//! Its frames have the file `<string>`, as have those of functions that libraries make by `exec` (named tuples, data classes),
//! which are no own code of a script. The former have no caller in Python: they are own code, as with `-c`, from the
//! outermost one inwards up to the first frame of a file.
//!
//! Invariant: a stack without such an outermost frame changes nothing.

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

/// Such frames, some of them several times.
pub(crate) fn without_caller(frames: &Frames) -> Vec<FrameId> {
    let mut found = Vec::new();
    if !(0..).map(FrameId).zip(frames.frames()).any(|(id, _)| is_text(frames, id)) {
        return found;
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
            found.push(node.frame);
        }
        depths.push(depth);
    }
    found
}

/// Whether it is a frame of Python, of code that was given as text.
pub(crate) fn is_text(frames: &Frames, id: FrameId) -> bool {
    frames.module_id(id).is_none() && frames.file(id) == TEXT
}

#[cfg(test)]
mod tests {
    use crate::frames::Frames;
    use crate::origin::{Origin, Whose, origins, whose};
    use crate::program::tests::program;

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
