//! `memtrack parse`: prints the records of a capture as text, one per line.
//!
//! Invariant: lines are in the total order of events, and every id is defined on a line before its first use.

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};

use anyhow::{Result, bail};
use memtrack_reader::native::NativeModule;
use memtrack_reader::source::{self, Consumer, RunPosition};
use memtrack_reader::{Event, EventKind, FrameId, Frames, Snapshot, StackId};

use crate::allocation_filter::{AllocationFilter, KeptEvents};
use crate::args;
use crate::load::{Request, capture_info, checked};
use crate::message;
use crate::output::ReportOutput;
use crate::reports::capture_info::{CaptureInfo, visible};
use crate::terminal::Progress;

/// Prints the records.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn run(options: &args::ParseArgs) -> Result<u8> {
    let request = Request::from(&options.input);
    let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
    for path in checked(request.paths)? {
        print(&request.open(&path)?, &request, &mut out)?;
    }
    out.finish()?;
    Ok(0)
}

/// Prints one capture. Several captures are printed one after the other, each with its own ids.
fn print(capture: &source::CaptureReader, request: &Request<'_>, out: &mut ReportOutput) -> Result<()> {
    if capture.aggregated() {
        bail!("{}: an aggregated capture has no records; use 'memtrack stats'", capture.path().display());
    }
    let kept = AllocationFilter::new(request, capture)?;
    // No progress bar if the lines go to the terminal.
    let unseen = !matches!(out, ReportOutput::Stdout(_)) || !io::stdout().is_terminal();
    let mut progress = unseen.then(|| Progress::new(capture.total_record_bytes(), "printing"));
    let mut printer = RecordPrinter::new(&kept, out);
    printer.head(capture, uncertainty(capture)?)?;
    printer.marks = capture.marks().iter().rev().map(|mark| (capture.mark_ns(mark), mark.name.clone())).collect();
    let read = capture.read(&mut printer, |bytes| progress.iter_mut().for_each(|progress| progress.add(bytes)))?;
    drop(progress);
    printer.written?;
    let info = CaptureInfo { unknown_frames: read.unknown_frames, ..capture_info(capture, read.lost) };
    // With filters, a first reading has already printed the warnings.
    if kept.is_everything() {
        info.note_growing();
        info.warnings()
            .iter()
            .for_each(|warning| message::warning(format_args!("{}: {warning}", capture.path().display())));
    }
    Ok(())
}

/// By how much times may be too early, which only a whole reading tells; one without printing takes a fraction of the time.
fn uncertainty(capture: &source::CaptureReader) -> Result<u64> {
    /// Takes events for their times alone.
    struct Unseen;
    impl Consumer for Unseen {
        fn event(&mut self, _: &Event, _: &Frames) {}
    }
    if capture.has_timestamps() {
        return Ok(0);
    }
    Ok(capture.read(&mut Unseen, |_| ())?.time_uncertainty_ns)
}

/// Prints records. After the first write error it prints nothing more; reading goes on.
struct RecordPrinter<'a, W> {
    kept: KeptEvents<'a>,
    out: W,
    written: io::Result<()>,
    tid: i32,
    /// Which frames and stacks have been printed, by id.
    frames: Vec<bool>,
    stacks: Vec<bool>,
    modules: HashSet<NativeModule>,
    /// Marks that were not printed, with their times since the start, the last one first.
    marks: Vec<(u64, String)>,
}

impl<'a, W: Write> RecordPrinter<'a, W> {
    fn new(kept: &'a AllocationFilter, out: W) -> Self {
        let kept = KeptEvents::new(kept);
        let (frames, stacks) = (Vec::new(), vec![true]);
        Self { kept, out, written: Ok(()), tid: 0, frames, stacks, modules: HashSet::new(), marks: Vec::new() }
    }

    fn head(&mut self, capture: &source::CaptureReader, uncertainty: u64) -> io::Result<()> {
        let process = capture.process();
        let info = CaptureInfo { file: capture.path().into(), process: process.clone(), ..CaptureInfo::default() };
        let pid = process.pid.unwrap_or(0);
        writeln!(
            self.out,
            "CAPTURE format_version={} complete={} pid={pid} timestamps={} time_uncertainty_ns={uncertainty} command={}",
            capture.format_version(),
            capture.complete(),
            capture.has_timestamps(),
            text(&info.title())
        )
    }

    fn print(&mut self, print: impl FnOnce(&mut W) -> io::Result<()>) {
        if self.written.is_ok() {
            self.written = print(&mut self.out);
        }
    }

    /// Prints the definition of a stack that is new, after those of its callers, each after its frame.
    fn describe(&mut self, stack: StackId, frames: &Frames) {
        let (mut new, mut at) = (Vec::new(), stack);
        while let Some(node) = frames.node(at).filter(|_| is_first(&mut self.stacks, at.0)) {
            new.push((at.0, node.frame, node.parent));
            at = node.parent;
        }
        for (number, frame, parent) in new.into_iter().rev() {
            if is_first(&mut self.frames, frame.0) {
                self.print(|out| frame_line(out, frame, frames));
            }
            self.print(|out| writeln!(out, "STACK stack={number} frame={} caller={}", frame.0, parent.0));
        }
    }
}

/// Whether the id was not asked for before.
fn is_first(asked: &mut Vec<bool>, id: u32) -> bool {
    let id = id as usize;
    if asked.len() <= id {
        asked.resize(id + 1, false);
    }
    !std::mem::replace(&mut asked[id], true)
}

impl<W: Write> Consumer for RecordPrinter<'_, W> {
    fn event(&mut self, event: &Event, frames: &Frames) {
        let Some(event) = self.kept.taken(event) else { return };
        self.describe(event.stack, frames);
        let tid = self.tid;
        self.print(|out| event_line(out, &event, tid));
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        let (index, time, rss) = (snapshot.index, snapshot.time_ns, snapshot.rss_bytes);
        self.print(|out| writeln!(out, "SNAPSHOT snapshot={index} time_ns={time} rss={rss}"));
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.print(|out| writeln!(out, "TRUNCATED stacks={count}"));
    }

    /// A mark has a tick of its own.
    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        while let Some((_, name)) = self.marks.pop_if(|(mark_ns, _)| *mark_ns <= time_ns) {
            self.print(|out| writeln!(out, "MARK time_ns={time_ns} name={}", text(&name)));
        }
    }

    fn run(&mut self, place: &RunPosition) {
        self.tid = place.tid;
    }

    fn replaced(&mut self) {
        self.kept.replaced();
    }

    fn code(&mut self, id: u32, name: &str, file: &str) {
        self.print(|out| writeln!(out, "CODE code={id} function={} file={}", text(name), text(file)));
    }

    /// Several pages of one file are one module.
    fn module(&mut self, module: &NativeModule) {
        if !module.path.is_empty() && self.modules.insert(module.clone()) {
            self.print(|out| module_line(out, module));
        }
    }
}

fn module_line(out: &mut impl Write, module: &NativeModule) -> io::Result<()> {
    let (path, build_id) = (text(&String::from_utf8_lossy(&module.path)), hex(&module.build_id));
    let NativeModule { start, end, bias, source, .. } = module;
    let source = source.name();
    writeln!(
        out,
        "MODULE path={path} source={source} start={start:#x} end={end:#x} bias={bias:#x} build_id={}",
        text(&build_id)
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn frame_line(out: &mut impl Write, id: FrameId, frames: &Frames) -> io::Result<()> {
    let (function, file, frame) = (text(frames.function(id)), text(frames.file(id)), frames.frame(id));
    write!(out, "FRAME frame={} function={function} file={file} line={}", id.0, frame.line)?;
    if frame.column > 0 {
        write!(out, " column={}", frame.column)?;
    }
    writeln!(out)
}

fn event_line(out: &mut impl Write, event: &Event, tid: i32) -> io::Result<()> {
    let (time, order, address) = (event.time_ns, event.order, event.address);
    let (size, stack) = (event.size, event.stack.0);
    let name = name(event.kind);
    write!(out, "{name} time_ns={time} order={order} tid={tid}")?;
    match event.kind {
        EventKind::Alloc(allocator) | EventKind::FailedAlloc(allocator) => {
            if matches!(event.kind, EventKind::Alloc(_)) {
                write!(out, " address={address:#x}")?;
            }
            write!(out, " size={size} allocator={}", allocator.name())?;
            if let Some(domain) = allocator.python_domain() {
                write!(out, " domain={}", domain.name())?;
            }
            write!(out, " stack={stack}")?;
        }
        EventKind::Map(allocator, class) => {
            let (allocator, class) = (allocator.name(), class.name());
            write!(out, " address={address:#x} size={size} allocator={allocator} class={class} stack={stack}")?;
        }
        EventKind::Free => write!(out, " address={address:#x}")?,
        EventKind::Unmap | EventKind::RemapFrom => write!(out, " address={address:#x} size={size}")?,
        EventKind::SampleDistance => write!(out, " size={size}")?,
        EventKind::FreeUndo | EventKind::UnmapUndo | EventKind::Finalizing | EventKind::Exec => {}
    }
    writeln!(out)
}

fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Alloc(_) => "ALLOC",
        EventKind::Free => "FREE",
        EventKind::FreeUndo => "FREE_UNDO",
        EventKind::Map(..) => "MAP",
        EventKind::Unmap => "UNMAP",
        EventKind::RemapFrom => "REMAP_FROM",
        EventKind::UnmapUndo => "UNMAP_UNDO",
        EventKind::FailedAlloc(_) => "FAILED_ALLOC",
        EventKind::SampleDistance => "SAMPLE_DISTANCE",
        EventKind::Finalizing => "FINALIZING",
        EventKind::Exec => "EXEC",
    }
}

/// A value, in quotation marks if it contains spaces.
fn text(value: &str) -> String {
    let value = visible(value);
    if value.is_empty() || value.contains([' ', '"']) { format!("\"{}\"", value.replace('"', "\\\"")) } else { value }
}

#[cfg(test)]
mod tests {
    use super::{AllocationFilter, Consumer, RecordPrinter};
    use memtrack_format::{Allocator, MapClass};
    use memtrack_reader::source::RunPosition;
    use memtrack_reader::{Event, EventKind, Frames, StackId, ThreadId};

    fn event(kind: EventKind, stack: StackId) -> Event {
        Event { kind, address: 0x7f00, size: 64, stack, thread: ThreadId(0), order: 5, time_ns: 1234 }
    }

    #[test]
    fn stacks_are_described_once_and_before_they_are_used() {
        let mut frames = Frames::new();
        let file = frames.name_id("a b.py").unwrap();
        let mut frame = |function: &str, line| {
            let function = frames.name_id(function).unwrap();
            frames.frame_id(function, file, line).unwrap()
        };
        let (main, work) = (frame("main", 1), frame("work", 7));
        // No event has this stack, and it is not described.
        let other = frame("other", 3);
        frames.stack_of(&[main, other]).unwrap();
        let stack = frames.stack_of(&[main, work]).unwrap();
        let kept = AllocationFilter::default();
        let mut printer = RecordPrinter::new(&kept, Vec::new());
        printer.run(&RunPosition { ticket: 1, thread: ThreadId(0), tid: 42 });
        for kind in
            [EventKind::Alloc(Allocator::Malloc), EventKind::Free, EventKind::Map(Allocator::Mmap, MapClass::Heap)]
        {
            printer.event(&event(kind, stack), &frames);
        }
        let expected = "\
FRAME frame=0 function=main file=\"a b.py\" line=1
STACK stack=1 frame=0 caller=0
FRAME frame=1 function=work file=\"a b.py\" line=7
STACK stack=3 frame=1 caller=1
ALLOC time_ns=1234 order=5 tid=42 address=0x7f00 size=64 allocator=malloc stack=3
FREE time_ns=1234 order=5 tid=42 address=0x7f00
MAP time_ns=1234 order=5 tid=42 address=0x7f00 size=64 allocator=mmap class=heap stack=3
";
        assert_eq!(String::from_utf8(printer.out).unwrap(), expected);
    }
}
