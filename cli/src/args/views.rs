//! The options of the commands that show a capture: tables, graphs, differences.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use memtrack_reader::Options;

use super::input::{FilterArgs, InputArgs};
use super::{Colors, OutputArgs, TextArgs, from_one};
use crate::load::Request;
use crate::reports::summary::SummaryOrder;
use crate::resident_memory::AccountMoment;
use crate::what_if::Setting;

/// `memtrack explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave out the least important findings where the report would be longer than N characters [default: 4000; of JSON, none]
    #[arg(long, value_name = "N")]
    pub(crate) budget: Option<usize>,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack resident`.
#[derive(Debug, Args)]
pub(crate) struct ResidentArgs {
    /// Capture file [default: the newest in the working directory]
    #[arg(value_name = "CAPTURE")]
    pub(crate) captures: Vec<PathBuf>,
    /// Which moment: peak (of most resident memory), end (of the process or the recording), a TIME after the start such as
    /// 1.5s or 50%, or mark:NAME. Shown is the last account that was taken then or before
    #[arg(long, value_name = "MOMENT", default_value = "peak")]
    pub(crate) at: AccountMoment,
    /// Show all stacks whose blocks alone keep pages, those that keep most first
    #[arg(long)]
    pub(crate) pinned: bool,
    /// Show what resident memory would be with another allocator (jemalloc, mimalloc, tcmalloc or the path of its library), or
    /// with NAME=VALUE in the environment, such as MALLOC_ARENA_MAX=1; several words in one SETTING go together, and several
    /// of these options are compared. The calls of the capture are made again, in a process of their own, which takes as much
    /// memory as the program's heap did
    #[arg(long, value_name = "SETTING")]
    pub(crate) what_if: Vec<Setting>,
    /// Print JSON, with all rows
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<10>,
    /// Show whole call stacks and paths
    #[arg(long)]
    pub(crate) all_frames: bool,
    /// Look for debug files below DIR first
    #[arg(long, value_name = "DIR")]
    pub(crate) debug_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack summary`.
#[derive(Debug, Args)]
pub(crate) struct SummaryArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Sort functions by total (with callees) or self allocations
    #[arg(long, value_name = "COLUMN", default_value = "total")]
    pub(crate) sort: SummaryOrder,
    /// Print JSON, with all functions
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<30>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack table`.
#[derive(Debug, Args)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Separate threads
    #[arg(long)]
    pub(crate) split_threads: bool,
    /// Print JSON, with all rows
    #[arg(long)]
    pub(crate) json: bool,
    /// Print CSV, with all rows
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<30>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Options that select a view.
#[derive(Clone, Debug, Args)]
pub(crate) struct ViewFlags {
    /// Allocations that were never freed
    #[arg(long, conflicts_with_all = ["temporary", "allocated"])]
    pub(crate) leaks: bool,
    /// Count as leaks what is live at process exit, instead of when Python begins to finalize
    #[arg(long, conflicts_with_all = ["temporary", "allocated"])]
    pub(crate) at_exit: bool,
    /// Short-lived allocations: freed by their thread after at most one further allocation (see --temporary-threshold)
    #[arg(long, conflicts_with = "allocated")]
    pub(crate) temporary: bool,
    /// With --temporary: freed after at most N further allocations by the same thread
    #[arg(long, value_name = "N", requires = "temporary", default_value = "1", value_parser = from_one::<NonZeroU32>)]
    pub(crate) temporary_threshold: NonZeroU32,
    /// Everything that was ever allocated
    #[arg(long)]
    pub(crate) allocated: bool,
    /// Resident pages that blocks of one stack alone keep, at the moment when most of resident memory had no live block
    #[arg(long, conflicts_with_all = ["leaks", "at_exit", "temporary", "allocated"])]
    pub(crate) pinned: bool,
    /// Python objects at the moment of a picture (run --objects-at), below the stacks that allocated them
    #[arg(long, conflicts_with_all = ["leaks", "at_exit", "temporary", "allocated", "pinned"])]
    pub(crate) objects: bool,
}

/// The view that a report shows (default: high-water mark), and whether it separates processes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub(crate) which: ViewFlags,
    /// Separate processes: root each process's stacks at a frame with its pid and command line
    #[arg(long)]
    pub(crate) split_processes: bool,
}

impl ViewFlags {
    /// The requested view, if any.
    pub(crate) fn wanted(&self) -> Option<memtrack_reader::View> {
        use memtrack_reader::View as Wanted;
        match self {
            Self { at_exit: true, .. } => Some(Wanted::LeaksAtExit),
            Self { leaks: true, .. } => Some(Wanted::Leaks),
            Self { temporary: true, .. } => Some(Wanted::Temporary),
            Self { allocated: true, .. } => Some(Wanted::Allocated),
            Self { pinned: true, .. } => Some(Wanted::Pinned),
            Self { objects: true, .. } => Some(Wanted::Objects),
            _ => None,
        }
    }

    /// How a capture has to be read for it.
    pub(crate) fn reading(&self) -> Options {
        Options { temporary_threshold: self.temporary_threshold.get(), ..Options::default() }
    }
}

impl ViewArgs {
    /// The requested view; high-water mark by default.
    pub(crate) fn wanted(&self) -> memtrack_reader::View {
        self.which.wanted().unwrap_or_default()
    }

    /// How a capture has to be read for it.
    pub(crate) fn reading(&self) -> Options {
        self.which.reading()
    }
}

impl<'a> From<(&'a InputArgs, &ViewArgs)> for Request<'a> {
    fn from((input, view): (&'a InputArgs, &ViewArgs)) -> Self {
        Self { split_processes: view.split_processes, ..Self::from(input).about(view.wanted()) }
    }
}

/// `memtrack flamegraph`.
#[derive(Debug, Args)]
pub(crate) struct FlamegraphArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Invert the tree: allocating functions at the top, callers below
    #[arg(long)]
    pub(crate) inverted: bool,
    /// Separate threads
    #[arg(long)]
    pub(crate) split_threads: bool,
    /// Embed source lines around each call: lines recorded by 'run --embed-sources', otherwise the current files unless
    /// they changed since the recording
    #[arg(long)]
    pub(crate) embed_sources: bool,
    /// Write JSON instead of a page, with all calls and with memory over time
    #[arg(long, conflicts_with = "embed_sources")]
    pub(crate) json: bool,
    /// Open the page in the browser ($BROWSER, else the desktop's default)
    #[arg(long, conflicts_with = "json")]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack tree`.
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Print as text (default if standard input or output is not a terminal)
    #[arg(long)]
    pub(crate) text: bool,
    /// Print JSON, with all calls
    #[arg(long, conflicts_with = "text")]
    pub(crate) json: bool,
    /// Invert the tree: allocating functions at the top, callers below
    #[arg(long)]
    pub(crate) inverted: bool,
    /// Collapse calls with less than PERCENT of the bytes into one row
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub(crate) least: f64,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Baseline capture
    pub(crate) base: PathBuf,
    /// New capture, compared against the baseline
    pub(crate) new: PathBuf,
    /// What is compared [default: peak]
    #[arg(long, value_name = "METRIC", conflicts_with_all = ["leaks", "at_exit", "temporary", "allocated", "pinned", "objects"])]
    pub(crate) metric: Option<DiffMetric>,
    #[command(flatten)]
    pub(crate) which: ViewFlags,
    /// Compare functions by self or total (with callees) allocations
    #[arg(long, value_name = "FIGURE", default_value = "self")]
    pub(crate) by: DiffFigure,
    /// Print JSON, with all functions
    #[arg(long, conflicts_with_all = ["markdown", "html"])]
    pub(crate) json: bool,
    /// Print Markdown, for a comment on a review
    #[arg(long, conflicts_with = "html")]
    pub(crate) markdown: bool,
    /// Write a differential flame graph: one HTML file that needs no network
    #[arg(long)]
    pub(crate) html: bool,
    /// Open the page in the browser ($BROWSER, else the desktop's default)
    #[arg(long, requires = "html")]
    pub(crate) open: bool,
    /// Scale the baseline: to the same total, to the same duration, or by units of work (such as requests) given as
    /// BASE:NEW
    #[arg(long, value_name = "total|duration|BASE:NEW", value_parser = normalize)]
    pub(crate) normalize: Option<Normalize>,
    /// Exit with status 1 if the total grew by more than this: 10MB, 100kB or 20%
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = limit)]
    pub(crate) fail_over: Option<GrowthLimit>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    #[command(flatten)]
    pub(crate) text: TextArgs<10>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What `diff` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffMetric {
    /// Bytes at the high-water mark
    Peak,
    /// Bytes never freed
    Leaks,
    /// Bytes ever allocated
    Allocated,
    /// Number of allocations
    Count,
    /// Bytes of temporary allocations
    Temporary,
}

/// Which figure of a function is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFigure {
    /// Allocations of the function itself
    #[value(name = "self", alias = "own")]
    Own,
    /// Allocations of the function and its callees
    Total,
}

/// Growth above which `diff` fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GrowthLimit {
    /// A number of bytes or allocations.
    Absolute(u64),
    /// Percent of the baseline.
    Percent(f64),
}

/// What the baseline's figures are scaled to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Normalize {
    /// The new capture's total.
    Total,
    /// The new capture's duration.
    Duration,
    /// Units of work: of the baseline and of the new capture.
    Work(f64, f64),
}

/// Parses `total`, `duration` or `1000:1500`.
fn normalize(text: &str) -> Result<Normalize, String> {
    let units = |text: &str| text.trim().parse::<f64>().ok().filter(|units| units.is_finite() && *units > 0.0);
    match (text, text.split_once(':')) {
        ("total", _) => Some(Normalize::Total),
        ("duration", _) => Some(Normalize::Duration),
        (_, Some((base, new))) => units(base).zip(units(new)).map(|(base, new)| Normalize::Work(base, new)),
        _ => None,
    }
    .ok_or_else(|| "expected total, duration, or units of work such as 1000:1500".to_owned())
}

/// Parses `10MB`, `1.5GiB`, `4096` or `20%`.
fn limit(text: &str) -> Result<GrowthLimit, String> {
    const UNITS: [(&str, f64); 9] = [
        ("KiB", 1024.0),
        ("MiB", 1048576.0),
        ("GiB", 1073741824.0),
        ("kB", 1e3),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("B", 1.0),
    ];
    let number = |text: &str| match text.trim_end().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("expected a size such as 10MB or 100kB, or a percentage such as 20%".to_owned()),
    };
    if let Some(percent) = text.strip_suffix('%') {
        return number(percent).map(GrowthLimit::Percent);
    }
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (figure, bytes) = unit.unwrap_or((text, 1.0));
    number(figure).map(|figure| GrowthLimit::Absolute((figure * bytes) as u64))
}

#[cfg(test)]
mod tests {
    use super::{GrowthLimit, Normalize, limit, normalize};

    #[test]
    fn normalizations() {
        assert_eq!(normalize("total"), Ok(Normalize::Total));
        assert_eq!(normalize("duration"), Ok(Normalize::Duration));
        assert_eq!(normalize("1000:1500.5"), Ok(Normalize::Work(1000.0, 1500.5)));
        for text in ["", "0:1", "1:0", "1", "a:b", "-1:2", "1:inf", "totals"] {
            assert!(normalize(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits() {
        for (text, expected) in [
            ("10MB", GrowthLimit::Absolute(10_000_000)),
            ("100kB", GrowthLimit::Absolute(100_000)),
            ("1.5 GiB", GrowthLimit::Absolute(1_610_612_736)),
            ("0", GrowthLimit::Absolute(0)),
            ("7B", GrowthLimit::Absolute(7)),
            ("20%", GrowthLimit::Percent(20.0)),
            ("0.5%", GrowthLimit::Percent(0.5)),
        ] {
            assert_eq!(limit(text), Ok(expected), "{text}");
        }
        for text in ["", "MB", "-1", "ten", "10 miles", "NaN", "inf%", "%"] {
            assert!(limit(text).is_err(), "{text}");
        }
    }
}
