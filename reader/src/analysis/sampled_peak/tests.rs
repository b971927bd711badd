//! Simulated programs of which samples are taken. Invariant: the numbers of a run depend on its seed only.

use std::num::NonZeroU64;

use memtrack_format::Allocator::{Malloc, Mmap};
use memtrack_format::MapClass;

use crate::analysis::{Analysis, SampleWeights, Tally, View};
use crate::event::{Event, EventKind, StackId, ThreadId};
use crate::{Options, Replay};

const DISTANCE: u64 = 4096;
const SITES: usize = 4;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ number >> 31) % end
    }
}

/// A program, the samples that are taken of it, and what it had at its peak.
struct SampledProgram {
    random: Random,
    replay: Replay,
    order: u64,
    live: [(u64, u64); SITES],
    most: u64,
    peak: [(u64, u64); SITES],
}

#[derive(Clone, Copy)]
struct ProgramBlock {
    site: usize,
    size: u64,
    address: Option<u64>,
}

impl SampledProgram {
    fn new(seed: u64) -> Self {
        let options = Options { sample_bytes: NonZeroU64::new(DISTANCE), ..Options::default() };
        Self {
            random: Random(seed << 32),
            replay: Replay::new(&options),
            order: 0,
            live: [(0, 0); SITES],
            most: 0,
            peak: [(0, 0); SITES],
        }
    }

    fn event(&mut self, kind: EventKind, address: u64, size: u64, site: usize) {
        let (stack, order) = (StackId(site as u32 + 1), self.order);
        self.replay.event(&Event { kind, address, size, stack, thread: ThreadId(0), order, time_ns: order });
        self.order += 1;
    }

    fn allocate(&mut self, site: usize, size: u64) -> ProgramBlock {
        let p = -(-(size as f64) / DISTANCE as f64).exp_m1();
        let is_sampled = (self.random.below(1 << 53) as f64) < p * (1_u64 << 53) as f64;
        let address = is_sampled.then_some(self.order + 1);
        if let Some(address) = address {
            self.event(EventKind::Alloc(Malloc), address, size, site);
        }
        self.grow(site, size);
        ProgramBlock { site, size, address }
    }

    fn grow(&mut self, site: usize, size: u64) {
        self.live[site] = (self.live[site].0 + size, self.live[site].1 + 1);
        let all = self.live.iter().map(|(bytes, _)| bytes).sum();
        if all > self.most {
            (self.most, self.peak) = (all, self.live);
        }
    }

    /// Maps a range, which is always recorded, in place of this one.
    fn map_again(&mut self, site: usize, size: u64, old: Option<ProgramBlock>) -> ProgramBlock {
        if let Some(ProgramBlock { size, address: Some(address), .. }) = old {
            self.live[site] = (self.live[site].0 - size, self.live[site].1 - 1);
            self.event(EventKind::Unmap, address, size, site);
        }
        let address = (1 << 40) + (self.order << 24);
        self.event(EventKind::Map(Mmap, MapClass::Heap), address, size, site);
        self.grow(site, size);
        ProgramBlock { site, size, address: Some(address) }
    }

    fn free(&mut self, ProgramBlock { site, size, address }: ProgramBlock) {
        self.live[site] = (self.live[site].0 - size, self.live[site].1 - 1);
        if let Some(address) = address {
            self.event(EventKind::Free, address, 0, site);
        }
    }

    /// Bytes and number of a site at the peak, with their intervals; `None`: it has no row.
    fn row(analysis: &Analysis, site: usize) -> Option<[(u64, (u64, u64)); 2]> {
        let row = analysis.rows(View::HighWaterMark).find(|row| row.stack == StackId(site as u32 + 1))?;
        let tally = row.tally();
        Some([(tally.bytes, tally.bytes_range()), (tally.count, tally.count_range())])
    }
}

/// About as much is live all the time, of blocks of three sites; those of the fourth are freed at once.
fn steady(seed: u64) -> SampledProgram {
    let mut program = SampledProgram::new(seed);
    let mut ring = vec![None; 1500];
    for at in 0..30_000_u64 {
        let site = (at % 3) as usize;
        let size = [200 + program.random.below(400), 16 + program.random.below(100), 20 + program.random.below(3000)];
        let block = program.allocate(site, size[site]);
        if at % 2 == 0 {
            let short = program.allocate(3, 300);
            program.free(short);
        }
        let place = program.random.below(ring.len() as u64) as usize;
        if let Some(old) = ring[place].replace(block) {
            program.free(old);
        }
    }
    program
}

/// The same, while one site grows.
fn growing(seed: u64) -> SampledProgram {
    let mut program = SampledProgram::new(seed);
    let mut ring = vec![None; 1500];
    for at in 0..30_000_u64 {
        let size = 16 + program.random.below(600);
        if at % 8 == 0 {
            program.allocate(1, size);
        }
        let block = program.allocate(0, size);
        let place = program.random.below(ring.len() as u64) as usize;
        if let Some(old) = ring[place].replace(block) {
            program.free(old);
        }
    }
    program
}

/// About as much is live all the time of small blocks, beside mappings of very different sizes.
fn mapping(seed: u64) -> SampledProgram {
    let mut program = SampledProgram::new(seed);
    let (mut ring, mut maps) = (vec![None; 1500], [None; 20]);
    for at in 0..15_000_u64 {
        let site = (at % 3) as usize;
        let size = [200 + program.random.below(400), 16 + program.random.below(100), 20 + program.random.below(3000)];
        let block = program.allocate(site, size[site]);
        let place = program.random.below(ring.len() as u64) as usize;
        if let Some(old) = ring[place].replace(block) {
            program.free(old);
        }
        if at % 150 == 0 {
            let size = 4096 * (1 + program.random.below(25));
            let place = (at / 150 % 20) as usize;
            maps[place] = Some(program.map_again(3, size, maps[place]));
        }
    }
    program
}

/// As much is live for long: what two sites have at first, two others have later, block by block.
fn replaced(seed: u64) -> SampledProgram {
    let mut program = SampledProgram::new(seed);
    let size = |program: &mut SampledProgram| 32 + program.random.below(96);
    let mut blocks: Vec<ProgramBlock> = Vec::new();
    for at in 0..3000 {
        let size = size(&mut program);
        blocks.push(program.allocate(at % 2, size));
    }
    for _ in 0..30_000 {
        let place = program.random.below(3000) as usize;
        let old = blocks[place];
        program.free(old);
        let size = size(&mut program);
        blocks[place] = program.allocate(2 + old.site % 2, size);
    }
    blocks.into_iter().step_by(4).for_each(|block| program.free(block));
    program
}

/// What one site had less at another moment that may have been the peak, another one had more: rows are not sure, and their sum is.
#[test]
fn sums_of_rows_at_the_peak_are_as_exact_as_what_varies_of_both() {
    const RUNS: u64 = if cfg!(miri) { 1 } else { 200 };
    let (mut rows, mut covered) = ([0_u64; 2], [0_u64; 2]);
    let mut width = 0.0;
    for seed in 0..RUNS {
        let program = replaced(seed);
        let (truths, most) = (program.peak, program.most);
        let analysis = program.replay.into_analysis();
        let mut all = Tally::default();
        for row in analysis.rows(View::HighWaterMark) {
            let (tally, (truth, _)) = (row.tally(), truths[row.stack.0 as usize - 1]);
            let (low, high) = tally.bytes_range();
            rows[0] += 1;
            covered[0] += u64::from((low..=high).contains(&truth));
            all += tally;
        }
        let (low, high) = all.bytes_range();
        rows[1] += 1;
        covered[1] += u64::from((low..=high).contains(&most));
        width += (high - low) as f64 / 2.0 / most as f64 / RUNS as f64;
    }
    // With what the moments differ by chance the half of the interval was 0.68 of the sum.
    assert!(cfg!(miri) || width < 0.58, "{width}");
    assert!(
        cfg!(miri) || covered.iter().zip(rows).all(|(covered, rows)| covered * 100 >= rows * 93),
        "{covered:?} {rows:?}"
    );
}

#[test]
fn intervals_of_mappings_at_the_peak_hold_the_truth() {
    const RUNS: u64 = if cfg!(miri) { 1 } else { 200 };
    let (mut covered, mut widths) = (0, 0.0);
    for seed in 0..RUNS {
        let program = mapping(seed);
        let (truth, _) = program.peak[3];
        let analysis = program.replay.into_analysis();
        let [(_, (low, high)), _] = SampledProgram::row(&analysis, 3).unwrap();
        covered += u64::from((low..=high).contains(&truth));
        widths += (high - low) as f64 / truth as f64 / RUNS as f64;
        assert!(analysis.totals.peak.bytes >= analysis.totals.leaked_at_exit.bytes, "{seed}");
    }
    // Of what is exact at each moment, and without a small block beside it as good as known.
    assert!(cfg!(miri) || (covered * 100 >= RUNS * 93 && widths < 1.0), "{covered} {widths}");
}

#[test]
fn most_intervals_of_the_peak_hold_the_truth() {
    const RUNS: u64 = if cfg!(miri) { 1 } else { 200 };
    // What grows has less at a moment that was found too early: 92 of a hundred.
    for (program, least) in [(steady as fn(u64) -> SampledProgram, 93), (growing, 90)] {
        let (mut rows, mut covered) = ([0; SITES], [[0; 2]; SITES]);
        let (mut whole, mut ratio) = (0, 0.0);
        for seed in 0..RUNS {
            let program = program(seed);
            let (truths, most) = (program.peak, program.most);
            let analysis = program.replay.into_analysis();
            for (site, truth) in truths.into_iter().enumerate() {
                let Some(figures) = SampledProgram::row(&analysis, site) else { continue };
                rows[site] += 1;
                for ((covered, (_, (low, high))), truth) in
                    covered[site].iter_mut().zip(figures).zip([truth.0, truth.1])
                {
                    *covered += u64::from((low..=high).contains(&truth));
                }
            }
            let peak = analysis.totals.peak.bytes;
            assert!(peak >= analysis.totals.leaked_at_exit.bytes && peak >= analysis.totals.leaked.bytes, "{seed}");
            let (low, high) = analysis.whole_variance(View::HighWaterMark).bytes_range(peak);
            whole += u64::from((low..=high).contains(&most));
            ratio += peak as f64 / most as f64 / RUNS as f64;
        }
        if cfg!(miri) {
            continue;
        }

        for (covered, rows) in covered.iter().zip(rows).take(3) {
            assert!(covered.iter().all(|covered| covered * 100 >= rows * least), "{covered:?} of {rows}");
        }
        assert!(rows[3] * 50 <= RUNS, "{rows:?}");
        assert!(whole * 100 >= RUNS * 93, "{whole}");
        assert!((ratio - 1.0).abs() < 0.06, "{ratio}");
    }
}

#[test]
fn a_half_has_the_bytes_on_the_average() {
    let weights = SampleWeights::new(NonZeroU64::new(1000).unwrap());
    for size in [1_u64, 300, 1000, 5000, 1 << 30] {
        let p = -(-(size as f64) / 1000.0).exp_m1();
        let rounds = if cfg!(miri) { 10 } else { 40_000 };
        let (mut sums, mut both) = ([0.0; 2], 0.0);
        for order in 0..rounds {
            let [halves @ .., _, _, _, _] = weights.halves(size, order);
            assert!(halves.iter().any(|bytes| *bytes > 0));
            sums.iter_mut().zip(halves).for_each(|(sum, bytes)| *sum += bytes as f64 * p);
            both += halves[0] as f64 * halves[1] as f64 * p;
        }
        if !cfg!(miri) {
            let (size, rounds) = (size as f64, rounds as f64);
            assert!(sums.iter().all(|sum| (sum / rounds / size - 1.0).abs() < 0.03), "{size} {sums:?}");
            // They are independent.
            assert!((both / rounds / size / size - 1.0).abs() < 0.15 || size < 300.0, "{size} {both}");
        }
    }
}

#[test]
fn what_is_freed_at_once_is_no_holder_of_the_peak_unless_it_is_large() {
    let mut program = SampledProgram::new(1);
    for at in 0..20 {
        program.event(EventKind::Alloc(Malloc), 100 + at, 500, 0);
    }
    for at in 0..10 {
        program.event(EventKind::Alloc(Malloc), 1000 + at, 500, 1);
        program.event(EventKind::Free, 1000 + at, 0, 1);
    }
    let analysis = program.replay.finish();
    assert!(SampledProgram::row(&analysis, 1).is_none() && SampledProgram::row(&analysis, 0).is_some());
    assert_eq!(analysis.totals.peak.at.unwrap().order, 19);
    program.event(EventKind::Alloc(Malloc), 2000, 1 << 20, 2);
    program.event(EventKind::Free, 2000, 0, 2);
    program.event(EventKind::Alloc(Malloc), 3000, 500, 1);
    let analysis = program.replay.finish();
    assert_eq!(SampledProgram::row(&analysis, 2).unwrap()[0].0, 1 << 20);
    assert_eq!(
        (analysis.totals.peak.bytes, analysis.totals.peak.at.unwrap().order),
        (program.replay.own_peak().bytes, 40)
    );
}

/// Sums kept while a recording goes on have what a replay of all of it has.
#[test]
fn what_is_live_at_the_end_is_looked_at() {
    let program = steady(3);
    let (now, own) = (program.replay.finish(), program.replay.own_peak());
    let end = program.replay.into_analysis();
    assert_eq!(now, end);
    assert!(end.totals.peak.bytes.abs_diff(own.bytes) < 10, "{own:?} {:?}", end.totals.peak);
    let mut growing = SampledProgram::new(1);
    growing.event(EventKind::Alloc(Malloc), 1, 500, 0);
    let peak = growing.replay.finish().totals.peak;
    assert_eq!((peak.at.unwrap().order, peak.allocations > 0), (0, true));
}
