//! Finds the interpreter in a process: its version, its runtime, its lists of objects, what its threads execute.
//!
//! Invariant: everything is read as data that may lie; chains are bounded.

pub(crate) mod layout;
pub(crate) mod static_types;
pub(crate) mod type_fields;

use memtrack_inject::ProcessView;

use crate::ObjectsError;
use crate::allocators::mimalloc;
use crate::interpreter::layout::{OFFSETS_COOKIE, ObjectLayout};
use crate::interpreter::static_types::StaticTypes;
use crate::memory::{ObjectMemory, Words};

/// Interpreters and threads that are read at most.
const MOST_INTERPRETERS: usize = 1 << 10;
const MOST_THREADS: usize = 1 << 16;
/// Generations of the garbage collector, and bytes of each.
const GENERATIONS: u64 = 3;
const GENERATION: u64 = 24;

/// An interpreter's runtime in a process.
#[derive(Clone, Copy, Debug)]
pub struct PythonRuntime {
    pub(crate) layout: ObjectLayout,
    address: u64,
    /// The type of types.
    pub(crate) type_type: u64,
}

impl PythonRuntime {
    /// Finds it.
    ///
    /// # Errors
    /// The process has none, or one that cannot be read.
    pub fn find(view: &ProcessView) -> Result<Self, ObjectsError> {
        let names: [&[u8]; 3] = [b"_PyRuntime", b"PyType_Type", b"Py_Version"];
        let (found, path) = view.exported_data(&names).ok_or(ObjectsError::NoPython)?;
        let (Some(Some(address)), Some(Some(type_type))) = (found.first().copied(), found.get(1).copied()) else {
            return Err(ObjectsError::NoPython);
        };
        let word = |at: u64| view.word(at);
        let told = found.get(2).copied().flatten().and_then(word).map(|version| (version >> 16) as u8);
        let minor = told.or_else(|| minor_in(&path)).ok_or_else(|| ObjectsError::UnknownVersion(path.clone()))?;
        // The third word of a table of offsets tells builds without a global lock.
        let is_free_threaded = word(address) == Some(OFFSETS_COOKIE) && word(address + 16) != Some(0);
        let known = ObjectLayout::of(minor, is_free_threaded).ok_or(match is_free_threaded {
            true => ObjectsError::FreeThreaded(minor),
            false => ObjectsError::Version(minor),
        })?;
        let layout = known.as_told(|at| word(address + at)).ok_or(ObjectsError::OtherLayout(minor))?;
        let runtime = Self { layout, address, type_type }.with_generations(&word);
        let has_blocks = || {
            let mut modules =
                runtime.interpreters(&word).into_iter().filter_map(|at| word(at.wrapping_add(layout.modules)));
            modules.next().is_none_or(|known| known == 0 || mimalloc::holds(view, known))
        };
        // Of the allocator the table says nothing.
        if !layout.has_classes_of(type_type, word) || layout.is_free_threaded() && !has_blocks() {
            return Err(ObjectsError::OtherLayout(minor));
        }
        Ok(runtime)
    }

    /// With the place of the collector's generations that an interpreter of 3.13 says itself: in later releases they begin 4
    /// bytes earlier.
    fn with_generations(self, word: &dyn Fn(u64) -> Option<u64>) -> Self {
        /// From where generations were in 3.13.0 to the address of the first one.
        const ADDRESS_OF_FIRST: u64 = 72;
        const MOST_MOVED: u64 = 24;
        if self.layout.minor != 13 || self.layout.is_free_threaded() {
            return self;
        }
        let generations = self.interpreters(word).first().and_then(|interpreter| {
            let known = interpreter.checked_add(self.layout.generations)?;
            let first = word(known.checked_add(ADDRESS_OF_FIRST)?)?;
            let is_near = (known.saturating_sub(MOST_MOVED)..=known).contains(&first);
            is_near.then(|| first - interpreter)
        });
        let generations = generations.unwrap_or(self.layout.generations);
        Self { layout: ObjectLayout { generations, ..self.layout }, ..self }
    }

    /// The version's second number.
    pub fn minor(&self) -> u8 {
        self.layout.minor
    }

    fn interpreters(&self, word: &dyn Fn(u64) -> Option<u64>) -> Vec<u64> {
        let first = word(self.address + self.layout.interpreters_head);
        chain(first, MOST_INTERPRETERS, |at| word(at.wrapping_add(self.layout.interpreter_next)))
    }

    /// What has the garbage collector's state: the runtime in 3.8, else each interpreter.
    fn collectors(&self, word: &dyn Fn(u64) -> Option<u64>) -> Vec<u64> {
        if self.layout.minor == 8 { vec![self.address] } else { self.interpreters(word) }
    }

    /// Whether the garbage collector is at rest in all interpreters: while it works, objects are in lists of its own.
    pub fn is_at_rest(&self, view: &ProcessView) -> bool {
        let word = |at: u64| view.word(at);
        let is_collecting =
            |at: &u64| word(at.wrapping_add(self.layout.collecting)).is_none_or(|word| word as u32 != 0);
        !self.collectors(&word).iter().any(is_collecting)
    }

    /// The heads of the lists of objects; what `gc.freeze` set aside last.
    pub(crate) fn lists(&self, memory: &ObjectMemory<'_>) -> Vec<u64> {
        let collectors = self.collectors(&|at| memory.u64(at));
        let of_one = |at: u64| {
            let young = (0..GENERATIONS).map(move |number| at + self.layout.generations + number * GENERATION);
            young.chain([at + self.layout.permanent])
        };
        collectors.into_iter().filter(|at| *at < 1 << 47).flat_map(of_one).collect()
    }

    /// Where interpreters have the dictionaries of static types.
    pub(crate) fn static_types(&self, memory: &ObjectMemory<'_>) -> StaticTypes {
        let interpreters = self.interpreters(&|at| memory.u64(at));
        StaticTypes::find(memory, &self.layout, self.type_type, &interpreters)
    }

    /// The addresses of the states of all interpreters.
    pub(crate) fn states(&self, memory: &ObjectMemory<'_>) -> Vec<u64> {
        self.interpreters(&|at| memory.u64(at))
    }

    /// The dictionaries of imported modules, each with the number of its interpreter: the main one, 0, is first.
    pub(crate) fn module_tables(&self, memory: &ObjectMemory<'_>) -> Vec<(u64, u64)> {
        let interpreters = self.interpreters(&|at| memory.u64(at));
        // The newest one is first.
        let by_age = (0..interpreters.len() as u64).rev();
        let number = |at: u64, by_age: u64| match self.layout.interpreter_number {
            0 => by_age,
            offset => memory.u64(at.wrapping_add(offset)).unwrap_or(by_age),
        };
        let table =
            |(at, by_age): (u64, u64)| Some((number(at, by_age), memory.u64(at.wrapping_add(self.layout.modules))?));
        let mut tables: Vec<_> = interpreters.into_iter().zip(by_age).filter_map(table).collect();
        tables.sort_unstable();
        tables
    }

    /// The frames that each thread executes, the innermost first.
    pub(crate) fn frames(&self, memory: &ObjectMemory<'_>) -> Vec<Vec<u64>> {
        /// Frames of a thread that are read at most.
        const MOST_FRAMES: usize = 1 << 16;
        let interpreters = self.interpreters(&|at| memory.u64(at));
        let threads = interpreters.into_iter().flat_map(|at| {
            let first = memory.u64(at.wrapping_add(self.layout.threads_head));
            chain(first, MOST_THREADS, |thread| memory.u64(thread.wrapping_add(8)))
        });
        let current = |thread: u64| {
            let word = memory.u64(thread.wrapping_add(self.layout.current_frame))?;
            match self.layout.minor {
                11 => memory.u64(word.wrapping_add(8)),
                12 => memory.u64(word),
                _ => Some(word),
            }
        };
        let previous = |frame: u64| memory.u64(frame.wrapping_add(self.layout.frame_previous));
        threads.map(|thread| chain(current(thread), MOST_FRAMES, previous)).collect()
    }
}

/// Follows a chain of pointers to its end.
fn chain(first: Option<u64>, most: usize, next: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
    let not_null = |at: &u64| *at != 0;
    std::iter::successors(first.filter(not_null), |at| next(*at).filter(not_null)).take(most).collect()
}

/// The version in the name of a file: `libpython3.9.so.1.0`, `python3.10`.
fn minor_in(path: &str) -> Option<u8> {
    let name = path.rsplit('/').next()?;
    let (_, after) = name.split_once("python3.")?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::minor_in;

    #[test]
    fn versions_stand_in_names_of_files() {
        let all = ["/usr/lib/libpython3.9.so.1.0", "/usr/bin/python3.10", "/usr/bin/python3", "/x/python3.x/app"];
        assert_eq!(all.map(minor_in), [Some(9), Some(10), None, None]);
    }
}
