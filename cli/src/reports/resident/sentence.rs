//! The sentence that says why resident memory is larger than live blocks, or smaller.
//!
//! Invariant: its figures are those of the classes, and the largest is named first.

use std::cmp::Reverse;

use memtrack_reader::resident::MemoryClass;

use super::{GLIBC, ResidentMoment};
use crate::reports::capture_info::CaptureInfo;
use crate::units::{duration, plural, size};

/// Parts of resident memory, in percent, from which a class is named; the largest is named in any case.
const LEAST_PERCENT: u64 = 10;
/// The sentence matters in other reports from this part of resident memory, in percent, and these bytes on.
const MATTERS_PERCENT: u64 = 25;
const MATTERS: u64 = 16 << 20;

impl CaptureInfo {
    /// The sentence about resident memory at the moment when most of it had no live block, if that is worth saying. The moment
    /// stands first: the figures beside which it is shown are of others.
    pub(crate) fn resident_sentence(&self) -> Option<String> {
        let memory = self.resident.as_ref().filter(|memory| memory.matters())?;
        Some(format!("{} after the start: {} ('memtrack resident')", duration(memory.time_ns), memory.figures("")))
    }
}

impl ResidentMoment {
    /// Why resident memory is what it is: `resident 2.1 GB, 0.8 GB of it live blocks in memory: 1.1 GB is kept by glibc in 28 arenas`.
    pub(crate) fn sentence(&self) -> String {
        let own = self.bytes(MemoryClass::Memtrack);
        let beside = if own > 0 { format!(" beside {} of memtrack's own", size(own)) } else { String::new() };
        format!("resident {}", self.figures(&beside))
    }

    /// Resident bytes of the program, as in its peak: without memtrack's own.
    pub(crate) fn program_bytes(&self) -> u64 {
        self.breakdown.rss.total().saturating_sub(self.bytes(MemoryClass::Memtrack))
    }

    /// The same without the word that tells what it is about. Of live blocks it has what is in memory first, then the rest.
    /// `beside`: what is said after the whole.
    fn figures(&self, beside: &str) -> String {
        let total = self.program_bytes();
        let mut classes: Vec<MemoryClass> = MemoryClass::ALL.into_iter().skip(1).collect();
        classes.retain(|class| *class != MemoryClass::Memtrack);
        classes.sort_by_key(|class| Reverse(self.bytes(*class)));
        let is_named =
            |(place, class): &(usize, &MemoryClass)| *place == 0 || self.bytes(**class) >= total / 100 * LEAST_PERCENT;
        let named = classes.iter().enumerate().filter(is_named).map(|(_, class)| self.phrase(*class));
        let text = named.collect::<Vec<_>>().join(", ");
        let untouched = match self.is_much_untouched() {
            true => format!("; {} more of live blocks is not in memory", size(self.breakdown.untouched)),
            false => String::new(),
        };
        let live = size(self.bytes(MemoryClass::Live));
        format!("{}{beside}, {live} of it live blocks in memory: {text}{untouched}", size(total))
    }

    /// Whether live bytes are so much more than they take that they mislead. A block that is being filled at the moment does not count.
    fn is_much_untouched(&self) -> bool {
        let untouched = self.breakdown.never_touched;
        untouched >= MATTERS && untouched >= (self.bytes(MemoryClass::Live) + untouched) / 100 * MATTERS_PERCENT
    }

    /// Whether that is worth saying beside other figures: memory that the program could have back, and much of it, or much
    /// less memory than live bytes.
    fn matters(&self) -> bool {
        let kept = [MemoryClass::Retained, MemoryClass::PythonFree, MemoryClass::Slack, MemoryClass::Stacks];
        let kept: u64 = kept.iter().map(|class| self.bytes(*class)).sum();
        (kept >= MATTERS && kept >= self.breakdown.rss.total() / 100 * MATTERS_PERCENT) || self.is_much_untouched()
    }

    fn phrase(&self, class: MemoryClass) -> String {
        let bytes = size(self.bytes(class));
        match class {
            MemoryClass::Live => format!("{bytes} is in live blocks"),
            MemoryClass::Slack => format!("{bytes} lies between live blocks on their pages"),
            MemoryClass::Retained => match self.keeper() {
                GLIBC => {
                    let arenas = plural(self.glibc_arenas() as u64, "arena", "arenas");
                    format!("{bytes} is kept by glibc in {arenas}")
                }
                "other" => format!("{bytes} is kept by the program's allocator"),
                name => format!("{bytes} is kept by {name}"),
            },
            MemoryClass::PythonFree => format!("{bytes} is free in arenas of Python's allocator"),
            MemoryClass::Stacks => format!("{bytes} is stacks of {}", plural(self.threads as u64, "thread", "threads")),
            MemoryClass::File => format!("{bytes} is code and data of files"),
            MemoryClass::Shared => format!("{bytes} is shared memory"),
            MemoryClass::Memtrack => format!("{bytes} is memtrack's own"),
            MemoryClass::Unexplained if self.knows_all => format!("{bytes} is of no recorded block"),
            MemoryClass::Unexplained => format!("{bytes} may be of blocks from before the recording"),
        }
    }
}
