//! The options of `memtrack transform`.
//!
//! Invariant: every format takes what every other takes; what a format has beside that stands in its own place.

use clap::{Args, Subcommand, ValueEnum};

use super::input::Input;
use super::{Output, View};

/// `memtrack transform`.
#[derive(Debug, Subcommand)]
pub(crate) enum Transform {
    /// The format of https://www.speedscope.app
    Speedscope(Speedscope),
    /// Comma-separated values: a row for each stack, allocator and thread
    Csv(Common),
    /// A line for each stack, for inferno-flamegraph and flamegraph.pl
    Collapsed(Weighted),
    /// The JSON format of gprof2dot, for call graphs
    Gprof2dot(Weighted),
    /// The format of go tool pprof, Pyroscope and Parca: all views at once
    Pprof(Common),
    /// The format of https://profiler.firefox.com, with tracks of live and resident memory
    Firefox(Common),
    /// The format of valgrind's dh_view.html, with lifetimes: all views at once
    Dhat(Common),
    /// The format of heaptrack_gui and heaptrack_print: every event
    Heaptrack(Events),
    /// A directory of tables for DuckDB, Polars, pandas and Spark: every event (in builds with the feature parquet)
    Parquet(Events),
    /// JSON objects, one a line, for programs: all views at once, by function and by stack
    Jsonl(Common),
}

impl Transform {
    /// The captures and filters.
    pub(crate) fn input_mut(&mut self) -> &mut Input {
        match self {
            Self::Speedscope(options) => &mut options.common.input,
            Self::Collapsed(options) | Self::Gprof2dot(options) => &mut options.common.input,
            Self::Csv(common)
            | Self::Pprof(common)
            | Self::Firefox(common)
            | Self::Dhat(common)
            | Self::Jsonl(common) => &mut common.input,
            Self::Heaptrack(events) | Self::Parquet(events) => &mut events.input,
        }
    }
}

/// What every format takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) view: View,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A format made of events, which has all views.
#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `memtrack transform speedscope`.
#[derive(Debug, Args)]
pub(crate) struct Speedscope {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What puts the samples in order: exact times, the memory snapshots, or the order of the capture
    #[arg(long, value_name = "ORDER", default_value = "auto")]
    pub(crate) order: Order,
}

/// A format with one weight for each stack.
#[derive(Debug, Args)]
pub(crate) struct Weighted {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What is counted
    #[arg(long, value_name = "METRIC", default_value = "bytes")]
    pub(crate) metric: Metric,
}

/// The order of speedscope samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// The best that the capture has
    Auto,
    /// By time; needs a capture with --allocation-timestamps
    Exact,
    /// By the first memory snapshot that shows them
    Snapshot,
    /// As they come in the capture
    Capture,
}

/// The weight of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Bytes requested
    Bytes,
    /// The number of allocations
    Allocations,
}
