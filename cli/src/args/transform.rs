//! The options of `memtrack transform`.
//!
//! Invariant: all formats share the common options; format-specific options are in that format's struct.

use clap::{Args, Subcommand};

use super::input::InputArgs;
use super::{Output, ViewArgs};
use crate::export::{SampleOrder, Weight};

/// `memtrack transform`.
#[derive(Debug, Subcommand)]
pub(crate) enum Transform {
    /// The format of https://www.speedscope.app
    Speedscope(SpeedscopeArgs),
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
    /// JSON Lines for programs: all views, by function and by stack
    Jsonl(Common),
}

impl Transform {
    /// The captures and filters.
    pub(crate) fn input_mut(&mut self) -> &mut InputArgs {
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
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A format made of events, which has all views.
#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `memtrack transform speedscope`.
#[derive(Debug, Args)]
pub(crate) struct SpeedscopeArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Sort samples by exact times, by memory snapshot, or by capture order
    #[arg(long, value_name = "ORDER", default_value = "auto")]
    pub(crate) order: SampleOrder,
}

/// A format with one weight for each stack.
#[derive(Debug, Args)]
pub(crate) struct Weighted {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Weight of each stack: bytes or number of allocations
    #[arg(long, value_name = "METRIC", default_value = "bytes")]
    pub(crate) metric: Weight,
}
