//! A capture of many events: 10 GB of them where the whole figures are asked for. What is reported of it is compared with
//! what the program's sequence of sizes gives when it is gone through here, and neither side's memory grows with it.

use crate::support::{Dir, ReportedTally, RunningProcess, Stats, figures};

/// kB that memtrack may have, with its program and that of its library, while it records and while it reads.
const MOST_MEMORY: u64 = 300_000;
/// At the least, of the two records of a block with their times, uncompressed; a clock of nanoseconds has fewer ticks than
/// a processor.
const BYTES_OF_A_BLOCK: u64 = 8;
/// Places in which fixtures/counting.c keeps its blocks.
const PLACES: usize = 256;

/// What the heap of `counting noise` comes to.
#[derive(Debug, Default, PartialEq)]
struct Heap {
    allocated: ReportedTally,
    leaked: ReportedTally,
    peak: ReportedTally,
    /// Freed after at most one further allocation.
    temporary: ReportedTally,
}

impl Heap {
    /// Goes through the sequence that fixtures/counting.c goes through.
    fn after(blocks: u64) -> Self {
        let (mut heap, mut state) = (Self::default(), 0x9e37_79b9_7f4a_7c15_u64);
        let mut kept = [(0, 0); PLACES];
        for number in 0..blocks {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let size = 1 + (state >> 20) % 1000;
            let (gone, made) = std::mem::replace(&mut kept[(state >> 56) as usize], (size, number));
            heap.replace(gone, number - made, size);
        }
        heap
    }

    /// A block of this size, unless it is 0, goes, which was made `ago` blocks before the one that comes.
    fn replace(&mut self, gone: u64, ago: u64, size: u64) {
        if gone > 0 {
            self.leaked = ReportedTally::new(self.leaked.count - 1, self.leaked.bytes - gone);
            if ago <= 2 {
                self.temporary = self.temporary.with(gone);
            }
        }
        self.allocated = self.allocated.with(size);
        self.leaked = self.leaked.with(size);
        if self.leaked.bytes > self.peak.bytes {
            self.peak = self.leaked;
        }
    }

    fn reported(stats: &Stats) -> Self {
        let temporary = ReportedTally::new(stats.number("/temporary/count"), stats.number("/temporary/bytes"));
        Self { allocated: stats.allocated(), leaked: stats.leaked(), peak: stats.peak(), temporary }
    }
}

#[test]
fn a_large_capture_is_exact_to_the_byte() {
    let blocks = figures().blocks;
    let dir = Dir::new();
    let (program, control) = (dir.program("counting"), dir.control("control"));
    control.let_go(1);
    let options =
        ["run", "--no-native", "-q", "--allocation-timestamps", "--compress", "none", "-o", "capture.bin", "--"];
    let mut command = dir.memtrack(options);
    command.arg(program).arg("noise").arg(control.path()).arg(blocks.to_string());
    let (outcome, recording) = RunningProcess::start(&mut command).wait_with_memory();
    assert_eq!((outcome.stdout, outcome.stderr.as_str(), outcome.status), (format!("{blocks} blocks\n"), "", 0));
    let length = std::fs::metadata(dir.path("capture.bin")).expect("the capture").len();
    assert!(length >= blocks * BYTES_OF_A_BLOCK, "{length}");

    let mut command = dir.memtrack(["stats", "--json", "capture.bin"]);
    let (outcome, reading) = RunningProcess::start(&mut command).wait_with_memory();
    let stats = Stats(serde_json::from_str(&outcome.success()).expect("JSON"));
    stats.is_whole();
    assert_eq!(Heap::reported(&stats), Heap::after(blocks));
    assert_eq!(stats.number("/deallocations/count"), blocks - stats.leaked().count);
    assert!(recording < MOST_MEMORY && reading < MOST_MEMORY, "{recording} kB, {reading} kB");
    eprintln!("{length} bytes; recording had {recording} kB, reading {reading} kB");
}
