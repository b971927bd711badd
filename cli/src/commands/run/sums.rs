//! The sink of an aggregated capture: replays events as they are recorded, and writes the sums.
//!
//! The file is checkpointed every few seconds, so that the end of either side leaves a readable capture. Checkpoints
//! are appended; when a new one fits before the current one, it is written at the start and the file is truncated after
//! it, which bounds the file's size. Invariant: once the first checkpoint was written the file always contains an
//! intact one, and the last intact one is the newest or the one before it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crc32fast::hash as crc32;
use memtrack_collector::{
    Compression, Packages, Packer, RecordPiece, Sink, SnapshotCopy, SourceRecorder, thread_processor_ns,
};
use memtrack_format::aggregate::PART;
use memtrack_format::block::{BlockHeader, BlockKind, HEADER_LEN, MAX_RAW};
use memtrack_format::header;
use memtrack_format::mapped::MappedFile;
use memtrack_format::marks::{self, Mark};
use memtrack_format::meta::Process;
use memtrack_reader::{Analysis, FrameId, Frames, Thread, aggregate};

use super::kept_windows::KeptWindows;
use super::process_replay::ProcessReplay;

/// Minimum time between two checkpoints.
const INTERVAL: Duration = Duration::from_secs(3);
/// How long a snapshot can be copied.
const SNAPSHOT_STAYS: Duration = Duration::from_secs(60);
/// Checkpoints take at most 1/n of a processor's time.
const TIME_PART: u32 = 20;

/// How many snapshots can be copied at once, and how large they are together; one more takes the place of the oldest.
const MOST_COPIES: usize = 16;
const MOST_COPIED: u64 = 256 << 20;
/// Maximum number of snapshots kept; more than any chart has points.
const MAX_SNAPSHOTS: usize = 1 << 19;

/// Replays records and writes their sums.
pub(super) struct SumsSink {
    file: SumsFile,
    running: ProcessReplay,
    windows: KeptWindows,
    sources: Option<SourceRecorder>,
    next_checkpoint: Instant,
    /// The last snapshots, until they must have been copied.
    snapshots: Vec<(File, Instant)>,
}

impl SumsSink {
    /// Writes the header, so that an unwritable file is detected at once. `sources`: store the source lines of frames;
    /// `window`: what happened in windows of this length, too.
    ///
    /// # Errors
    /// The header cannot be written.
    pub(super) fn new(
        file: File,
        compression: Compression,
        sources: bool,
        window: Option<Duration>,
    ) -> io::Result<Self> {
        file.write_all_at(&header::encode(), 0)?;
        let start = header::LEN as u64;
        Ok(Self {
            file: SumsFile {
                file,
                packer: Packer::new(compression)?,
                kept: Vec::new(),
                frames: 0,
                newest: start,
                end: start,
                round: 0,
            },
            running: ProcessReplay::new(window),
            windows: KeptWindows::default(),
            sources: sources.then(SourceRecorder::default),
            // At once: who follows the capture sees that it is one with sums.
            next_checkpoint: Instant::now(),
            snapshots: Vec::new(),
        })
    }

    /// Forgets the snapshots that must have been copied by now, and the oldest ones where there are too many or too large ones.
    fn forget_copies(&mut self) {
        self.snapshots.retain(|(_, made)| made.elapsed() <= SNAPSHOT_STAYS);
        let bytes = |snapshots: &[(File, Instant)]| -> u64 {
            snapshots.iter().filter_map(|(file, _)| Some(file.metadata().ok()?.len())).sum()
        };
        while self.snapshots.len() > 1 && (self.snapshots.len() > MOST_COPIES || bytes(&self.snapshots) > MOST_COPIED) {
            self.snapshots.remove(0);
        }
    }
}

impl Sink for SumsSink {
    fn process(&mut self, process: &Process) -> io::Result<()> {
        self.sources.iter_mut().for_each(|sources| sources.process(process));
        self.running.process(process);
        Ok(())
    }

    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()> {
        self.running.records(piece);
        Ok(())
    }

    fn observations(&mut self, payload: &[u8], _first_ticket: u64, _last_ticket: u64) -> io::Result<()> {
        self.running.observations(payload);
        Ok(())
    }

    fn mapped(&mut self, files: &[MappedFile]) -> io::Result<()> {
        self.running.mapped(files);
        Ok(())
    }

    fn mark(&mut self, mark: &Mark, _ticket: u64) -> io::Result<()> {
        let header = BlockHeader::plain(BlockKind::Marks);
        self.file.kept.extend(block(&mut self.file.packer, header, &marks::encode(std::slice::from_ref(mark)))?);
        Ok(())
    }

    fn wants_watermarks(&self) -> bool {
        true
    }

    fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        self.running.watermark(before_ticket, busy)?;
        self.running.take_windows().into_iter().for_each(|window| self.windows.add(window));
        Ok(())
    }

    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        self.running.replaced(ticket);
        Ok(())
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        if let Some(frames) = self.running.frames() {
            self.file.add_sources(self.sources.as_mut(), frames)?;
        }
        self.forget_copies();
        if Instant::now() < self.next_checkpoint {
            return Ok(());
        }
        let before_ns = thread_processor_ns();
        let Some(mut now) = self.running.now() else { return Ok(()) };
        now.analysis.windows = self.windows.with_open(now.open_window);
        self.file.write(now.process, now.analysis, now.frames, now.threads, false)?;
        // Where the disk is busy, the wait for it is no reason to wait longer.
        let taken = Duration::from_nanos(thread_processor_ns().saturating_sub(before_ns));
        self.next_checkpoint = Instant::now() + INTERVAL.max(taken * TIME_PART);
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.next_checkpoint = Instant::now();
        self.checkpoint()
    }

    /// The sums so far, in a file of their own, since the capture is rewritten in place.
    fn snapshot(&mut self, process: &Process) -> io::Result<SnapshotCopy> {
        let mut now = self.running.now().ok_or(io::ErrorKind::NotFound)?;
        now.analysis.windows = self.windows.with_open(now.open_window.take());
        let mut process_now = now.process.clone();
        process_now.update(&process.encode());
        process_now.packages = packages(now.frames);
        // The sums are of these events only.
        process_now.snapshot_ticket = None;
        let bytes = self.file.encode(&process_now, now.analysis, now.frames, now.threads, true)?;
        let mut file = tempfile::tempfile()?;
        file.write_all(&header::encode())?;
        file.write_all(&bytes)?;
        let length = (header::LEN + bytes.len()) as u64;
        let descriptor = file.as_raw_fd();
        self.snapshots.push((file, Instant::now()));
        self.forget_copies();
        SnapshotCopy::of(descriptor, length, Vec::new())
    }

    fn finish(&mut self, complete: bool) -> io::Result<()> {
        let Some((mut analysis, read)) = self.running.finish()? else { return Ok(()) };
        self.running.take_windows().into_iter().for_each(|window| self.windows.add(window));
        analysis.windows = self.windows.with_open(None);
        let process = Process { packages: packages(&read.frames), ..self.running.process.clone() };
        self.file.add_sources(self.sources.as_mut(), &read.frames)?;
        self.file.write(&process, analysis, &read.frames, &read.threads, complete)
    }
}

/// The file of an aggregated capture.
struct SumsFile {
    file: File,
    packer: Packer,
    /// Blocks with source lines and marks.
    kept: Vec<u8>,
    /// Number of frames whose lines are in `kept`.
    frames: usize,
    /// Start offset of the current checkpoint.
    newest: u64,
    /// Its end offset.
    end: u64,
    /// Number of the next checkpoint; readers take the highest complete one.
    round: u32,
}

impl SumsFile {
    /// Reads the source lines of new frames.
    fn add_sources(&mut self, sources: Option<&mut SourceRecorder>, frames: &Frames) -> io::Result<()> {
        let Some(sources) = sources else { return Ok(()) };
        for id in (0..).take(frames.frames().len()).skip(self.frames).map(FrameId) {
            sources.add(frames.file(id).as_bytes(), frames.frame(id).line);
        }
        self.frames = frames.frames().len();
        for payload in sources.take() {
            self.kept.extend(block(&mut self.packer, BlockHeader::plain(BlockKind::Sources), &payload)?);
        }
        Ok(())
    }

    fn write(
        &mut self,
        process: &Process,
        analysis: Analysis,
        frames: &Frames,
        threads: &[Thread],
        complete: bool,
    ) -> io::Result<()> {
        let bytes = self.encode(process, analysis, frames, threads, complete)?;
        self.put(&bytes)
    }

    /// The blocks of a checkpoint.
    fn encode(
        &mut self,
        process: &Process,
        analysis: Analysis,
        frames: &Frames,
        threads: &[Thread],
        complete: bool,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = block(&mut self.packer, BlockHeader::plain(BlockKind::Process), &process.encode())?;
        bytes.extend_from_slice(&self.kept);
        let payload = payload(analysis, frames, threads);
        // `..=`: a part shorter than PART marks the end, so a payload that is a multiple of PART ends with an empty
        // one.
        for offset in (0..=payload.len()).step_by(PART) {
            let part = payload.get(offset..payload.len().min(offset + PART)).unwrap_or_default();
            let place = u32::try_from(offset).map_err(|_| too_large())?;
            let header = BlockHeader { segment: self.round, offset: place, ..BlockHeader::plain(BlockKind::Aggregate) };
            bytes.extend(block(&mut self.packer, header, part)?);
        }
        if complete {
            bytes.extend(block(&mut self.packer, BlockHeader::plain(BlockKind::End), &[])?);
        }
        self.round += 1;
        Ok(bytes)
    }

    /// Writes before the current checkpoint if there is room, otherwise after it.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let start = header::LEN as u64;
        let len = bytes.len() as u64;
        let at = if start + len <= self.newest { start } else { self.end };
        self.file.write_all_at(bytes, at)?;
        (self.newest, self.end) = (at, at + len);
        // Only regular files are truncated.
        if at == start && self.file.metadata()?.is_file() { self.file.set_len(self.end) } else { Ok(()) }
    }
}

/// The package directories of Python's files.
fn packages(frames: &Frames) -> Vec<Vec<u8>> {
    let mut packages = Packages::default();
    frames.names().filter(|name| name.ends_with(".py")).for_each(|file| packages.check_file(file.as_bytes()));
    packages.take_changed().unwrap_or_default()
}

/// The encoded aggregate. Snapshots are thinned out: a run of days has millions.
fn payload(mut analysis: Analysis, frames: &Frames, threads: &[Thread]) -> Vec<u8> {
    while analysis.snapshots.len() > MAX_SNAPSHOTS {
        analysis.snapshots.retain(|snapshot| snapshot.index.is_multiple_of(2));
        (0..).zip(&mut analysis.snapshots).for_each(|(index, snapshot)| snapshot.index = index);
    }
    aggregate::save(&analysis, frames, threads).encode()
}

fn block(packer: &mut Packer, header: BlockHeader, payload: &[u8]) -> io::Result<Vec<u8>> {
    let (codec, stored) = packer.pack(header.kind, payload, &[]);
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).ok().filter(|&len| len <= MAX_RAW).ok_or_else(too_large);
    let header = BlockHeader {
        codec,
        raw_len: length(payload)?,
        stored_len: length(stored)?,
        payload_crc: crc32(stored),
        ..header
    };
    let mut bytes = Vec::with_capacity(HEADER_LEN + stored.len());
    bytes.extend(header.encode());
    bytes.extend_from_slice(stored);
    Ok(bytes)
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "too many distinct call stacks for an aggregated capture")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use memtrack_format::aggregate::Aggregate;
    use memtrack_format::meta::Process;
    use memtrack_reader::source::CaptureReader;
    use memtrack_reader::{Analysis, Frames, Snapshot, Thread};
    use tempfile::NamedTempFile;

    use super::{Compression, MAX_SNAPSHOTS, SumsSink, payload};

    fn saved(file: &NamedTempFile) -> (CaptureReader, Aggregate) {
        let capture = CaptureReader::open(file.path()).unwrap();
        let aggregate = Aggregate::decode(&capture.aggregate().unwrap().unwrap()).unwrap();
        (capture, aggregate)
    }

    /// The newest checkpoint is read whatever the sizes are, and the file contains only a few.
    #[test]
    fn checkpoints_replace_each_other() {
        let file = NamedTempFile::new().unwrap();
        let mut sink = SumsSink::new(file.reopen().unwrap(), Compression::default(), false, None).unwrap();
        let process = Process { pid: Some(7), ..Process::default() };
        for (round, threads) in [3, 40, 2, 90, 90, 90, 1, 200].into_iter().enumerate() {
            let threads = vec![Thread { tid: 7, name: format!("round {round}"), ..Thread::default() }; threads];
            sink.file.write(&process, Analysis::default(), &Frames::new(), &threads, false).unwrap();
            let (capture, aggregate) = saved(&file);
            assert_eq!(aggregate.threads.last().unwrap().1, format!("round {round}"));
            assert_eq!((capture.lost().bytes, capture.process().pid), (0, Some(7)));
        }
        sink.file.write(&process, Analysis::default(), &Frames::new(), &[], true).unwrap();
        assert!(saved(&file).0.complete());
    }

    /// After a kill in the middle of a write, the previous checkpoint is read.
    #[test]
    fn a_cut_checkpoint_leaves_the_one_before() {
        let mut file = NamedTempFile::new().unwrap();
        let mut sink = SumsSink::new(file.reopen().unwrap(), Compression::default(), false, None).unwrap();
        let thread = Thread { tid: 7, name: "first".into(), ..Thread::default() };
        sink.file.write(&Process::default(), Analysis::default(), &Frames::new(), &[thread], false).unwrap();
        file.as_file_mut().set_len(sink.file.end).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        file.write_all(&[&whole[..], &whole[16..whole.len() - 5]].concat()).unwrap();
        assert_eq!(saved(&file).1.threads[0].1, "first");
    }

    #[test]
    fn a_long_run_is_thinned_out_to_fit() {
        let snapshot =
            |index: u32| Snapshot { index, time_ns: u64::from(index) << 32, rss_bytes: 1 << 40, ..Snapshot::default() };
        let analysis = Analysis { snapshots: (0..1_200_000).map(snapshot).collect(), ..Analysis::default() };
        let payload = payload(analysis, &Frames::new(), &[]);
        let kept = Aggregate::decode(&payload).unwrap().snapshots;
        assert!(kept.len() <= MAX_SNAPSHOTS && kept.len() >= 300_000 && kept[0].time_ns == 0, "{}", kept.len());
    }

    #[test]
    fn what_no_block_can_hold_is_written_in_parts() {
        let file = NamedTempFile::new().unwrap();
        let mut sink = SumsSink::new(file.reopen().unwrap(), Compression::default(), false, None).unwrap();
        let threads: Vec<_> = (0..400_000)
            .map(|tid| Thread { tid, name: format!("a thread of many, {tid}"), ..Thread::default() })
            .collect();
        for complete in [false, true] {
            sink.file.write(&Process::default(), Analysis::default(), &Frames::new(), &threads, complete).unwrap();
            let (capture, aggregate) = saved(&file);
            assert_eq!((aggregate.threads.len(), capture.complete()), (400_000, complete));
        }
    }
}
