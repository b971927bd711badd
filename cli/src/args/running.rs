//! The options of commands that reach recordings while they run.
//!
//! Invariant: each takes the PID of a recorded process, and none where only one program is recorded.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use memtrack_collector::Compression;
use memtrack_reader::query::units::size;

use super::sample::SampleOption;
use super::times::{interval, time, window};
use super::{RunArgs, compression, from_one, milliseconds};

/// `memtrack mark`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct MarkArgs {
    /// A recorded process [default: that of the only recording]
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The name of the moment; several moments may have the same
    #[arg(value_name = "NAME", required = true)]
    pub(crate) name: String,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `memtrack snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// A recorded process; of the first process of a recording with --follow, all its processes in one file [default: that
    /// of the only recording]
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Write to FILE, - for standard output [default: the capture's name with .snapshot1, .snapshot2, … in the working
    /// directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Do not print the file's name and size
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Limits of `memtrack run`.
#[derive(Clone, Copy, Debug, Args)]
#[command(group(ArgGroup::new("snapshots").args(["snapshot_above", "snapshot_every"]).multiple(true)))]
pub(crate) struct LimitArgs {
    /// Write a snapshot, and end the program by SIGTERM, when its resident memory, as sampled every --snapshot-interval, is above SIZE (4GB, 500MiB, or
    /// 90% of the smallest memory limit of its control groups, or of the machine's memory; a percentage is one of its address space
    /// and data, too, where 'ulimit -v' and 'ulimit -d' limit these); with --follow it is the sum of all
    /// recorded processes, and all of them are ended. The capture is complete up to its end
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = memory_bound)]
    pub(crate) stop_above: Option<MemoryBound>,
    /// Write a snapshot, as 'memtrack snapshot' does, when resident memory rises above SIZE; again when it has been a tenth
    /// below since
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = memory_bound)]
    pub(crate) snapshot_above: Option<MemoryBound>,
    /// Write a snapshot every TIME (10min, 30s), beside the capture
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) snapshot_every: Option<Duration>,
    /// Of the snapshots of --snapshot-above and --snapshot-every, keep the newest N
    #[arg(long, value_name = "N", default_value = "5", value_parser = from_one::<NonZeroUsize>, requires = "snapshots")]
    pub(crate) snapshot_keep: NonZeroUsize,
}

/// A limit of resident memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MemoryBound {
    /// In bytes.
    Bytes(u64),
    /// A part of the memory that the program can have at most.
    Percent(f64),
}

impl MemoryBound {
    /// In bytes; `most`: the memory that the program can have at most, if that is known.
    pub(crate) fn bytes(self, most: Option<u64>) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Percent(percent) => most.map(|most| (most as f64 / 100.0 * percent) as u64),
        }
    }
}

/// Parses a limit of resident memory.
fn memory_bound(text: &str) -> Result<MemoryBound, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return match size(text) {
            Ok(0) => Err("a limit is above 0".into()),
            Ok(bytes) => Ok(MemoryBound::Bytes(bytes)),
            Err(error) => Err(error.to_string()),
        };
    };
    let percent = percent.trim().parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent.map(MemoryBound::Percent).ok_or_else(|| "a percentage is above 0% and at most 100%".into())
}

impl LimitArgs {
    /// No limits.
    fn none() -> Self {
        Self { stop_above: None, snapshot_above: None, snapshot_every: None, snapshot_keep: NonZeroUsize::MIN }
    }
}

/// `memtrack ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) colors: super::Colors,
}

/// `memtrack live`.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// A recorded process, or a capture that is being written or has ended [default: the only recording]
    #[arg(value_name = "PID|CAPTURE")]
    pub(crate) target: Option<PathBuf>,
    /// Print JSON lines for each window of time instead of the view: 'memtrack help formats' describes them
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// All processes that the recording follows, added up, with those that come, instead of one; in the view 'a' does the
    /// same, and 'n' shows the next process
    #[arg(long)]
    pub(crate) all: bool,
    /// Serve figures to a scraper in the Prometheus text format at ADDRESS:PORT, or at PORT of 127.0.0.1, instead of the view
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "jsonl")]
    pub(crate) metrics: Option<SocketAddr>,
    /// The length of a window, or the time between two pictures of the view: 500ms, 1s, 10s, 1m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = window)]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) colors: super::Colors,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse().map_err(|_| "expected an address and a port such as 127.0.0.1:9464, or a port".into())
}

/// `memtrack attach`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AttachArgs {
    /// The process to record, as 'ps' shows it here
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: i32,
    /// Write the capture to FILE [default: memtrack-<program>.<pid>.bin in the working directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Suppress the summary after the recording
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Detach after this time: a number with ms, s, m or h [default: at Ctrl-C, or when the program ends]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) duration: Option<Duration>,
    /// Record in the background, and give the terminal back; 'memtrack detach PID' ends it
    #[arg(long)]
    pub(crate) detached: bool,
    /// The process in the background, whose messages are read by the one in the foreground
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// Record the exact time of every allocation and deallocation
    #[arg(long)]
    pub(crate) allocation_timestamps: bool,
    /// Record every block that Python's own allocators hand out, instead of the memory that they request from the system
    #[arg(long)]
    pub(crate) trace_python_allocators: bool,
    /// Also record the processes that it starts from now on, each in its own capture
    #[arg(long, visible_alias = "follow-fork")]
    pub(crate) follow: bool,
    /// Also record native call stacks [default: on for programs without Python]
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
    #[arg(long, value_name = "TIME", value_parser = window)]
    pub(crate) window: Option<Duration>,
    /// Record samples of allocations, BYTES apart on the average [default: 512KiB], instead of all of them: cheaper, and
    /// every figure of a report is an estimate with its 95 % interval. The number of allocations stays exact, as do mappings, but
    /// at a peak whose moment is not known exactly.
    /// 'auto': at most 100 samples a second in each process; 'auto:N', at most N
    #[arg(long, value_name = "BYTES|auto[:N]", num_args = 0..=1, require_equals = true, default_missing_value = "512KiB")]
    pub(crate) sample: Option<SampleOption>,
    /// Also store a picture of the Python objects, for 'memtrack objects CAPTURE': at the end of the recording, at new maxima of
    /// resident memory (the last one is kept), or whenever 'memtrack mark NAME' is set; several with commas
    #[arg(long, value_name = "end|peak|mark:NAME", value_delimiter = ',')]
    pub(crate) objects_at: Vec<crate::objects_moment::ObjectsMoment>,
    /// Store the source lines of Python frames in the capture
    #[arg(long)]
    pub(crate) embed_sources: bool,
    #[command(flatten)]
    pub(crate) push: super::push::PushArgs,
    /// Compression: none, lz4, zstd or zstd:LEVEL (1 to 19). Levels above 6 are applied after the recording has ended
    #[arg(long, value_name = "HOW", default_value = "zstd", value_parser = compression)]
    pub(crate) compress: Compression,
    /// Sample resident memory every MS milliseconds
    #[arg(long, value_name = "MS", default_value = "10", value_parser = milliseconds)]
    pub(crate) snapshot_interval: NonZeroU32,
}

impl AttachArgs {
    /// The same options for `memtrack run`, whose recording this is but for its begin and end.
    pub(crate) fn as_run(&self, colors: super::Colors) -> RunArgs {
        let Self { output, force, quiet, allocation_timestamps, trace_python_allocators, follow, .. } = self.clone();
        RunArgs {
            limits: LimitArgs::none(),
            push: self.push.clone(),
            output,
            force,
            flamegraph: false,
            open: false,
            quiet,
            colors,
            allocation_timestamps,
            trace_python_allocators,
            follow,
            native: self.native,
            no_native: self.no_native,
            no_frame_marks: self.no_frame_marks,
            aggregate: self.aggregate,
            window: self.window,
            sample: self.sample,
            live: false,
            dormant: false,
            objects_at: self.objects_at.clone(),
            embed_sources: self.embed_sources,
            compress: self.compress,
            snapshot_interval: self.snapshot_interval,
            python: None,
            target: vec![OsString::from(self.pid.to_string())],
        }
    }
}

/// `memtrack detach`, `memtrack stop`.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// The recorded process [default: that of the only recording]
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `memtrack start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// A process that was started by 'memtrack run --dormant' [default: that of the only recording]
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Write the capture to FILE [default: memtrack-<program>.<pid>.bin in the working directory of 'memtrack run']
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Record samples of allocations, BYTES apart on the average [default: 512KiB], instead of all of them, as 'memtrack run'
    /// does. 'auto': at most 100 samples a second in each process; 'auto:N', at most N. Without it the recording is as
    /// 'memtrack run --dormant' has it, which may have --sample, too
    #[arg(long, value_name = "BYTES|auto[:N]", num_args = 0..=1, require_equals = true, default_missing_value = "512KiB")]
    pub(crate) sample: Option<SampleOption>,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::{MemoryBound, memory_bound};

    #[test]
    fn limits_of_memory_are_sizes_or_parts_of_what_there_is() {
        assert_eq!(memory_bound("500MB"), Ok(MemoryBound::Bytes(500_000_000)));
        let most = |text| memory_bound(text).unwrap().bytes(Some(2_000));
        assert_eq!(["90%", "12.5%", "100%", "7"].map(most), [1800, 250, 2000, 7].map(Some));
        assert_eq!(memory_bound("90%").unwrap().bytes(None), None);
        assert!(["0%", "101%", "%", "-5%", "nan%", "many"].iter().all(|wrong| memory_bound(wrong).is_err()));
    }
}

/// `memtrack keep-sums`.
#[derive(Debug, Args)]
pub(crate) struct KeepSumsArgs {
    /// The capture
    pub(crate) capture: PathBuf,
}

/// `memtrack await-program`.
#[derive(Debug, Args)]
pub(crate) struct AwaitProgramArgs {
    /// The program's process id
    pub(crate) pid: i32,
    /// Print nothing
    #[arg(long)]
    pub(crate) quiet: bool,
}
