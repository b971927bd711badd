//! How much a program was slowed down: an estimate.
//!
//! What an event costs was measured once, by kind, on one machine (`scripts/costs` does it); an estimate is these costs
//! times the capture's numbers, scaled by how fast the recording machine ran the collector's measuring loop, against the
//! processor time that the program took beside them. What it does not see: misses of the program's own caches, a
//! collector that takes the program's processor, and what differs between processors but for their speed.
//!
//! Invariant: where a figure that it needs is missing, or cannot be right, there is no estimate.

use memtrack_format::meta::Process;
use serde_json::{Value, json};

use crate::units::duration;

/// Picoseconds of a step of the measuring loop on the machine that the costs were measured on.
const STEP_PS: u64 = 2300;

/// Costs in picoseconds.
const FREE: u64 = 4_500;
const STACK: u64 = 5_500;
const GLANCE: u64 = 3_500;
const CHANGED: u64 = 55_000;
const STAMP: u64 = 13_500;
const KEPT: u64 = 1_000;
/// With native stacks, for a Python stack that had changed: the newest native frames are others too, known or not.
const CHANGED_NATIVE: u64 = 86_000;
/// Too rare to be measured in a program: these are taken for a multiple of what is done instead.
const WHOLE: u64 = 10 * GLANCE;
const UNWOUND: u64 = 90 * KEPT;
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
    /// Native frames that were as before.
    pub(super) kept: u64,
    /// Native frames that were unwound.
    pub(super) unwound: u64,
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
        let hooks = (picoseconds(process, events) as f64 * scale / 1000.0) as u64;
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

/// In 128 bits, since the numbers of a forged capture may be anything.
fn picoseconds(process: &Process, events: &Events) -> u128 {
    let stamped = if process.timestamps == Some(1) { STAMP } else { 0 };
    let native = if process.native_kept.is_some() { CHANGED_NATIVE } else { 0 };
    let parts = [
        (events.frees, FREE + stamped),
        (events.stacks, STACK + stamped),
        (events.glance, GLANCE),
        (events.whole, WHOLE),
        (events.changed, CHANGED + native),
        (events.kept, KEPT),
        (events.unwound, UNWOUND),
        (process.switches.unwrap_or(0), SWITCH),
        (process.shared_runs.unwrap_or(0), SHARED_RUN),
    ];
    parts.iter().map(|&(number, cost)| u128::from(number) * u128::from(cost)).sum()
}

#[cfg(test)]
mod tests {
    use super::{Cost, Events, STEP_PS};
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
    fn native_stacks_cost_where_python_stacks_change() {
        let events = Events { changed: 1_000_000, ..Events::default() };
        let native = Process { native_kept: Some(0), ..process(300_000_000) };
        let hooks = [process(300_000_000), native].map(|process| Cost::of(&process, &events).unwrap().hooks);
        assert_eq!(hooks[1] - hooks[0], 86_000_000);
    }

    #[test]
    fn waiting_and_starting_count() {
        let some = Process { wait_ns: Some(50_000_000), start_ns: Some(20_000_000), ..process(120_000_000) };
        assert_eq!(Cost::of(&some, &Events::default()).unwrap().factor(), Some(1.7));
    }

    #[test]
    fn what_cannot_be_right_is_no_estimate() {
        let events = Events { unwound: 1_000_000_000, ..Events::default() };
        let cost = Cost::of(&process(1_000_000), &events).unwrap();
        assert_eq!(cost.factor(), None);
        assert!(cost.json()["estimate"].is_null() && cost.text().starts_with("not to be told"));
        assert_eq!(Cost::of(&Process::default(), &events), None);
    }
}
