//! How much a program was slowed down: an estimate.
//!
//! How long it takes to look closer at a stack the library times itself, in the program that is recorded: every so often. What
//! the rest costs was measured once: the costs are those that come nearest to what recording took of two dozen programs
//! (loops, applications, test suites, a compiler), by least squares; `scripts/costs` does that. They are scaled by how fast
//! the recording machine ran the collector's measuring loop. All of it is set against the processor time that the program
//! took beside. What it does not see: what a program loses that waits for its memory all the time, where each event that
//! comes between costs more; and a collector that takes the program's processor.
//!
//! Invariant: where a figure that it needs is missing, or cannot be right, there is no estimate.

use memtrack_format::meta::Process;
use serde_json::{Map, Value, json};

use crate::units::duration;

/// Picoseconds of a step of the measuring loop on the machine that the costs were measured on.
const STEP_PS: u64 = 3006;

/// What each part costs, in picoseconds; of what the library has timed itself, in thousandths of that. `scripts/costs` computes
/// them, and prints them in this form.
const COSTS: [(&str, u64); PARTS] = [
    ("events", 3_770),
    ("time_stamps", 12_900),
    ("python_looks_ns", 990),
    ("native_frames_kept", 730),
    ("native_changes_ns", 1_040),
    ("inner_calls", 6_400),
    ("thread_switches", 100_000),
    ("shared_runs", 500_000),
    ("rare_events", 22_600),
];
const PARTS: usize = 9;

/// With this many picoseconds from event to event, half of what hooks need has left the processor's caches.
const RARE: f64 = 200_000.0;
/// Nanoseconds that reading the clock takes, once for everything that is timed.
const READING: u64 = 10;

/// Of programs that took twice as long and more, what hooks took was this part more or less than by estimate (23 of 24
/// runs); of nine in ten of all, the factor is not further off than the other one.
const UNSURE: f64 = 0.11;
const NEAR: f64 = 0.15;
/// What is said as one figure: up to this ratio of the ends of its range.
const NARROW: f64 = 1.4;

/// A program that did less than this part of what was measured was hardly measured at all.
const LEAST_PART: u64 = 20;

/// How often what happened that costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Events {
    /// Allocations and mappings.
    pub(super) stacks: u64,
    /// Everything else.
    pub(super) frees: u64,
    /// Python stacks at which it was looked closer.
    pub(super) looks: u64,
    /// Native frames that were as in the record before, and stacks that were not.
    pub(super) kept: u64,
    pub(super) changes: u64,
}

/// What recording cost the program. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Its processor time, with that of the hooks.
    cpu: u64,
    /// Of each of the [`COSTS`] how many there were, and what they took.
    parts: [(u64, f64); PARTS],
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
        let all = events.stacks.saturating_add(events.frees);
        let each = cpu as f64 * 1000.0 / scale / all.max(1) as f64;
        let numbers = numbers(process, events, each / (each + RARE))?;
        let parts = std::array::from_fn(|part| {
            let ((name, cost), number) = (COSTS[part], numbers[part]);
            // What was timed on this machine is its own.
            let scale = if name.ends_with("_ns") { 1.0 } else { scale };
            (number, number as f64 * cost as f64 * scale / 1000.0)
        });
        Some(Self { cpu, parts, waiting, start })
    }

    pub(super) fn and(self, other: Self) -> Self {
        let parts = std::array::from_fn(|part| {
            let (one, other) = (self.parts[part], other.parts[part]);
            (one.0.saturating_add(other.0), one.1 + other.1)
        });
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            parts,
            waiting: self.waiting.saturating_add(other.waiting),
            start: self.start.saturating_add(other.start),
        }
    }

    fn hooks(self) -> u64 {
        self.parts.iter().map(|part| part.1).sum::<f64>() as u64
    }

    /// How many times as long it took as it would have without.
    fn factor(self) -> Option<f64> {
        self.factor_if(self.hooks())
    }

    /// The same, if hooks took this long.
    fn factor_if(self, hooks: u64) -> Option<f64> {
        let own = self.cpu.checked_sub(hooks)?.checked_sub(self.start)?;
        let with = self.cpu.saturating_add(self.waiting);
        (own > self.cpu / LEAST_PART).then(|| with as f64 / own as f64)
    }

    /// Between which factors it is, as far as programs that were measured tell; no upper one where hooks may have taken
    /// nearly all of the time.
    fn range(self) -> (Option<f64>, Option<f64>) {
        let hooks = self.hooks() as f64;
        let low = self.factor_if((hooks * (1.0 - UNSURE)) as u64);
        let high = self.factor_if((hooks * (1.0 + UNSURE)) as u64);
        let Some(factor) = self.factor() else { return (low, None) };
        (low.map(|low| low.min(factor / (1.0 + NEAR)).max(1.0)), high.map(|high| high.max(factor * (1.0 + NEAR))))
    }

    /// `without`: how many other processes there are, of which nothing is known.
    pub(super) fn json(self, without: u64) -> Value {
        let (low, high) = self.range();
        let parts = COSTS
            .iter()
            .zip(self.parts)
            .map(|((name, _), (number, ns))| ((*name).to_owned(), json!({"number": number, "ns": ns as u64})));
        json!({
            "estimate": self.factor(), "low": low, "high": high, "cpu_ns": self.cpu, "hooks_ns": self.hooks(), "waiting_ns": self.waiting,
            "start_ns": self.start, "parts": parts.collect::<Map<_, _>>(), "processes_without": without,
        })
    }

    pub(super) fn start(self) -> String {
        duration(self.start)
    }

    /// For a person, in few words.
    pub(super) fn text(self) -> String {
        // Both, as both are in the factor: of many short processes the start is most of it.
        let own = duration(self.hooks().saturating_add(self.start));
        format!("{} (estimate): memtrack {own} of {} processor time", self.size(), duration(self.cpu))
    }

    /// The factor, or its range where that is wide.
    fn size(self) -> String {
        match (self.factor(), self.range()) {
            (Some(factor), (Some(low), Some(high))) if high / low <= NARROW => format!("about {factor:.2}x"),
            (_, (Some(low), Some(high))) => format!("{low:.1}x to {high:.1}x"),
            (_, (Some(low), None)) => format!("at least {low:.1}x"),
            _ => "not to be told".into(),
        }
    }
}

/// How many there were of each of the [`COSTS`]; `None` where one is not known. `rarity`: between 0, where one event follows
/// the other, and 1.
fn numbers(process: &Process, events: &Events, rarity: f64) -> Option<[u64; PARTS]> {
    let all = events.stacks.saturating_add(events.frees);
    let has_python = process.python_version.is_some();
    let has_native = process.native_traces;
    let timed = |applies: bool, ns: Option<u64>, times: u64| {
        Some(if applies { ns?.saturating_sub(times.saturating_mul(READING)) } else { 0 })
    };
    // In a stack that has changed, what was kept is part of what was timed.
    let same = events.stacks.saturating_sub(events.changes) as f64 / events.stacks.max(1) as f64;
    Some([
        all,
        if process.timestamps { all } else { 0 },
        timed(has_python, process.python_look_ns, events.looks)?,
        (events.kept as f64 * same) as u64,
        timed(has_native, process.native_change_ns, events.changes)?,
        process.inner_calls?,
        process.switches.unwrap_or(0),
        process.shared_runs.unwrap_or(0),
        (all as f64 * rarity) as u64,
    ])
}

#[cfg(test)]
mod tests {
    use super::{COSTS, Cost, Events, READING, STEP_PS};
    use memtrack_format::meta::Process;

    fn process(cpu_ns: u64) -> Process {
        Process {
            cpu_ns: Some(cpu_ns),
            step_ps: Some(STEP_PS),
            wait_ns: Some(0),
            inner_calls: Some(0),
            ..Process::default()
        }
    }

    /// How many there were of this part, and what they took.
    fn part(name: &str, process: &Process, events: Events) -> (u64, u64) {
        let (number, ns) = Cost::of(process, &events).unwrap().parts[place(name)];
        (number, ns.round() as u64)
    }

    /// What this many of it cost.
    fn cost(name: &str, number: u64) -> (u64, u64) {
        (number, (number as f64 * COSTS[place(name)].1 as f64 / 1000.0).round() as u64)
    }

    fn place(name: &str) -> usize {
        COSTS.iter().position(|(known, _)| *known == name).unwrap()
    }

    #[test]
    fn the_estimate_is_costs_against_the_rest() {
        let events = Events { frees: 10_000_000, ..Events::default() };
        let whole = Cost::of(&process(300_000_000), &events).unwrap();
        let expected = 300e6 / (300e6 - whole.hooks() as f64);
        assert!((whole.factor().unwrap() - expected).abs() < 1e-9 && whole.hooks() > 10_000_000, "{whole:?}");
        // A machine that is half as fast takes twice as long.
        let slow = Process { step_ps: Some(2 * STEP_PS), ..process(300_000_000) };
        let twice = cost("events", 20_000_000).1;
        assert_eq!(part("events", &slow, events), (10_000_000, twice));
    }

    #[test]
    fn each_number_has_its_cost() {
        let plain = process(300_000_000);
        let timed = Process { timestamps: true, inner_calls: Some(3000), ..plain.clone() };
        let events = Events { frees: 1000, stacks: 2000, kept: 40_000, ..Events::default() };
        assert_eq!(part("events", &plain, events), cost("events", 3000));
        assert_eq!(part("native_frames_kept", &plain, events), cost("native_frames_kept", 40_000));
        assert_eq!(part("time_stamps", &plain, events), (0, 0));
        assert_eq!(part("time_stamps", &timed, events), cost("time_stamps", 3000));
        assert_eq!(part("inner_calls", &timed, events), cost("inner_calls", 3000));
        // Half of the stacks had changed: what was kept of those is in what was timed.
        let changes = Events { changes: 1000, ..events };
        assert_eq!(part("native_frames_kept", &plain, changes), cost("native_frames_kept", 20_000));
    }

    #[test]
    fn events_cost_more_where_they_are_rare() {
        let events = Events { frees: 100_000, ..Events::default() };
        // 200 ns from event to event: half of them; 50 ns: a fifth.
        assert_eq!(part("rare_events", &process(20_000_000), events), cost("rare_events", 50_000));
        assert_eq!(part("rare_events", &process(5_000_000), events), cost("rare_events", 20_000));
    }

    #[test]
    fn what_the_library_has_timed_is_of_this_machine() {
        let looks = Process {
            python_version: Some(1),
            native_traces: true,
            python_look_ns: Some(1_000_000),
            native_change_ns: Some(3_000_000),
            step_ps: Some(2 * STEP_PS),
            ..process(300_000_000)
        };
        // But for reading the clock.
        let events = Events { looks: 100, changes: 50, ..Events::default() };
        assert_eq!(part("python_looks_ns", &looks, events), cost("python_looks_ns", 1_000_000 - 100 * READING));
        assert_eq!(part("native_changes_ns", &looks, events), cost("native_changes_ns", 3_000_000 - 50 * READING));
        for missing in [
            Process { python_look_ns: None, ..looks.clone() },
            Process { native_change_ns: None, ..looks.clone() },
            Process { inner_calls: None, ..looks },
        ] {
            assert_eq!(Cost::of(&missing, &events), None);
        }
    }

    #[test]
    fn waiting_and_starting_count() {
        let some = Process { wait_ns: Some(50_000_000), start_ns: Some(20_000_000), ..process(120_000_000) };
        assert_eq!(Cost::of(&some, &Events::default()).unwrap().factor(), Some(1.7));
    }

    #[test]
    fn several_processes_are_one() {
        let one = Cost::of(&process(100_000_000), &Events { frees: 1000, ..Events::default() }).unwrap();
        let both = one.and(one);
        assert_eq!((both.cpu, both.parts), (200_000_000, one.parts.map(|(number, ns)| (2 * number, 2.0 * ns))));
        // But for the fraction of a nanosecond.
        assert!((both.factor().unwrap() - one.factor().unwrap()).abs() < 1e-6);
        assert_eq!(both.json(3)["parts"]["events"]["number"], 2000);
    }

    #[test]
    fn what_cannot_be_right_is_no_estimate() {
        let events = Events { frees: 1_000_000_000, ..Events::default() };
        let cost = Cost::of(&process(1_000_000), &events).unwrap();
        assert_eq!(cost.factor(), None);
        assert!(cost.json(0)["estimate"].is_null() && cost.text().starts_with("not to be told"));
        assert_eq!(Cost::of(&Process::default(), &events), None);
    }

    #[test]
    fn a_range_is_said_where_it_is_wide() {
        let events = Events { frees: 10_000_000, ..Events::default() };
        let said = |cpu_ns: u64| {
            let cost = Cost::of(&process(cpu_ns), &events).unwrap();
            (cost.range(), cost.text().split(" (").next().unwrap().to_owned())
        };
        let ((low, high), text) = said(600_000_000);
        assert!(text.starts_with("about 1.") && low.unwrap() >= 1.0 && high.unwrap() < 1.5, "{text}");
        let ((low, high), text) = said(60_000_000);
        assert_eq!(text, format!("{:.1}x to {:.1}x", low.unwrap(), high.unwrap()));
        let ((low, high), text) = said(50_000_000);
        assert_eq!((text, high), (format!("at least {:.1}x", low.unwrap()), None));
    }
}
