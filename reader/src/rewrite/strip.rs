//! Selects the events that a stripped capture leaves out: those of small, short-lived allocations.
//!
//! Allocations that were live at the high-water mark or leaked stay, and so do mappings, so that peak and leaks are
//! exact to the byte. Invariant: an allocation is dropped together with its free.

use memtrack_format::Allocator;
use rustc_hash::FxHashSet;

use crate::analysis::Tally;
use crate::query::{AllocationOutcome, AllocationRecord};

/// What is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripRule {
    /// Allocations that lived for less than this, in nanoseconds,
    pub lived_less_ns: u64,
    /// and have fewer bytes than this.
    pub smaller: u64,
}

/// The events that are dropped.
#[derive(Debug)]
pub struct StripPlan {
    rule: StripRule,
    /// A bit for each event, by order.
    dropped: Vec<u64>,
    /// Allocations that show, by their address, that an earlier block had ended.
    ends: FxHashSet<u64>,
    /// The allocations among them.
    pub allocations: Tally,
}

impl StripPlan {
    /// Nothing is dropped yet.
    #[must_use]
    pub fn new(rule: StripRule) -> Self {
        Self { rule, dropped: Vec::new(), ends: FxHashSet::default(), allocations: Tally::default() }
    }

    /// Decides on an allocation.
    pub fn add(&mut self, life: &AllocationRecord) {
        let is_end = self.ends.remove(&life.order);
        let order = match life.fate {
            AllocationOutcome::Freed { order, .. } if !is_end => order,
            AllocationOutcome::Lost { order } => {
                self.ends.insert(order);
                return;
            }
            _ => return,
        };
        let StripRule { lived_less_ns, smaller } = self.rule;
        let mapping = matches!(life.allocator, Allocator::Mmap | Allocator::Mremap);
        if life.lifetime_ns < lived_less_ns && life.size < smaller && !(mapping || life.peak || life.leaked) {
            self.allocations.add(life.size, 1);
            self.drop(life.order);
            self.drop(order);
        }
    }

    /// Whether the event of this order stays.
    #[inline]
    #[must_use]
    pub fn keeps(&self, order: u64) -> bool {
        let word = usize::try_from(order / 64).ok().and_then(|word| self.dropped.get(word));
        word.is_none_or(|word| word & (1 << (order % 64)) == 0)
    }

    fn drop(&mut self, order: u64) {
        // Orders count the events of the file, so this is an eighth of a byte for each.
        let Ok(word) = usize::try_from(order / 64) else { return };
        if word >= self.dropped.len() {
            self.dropped.resize(word + 1, 0);
        }
        self.dropped[word] |= 1 << (order % 64);
    }
}
