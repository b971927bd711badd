//! Sinks that are slow, and that verify watermarks.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use memtrack_format::meta::Process;

use super::{directory, eventually, noise, start_with};
use crate::fake_target::FakeTarget;
use crate::{Error, RecordPiece, RecordingEnd, RecordingOptions, Sink, SnapshotCopy};

/// Blocks before the first record, then compares lengths and a checksum.
struct Slow {
    go: mpsc::Receiver<()>,
    done: mpsc::Sender<(u64, u64)>,
    sum: (u64, u64),
}

/// Adds bytes to a length and a checksum.
fn add(sum: (u64, u64), bytes: &[u8]) -> (u64, u64) {
    let fold = |sum: u64, &byte: &u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    (sum.0 + bytes.len() as u64, bytes.iter().fold(sum.1, fold))
}

impl Sink for Slow {
    fn process(&mut self, _: &Process) -> io::Result<()> {
        Ok(())
    }

    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()> {
        if self.sum.0 == 0 {
            self.go.recv().unwrap();
        }
        self.sum = add(self.sum, piece.bytes);
        Ok(())
    }

    fn observations(&mut self, _: &[u8], _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: bool) -> io::Result<()> {
        self.done.send(self.sum).map_err(io::Error::other)
    }
}

#[test]
fn a_slow_sink_makes_the_target_wait_and_loses_nothing() {
    let dir = directory();
    let (go, wait) = mpsc::channel();
    let (done, result) = mpsc::channel();
    let sink = Slow { go: wait, done, sum: (0, 0) };
    let collector = start_with(dir.path(), RecordingOptions::default(), Box::new(sink));
    let target = FakeTarget::start(collector.socket_path());
    let area = Arc::clone(&target.area);
    let thread = std::thread::spawn(move || {
        let mut writer = target.writer();
        let part = noise(8, 64_000);
        (0..1500).fold((0, 0), |sum, _| {
            writer.write(&part);
            add(sum, &part)
        })
    });
    eventually("a wait", || area.control().waits.load(SeqCst) > 0);
    assert!(!thread.is_finished());
    go.send(()).unwrap();
    let written = thread.join().unwrap();
    let summary = collector.finish(RecordingEnd::Exited).unwrap();
    assert_eq!(result.recv().unwrap(), written);
    assert_eq!(summary.record_bytes, written.0);
    assert!(summary.process.unwrap().waits.count > Some(0));
}

/// Verifies watermarks: after one, only busy streams may have records with earlier tickets.
#[derive(Default)]
struct Strict {
    /// Not in each round, but before checkpoints.
    rare: bool,
    limits: BTreeMap<u32, u64>,
    all: u64,
    open: BTreeMap<u32, Vec<u8>>,
    reached: BTreeMap<u32, u64>,
    report: Arc<Mutex<(u64, u64, u64)>>,
}

impl Sink for Strict {
    fn process(&mut self, _: &Process) -> io::Result<()> {
        Ok(())
    }

    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()> {
        let open = self.open.entry(piece.stream).or_default();
        open.extend_from_slice(piece.bytes);
        let mut report = self.report.lock().unwrap();
        for record in open.chunks_exact(8) {
            let ticket = u64::from_le_bytes(record.try_into().unwrap());
            assert!((piece.first_ticket..=piece.last_ticket).contains(&ticket));
            let limit = *self.limits.get(&piece.stream).unwrap_or(&self.all);
            report.0 += 1;
            report.1 += u64::from(ticket <= limit);
            self.reached.insert(piece.stream, ticket);
        }
        open.clear();
        Ok(())
    }

    fn observations(&mut self, _: &[u8], _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn wants_watermarks(&self) -> bool {
        !self.rare
    }

    fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        assert!(before_ticket > self.all && busy.is_sorted());
        let limit = |stream: u32| *self.limits.get(&stream).unwrap_or(&self.all);
        self.limits = busy.iter().map(|&stream| (stream, limit(stream))).collect();
        self.all = before_ticket;
        self.report.lock().unwrap().2 += 1;
        Ok(())
    }

    fn finish(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn quiet_streams_bring_later_tickets_only() {
    later_tickets_only(false);
}

#[test]
fn the_same_with_watermarks_at_checkpoints() {
    later_tickets_only(true);
}

fn later_tickets_only(rare: bool) {
    let dir = directory();
    let sink = Strict { rare, ..Strict::default() };
    let report = Arc::clone(&sink.report);
    let options = RecordingOptions { checkpoint: Duration::from_millis(5), ..RecordingOptions::default() };
    let collector = start_with(dir.path(), options, Box::new(sink));
    let target = FakeTarget::start(collector.socket_path());
    let record = |events: u32| {
        let mut writer = target.writer();
        for _ in 0..events {
            writer.event(|ticket| ticket.to_le_bytes().to_vec());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| record(300_000));
        scope.spawn(|| record(300_000));
        // Short-lived threads: their first ticket is taken in a slot that the collector has not yet read.
        (0..300).for_each(|_| scope.spawn(|| record(1000)).join().unwrap());
    });
    collector.finish(RecordingEnd::Exited).unwrap();
    let (records, early, rounds) = *report.lock().unwrap();
    assert_eq!((records, early), (900_000, 0));
    assert!(rounds > 10, "{rounds} rounds");
}

/// Its medium fails while a snapshot is written out.
#[derive(Default)]
struct Failing {
    has_records: bool,
    written_behind: Arc<AtomicBool>,
}

impl Sink for Failing {
    fn process(&mut self, _: &Process) -> io::Result<()> {
        Ok(())
    }

    fn records(&mut self, _: &RecordPiece<'_>) -> io::Result<()> {
        self.written_behind.store(self.has_records, SeqCst);
        self.has_records = true;
        Ok(())
    }

    fn observations(&mut self, _: &[u8], _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        if self.has_records { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn snapshot(&mut self, _: &Process) -> io::Result<SnapshotCopy> {
        self.checkpoint()?;
        Err(io::ErrorKind::Unsupported.into())
    }

    fn finish(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_is_written_behind_a_snapshot_that_could_not_be() {
    let dir = directory();
    let sink = Failing::default();
    let written_behind = Arc::clone(&sink.written_behind);
    let options = RecordingOptions { checkpoint: Duration::from_secs(3600), ..RecordingOptions::default() };
    let collector = start_with(dir.path(), options, Box::new(sink));
    let target = FakeTarget::start(collector.socket_path());
    target.writer().write(&noise(8, 1000));
    // With the first records.
    let refusal = loop {
        match collector.handle().snapshot(0) {
            Err(refusal) if refusal.contains("regular file") => std::thread::yield_now(),
            other => break other.unwrap_err(),
        }
    };
    assert!(refusal.contains("cannot be written"), "{refusal}");
    target.writer().write(&noise(8, 1000));
    assert!(matches!(collector.finish(RecordingEnd::Exited), Err(Error::Sink(_))));
    assert!(!written_behind.load(SeqCst));
}
