//! How much a program was slowed down: an estimate.
//!
//! What an event costs was measured once, by kind, on one machine: the costs are those that come nearest to what recording
//! took of eighteen programs (loops, applications, test suites, a compiler), by least squares. An estimate is these costs
//! times the capture's numbers, scaled by how fast the recording machine ran the collector's measuring loop, against the
//! processor time that the program took beside them. What it sees on average only: what hooks find, and leave, in the
//! processor's caches. What it does not see: a collector that takes the program's processor, and what differs between
//! processors but for their speed.
//!
//! Invariant: where a figure that it needs is missing, or cannot be right, there is no estimate.

use memtrack_format::meta::Process;
use serde_json::{Value, json};

use super::{Levels, Steps};
use crate::units::duration;

/// Picoseconds of a step of the measuring loop on the machine that the costs were measured on.
const STEP_PS: u64 = 2300;

/// Costs in picoseconds.
const FREE: u64 = 4_500;
const STACK: u64 = 5_500;
const STAMP: u64 = 12_500;
/// Of a Python stack: that was looked at; that had changed, over and above, and once more where events are rare.
const GLANCE: u64 = 6_000;
const CHANGED: u64 = 18_000;
const CHANGED_RARELY: u64 = 158_000;
/// Of a native stack: for each frame that was compared; that had changed, where events are rare; for each level of it that
/// was written anew; for each that was unwound; for each address of which nothing was known.
const KEPT: u64 = 800;
const CHANGED_NATIVE_RARELY: u64 = 243_000;
const LEVEL: u64 = 3_200;
const UNWOUND: u64 = 38_000;
const LEARNED: u64 = 960_000;
/// With this many picoseconds from event to event, half of what hooks need has left the processor's caches.
const RARE: f64 = 200_000.0;
/// Too rare to be measured in a program: these are taken for a multiple of what is done instead.
const SWITCH: u64 = 10 * (FREE + STACK);
const SHARED_RUN: u64 = 5 * SWITCH;

/// A program that did less than this part of what was measured was hardly measured at all.
const LEAST_PART: u64 = 20;

/// How often what happened that costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Events {
    /// Allocations and mappings.
    pub(super) stacks: u64,
    /// Everything else.
    pub(super) frees: u64,
    /// Python stacks told at a glance.
    pub(super) glance: u64,
    /// Python stacks compared whole, and unchanged.
    pub(super) whole: u64,
    /// Python stacks that had changed.
    pub(super) changed: u64,
    /// What native stacks took.
    pub(super) native: Levels,
}

/// What recording cost the program, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Its processor time, with that of the hooks.
    cpu: u64,
    /// Of that, what hooks took.
    hooks: u64,
    /// Waiting for the collector, of all threads together.
    waiting: u64,
    /// Until it could begin.
    start: u64,
}

impl Cost {
    pub(super) fn of(process: &Process, events: &Events) -> Option<Self> {
        let cpu = process.cpu_ns?;
        let scale = process.step_ps? as f64 / STEP_PS as f64;
        let (waiting, start) = (process.wait_ns?, process.start_ns.unwrap_or(0));
        let each = cpu as f64 * 1000.0 / scale / events.stacks.saturating_add(events.frees).max(1) as f64;
        let hooks = (picoseconds(process, events, each / (each + RARE))? * scale / 1000.0) as u64;
        Some(Self { cpu, hooks, waiting, start })
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            hooks: self.hooks.saturating_add(other.hooks),
            waiting: self.waiting.saturating_add(other.waiting),
            start: self.start.saturating_add(other.start),
        }
    }

    /// How many times as long it took as it would have without.
    fn factor(self) -> Option<f64> {
        let own = self.cpu.checked_sub(self.hooks)?.checked_sub(self.start)?;
        let with = self.cpu.saturating_add(self.waiting);
        (own > self.cpu / LEAST_PART).then(|| with as f64 / own as f64)
    }

    pub(super) fn json(self) -> Value {
        json!({
            "estimate": self.factor(), "cpu_ns": self.cpu, "hooks_ns": self.hooks, "waiting_ns": self.waiting,
            "start_ns": self.start,
        })
    }

    pub(super) fn text(self) -> String {
        format!("{}, {} until it began", self.in_short(), duration(self.start))
    }

    pub(super) fn in_short(self) -> String {
        let factor = self.factor().map_or("not to be told".into(), |factor| format!("about {factor:.2}x"));
        format!("{factor} (estimate): {} in hooks of {} processor time", duration(self.hooks), duration(self.cpu))
    }
}

/// `None` where a number is not known. `rarity`: between 0, where one event follows the other, and 1.
fn picoseconds(process: &Process, events: &Events, rarity: f64) -> Option<f64> {
    let stamped = if process.timestamps == Some(1) { STAMP } else { 0 };
    let native = &events.native;
    let looks = events.whole.saturating_add(events.changed);
    let steps = if native.is_known() { native.steps? } else { Steps::default() };
    let parts = [
        (events.frees, FREE + stamped),
        (events.stacks, STACK + stamped),
        (events.glance, GLANCE),
        (looks, GLANCE),
        (events.changed, CHANGED + rarely(CHANGED_RARELY, rarity)),
        (native.kept, KEPT),
        (native.unwound, UNWOUND),
        (steps.changed, rarely(CHANGED_NATIVE_RARELY, rarity)),
        (steps.levels, LEVEL),
        (steps.learned, LEARNED),
        (process.switches.unwrap_or(0), SWITCH),
        (process.shared_runs.unwrap_or(0), SHARED_RUN),
    ];
    Some(parts.iter().map(|&(number, cost)| number as f64 * cost as f64).sum())
}

/// What is left of a cost where events are not that rare.
fn rarely(cost: u64, rarity: f64) -> u64 {
    (cost as f64 * rarity) as u64
}

#[cfg(test)]
mod tests {
    use super::{Cost, Events, Levels, STEP_PS, Steps};
    use memtrack_format::meta::Process;

    fn process(cpu_ns: u64) -> Process {
        Process { cpu_ns: Some(cpu_ns), step_ps: Some(STEP_PS), wait_ns: Some(0), ..Process::default() }
    }

    #[test]
    fn the_estimate_is_costs_against_the_rest() {
        let events = Events { frees: 10_000_000, ..Events::default() };
        let cost = Cost::of(&process(300_000_000), &events).unwrap();
        let expected = 300e6 / (300e6 - cost.hooks as f64);
        assert!((cost.factor().unwrap() - expected).abs() < 1e-9 && cost.hooks > 10_000_000, "{cost:?}");
        // A machine that is half as fast takes twice as long.
        let slow = Process { step_ps: Some(2 * STEP_PS), ..process(300_000_000) };
        assert_eq!(Cost::of(&slow, &events).unwrap().hooks, 2 * cost.hooks);
    }

    #[test]
    fn each_number_has_its_cost() {
        let hooks = |events: Events, process: &Process| Cost::of(process, &events).unwrap().hooks;
        let plain = process(300_000_000);
        let timed = Process { timestamps: Some(1), ..plain.clone() };
        let both = Events { frees: 1000, stacks: 1000, glance: 1000, ..Events::default() };
        assert_eq!(hooks(both, &plain), 16_000);
        assert_eq!(hooks(both, &timed), 16_000 + 2 * 12_500);
        assert_eq!(hooks(Events { whole: 1000, ..Events::default() }, &plain), 6_000);
        let steps = Steps { changed: 0, levels: 10_000, learned: 10 };
        let native = Levels { kept: 40_000, unwound: 5_000, steps: Some(steps), unknown: false };
        let native = Events { native, ..Events::default() };
        assert_eq!(hooks(native, &plain), 40 * 800 + 5 * 38_000 + 10 * 3_200 + 10 * 960);
    }

    #[test]
    fn what_changes_costs_more_where_events_are_rare() {
        let steps = Steps { changed: 1000, ..Steps::default() };
        let native = Levels { kept: 1, steps: Some(steps), ..Levels::default() };
        let events = Events { changed: 1000, native, frees: 100_000, ..Events::default() };
        // 200 ns from event to event: half of it.
        let half = Cost::of(&process(20_000_000), &events).unwrap().hooks;
        assert_eq!(half, 450_000 + 6_000 + 18_000 + 79_000 + 121_500);
        // 50 ns: a fifth.
        let fifth = Cost::of(&process(5_000_000), &events).unwrap().hooks;
        assert_eq!(fifth, 450_000 + 6_000 + 18_000 + 31_600 + 48_600);
    }

    #[test]
    fn without_a_number_that_it_needs_there_is_none() {
        let native = Levels { kept: 1, steps: None, ..Levels::default() };
        assert_eq!(Cost::of(&process(1_000_000), &Events { native, ..Events::default() }), None);
    }

    #[test]
    fn waiting_and_starting_count() {
        let some = Process { wait_ns: Some(50_000_000), start_ns: Some(20_000_000), ..process(120_000_000) };
        assert_eq!(Cost::of(&some, &Events::default()).unwrap().factor(), Some(1.7));
    }

    #[test]
    fn what_cannot_be_right_is_no_estimate() {
        let events = Events { frees: 1_000_000_000, ..Events::default() };
        let cost = Cost::of(&process(1_000_000), &events).unwrap();
        assert_eq!(cost.factor(), None);
        assert!(cost.json()["estimate"].is_null() && cost.text().starts_with("not to be told"));
        assert_eq!(Cost::of(&Process::default(), &events), None);
    }
}
