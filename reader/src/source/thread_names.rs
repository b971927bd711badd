//! What the threads are called: the last name that the program, Python or the system gave each of them.
//!
//! The program's names and Python's stand among the records. The system's are read from outside, now and then: a new thread
//! is called like the one that started it, so only a change says anything, and one that a recorded call has made says
//! nothing new. Invariant: the name does not depend on whether records or observations are read first.

use std::collections::VecDeque;

/// Names of a thread that recorded calls gave, which are kept to be recognized.
const MOST_GIVEN: usize = 16;

/// Who says what a thread is called; with the ticket of the run in which it was said, or of the tick before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NameSource {
    /// The system, asked from outside.
    System(u64),
    /// Python, whose names the system may not know.
    Python(u64),
    /// The program, which gave the name by a call.
    Program(u64),
}

/// The names of one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadNames {
    /// The best that stands among the records.
    recorded: Option<(NameSource, String)>,
    /// The last that the program gave.
    given: VecDeque<String>,
    system: String,
    /// When the system's name was first seen to have changed to this.
    changed: Option<u64>,
}

impl ThreadNames {
    pub(super) fn add(&mut self, name: &str, source: NameSource) {
        match source {
            NameSource::System(_) if self.system == name => return,
            NameSource::System(ticket) => {
                self.changed = (!self.system.is_empty()).then_some(ticket);
                name.clone_into(&mut self.system);
                return;
            }
            NameSource::Program(_) => {
                self.given.truncate(MOST_GIVEN - 1);
                self.given.push_front(name.to_owned());
            }
            NameSource::Python(_) => {}
        }
        if self.recorded.as_ref().is_none_or(|(known, _)| *known <= source) {
            self.recorded = Some((source, name.to_owned()));
        }
    }

    /// What the thread is called; empty where nobody has said it.
    pub(super) fn last(&self) -> &str {
        let Some((source, recorded)) = &self.recorded else { return &self.system };
        let (NameSource::System(said) | NameSource::Python(said) | NameSource::Program(said)) = *source;
        let is_news = self.changed.is_some_and(|ticket| ticket >= said) && !self.given.contains(&self.system);
        if is_news { &self.system } else { recorded }
    }
}

#[cfg(test)]
mod tests {
    use super::{NameSource, ThreadNames};
    use NameSource::{Program, Python, System};

    #[track_caller]
    fn called(names: &[(&str, NameSource)], expected: &str) {
        let mut backwards = names.to_vec();
        // What the system says stays in its order, and so do the records.
        backwards.sort_by_key(|(_, source)| matches!(source, Python(_) | Program(_)));
        for order in [names, &backwards] {
            let mut thread = ThreadNames::default();
            order.iter().for_each(|(name, source)| thread.add(name, *source));
            assert_eq!(thread.last(), expected, "{order:?}");
        }
    }

    #[test]
    fn the_last_name_counts() {
        called(&[("python3", System(1))], "python3");
        called(&[("python3", System(1)), ("first", Python(2))], "first");
        called(&[("first", Python(2)), ("python3", System(3))], "first");
        // By a system call that is not recorded.
        called(&[("python3", System(1)), ("first", Python(2)), ("renamed", System(5))], "renamed");
        called(&[("python3", System(1)), ("renamed", System(5)), ("later", Program(9))], "later");
        // The collector sees what a recorded call did, after the program has gone on.
        called(&[("python3", System(1)), ("a", Program(2)), ("b", Program(4)), ("a", System(5))], "b");
        // A thread with the id of one that has ended.
        called(&[("worker", System(1)), ("python3", System(5)), ("second", Python(6))], "second");
    }
}
