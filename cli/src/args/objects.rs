//! The options of `memtrack objects`.
//!
//! Invariant: a process is named by its number, everything else is a capture.

use std::path::PathBuf;

use clap::Args;

use super::TextArgs;
use crate::objects_moment::ObjectsMoment;

/// `memtrack objects`.
#[derive(Debug, Args)]
pub(crate) struct ObjectsArgs {
    /// A capture that was recorded with --objects-at; or a Python program that runs, by its number, as 'ps' shows it here. That
    /// need not be recorded; it is stopped and copied for a moment, and the copy is read: that takes a process and the page
    /// tables of the program [default: the newest capture in the working directory]
    #[arg(value_name = "CAPTURE|PID")]
    pub(crate) target: Option<PathBuf>,
    /// Which picture of the capture: at the end, the last one at a peak, or the one at the last mark of a name (mark:NAME#2: at the
    /// second one) [default: that of the end, else the last one]. With --diff, a second --at is for B
    #[arg(long, value_name = "end|peak|mark:NAME[#N]")]
    pub(crate) at: Vec<ObjectsMoment>,
    /// Of a running program: stop it for as long as it is read, instead of copying it: where it may not start processes, or
    /// memory is committed strictly
    #[arg(long)]
    pub(crate) hold: bool,
    /// Also show what each type retains: the bytes that would go if all its objects went (JSON always has it)
    #[arg(long)]
    pub(crate) retained: bool,
    /// Show instead who keeps objects alive: the shortest paths from modules and threads to those of a type (with or without
    /// its module), or to the object at an address (0x7f…)
    #[arg(long, value_name = "TYPE|ADDRESS")]
    pub(crate) why: Option<String>,
    /// Of a capture, or a program that is being recorded: a row for each type and place that made objects of it, instead of one
    /// for each type
    #[arg(long, conflicts_with = "why")]
    pub(crate) places: bool,
    /// The same with a row for each type and thread that allocated objects of it
    #[arg(long, conflicts_with_all = ["why", "places", "diff"])]
    pub(crate) threads: bool,
    /// The same with a row for each type and age of its objects: how long before the picture their blocks were allocated
    #[arg(long, conflicts_with_all = ["why", "places", "threads", "diff"])]
    pub(crate) ages: bool,
    /// Show for each type how many of its objects each generation of the garbage collector has, how many gc.freeze has set aside
    /// and how many the collector does not list, and the references that Python counts for all of them
    #[arg(long, conflicts_with_all = ["why", "places", "threads", "ages", "diff"])]
    pub(crate) generations: bool,
    /// Show what has grown from A to B, by type; with --places by type and place. Each is a capture, or a program that runs, by
    /// its number
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["target", "why", "hold"])]
    pub(crate) diff: Option<Vec<PathBuf>>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<30>,
}

impl ObjectsArgs {
    /// Whether nothing can be shown of a program that is not recorded.
    pub(crate) fn asks_who_made(&self) -> bool {
        self.places || self.threads || self.ages
    }
}
