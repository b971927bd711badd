//! What was typed, as clap takes it apart, and its way into plain options.
//!
//! Only options that work are known here. Invariant: nothing below the commands sees a clap type.

pub(crate) mod input;
pub(crate) mod query;
pub(crate) mod rewrite;
pub(crate) mod shell;
pub(crate) mod symbolize;
pub(crate) mod transform;

use std::ffi::OsString;
use std::num::{NonZeroU32, ParseIntError};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use memtrack_collector::{Compression, NativeStacks};

mod views;

pub(crate) use views::{
    DiffArgs, DiffFigure, DiffMetric, FlamegraphArgs, Limit, Normalize, SummaryArgs, TableArgs, TreeArgs,
};

use crate::output::{Destination, ReportOutput};
use crate::terminal::{Color, Look};
use input::InputArgs;
use transform::Transform;

/// Finds out who holds the memory of a Python or native program: at its peak, at its end, and in between.
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

/// How much text is printed, in which colours; without -n at most `ROWS` rows.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TextArgs<const ROWS: usize> {
    /// At most N rows of text in each list, the first; 0 for all
    // Not default_value_t: it keeps one text for all ROWS, that of the command which is built first.
    #[arg(short = 'n', value_name = "N", default_value = const { decimal(ROWS) }, value_parser = rows)]
    pub(crate) rows: usize,
    #[command(flatten)]
    pub(crate) colors: Colors,
}

/// A number of rows, of which 0 means all.
fn rows(text: &str) -> Result<usize, ParseIntError> {
    Ok(match text.parse()? {
        0 => usize::MAX,
        rows => rows,
    })
}

/// How many rows there are without -n, as text.
const fn decimal(rows: usize) -> &'static str {
    match rows {
        5 => "5",
        10 => "10",
        30 => "30",
        _ => panic!("a number of rows that no command has"),
    }
}

impl Colors {
    /// The look of text that goes there.
    pub(crate) fn look(self, out: &ReportOutput) -> Look {
        Look::new(self.color, matches!(out, ReportOutput::Stdout(_)))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program and record its allocations
    Run(RunArgs),
    /// Show the numbers of a capture: totals, peak, leaks, sizes, allocators, threads, biggest functions
    Stats(StatsArgs),
    /// Show for every function what it allocated itself, and with everything it called
    Summary(SummaryArgs),
    /// Show what was allocated at each place in the program by each allocator
    Table(TableArgs),
    /// Walk through who called whom, with what each call allocated with everything below it
    Tree(TreeArgs),
    /// Write a page with flame graphs and memory over time: one HTML file that needs no network
    Flamegraph(FlamegraphArgs),
    /// Compare two captures: what grew, what is new, what has vanished
    Diff(DiffArgs),
    /// Find single allocations by function, size, lifetime, thread and more, or group them
    Query(query::QueryArgs),
    /// Convert a capture for a viewer
    #[command(subcommand)]
    Transform(Transform),
    /// Put several captures into one file
    Merge(rewrite::MergeArgs),
    /// Write a smaller capture, without what was small and soon freed: peak and leaks stay exact
    Strip(rewrite::StripArgs),
    /// Write a capture without names: of functions, files, threads and arguments
    Anonymize(rewrite::AnonymizeArgs),
    /// Write the names of native code into a capture, so that it reads the same on any machine
    Symbolize(symbolize::SymbolizeArgs),
    /// Print the records of a capture as text, one a line
    Parse(ParseArgs),
    /// Print completions for a shell
    Completions(shell::CompletionsArgs),
    /// Write manual pages
    Man(shell::ManArgs),
    /// Print a document (tutorial, troubleshooting, formats, …) or the help of a command
    Help(shell::HelpArgs),
}

impl Command {
    /// What was said about colours.
    pub(crate) fn color(&self) -> Color {
        match self {
            Self::Run(run) => run.colors.color,
            Self::Stats(stats) => stats.text.colors.color,
            Self::Summary(summary) => summary.text.colors.color,
            Self::Table(table) => table.text.colors.color,
            Self::Tree(tree) => tree.colors.color,
            Self::Diff(diff) => diff.text.colors.color,
            Self::Query(query) => query.text.colors.color,
            _ => Color::Auto,
        }
    }

    /// The captures that were named, for what makes a report of any number of them.
    pub(crate) fn captures_of_report(&mut self) -> Option<&mut Vec<PathBuf>> {
        Some(match self {
            Self::Stats(stats) => &mut stats.input.captures,
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
#[derive(Debug, Args)]
#[command(override_usage = "memtrack run [OPTIONS] [--] TARGET [ARGS]...")]
pub(crate) struct RunArgs {
    /// Write the capture to FILE [default: memtrack-<program>.<pid>.bin in the working directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Make a page of the capture at once, as 'memtrack flamegraph' does without options, but with the lines of
    /// --embed-sources. The page has switches for what is shown; filters and --skip-function are options of 'memtrack
    /// flamegraph', with which the page can be made again
    #[arg(long)]
    pub(crate) flamegraph: bool,
    /// With --flamegraph: show the page in the browser
    #[arg(long, requires = "flamegraph")]
    pub(crate) open: bool,
    /// Print nothing afterwards
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) colors: Colors,
    /// Record the exact time of every allocation and deallocation
    #[arg(long)]
    pub(crate) allocation_timestamps: bool,
    /// Record every block of Python's own allocators, and not what those take from the system
    #[arg(long)]
    pub(crate) trace_python_allocators: bool,
    /// Record the processes that the program starts, too, by fork and by exec: a capture for each
    #[arg(long, visible_alias = "follow-fork")]
    pub(crate) follow: bool,
    /// Record native call stacks, too: C, C++ and Rust functions by name, file and line [default: of programs without
    /// Python]
    #[arg(long, overrides_with = "no_native")]
    pub(crate) native: bool,
    /// Record no native call stacks, of programs without Python neither
    #[arg(long, overrides_with = "native")]
    pub(crate) no_native: bool,
    /// Never write into the interpreter's memory: slower on deep Python stacks
    #[arg(long)]
    pub(crate) no_frame_marks: bool,
    /// Write sums for each call stack instead of every event: a small file for a long run
    #[arg(long)]
    pub(crate) aggregate: bool,
    /// Say every second what is live while the program runs: a line on standard error, if there is news
    #[arg(long)]
    pub(crate) live: bool,
    /// Read the source lines of Python's frames while the program runs, and store them in the capture: for 'tree', and for
    /// 'flamegraph --embed-sources', where the files are others or are not there
    #[arg(long)]
    pub(crate) embed_sources: bool,
    /// Compress the capture: none, lz4, zstd or zstd:LEVEL (1 to 19); above 6 when the program has ended
    #[arg(long, value_name = "HOW", default_value = "zstd", value_parser = compression)]
    pub(crate) compress: Compression,
    /// Look at the resident memory every MS milliseconds
    #[arg(long, value_name = "MS", default_value = "10", value_parser = milliseconds)]
    pub(crate) snapshot_interval: NonZeroU32,
    /// The Python for scripts, -m and -c [default: the virtual environment's, else python3 in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// A Python script, -m MODULE, -c CODE, or any program; everything behind it belongs to the program
    #[arg(value_name = "TARGET", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) target: Vec<OsString>,
}

impl RunArgs {
    /// Of which processes native call stacks are recorded.
    pub(crate) fn native_stacks(&self) -> NativeStacks {
        match (self.native, self.no_native) {
            (true, _) => NativeStacks::Always,
            (_, true) => NativeStacks::Never,
            _ => NativeStacks::WithoutPython,
        }
    }
}

/// A time between two snapshots.
fn milliseconds(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("expected whole milliseconds, from 1 to {}", u32::MAX))
}

/// How a capture is compressed.
fn compression(text: &str) -> Result<Compression, String> {
    let level = |text: &str| text.parse().ok().filter(|level| (1..=19).contains(level));
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::default()),
        _ => text
            .strip_prefix("zstd:")
            .and_then(level)
            .map(Compression::Zstd)
            .ok_or_else(|| "there are none, lz4, zstd, and zstd:1 (fastest) to zstd:19 (smallest)".into()),
    }
}

/// Where a report goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output {
    /// Write to FILE, - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file: needed for all but an unchanged report of the same capture
    #[arg(short, long)]
    pub(crate) force: bool,
}

impl Output {
    /// Where a report of these captures goes.
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
    /// Show how long allocations lived, by function, and what threads freed that others had made
    #[arg(long)]
    pub(crate) lifetimes: bool,
    /// Show what recording took: bytes, how stacks were read, waiting, processor time ('account' in the JSON, always)
    #[arg(long)]
    pub(crate) recording: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<5>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten, next_help_heading = "What the tables list [default: everything ever allocated]")]
    pub(crate) which: Which,
}

/// Which allocations a report is about.
#[derive(Clone, Debug, Args)]
pub(crate) struct Which {
    /// Allocations that were never freed
    #[arg(long, conflicts_with_all = ["temporary", "allocated"])]
    pub(crate) leaks: bool,
    /// Leaks at the last moment of the process [default: when Python begins to finalize]
    #[arg(long, conflicts_with_all = ["temporary", "allocated"])]
    pub(crate) at_exit: bool,
    /// Allocations that were freed at once
    #[arg(long, conflicts_with = "allocated")]
    pub(crate) temporary: bool,
    /// With --temporary: after at most N further allocations of the thread
    #[arg(long, value_name = "N", requires = "temporary", default_value = "1")]
    pub(crate) temporary_threshold: NonZeroU32,
    /// Everything that was ever allocated
    #[arg(long)]
    pub(crate) allocated: bool,
}

/// Which allocations a report is about, at the high-water mark unless something else is asked for, and of which process.
#[derive(Clone, Debug, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Keep processes apart: the stacks of each stand below a frame with its number and command line
    #[arg(long)]
    pub(crate) split_processes: bool,
}

/// `memtrack parse`.
#[derive(Debug, Args)]
pub(crate) struct ParseArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) output: Output,
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
