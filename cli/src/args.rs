//! Command-line definition (clap) and its conversion to plain option structs.
//!
//! Invariant: clap types are not used outside `args` and `commands`.

pub(crate) mod fleet;
pub(crate) mod input;
pub(crate) mod mcp;
pub(crate) mod meant;
pub(crate) mod objects;
pub(crate) mod push;
pub(crate) mod query;
pub(crate) mod rewrite;
pub(crate) mod running;
pub(crate) mod sample;
pub(crate) mod shell;
pub(crate) mod symbolize;
mod times;
pub(crate) mod transform;

use std::ffi::OsString;
use std::num::{NonZeroU32, ParseIntError};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use memtrack_collector::{Compression, NativeStacks};

mod views;

pub(crate) use views::{
    DiffArgs, DiffFigure, DiffMetric, ExplainArgs, FlamegraphArgs, GrowthLimit, Normalize, ResidentArgs, SummaryArgs,
    TableArgs, TreeArgs, ViewArgs, ViewFlags,
};

use crate::output::{Destination, ReportOutput};
use crate::terminal::{Color, TextFormat};
use input::InputArgs;
use transform::Transform;

/// Memory profiler for Python and native programs: records allocations and shows which code holds the memory, at the
/// peak, at exit and over time
#[derive(Debug, Parser)]
#[command(name = "memtrack", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Whether a report is coloured.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Colors {
    /// Colours: auto (on a terminal, unless NO_COLOR is set, and with CLICOLOR_FORCE everywhere), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub(crate) color: Color,
}

/// Options of text output: number of rows (default `ROWS`) and colours.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TextArgs<const ROWS: usize> {
    /// Show at most N rows in each text list; 0 shows all rows
    // Not default_value_t: clap stores its text in a static that all values of ROWS would share.
    #[arg(short = 'n', value_name = "N", default_value = const { decimal(ROWS) }, value_parser = rows)]
    pub(crate) rows: usize,
    #[command(flatten)]
    pub(crate) colors: Colors,
}

/// Parses a number of rows; 0 means all.
fn rows(text: &str) -> Result<usize, ParseIntError> {
    Ok(match text.parse()? {
        0 => usize::MAX,
        rows => rows,
    })
}

/// Parses a number that is not 0, such as a `NonZeroU32`.
fn from_one<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number from 1".into())
}

/// The default number of rows as text.
const fn decimal(rows: usize) -> &'static str {
    match rows {
        5 => "5",
        10 => "10",
        30 => "30",
        _ => panic!("a number of rows that no command has"),
    }
}

impl Colors {
    /// The text format for this output.
    pub(crate) fn text_format(self, out: &ReportOutput) -> TextFormat {
        TextFormat::new(self.color, matches!(out, ReportOutput::Stdout(_)))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program and record its allocations
    Run(RunArgs),
    /// Show the numbers of a capture: totals, peak, leaks, sizes, allocators, threads, biggest functions
    Stats(StatsArgs),
    /// Say what stands out, the most important first: growth, holders of the peak, copies, churn, and what to do
    Explain(ExplainArgs),
    /// Show where resident memory is, to the page: live blocks, what allocators keep, stacks, files; and what would give it back
    Resident(ResidentArgs),
    /// Show Python objects, of a running program or a capture: by type, who made them, who keeps them alive, what has grown
    Objects(objects::ObjectsArgs),
    /// Show self and total allocations of every function (total includes callees)
    Summary(SummaryArgs),
    /// Show allocations by source location and allocator
    Table(TableArgs),
    /// Browse the call tree, with the total allocations of each call
    Tree(TreeArgs),
    /// Write a page with flame graphs and memory over time: one HTML file that needs no network
    Flamegraph(FlamegraphArgs),
    /// Compare two captures: functions that grew, shrank, appeared or disappeared
    Diff(DiffArgs),
    /// Find single allocations by function, size, lifetime, thread and more, or group them
    Query(query::QueryArgs),
    /// Convert a capture for a viewer
    #[command(subcommand)]
    Transform(Transform),
    /// Ask tables of many processes, written by 'memtrack transform parquet', through DuckDB: growth, regressions, leaks, peaks
    Fleet(fleet::FleetArgs),
    /// Offer reports of the captures below a directory by the Model Context Protocol, on standard input and output
    Mcp(mcp::McpArgs),
    /// List the programs that are being recorded
    Ps(running::PsArgs),
    /// Record a program that was started without memtrack, until Ctrl-C
    Attach(running::AttachArgs),
    /// End a recording that 'memtrack attach' began; the program runs on
    Detach(running::EndArgs),
    /// Begin to record a program that 'memtrack run --dormant' started
    Start(running::StartArgs),
    /// End what 'memtrack start' began; the program is dormant again
    Stop(running::EndArgs),
    /// Name the present moment in the capture of a program that is being recorded, for --from and --to mark:NAME
    Mark(running::MarkArgs),
    /// Watch who holds the memory of a program that is being recorded
    Live(running::LiveArgs),
    /// Write a complete capture of everything up to now, of a program that is being recorded and runs on
    Snapshot(running::SnapshotArgs),
    /// Put several captures into one file
    Merge(rewrite::MergeArgs),
    /// Write a smaller capture without small, short-lived allocations; peak and leaks stay exact
    Strip(rewrite::StripArgs),
    /// Replace the names of functions, files, threads and arguments in a capture by numbers
    Anonymize(rewrite::AnonymizeArgs),
    /// Write the names of native code into a capture, so that it reads the same on any machine
    Symbolize(symbolize::SymbolizeArgs),
    /// Print the records of a capture as text, one per line
    Parse(ParseArgs),
    /// Print completions for a shell
    Completions(shell::CompletionsArgs),
    /// Write manual pages
    Man(shell::ManArgs),
    /// Make the calls of malloc, realloc and free that standard input holds: for `resident --what-if`
    #[command(hide = true)]
    RerunHeap,
    /// Record the process at the other end of standard input, a socket, when it asks for it
    #[command(hide = true)]
    Recorder,
    /// Read a capture, so that its sums are kept for reports
    #[command(hide = true)]
    KeepSums(running::KeepSumsArgs),
    /// Wait for the program of a `memtrack run` that aborted, in its place
    #[command(hide = true)]
    AwaitProgram(running::AwaitProgramArgs),
    /// Print a document (tutorial, troubleshooting, formats, …) or the help of a command
    Help(shell::HelpArgs),
}

impl Command {
    /// The value of `--color`.
    pub(crate) fn color(&self) -> Color {
        match self {
            Self::Run(run) => run.colors.color,
            Self::Stats(stats) => stats.text.colors.color,
            Self::Explain(explain) => explain.colors.color,
            Self::Fleet(fleet) => fleet.colors.color,
            Self::Resident(resident) => resident.text.colors.color,
            Self::Summary(summary) => summary.text.colors.color,
            Self::Table(table) => table.text.colors.color,
            Self::Tree(tree) => tree.colors.color,
            Self::Diff(diff) => diff.text.colors.color,
            Self::Query(query) => query.text.colors.color,
            Self::Objects(objects) => objects.text.colors.color,
            Self::Ps(ps) => ps.colors.color,
            Self::Live(live) => live.colors.color,
            _ => Color::Auto,
        }
    }

    /// The captures on the command line, for commands that report on any number of them.
    pub(crate) fn captures_of_report(&mut self) -> Option<&mut Vec<PathBuf>> {
        Some(match self {
            Self::Stats(stats) => &mut stats.input.captures,
            Self::Explain(explain) => &mut explain.input.captures,
            Self::Resident(resident) => &mut resident.captures,
            Self::Summary(summary) => &mut summary.input.captures,
            Self::Table(table) => &mut table.input.captures,
            Self::Tree(tree) => &mut tree.input.captures,
            Self::Flamegraph(flamegraph) => &mut flamegraph.input.captures,
            Self::Query(query) => &mut query.captures,
            Self::Transform(transform) => &mut transform.input_mut().captures,
            Self::Parse(parse) => &mut parse.input.captures,
            _ => return None,
        })
    }
}

/// `memtrack run`.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "memtrack run [OPTIONS] [--] TARGET [ARGS]...")]
pub(crate) struct RunArgs {
    /// Write the capture to FILE [default: memtrack-<program>.<pid>.bin in the working directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Write an HTML flame graph after the run, as 'memtrack flamegraph' does, with the lines of --embed-sources. The page has
    /// switches for what it shows; for filters and --skip-function run 'memtrack flamegraph' with them afterwards
    #[arg(long)]
    pub(crate) flamegraph: bool,
    /// With --flamegraph: show the page in the browser
    #[arg(long, requires = "flamegraph")]
    pub(crate) open: bool,
    /// Suppress the summary after the run, but not the word that nothing was recorded
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) colors: Colors,
    /// Record the exact time of every allocation and deallocation
    #[arg(long)]
    pub(crate) allocation_timestamps: bool,
    /// Record every block that Python's own allocators hand out, instead of the memory that they request from the system
    #[arg(long)]
    pub(crate) trace_python_allocators: bool,
    /// Also record child processes (fork and exec), each in its own capture
    #[arg(long, visible_alias = "follow-fork")]
    pub(crate) follow: bool,
    /// Also record native call stacks: C, C++ and Rust functions by name, file and line [default: on for programs without
    /// Python]
    #[arg(long, overrides_with = "no_native")]
    pub(crate) native: bool,
    /// Do not record native call stacks, not even for programs without Python
    #[arg(long, overrides_with = "native")]
    pub(crate) no_native: bool,
    /// Do not write frame sentinels into the interpreter's memory; recording deep Python stacks is slower
    #[arg(long)]
    pub(crate) no_frame_marks: bool,
    /// Write totals per call stack instead of individual events; keeps the file small on long runs
    #[arg(long)]
    pub(crate) aggregate: bool,
    /// With --aggregate, which it implies: also keep what each call stack allocated, freed and held in every window of this
    /// length, such as 15s; of a long run, earlier windows are longer. 'transform parquet' has them as a table
    #[arg(long, value_name = "TIME", value_parser = times::window)]
    pub(crate) window: Option<std::time::Duration>,
    /// Record samples of allocations, BYTES apart on the average [default: 512KiB], instead of all of them: cheaper, and
    /// every figure of a report is an estimate with its 95 % interval. The number of allocations stays exact, as do mappings, but
    /// at a peak whose moment is not known exactly.
    /// 'auto' changes the distance while the program runs, so that there are at most 100 samples a second in each process;
    /// 'auto:N', at most N
    #[arg(long, value_name = "BYTES|auto[:N]", num_args = 0..=1, require_equals = true, default_missing_value = "512KiB")]
    pub(crate) sample: Option<sample::SampleOption>,
    #[command(flatten)]
    pub(crate) limits: running::LimitArgs,
    #[command(flatten)]
    pub(crate) push: push::PushArgs,
    /// On a terminal, show the live view with the program's output in a pane; else print live memory once per second to standard
    /// error while the program runs, if it changed
    #[arg(long)]
    pub(crate) live: bool,
    /// Record nothing until 'memtrack start', and between 'stop' and the next 'start'; each time into a capture of its own
    #[arg(long)]
    pub(crate) dormant: bool,
    /// Also store a picture of the Python objects, for 'memtrack objects CAPTURE': at the end (when Python finalizes), at new
    /// maxima of resident memory (the last one is kept), or whenever 'memtrack mark NAME' is set; several with commas
    #[arg(long, value_name = "end|peak|mark:NAME", value_delimiter = ',')]
    pub(crate) objects_at: Vec<crate::objects_moment::ObjectsMoment>,
    /// Store the source lines of Python frames in the capture while the program runs, so that 'tree' and 'flamegraph
    /// --embed-sources' can show them after the files have changed or on another machine
    #[arg(long)]
    pub(crate) embed_sources: bool,
    /// Compression: none, lz4, zstd or zstd:LEVEL (1 to 19). Levels above 6 are applied after the program has ended
    #[arg(long, value_name = "HOW", default_value = "zstd", value_parser = compression)]
    pub(crate) compress: Compression,
    /// Sample resident memory every MS milliseconds
    #[arg(long, value_name = "MS", default_value = "10", value_parser = milliseconds)]
    pub(crate) snapshot_interval: NonZeroU32,
    /// Python interpreter for scripts, -m and -c [default: that of the active virtual environment, else python3 in
    /// PATH]
    #[arg(long, value_name = "PATH", overrides_with = "python")]
    pub(crate) python: Option<PathBuf>,
    /// A Python script, -m MODULE, -c CODE, or any executable; all arguments after it are passed to the program
    #[arg(value_name = "TARGET", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) target: Vec<OsString>,
}

impl RunArgs {
    /// Whether the capture is to have sums in place of events.
    pub(crate) fn writes_sums(&self) -> bool {
        self.aggregate || self.window.is_some()
    }

    /// Which processes are recorded with native call stacks; the last of the two options wins.
    pub(crate) fn native_stacks(&self) -> NativeStacks {
        match (self.native, self.no_native) {
            (true, _) => NativeStacks::Always,
            (_, true) => NativeStacks::Never,
            _ => NativeStacks::WithoutPython,
        }
    }
}

/// Parses a snapshot interval.
fn milliseconds(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("expected whole milliseconds, from 1 to {}", u32::MAX))
}

/// Parses the compression of a capture.
fn compression(text: &str) -> Result<Compression, String> {
    let level = |text: &str| text.parse().ok().filter(|level| (1..=19).contains(level));
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::default()),
        _ => text.strip_prefix("zstd:").and_then(level).map(Compression::Zstd).ok_or_else(|| {
            "expected none, lz4, zstd, or zstd:LEVEL with LEVEL from 1 (fastest) to 19 (smallest)".into()
        }),
    }
}

/// Options that name the output of a report.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write to FILE, - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file; not required to replace an unmodified report of the same capture
    #[arg(short, long)]
    pub(crate) force: bool,
}

impl OutputArgs {
    /// The destination of a report about these captures.
    pub(crate) fn of<'a>(&'a self, captures: &'a [PathBuf]) -> Destination<'a> {
        Destination { named: self.output.as_deref(), force: self.force, captures }
    }
}

/// `memtrack stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show allocation lifetimes by function, and allocations freed by a thread other than the allocating one
    #[arg(long)]
    pub(crate) lifetimes: bool,
    /// Show the cost of the recording: bytes, stack reads, waits, CPU time (JSON always has it, under 'account')
    #[arg(long)]
    pub(crate) recording: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<5>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten, next_help_heading = "Allocations listed in the tables [default: all allocations]")]
    pub(crate) which: ViewFlags,
}

/// `memtrack parse`.
#[derive(Debug, Args)]
pub(crate) struct ParseArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use super::transform::Transform;
    use super::{Arguments, Command, Compression, NativeStacks, RunArgs};
    use crate::export::SampleOrder;
    use clap::{CommandFactory, Parser};
    use memtrack_reader::View as Wanted;

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        match Arguments::try_parse_from(["memtrack", "run"].iter().chain(words))?.command {
            Command::Run(run) => Ok(run),
            _ => unreachable!("run was typed"),
        }
    }

    #[test]
    fn clap_is_content() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_end_at_the_target() {
        let all = run(&["-qf", "-o", "out", "app.py", "-o", "x", "--help", "--", "-q"]).unwrap();
        assert_eq!(all.target, ["app.py", "-o", "x", "--help", "--", "-q"]);
        assert_eq!((all.quiet, all.force, all.output), (true, true, Some("out".into())));
        assert_eq!(run(&["-m", "pytest", "-q"]).unwrap().target, ["-m", "pytest", "-q"]);
        assert_eq!(run(&["-q", "-c", "pass", "--version"]).unwrap().target, ["-c", "pass", "--version"]);
        assert_eq!(run(&["--", "-m", "pytest", "-f"]).unwrap().target, ["-m", "pytest", "-f"]);
        assert_eq!(run(&["--", "app", "--", "-f"]).unwrap().target, ["app", "--", "-f"]);
        assert!(run(&[]).is_err());
    }

    #[test]
    fn the_last_word_on_native_stacks_counts() {
        let native = |words: &[&str]| run(&[words, &["a"]].concat()).unwrap().native_stacks();
        assert_eq!(native(&[]), NativeStacks::WithoutPython);
        assert_eq!(native(&["--native"]), NativeStacks::Always);
        assert_eq!(native(&["--no-native"]), NativeStacks::Never);
        assert_eq!(native(&["--no-native", "--native"]), NativeStacks::Always);
        assert_eq!(native(&["--native", "--no-native"]), NativeStacks::Never);
    }

    #[test]
    fn snapshot_interval_is_positive() {
        assert_eq!(run(&["--snapshot-interval", "5", "a"]).unwrap().snapshot_interval.get(), 5);
        for wrong in ["0", "-5", "1.5", "4294967296", "fast"] {
            let told = run(&["--snapshot-interval", wrong, "a"]).unwrap_err().to_string();
            assert!(told.contains("whole milliseconds"), "{told}");
        }
    }

    #[test]
    fn compressions() {
        let parsed = |how: &str| run(&["--compress", how, "a"]).map(|run| run.compress).ok();
        assert_eq!(run(&["a"]).unwrap().compress, Compression::Zstd(3));
        let all = ["none", "lz4", "zstd", "zstd:1", "zstd:19"].map(parsed);
        let [one, three, nineteen] = [1, 3, 19].map(|level| Some(Compression::Zstd(level)));
        assert_eq!(all, [Some(Compression::None), Some(Compression::Lz4), three, one, nineteen]);
        assert_eq!(["", "gzip", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "lz4:3"].map(parsed), [None; 7]);
    }

    #[test]
    fn every_command_has_its_own_number_of_rows() {
        let rows = |words: &[&str]| match Arguments::try_parse_from(["memtrack"].iter().chain(words)).unwrap().command {
            Command::Stats(stats) => stats.text.rows,
            Command::Table(table) => table.text.rows,
            Command::Summary(summary) => summary.text.rows,
            Command::Diff(diff) => diff.text.rows,
            Command::Query(query) => query.text.rows,
            _ => unreachable!("has rows"),
        };
        let all = [&["stats", "a"] as &[_], &["diff", "a", "b"], &["table", "a"], &["summary", "a"]];
        assert_eq!(all.map(rows), [5, 10, 30, 30]);
        assert_eq!(rows(&["query", "live", "a"]), 30);
        assert_eq!(rows(&["table", "-n", "7", "a"]), 7);
        assert_eq!(rows(&["stats", "-n", "0", "a"]), usize::MAX);
    }

    #[test]
    fn views_exclude_each_other() {
        let speedscope = |words: &[&str]| {
            Arguments::try_parse_from(["memtrack", "transform", "speedscope", "c"].iter().chain(words))
        };
        assert!(speedscope(&["--leaks", "--temporary"]).is_err());
        assert!(speedscope(&["--at-exit", "--allocated"]).is_err());
        assert!(speedscope(&["--temporary-threshold", "3"]).is_err());
        for leaks in [&["--leaks", "--at-exit"] as &[_], &["--at-exit"]] {
            let parsed = speedscope(&[leaks, &["--order", "snapshot"]].concat()).unwrap();
            let Command::Transform(Transform::Speedscope(parsed)) = parsed.command else { unreachable!("as typed") };
            assert_eq!((parsed.common.view.wanted(), parsed.order), (Wanted::LeaksAtExit, SampleOrder::Snapshot));
        }
        assert!(Arguments::try_parse_from(["memtrack", "diff", "a", "b", "--metric", "peak", "--leaks"]).is_err());
    }
}
