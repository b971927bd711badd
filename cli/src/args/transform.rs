//! The options of `memtrack transform`.
//!
//! Invariant: all formats share the common options; format-specific options are in that format's struct.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use memtrack_reader::query::units::span;

use super::input::InputArgs;
use super::{OutputArgs, ViewArgs};
use crate::export::{SampleOrder, Weight};

/// `memtrack transform`.
#[derive(Debug, Subcommand)]
pub(crate) enum Transform {
    /// The format of https://www.speedscope.app
    Speedscope(SpeedscopeArgs),
    /// Comma-separated values: a row for each stack, allocator and thread
    Csv(TransformArgs),
    /// A line for each stack, for inferno-flamegraph and flamegraph.pl
    Collapsed(WeightedTransformArgs),
    /// The JSON format of gprof2dot, for call graphs
    Gprof2dot(WeightedTransformArgs),
    /// The format of go tool pprof, Pyroscope and Parca: all views at once
    Pprof(TransformArgs),
    /// The format of https://profiler.firefox.com, with tracks of live and resident memory
    Firefox(TransformArgs),
    /// The format of valgrind's dh_view.html, with lifetimes: all views at once
    Dhat(TransformArgs),
    /// The format of heaptrack_gui and heaptrack_print: every event
    Heaptrack(EventTransformArgs),
    /// A directory of tables for DuckDB, Polars, pandas and Spark: every event, and sums by stack and time; captures of many
    /// processes share a directory
    Parquet(ParquetArgs),
    /// JSON Lines for programs: all views, by function and by stack
    Jsonl(TransformArgs),
    /// One table as JSON Lines in columns, for the Python package
    #[command(hide = true)]
    Records(RecordsArgs),
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
            Self::Records(options) => &mut options.common.input,
            Self::Heaptrack(events) => &mut events.input,
            Self::Parquet(options) => &mut options.events.input,
        }
    }
}

/// Options of every format that holds sums.
#[derive(Debug, Args)]
pub(crate) struct TransformArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Options of formats that hold events, and so all views.
#[derive(Debug, Args)]
pub(crate) struct EventTransformArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack transform parquet`.
#[derive(Debug, Args)]
pub(crate) struct ParquetArgs {
    #[command(flatten)]
    pub(crate) events: EventTransformArgs,
    /// The name of the service, for the folders service=NAME [default: the script or program]
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// The host on which it was recorded, for the folders host=NAME [default: this host]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// The version of the service, for the table of processes
    #[arg(long, value_name = "NAME")]
    pub(crate) release: Option<String>,
    /// The length of a window in the table of windows: 1s, 15s, 5min; aggregated captures keep the windows of their recording
    /// [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = window)]
    pub(crate) window: Option<u64>,
    /// Leave out the table of events: sums by stack and time only
    #[arg(long)]
    pub(crate) no_events: bool,
}

/// The shortest window, in nanoseconds.
const SHORTEST_WINDOW: u64 = 1_000_000;

/// A window's length, in nanoseconds.
fn window(text: &str) -> Result<u64, String> {
    let ns = span(text).map_err(|error| error.to_string())?;
    if ns < SHORTEST_WINDOW { Err("at least 1ms".into()) } else { Ok(ns) }
}

/// `memtrack transform speedscope`.
#[derive(Debug, Args)]
pub(crate) struct SpeedscopeArgs {
    #[command(flatten)]
    pub(crate) common: TransformArgs,
    /// Sort samples by exact times, by memory snapshot, or by capture order
    #[arg(long, value_name = "ORDER", default_value = "auto")]
    pub(crate) order: SampleOrder,
}

/// Options of formats with one weight for each stack.
#[derive(Debug, Args)]
pub(crate) struct WeightedTransformArgs {
    #[command(flatten)]
    pub(crate) common: TransformArgs,
    /// Weight of each stack: bytes or number of allocations
    #[arg(long, value_name = "METRIC", default_value = "bytes")]
    pub(crate) metric: Weight,
}

/// `memtrack transform records`.
#[derive(Debug, Args)]
pub(crate) struct RecordsArgs {
    #[command(flatten)]
    pub(crate) common: TransformArgs,
    /// What the rows are
    #[arg(long, value_name = "TABLE", default_value = "allocations")]
    pub(crate) table: RecordTable,
    /// Spans of time for the table of this name: a line for each, with its begin and its end in nanoseconds of
    /// CLOCK_MONOTONIC, in their order
    #[arg(long, value_name = "FILE", required_if_eq_any([("table", "spans"), ("table", "live")]))]
    pub(crate) spans: Option<PathBuf>,
    /// For the table `peak`: the rows, by number, that are selected; a number a line
    #[arg(long, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,
}

/// What the rows of records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordTable {
    /// The sums of a view
    Allocations,
    /// Every event; several captures one after the other
    Events,
    /// Live and resident memory over time
    Snapshots,
    /// What was allocated in spans of time; several captures one after the other
    Spans,
    /// What is live at the end of each span, by stack; several captures one after the other
    Live,
    /// What was allocated in all, by stack; with --rows what of the selected rows was live when these held most
    Peak,
}
