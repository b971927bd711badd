//! What the allocator of a program says of itself, where its library exports such figures.
//!
//! Invariant: a figure that the allocator does not have is `None`, and never 0.

use crate::fields::{FieldReader, FieldWriter};

/// An allocator whose statistics are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StatisticsSource {
    /// `mallctl` of jemalloc.
    Jemalloc = 1,
    /// `mi_process_info` of mimalloc.
    Mimalloc = 2,
    /// `MallocExtension_GetNumericProperty` of tcmalloc.
    Tcmalloc = 3,
}

impl StatisticsSource {
    /// The source with this number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Jemalloc, Self::Mimalloc, Self::Tcmalloc].into_iter().find(|source| *source as u64 == number)
    }

    /// The allocator's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
            Self::Tcmalloc => "tcmalloc",
        }
    }
}

/// The figures, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorFigures {
    /// Of the blocks that it has given out; of jemalloc, with those in caches of threads.
    pub allocated: Option<u64>,
    /// Of the memory that it has from the system, free pages and its own data among it.
    pub committed: Option<u64>,
    /// Of pages without a block that it has not given back.
    pub free_pages: Option<u64>,
    /// Of free blocks in its caches.
    pub cached: Option<u64>,
    /// Of its own data.
    pub metadata: Option<u64>,
    /// Of address space whose memory it has given back.
    pub released: Option<u64>,
}

impl AllocatorFigures {
    /// Number of figures.
    pub const COUNT: usize = 6;

    /// The figures in the order of the fields.
    #[must_use]
    pub const fn to_array(self) -> [Option<u64>; Self::COUNT] {
        [self.allocated, self.committed, self.free_pages, self.cached, self.metadata, self.released]
    }

    /// The reverse of [`AllocatorFigures::to_array`].
    #[must_use]
    pub const fn from_array(figures: [Option<u64>; Self::COUNT]) -> Self {
        let [allocated, committed, free_pages, cached, metadata, released] = figures;
        Self { allocated, committed, free_pages, cached, metadata, released }
    }
}

/// What an allocator said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorStatistics {
    /// Which allocator.
    pub source: StatisticsSource,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// What it said.
    pub figures: AllocatorFigures,
}

impl AllocatorStatistics {
    /// A figure is written as the number above it, and an unknown one as 0.
    pub(super) fn write(&self, out: &mut FieldWriter) {
        out.numbers(&[self.source as u64, self.time_ns]);
        self.figures.to_array().iter().for_each(|figure| out.number(figure.map_or(0, |bytes| bytes.saturating_add(1))));
    }

    pub(super) fn read(input: &mut FieldReader<'_>) -> Option<Self> {
        let (source, time_ns) = (StatisticsSource::from_number(input.number()?)?, input.number()?);
        let mut figures = [None; AllocatorFigures::COUNT];
        for figure in &mut figures {
            *figure = input.number()?.checked_sub(1);
        }
        Some(Self { source, time_ns, figures: AllocatorFigures::from_array(figures) })
    }
}
