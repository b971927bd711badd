//! Spans of a recording that get files of their own: what Trackers in a recorded program are.
//!
//! Invariant: a span that has begun gets its file: when it is ended, else when the recording is complete.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Error, Result, anyhow, bail};
use memtrack_collector::control::protocol::{SpanCopyRequest, SpanRequest};
use memtrack_collector::{RecordingHandle, RecordingMoment, TicketSpan};

use super::snapshot::{self, CapturePaths, CopyableCapture};
use super::span_children::{self, Forking, SpanChild};
use crate::child_captures::{ChildrenOf, remove_children};
use crate::message;
use crate::output::{ReportOutput, check_writable};

/// What a span needs whose forked children count.
const FOLLOW: &str = "follow";

/// A span that has begun.
#[derive(Clone, Debug)]
struct OpenSpan {
    /// The number of its process in the tree.
    number: u32,
    output: PathBuf,
    begin: RecordingMoment,
    /// Its end, if it has ended and could not be written.
    end: Option<RecordingMoment>,
    /// A file that exists may be replaced.
    force: bool,
    /// Its file has those of forked children beside it.
    follows: bool,
}

impl OpenSpan {
    /// What was recorded from its begin up to its end, or up to now.
    fn span(&self) -> TicketSpan {
        TicketSpan { begin: Some(self.begin), end: self.end }
    }

    /// Its part of the process tree.
    fn forking(&self) -> Forking {
        Forking { number: self.number, begin: self.begin, end: self.end }
    }
}

/// The spans of a recording that have begun and not ended.
pub(crate) struct OpenSpans {
    recording: RecordingHandle,
    captures: CapturePaths,
    open: Mutex<Vec<OpenSpan>>,
    /// Is held while a span that has ended is written, which is not among the open ones then.
    writing: Mutex<()>,
    has: RecordedKinds,
}

/// What a recording has beyond the usual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedKinds {
    /// Native call stacks in Python's.
    pub(crate) native: bool,
    /// The blocks of Python's own allocators.
    pub(crate) python_allocators: bool,
    /// Exact times.
    pub(crate) timestamps: bool,
    /// Child processes.
    pub(crate) children: bool,
    /// Sums in place of events.
    pub(crate) sums: bool,
    /// Says why a text is no value of `--sample`, as it has to be where nothing is recorded yet.
    pub(crate) check_sample: fn(&str) -> Result<(), String>,
}

impl RecordedKinds {
    /// What a span may need: the option, the parameter of a Tracker, and whether the recording has it.
    const fn options(self) -> [(&'static str, &'static str, bool); 4] {
        [
            ("native", "native_traces", self.native),
            ("trace-python-allocators", "trace_python_allocators", self.python_allocators),
            ("allocation-timestamps", "allocation_timestamps", self.timestamps),
            (FOLLOW, "follow_fork", self.children),
        ]
    }
}

impl OpenSpans {
    pub(crate) fn new(recording: RecordingHandle, captures: CapturePaths, has: RecordedKinds) -> Self {
        Self { recording, captures, open: Mutex::default(), writing: Mutex::default(), has }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpenSpan>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a span of the process with this number in the tree; what the process records from now on belongs to it.
    ///
    /// # Errors
    /// Why there will be no such file.
    pub(crate) fn begin(&self, number: u32, span: SpanRequest) -> Result<()> {
        self.open(number, span, || self.recording.position(number).map_err(Error::msg))
    }

    /// Begins a span; what the process has recorded since this moment belongs to it.
    ///
    /// # Errors
    /// Why there will be no such file.
    pub(crate) fn begin_at(
        &self,
        number: u32,
        span: SpanRequest,
        moment: impl FnOnce() -> Option<RecordingMoment>,
    ) -> Result<()> {
        self.open(number, span, || Ok(moment()))
    }

    fn open(
        &self,
        number: u32,
        span: SpanRequest,
        moment: impl FnOnce() -> Result<Option<RecordingMoment>>,
    ) -> Result<()> {
        let SpanRequest { output, force, needs, sample, .. } = span;
        if let Some(sample) = sample {
            (self.has.check_sample)(&sample).map_err(Error::msg)?;
        }
        self.check(number, &needs)?;
        check_writable(&output, force)?;
        // One that has ended and could not be written gives way, as its file would.
        if self.lock().iter().any(|open| open.output == output && open.end.is_none()) {
            bail!("{}: another span of this recording is being written there", output.display());
        }
        let follows = needs.iter().any(|need| need == FOLLOW);
        let begin = moment()?.context("the process has not begun to record")?;
        if force && follows {
            remove_children(&output, ChildrenOf::Span);
        }
        let mut open = self.lock();
        open.retain(|known| known.output != output);
        open.push(OpenSpan { number, output, begin, end: None, force, follows });
        Ok(())
    }

    /// Whether a span of this recording would have what it needs.
    fn check(&self, number: u32, needs: &[String]) -> Result<()> {
        if self.has.sums {
            bail!(
                "this process is being recorded as sums (--aggregate), without single events, so that no part of it can \
                 have a file of its own: record it without --aggregate"
            );
        }
        let is_lacking = |(name, _, has): &(&str, &str, bool)| !has && needs.iter().any(|need| need == name);
        let lacking: Vec<_> = self.has.options().into_iter().filter(is_lacking).collect();
        if !lacking.is_empty() {
            let options: Vec<String> = lacking.iter().map(|(name, ..)| format!("--{name}")).collect();
            let parameters: Vec<String> = lacking.iter().map(|(_, name, _)| format!("{name}=True")).collect();
            bail!(
                "this process is being recorded already, and without {}, which no part of it can have then: begin that \
                 recording with it, or the first Tracker with {}",
                options.join(" "),
                parameters.join(", ")
            );
        }
        match (self.captures)(number) {
            Some(path) if !path.exists() => bail!(
                "this process is being recorded into {}, which is gone, so that no part of it can be copied",
                path.display()
            ),
            Some(path) if !path.is_file() => bail!(
                "this process is being recorded into {}, which is no regular file, so that no part of it can be copied: \
                 name a file with -o",
                path.display()
            ),
            _ => Ok(()),
        }
    }

    /// Writes what belongs to a span so far; it goes on.
    ///
    /// # Errors
    /// There is no such span, or the file cannot be written.
    pub(crate) fn copy(&self, copy: &SpanCopyRequest) -> Result<()> {
        let open = self.find(&copy.span)?;
        check_writable(&copy.output, copy.force)?;
        let mut captures = vec![snapshot::take_span(&self.recording, open.number, open.span())?];
        captures.extend(self.children(&open)?.into_iter().map(|child| child.capture));
        write_files(&mut captures, &copy.output)
    }

    /// Ends a span, and writes its file.
    ///
    /// # Errors
    /// There is no such span, or its file cannot be written now. It is tried again when the recording is complete.
    pub(crate) fn end(&self, span: &Path) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = self.find(span)?;
        if open.end.is_none() {
            open.end = self.recording.position(open.number).map_err(Error::msg)?;
        }
        if open.end.is_none() {
            // It is written when the recording is complete, which has just ended.
            return Ok(());
        }
        self.lock().retain(|known| known.output != span);
        let written = self.write(&mut open);
        written.map_err(|error| {
            self.lock().push(open);
            anyhow!("{error:#}; it is tried again when the recording ends")
        })
    }

    fn find(&self, span: &Path) -> Result<OpenSpan> {
        let found = self.lock().iter().find(|open| open.output == span).cloned();
        found.with_context(|| format!("{}: no span of this recording is being written there", span.display()))
    }

    fn write(&self, open: &mut OpenSpan) -> Result<()> {
        if !open.force && open.output.exists() {
            bail!("{}: another file is there by now", open.output.display());
        }
        write_files(&mut [snapshot::take_span(&self.recording, open.number, open.span())?], &open.output)?;
        // From now on it is the span's own.
        open.force = true;
        write_children(&open.output, self.children(open)?)
    }

    /// The children that were forked in a span, where it needs them.
    fn children(&self, open: &OpenSpan) -> Result<Vec<SpanChild>> {
        if open.follows { open.forking().children(&self.recording, &self.captures) } else { Ok(Vec::new()) }
    }

    /// Writes the files of all spans that were not ended; the recording is complete, and has had children with these numbers, in the
    /// order in which they began. It cannot be asked for them any more.
    pub(crate) fn close(&self, children: &[u32]) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        for mut open in std::mem::take(&mut *self.lock()) {
            if !open.force && open.output.exists() {
                let free = beside(&open.output);
                message::warning(format_args!(
                    "{}: another file is there by now; the span is written to {}",
                    open.output.display(),
                    free.display()
                ));
                open.output = free;
            }
            if let Err(error) = self.write_from_complete(&open, children) {
                message::warning(format_args!("{}: the span could not be written: {error:#}", open.output.display()));
            }
        }
    }

    /// Writes the span up to its end, or that of its process, whose capture is complete.
    fn write_from_complete(&self, open: &OpenSpan, children: &[u32]) -> Result<()> {
        let capture = (self.captures)(open.number).context("its recording has no capture")?;
        let capture = CopyableCapture::with_metadata(&capture, |known| open.span().metadata(known))?;
        write_files(&mut [capture], &open.output)?;
        if !open.follows {
            return Ok(());
        }
        write_children(&open.output, open.forking().complete_children(children, &self.captures)?)
    }
}

/// A name beside this one that no file has: `span-2.bin`.
fn beside(taken: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = taken.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{number}"));
        if let Some(suffix) = taken.extension() {
            name.push(".");
            name.push(suffix);
        }
        taken.with_file_name(name)
    };
    (2..).map(numbered).find(|name| !name.exists()).unwrap_or_else(|| taken.to_owned())
}

/// Writes the captures of children of a span beside its file.
fn write_children(output: &Path, children: Vec<SpanChild>) -> Result<()> {
    let paths = span_children::paths(output, &children);
    let write = |(child, path): (SpanChild, PathBuf)| write_files(&mut [child.capture], &path);
    children.into_iter().zip(paths).try_for_each(write)
}

/// Writes captures that were taken out of a recording into a file.
///
/// # Errors
/// A capture cannot be read, or the file cannot be written.
pub(crate) fn write_files(captures: &mut [CopyableCapture], output: &Path) -> Result<()> {
    let mut out = ReportOutput::unwatched(output)?;
    snapshot::write(captures, &mut out)?;
    out.finish()?;
    Ok(())
}
