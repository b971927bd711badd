//! What the live view shows: rows by line of own code, made from pictures of the live heap.
//!
//! Invariant: rows are those of all other reports ([`rows_by_own_line`]), so that a line has the same name and owner here;
//! growth is that since the mark, and of as many windows in a row as a line has been growing for.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use memtrack_reader::analysis::diff::FigurePair;
use memtrack_reader::analysis::{Tally, Variance, View, share_live};
use memtrack_reader::live::{LivePoint, LiveTotals};
use memtrack_reader::origin::Whose;

use crate::live::picture::{ALLOCATED, AT_MARK, LIVE};
use crate::live_windows::message::{Lag, SummedCounts};
use crate::reports::capture_info::Capture;
use crate::reports::diff_noise::DiffNoise;
use crate::reports::estimates::RangedTally;
use crate::reports::own_lines::{OwnLineKey, OwnLineRow, line_of, rows_by_own_line};
use crate::text::Label;

/// Windows in a row in which a line must have grown to be a suspect.
pub(super) const SUSPICIOUS: u32 = 4;
/// Growth below this share of all live bytes, as a divisor, is no suspect.
const LEAST_SHARE: u64 = 500;
/// Growth below this is no suspect.
const LEAST_BYTES: u64 = 4096;

/// A line of code.
#[derive(Clone, Debug)]
pub(super) struct BoardRow {
    pub(super) key: OwnLineKey,
    pub(super) label: Label,
    pub(super) is_own: bool,
    pub(super) live: Tally,
    /// Bytes more than at the mark.
    pub(super) grown: i64,
    /// By how much that may be chance, where there are samples only (95 %).
    pub(super) noise: u64,
    /// Allocated in the last window.
    pub(super) allocated: Tally,
    /// Windows in a row in which it has grown.
    pub(super) rising: u32,
    /// Bytes that it has grown by in them, and by how much that may be chance.
    pub(super) risen: u64,
    pub(super) risen_noise: u64,
}

/// A thread and what it holds.
#[derive(Clone, Debug)]
pub(super) struct BoardThread {
    pub(super) name: String,
    pub(super) live: Tally,
    pub(super) allocated: Tally,
}

/// Everything on the screen at one moment.
#[derive(Debug)]
pub(super) struct Board {
    /// For the tree and stacks.
    pub(super) capture: Capture,
    /// Largest first.
    pub(super) rows: Vec<BoardRow>,
    pub(super) threads: Vec<BoardThread>,
    pub(super) totals: LiveTotals,
    pub(super) points: Vec<LivePoint>,
    /// The length of the last window.
    pub(super) window_ns: u64,
    /// Events and bytes allocated in it.
    pub(super) events: u64,
    pub(super) allocated: u64,
    /// Everything that was allocated and freed so far.
    pub(super) allocated_ever: Tally,
    pub(super) freed_ever: Tally,
    /// When the mark was set.
    pub(super) mark_ns: u64,
    pub(super) ended: bool,
    /// What was written and not yet read.
    pub(super) lag: Lag,
    /// The processes whose sum it is; `None`: it is that of one.
    pub(super) processes: Option<SummedCounts>,
}

/// How a line has grown over the windows so far.
#[derive(Clone, Copy, Debug, Default)]
struct Growth {
    live: Tally,
    rising: u32,
    risen: u64,
    seen: u64,
    /// What it held when it began to rise, and the variance of what it has allocated since; `None`: not all windows are known.
    start: Tally,
    came: Option<Variance>,
}

/// What a line holds at the end of a window.
#[derive(Clone, Copy, Debug, Default)]
struct LineLevel {
    live: Tally,
    /// That of what it has allocated in the window.
    came: Variance,
}

/// A line in all windows: ids change from picture to picture, and what is not own code may be in several parts, each with a row.
type LineName = (String, Whose);

/// The growth of all lines.
#[derive(Debug, Default)]
pub(super) struct GrowthRecord {
    lines: HashMap<LineName, Growth>,
    windows: u64,
}

impl GrowthRecord {
    /// Notes what each line holds at the end of a window. `follows`: none is missing between the last one and this.
    pub(super) fn note(&mut self, rows: &mut [BoardRow], follows: bool, noise: DiffNoise) {
        self.windows += 1;
        let noted = |row: &BoardRow| (row.live.bytes > 0 || row.grown != 0).then(|| row.line_name());
        let names: Vec<Option<LineName>> = rows.iter().map(noted).collect();
        // Rows with equal names are one line.
        let mut levels: HashMap<&LineName, LineLevel> = HashMap::new();
        for (name, row) in names.iter().zip(&*rows) {
            if let Some(name) = name {
                let level = levels.entry(name).or_default();
                level.live += row.live;
                level.came += row.allocated.variance;
            }
        }
        for (name, level) in levels {
            let known = self.lines.get(name).copied();
            self.lines.insert(name.clone(), Growth::at(known, level, follows, self.windows));
        }
        for (row, name) in rows.iter_mut().zip(&names) {
            let growth = name.as_ref().and_then(|name| self.lines.get(name)).copied().unwrap_or_default();
            (row.rising, row.risen, row.risen_noise) = (growth.rising, growth.risen, growth.noise(noise));
        }
        // Lines that hold nothing any more.
        let windows = self.windows;
        self.lines.retain(|_, growth| growth.seen == windows);
    }
}

impl Growth {
    /// After a window at whose end so much is live. In the first one, everything is new.
    fn at(known: Option<Self>, LineLevel { live, came }: LineLevel, follows: bool, window: u64) -> Self {
        let begun = Self { live, rising: 0, risen: 0, seen: window, start: live, came: Some(Variance::EXACT) };
        let Some(before) = known.filter(|before| live.bytes > before.live.bytes) else { return begun };
        let all_came = before.came.filter(|_| follows).map(|mut all| {
            all += came;
            all
        });
        let risen = before.risen.saturating_add(live.bytes - before.live.bytes);
        Self { live, rising: before.rising + 1, risen, seen: window, start: before.start, came: all_came }
    }

    /// By how much it may have risen by chance: what it holds on is the same samples.
    fn noise(&self, noise: DiffNoise) -> u64 {
        let (mut base, mut new) = (self.start, self.live);
        // Where it is not known what came, all may have come anew; what is noted in the variances is what the mark has, too.
        let came = self.came.unwrap_or(new.variance);
        [base.variance, new.variance] = share_live([base.variance, new.variance], came);
        noise.half_length(&FigurePair { base, new })
    }
}

/// The rows of a folded capture, largest first; what they allocated adds up to all that was allocated. `has_mark`: else nothing was
/// live where growth is counted from.
pub(super) fn rows(capture: &Capture, has_mark: bool) -> Vec<BoardRow> {
    let noise = DiffNoise::of_moments(capture);
    let by_key = |view| {
        let rows = rows_by_own_line(capture, view, false, false).into_iter();
        rows.map(|row: OwnLineRow| (row.key, row)).collect::<HashMap<_, _>>()
    };
    let (mut allocated, mut at_mark) = (by_key(ALLOCATED), by_key(AT_MARK));
    let row = |row: &OwnLineRow, live: Tally, allocated: Option<OwnLineRow>, at_mark: Option<OwnLineRow>| {
        let at_mark = at_mark.map_or_else(Tally::default, |row| row.tally);
        let before = at_mark.bytes;
        let of_live = live.bytes_range();
        let grown_noise = match has_mark {
            true => noise.half_length(&FigurePair { base: at_mark, new: live }),
            false => (of_live.1 - of_live.0) / 2,
        };
        BoardRow {
            key: row.key,
            label: row.label(capture),
            is_own: row.whose() == Whose::Own,
            live,
            grown: i64::try_from(live.bytes).unwrap_or(i64::MAX).saturating_sub_unsigned(before),
            noise: grown_noise,
            allocated: allocated.map_or_else(Tally::default, |row| row.tally),
            rising: 0,
            risen: 0,
            risen_noise: 0,
        }
    };
    let live = rows_by_own_line(capture, LIVE, false, false);
    let mut rows: Vec<BoardRow> =
        live.iter().map(|one| row(one, one.tally, allocated.remove(&one.key), at_mark.remove(&one.key))).collect();
    // Lines whose memory is all freed since the mark.
    let gone: Vec<_> = at_mark.into_values().collect();
    for one in gone {
        let allocated = allocated.remove(&one.key);
        let label = row(&one, Tally::default(), allocated, Some(one.clone()));
        rows.push(label);
    }
    // Lines that freed all that they allocated, which may be most of what is allocated.
    let freed: Vec<_> = allocated.into_values().collect();
    rows.extend(freed.into_iter().map(|one| row(&one, Tally::default(), Some(one.clone()), None)));
    rows
}

/// What each thread holds, largest first.
pub(super) fn threads(capture: &Capture) -> Vec<BoardThread> {
    let mut sums: HashMap<u32, [Tally; 2]> = HashMap::new();
    for (at, view) in [LIVE, ALLOCATED].into_iter().enumerate() {
        for row in capture.analysis.view(view) {
            sums.entry(row.thread.0).or_default()[at] += row.tally();
        }
    }
    let named = |(number, [live, allocated]): (u32, [Tally; 2])| {
        let (tid, name) = capture.thread(memtrack_reader::ThreadId(number));
        let tid = tid.map_or_else(String::new, |tid| tid.to_string());
        BoardThread { name: format!("{tid}  {name}"), live, allocated }
    };
    let mut threads: Vec<_> = sums.into_iter().map(named).collect();
    threads.sort_by(|a, b| (b.live.bytes, &a.name).cmp(&(a.live.bytes, &b.name)));
    threads
}

impl Board {
    /// What is live in all, with its interval where there are samples only.
    pub(super) fn live(&self) -> RangedTally {
        let variance = self.capture.analysis.whole_variance(LIVE);
        RangedTally::from(Tally { variance, ..self.totals.live }).with_unseen(&self.capture)
    }

    /// Live arenas of Python's allocator.
    pub(super) fn arenas(&self) -> Tally {
        self.capture.analysis.python_arenas(LIVE)
    }

    /// Those that count to this line.
    pub(super) fn arenas_of(&self, row: &BoardRow) -> Tally {
        let arenas = self.capture.analysis.rows(LIVE).filter(|group| group.allocator.is_python_arena());
        arenas.filter(|group| line_of(&self.capture, group.stack) == row.key).map(|group| group.tally()).sum()
    }

    /// The lines with what they hold, largest first, and whether they are own code. Each name is there once.
    pub(super) fn lines(&self) -> Vec<(String, bool, Tally)> {
        let mut places: HashMap<(String, bool), usize> = HashMap::new();
        let mut lines: Vec<(String, bool, Tally)> = Vec::new();
        for row in &self.rows {
            let (name, is_own) = (row.label.whole().words(), row.is_own);
            match places.entry((name.clone(), is_own)) {
                Entry::Occupied(known) => lines[*known.get()].2 += row.live,
                Entry::Vacant(vacant) => {
                    vacant.insert(lines.len());
                    lines.push((name, is_own, row.live));
                }
            }
        }
        lines.sort_by_key(|(_, _, live)| Reverse(live.bytes));
        lines
    }
}

impl BoardRow {
    /// The line, by what does not change from picture to picture.
    fn line_name(&self) -> LineName {
        (self.label.whole().words(), self.key.whose())
    }

    /// Which blocks are of interest: those that it holds, or if there are none those that it allocated in the last window.
    pub(super) fn blocks(&self) -> View {
        if self.live.bytes > 0 { LIVE } else { ALLOCATED }
    }

    /// Whether its growth may be chance.
    pub(super) fn is_noise(&self) -> bool {
        self.noise > 0 && self.grown.unsigned_abs() <= self.noise
    }

    /// Whether it has grown in every one of the last windows, by more than noise.
    pub(super) fn is_suspect(&self, live_bytes: u64) -> bool {
        let is_more = self.risen > LEAST_BYTES && self.risen > live_bytes / LEAST_SHARE;
        self.rising >= SUSPICIOUS && is_more && self.risen > self.risen_noise
    }
}

/// The orders of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    Live,
    /// Since the mark.
    Grown,
    /// In the windows in which a line has been growing.
    Risen,
    Rate,
    Name,
}

impl RowOrder {
    /// Sorts rows; equal ones keep their order.
    pub(super) fn sort(self, rows: &mut [&BoardRow]) {
        match self {
            Self::Live => rows.sort_by_key(|row| Reverse(row.live.bytes)),
            Self::Grown => rows.sort_by_key(|row| Reverse(row.grown)),
            Self::Risen => rows.sort_by_key(|row| Reverse(row.risen)),
            Self::Rate => rows.sort_by_key(|row| Reverse(row.allocated.bytes)),
            Self::Name => rows.sort_by_key(|row| row.label.whole().words()),
        }
    }
}
