//! The collector against a target that follows the protocol, one that does not, and sinks that fail or are slow.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memtrack_format::block::{BlockHeader, BlockKind, Codec, HEADER_LEN, prefix};
use memtrack_format::header;
use memtrack_format::marks::{self, Mark};
use memtrack_format::meta::{Process, PythonVersion};
use memtrack_format::observe::{Observation, ObservationReader};
use memtrack_format::record_columns::{MAX_HEAD, join};
use memtrack_format::resident::ResidentAccount;
use memtrack_format::watermark;
use memtrack_transport::layout::{SEGMENT_ROOM, SLOT_COUNTS, image, state};

use crate::fake_target::{FakeTarget, HANGS};
use crate::{Collector, Error, FileSink, NothingRecorded, ProcessExit, RecordingEnd, RecordingOptions, Sink};

mod given;
mod sinks;

/// An in-memory file that a test can read while it is written, and that can be full.
#[derive(Clone, Default)]
struct Medium {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: Option<usize>,
    /// A write without room is a bug.
    panics: bool,
}

impl Write for Medium {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.bytes.lock().unwrap();
        let fits = self.room.map_or(bytes.len(), |room| room.saturating_sub(all.len()).min(bytes.len()));
        if fits == 0 && !bytes.is_empty() {
            drop(all);
            assert!(!self.panics, "no room");
            return Err(io::ErrorKind::StorageFull.into());
        }
        all.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A parsed capture.
#[derive(Default)]
struct ParsedCapture {
    streams: BTreeMap<u32, Vec<u8>>,
    process: Process,
    observations: Vec<Observation>,
    watermarks: Vec<u64>,
    marks: Vec<Mark>,
    pictures: Vec<(u64, Vec<u8>)>,
    complete: bool,
}

impl Medium {
    /// Parses what was written so far; asserts that groups and pieces are consecutive.
    fn read(&self) -> ParsedCapture {
        let bytes = self.bytes.lock().unwrap().clone();
        assert_eq!(header::decode(&bytes), Ok(header::VERSION));
        let mut capture = ParsedCapture::default();
        let mut places = BTreeMap::<u32, (u32, u32, u64)>::new();
        let mut accounts = Vec::new();
        let mut rest = &bytes[header::LEN..];
        while let Ok(header) = BlockHeader::decode(rest) {
            let Some(stored) = rest[HEADER_LEN..].get(..header.stored_len as usize) else { break };
            assert!(header.fits(stored));
            let payload = match header.codec {
                Codec::Stored => stored.to_vec(),
                Codec::Zstd => zstd::bulk::decompress(stored, header.raw_len as usize).unwrap(),
                Codec::ZstdPrefix => {
                    let is_account = header.kind == BlockKind::Resident;
                    let stream = if is_account { &accounts } else { &capture.streams[&header.stream] };
                    let mut payload = vec![0; header.raw_len as usize];
                    let mut context = zstd::zstd_safe::DCtx::create();
                    context.ref_prefix(prefix(&stream[stream.len() - header.offset as usize..])).unwrap();
                    assert_eq!(context.decompress(payload.as_mut_slice(), stored), Ok(payload.len()));
                    payload
                }
                Codec::ZstdColumns => {
                    let room = header.raw_len as usize + MAX_HEAD;
                    let (columns, mut payload) =
                        (zstd::bulk::decompress(stored, room).unwrap(), vec![0; header.raw_len as usize]);
                    join(&columns, &mut payload).unwrap();
                    payload
                }
                Codec::Lz4Columns => panic!("no test asks for LZ4"),
                Codec::Lz4 => lz4_flex::block::decompress(stored, header.raw_len as usize).unwrap(),
            };
            rest = &rest[HEADER_LEN + stored.len()..];
            if header.kind == BlockKind::Resident {
                accounts.extend_from_slice(&payload);
            }
            match header.kind {
                BlockKind::Process => assert!(capture.process.update(&payload)),
                BlockKind::Observations => capture.observations.extend(ObservationReader::new(&payload)),
                BlockKind::Records => {
                    let (segment, end, ticket) = places.get(&header.stream).copied().unwrap_or_default();
                    let follows = (header.segment, header.offset) == (segment, end);
                    assert!(
                        follows || header.segment > segment && header.offset == 0,
                        "{header:?} after {segment} {end}"
                    );
                    assert!(header.first_ticket >= ticket && header.last_ticket >= header.first_ticket);
                    places.insert(header.stream, (header.segment, header.offset + header.raw_len, header.first_ticket));
                    capture.streams.entry(header.stream).or_default().extend(payload);
                }
                BlockKind::Marks => capture.marks.extend(marks::decode(&payload).unwrap()),
                BlockKind::Objects => capture.pictures.push((header.first_ticket, payload)),
                BlockKind::Resident => assert!(ResidentAccount::decode(&payload).is_some()),
                BlockKind::End => capture.complete = true,
                BlockKind::Watermark => {
                    assert!(header.first_ticket > capture.watermarks.last().copied().unwrap_or(0));
                    assert!(watermark::decode(&payload).is_some());
                    capture.watermarks.push(header.first_ticket);
                }
                BlockKind::Aggregate
                | BlockKind::Mapped
                | BlockKind::Members
                | BlockKind::Symbols
                | BlockKind::Sources => {
                    panic!("not in a capture of records")
                }
            }
        }
        capture
    }
}

fn start(dir: &Path, medium: &Medium) -> Collector {
    start_with(dir, RecordingOptions::default(), Box::new(FileSink::new(medium.clone()).unwrap()))
}

fn start_with(dir: &Path, options: RecordingOptions, sink: Box<dyn Sink>) -> Collector {
    Collector::start(dir, options, sink).unwrap()
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Bytes that do not repeat soon.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Half of it compresses.
        if state & 1 == 0 { 0 } else { (state >> 32) as u8 }
    };
    (0..len).map(|_| step()).collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + HANGS;
    while !holds() {
        assert!(Instant::now() < limit, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_byte_of_every_thread_arrives_in_order() {
    let (dir, medium) = (directory(), Medium::default());
    let collector = start(dir.path(), &medium);
    let target = FakeTarget::start(collector.socket_path());
    let written = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|seed| {
                let target = &target;
                scope.spawn(move || {
                    let mut writer = target.writer();
                    let all = noise(seed, 5_000_000);
                    all.chunks(1 + 997 * seed as usize).for_each(|part| writer.write(part));
                    (writer.slot, all)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<BTreeMap<_, _>>()
    });
    collector.child_exited(ProcessExit {
        status: 3,
        cpu_ns: Some(77),
        resident_peak: Some(1 << 40),
        ..ProcessExit::default()
    });
    let summary = collector.finish(RecordingEnd::Exited).unwrap();
    assert_eq!((summary.record_bytes, summary.nothing, summary.complete), (20_000_000, None, true));
    let capture = medium.read();
    assert!(capture.complete);
    assert!(capture.streams == written, "streams differ");
    assert_eq!((capture.process.exit_status, capture.process.cpu_ns), (Some(3), Some(77)));
    // Without the pages of the shared memory.
    let resident = capture.process.resident_peak.unwrap();
    assert!(((1 << 40) - (9 << 20)..1 << 40).contains(&resident), "{resident}");
    assert_eq!(capture.process.record_bytes, Some(20_000_000));
    assert!(capture.process.collector_cpu_ns > Some(0));
    assert_eq!(capture.process.pid, Some(std::process::id()));
    assert!(capture.process.end.monotonic_ns > capture.process.start.monotonic_ns);
    assert_eq!(summary.process, Some(capture.process));
}

#[test]
fn ticks_and_snapshots_rise_and_tell_this_process() {
    let (dir, medium, begun) = (directory(), Medium::default(), Instant::now());
    let collector = start(dir.path(), &medium);
    let target = FakeTarget::start(collector.socket_path());
    let mut writer = target.writer();
    // An event has a ticket of its own where the collector has taken one since the last. However long it takes on a busy machine
    // until that has been ten times:
    let (mut events, mut tickets) = (0, BTreeSet::new());
    eventually("ten ticks", || {
        events += 1;
        tickets.insert(writer.event(|_| noise(events, 100)));
        events >= 50 && tickets.len() > 10
    });
    collector.finish(RecordingEnd::Exited).unwrap();
    // One for each interval, at the beginning, and at the end.
    let interval = RecordingOptions::default().snapshot_interval;
    let most = begun.elapsed().as_millis() / interval.as_millis() + 3;
    let capture = medium.read();
    let ticks: Vec<_> = capture
        .observations
        .iter()
        .filter_map(|seen| match seen {
            Observation::Tick(tick) | Observation::Snapshot { tick, .. } => Some(*tick),
            Observation::Thread { .. } | Observation::Counted(_) => None,
        })
        .collect();
    assert!(ticks.is_sorted_by(|a, b| a.ticket < b.ticket && a.time_ns <= b.time_ns));
    assert!(ticks.len() >= 10, "{} ticks", ticks.len());
    let snapshots = capture
        .observations
        .iter()
        .filter(|seen| matches!(seen, Observation::Snapshot { rss, .. } if *rss > 1_000_000))
        .count();
    assert!((2..=most).contains(&(snapshots as u128)), "{snapshots}, at most {most}");
    let name = |seen: &Observation| matches!(seen, Observation::Thread { name, .. } if !name.is_empty());
    // Of the process's first thread, and of the one that records.
    assert_eq!(capture.observations.iter().filter(|seen| name(seen)).count(), 2);
}

#[test]
fn an_unfinished_segment_can_be_read_while_it_is_written() {
    let (dir, medium) = (directory(), Medium::default());
    let options = RecordingOptions { checkpoint: Duration::from_millis(20), ..RecordingOptions::default() };
    let collector = start_with(dir.path(), options, Box::new(FileSink::new(medium.clone()).unwrap()));
    let target = FakeTarget::start(collector.socket_path());
    let mut writer = target.writer();
    writer.write(b"one");
    eventually("the first piece", || medium.read().streams.get(&0).is_some_and(|bytes| bytes == b"one"));
    target.area.control().python_version.store(0x030b_0700, SeqCst);
    writer.write(b"two");
    eventually("the second piece", || medium.read().streams[&0] == b"onetwo");
    // A piece is in the file a moment before its watermark.
    eventually("their watermarks", || medium.read().watermarks.len() >= 2);
    eventually("the version", || medium.read().process.python_version == Some(PythonVersion { hex: 0x030b_0700 }));
    assert!(!medium.read().complete);
    drop(target);
    collector.finish(RecordingEnd::Detached).unwrap();
    assert!(!medium.read().complete);
}

#[test]
fn unpublished_bytes_of_a_vanished_target_are_left_out() {
    let (dir, medium) = (directory(), Medium::default());
    let collector = start(dir.path(), &medium);
    let target = FakeTarget::start(collector.socket_path());
    let all = noise(1, SEGMENT_ROOM + 1000);
    let mut writer = target.writer();
    all.chunks(50).for_each(|part| writer.write(part));
    let slot = target.area.slot(0).unwrap();
    slot.busy.store(1, SeqCst);
    let room = target.area.segment_room(0, slot.current.load(SeqCst) - 1).unwrap();
    // SAFETY: inside the segment, which nobody else writes.
    let beyond = unsafe { room.add(20_000) };
    // SAFETY: the address is inside the segment, behind its published records, where no other thread writes.
    unsafe { beyond.write(7) };
    collector.child_exited(ProcessExit { status: 137, ..ProcessExit::default() });
    collector.finish(RecordingEnd::Exited).unwrap();
    let capture = medium.read();
    assert!(capture.streams[&0] == all);
    assert_eq!(capture.process.exit_status, Some(137));
    assert_eq!(target.area.control().state.load(SeqCst), state::CLOSED);
}

/// Writes a segment and a half, lets `damage` change the shared memory, writes on; returns what arrived and the notes.
fn damaged(damage: impl Fn(&FakeTarget)) -> (ParsedCapture, Vec<u8>, Vec<String>) {
    let (dir, medium) = (directory(), Medium::default());
    let options = RecordingOptions { checkpoint: Duration::from_millis(5), ..RecordingOptions::default() };
    let collector = start_with(dir.path(), options, Box::new(FileSink::new(medium.clone()).unwrap()));
    let target = FakeTarget::start(collector.socket_path());
    let all = noise(5, SEGMENT_ROOM * 3 / 2);
    let mut writer = target.writer();
    all.chunks(100).for_each(|part| writer.write(part));
    eventually("saving", || medium.read().streams.get(&0).is_some_and(|saved| saved.len() == all.len()));
    damage(&target);
    let mut other = target.writer();
    other.write(b"other");
    let notes = collector.finish(RecordingEnd::Exited).unwrap().notes;
    (medium.read(), all, notes)
}

#[test]
fn hostile_words_cost_their_slot_only() {
    let current = |target: &FakeTarget| target.area.slot(0).unwrap().current.load(SeqCst) - 1;
    let header = |target: &FakeTarget, change: &dyn Fn(&memtrack_transport::layout::SegmentHeader)| {
        change(target.area.segment(0, current(target)).unwrap());
    };
    type Damage<'a> = &'a dyn Fn(&FakeTarget);
    let cases: [(&str, Damage<'_>); 4] = [
        ("out of sequence", &|target| header(target, &|header| header.number.store(77, SeqCst))),
        ("index out of range", &|target| header(target, &|header| header.next.store(u32::MAX, SeqCst))),
        ("out of sequence", &|target| header(target, &|header| header.next.store(9, SeqCst))),
        ("fill level decreased", &|target| header(target, &|header| header.fill.store(1, SeqCst))),
    ];
    for (reason, damage) in cases {
        let (capture, all, notes) = damaged(damage);
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains(reason), "{notes:?}");
        assert!(!capture.complete);
        assert!(all.starts_with(&capture.streams[&0]), "{reason}");
        assert_eq!(capture.streams[&1], b"other");
    }
}

#[test]
fn a_fill_level_beyond_the_segment_is_clamped() {
    let (capture, all, notes) = damaged(|target| {
        let current = target.area.slot(0).unwrap().current.load(SeqCst) - 1;
        target.area.segment(0, current).unwrap().fill.store(u32::MAX, SeqCst);
    });
    assert!(notes.is_empty());
    assert!(capture.streams[&0].starts_with(&all));
    // The first segment ends where the next event did not fit.
    assert_eq!(capture.streams[&0].len(), SEGMENT_ROOM / 100 * 100 + SEGMENT_ROOM);
}

#[test]
fn a_full_disk_stops_the_recording_and_never_the_target() {
    let (dir, medium) = (directory(), Medium { room: Some(1_000_000), ..Medium::default() });
    let collector = start(dir.path(), &medium);
    let target = FakeTarget::start(collector.socket_path());
    let mut writer = target.writer();
    let all = noise(3, 12_000_000);
    all.chunks(1000).for_each(|part| writer.write(part));
    eventually("closing", || target.area.control().state.load(SeqCst) == state::CLOSED);
    let failed = collector.finish(RecordingEnd::Exited);
    assert!(matches!(failed, Err(Error::Sink(error)) if error.kind() == io::ErrorKind::StorageFull));
    let capture = medium.read();
    assert!(!capture.complete);
    assert!(all.starts_with(&capture.streams[&0]));
    assert!(capture.streams[&0].len() > 1_000_000);
}

#[test]
fn a_panic_stops_the_recording_and_never_the_target() {
    let (dir, medium) = (directory(), Medium { room: Some(1_000_000), panics: true, ..Medium::default() });
    let collector = start(dir.path(), &medium);
    let target = FakeTarget::start(collector.socket_path());
    let mut writer = target.writer();
    noise(3, 12_000_000).chunks(1000).for_each(|part| writer.write(part));
    eventually("closing", || target.area.control().state.load(SeqCst) == state::CLOSED);
    let failed = collector.finish(RecordingEnd::Exited).unwrap_err();
    assert!(failed.to_string().contains("panicked"), "{failed}");
    assert_eq!(medium.read().process.exit_status, None);
}

fn is_named(medium: &Medium, wanted: &str) -> bool {
    let seen = medium.read().observations;
    seen.iter().any(|seen| matches!(seen, Observation::Thread { name, .. } if name == wanted))
}

#[test]
fn slots_of_ended_threads_are_used_again() {
    let (dir, medium) = (directory(), Medium::default());
    let options = RecordingOptions { checkpoint: Duration::from_millis(5), ..RecordingOptions::default() };
    let collector = start_with(dir.path(), options, Box::new(FileSink::new(medium.clone()).unwrap()));
    let target = Arc::new(FakeTarget::start(collector.socket_path()));
    let mut main = target.writer();
    let mut highest = 0;
    for round in 0..30_u8 {
        main.write(&[round]);
        let (target, medium) = (Arc::clone(&target), medium.clone());
        let area = Arc::clone(&target.area);
        let name = format!("worker {round}");
        let thread = std::thread::Builder::new().name(name.clone());
        let run = move || {
            let mut writer = target.writer();
            writer.write(&[round]);
            eventually("the name", || is_named(&medium, &name));
            writer.slot
        };
        let slot = thread.spawn(run).unwrap().join().unwrap();
        eventually("the slot's release", || area.slot(slot).unwrap().owner.load(SeqCst) == 0);
        highest = highest.max(slot);
    }
    let summary = collector.finish(RecordingEnd::Exited).unwrap();
    assert_eq!(highest, 1, "the lowest free slot each time");
    assert_eq!(summary.record_bytes, 60);
    let capture = medium.read();
    let mut workers: Vec<u8> = (1..).map_while(|stream| capture.streams.get(&stream)).flatten().copied().collect();
    workers.sort_unstable();
    assert_eq!(workers, (0..30).collect::<Vec<u8>>());
}

#[test]
fn an_idle_target_lets_the_collector_sleep_and_wakes_it() {
    let (dir, medium) = (directory(), Medium::default());
    let options = RecordingOptions { snapshot_interval: Duration::from_secs(60), ..RecordingOptions::default() };
    let collector = start_with(dir.path(), options, Box::new(FileSink::new(medium.clone()).unwrap()));
    let target = FakeTarget::start(collector.socket_path());
    let mut writer = target.writer();
    let control = target.area.control();
    let mut wake = || {
        let mut awake = None;
        eventually("sleep", || {
            let now = Instant::now();
            let sleeps = control.sleeping.0.load(SeqCst) == 1;
            awake = if sleeps { awake } else { Some(now) };
            sleeps
        });
        std::thread::sleep(Duration::from_millis(5));
        let mine = writer.event(|_| b"y".to_vec());
        eventually("a tick", || control.ticket.0.load(SeqCst) >> 16 > mine);
        awake.map_or(Duration::MAX, |awake| awake.elapsed())
    };
    // Without being woken it would sleep for 100 ms from when it was last awake, however late this thread is itself. On a busy
    // machine it may have to wait for a processor, but not always.
    let tries = (1..=50).find(|_| wake() < Duration::from_millis(50));
    assert_eq!(Some(collector.finish(RecordingEnd::Exited).unwrap().record_bytes), tries);
}

#[test]
fn others_are_refused_and_a_smaller_memory_is_offered() {
    let (dir, medium) = (directory(), Medium::default());
    let collector = start(dir.path(), &medium);
    for slots in SLOT_COUNTS {
        assert_eq!(FakeTarget::connect(collector.socket_path()).unwrap().area.slot_count(), slots);
    }
    assert!(FakeTarget::connect(collector.socket_path()).is_err());
    let summary = collector.finish(RecordingEnd::Exited).unwrap();
    assert_eq!((summary.nothing, summary.refused), (Some(NothingRecorded::NotBegun), 1));
}

#[test]
fn only_the_expected_child_is_served_and_silence_is_explained() {
    let (dir, medium) = (directory(), Medium::default());
    let collector = start(dir.path(), &medium);
    collector.expect_child(1);
    assert!(FakeTarget::connect(collector.socket_path()).is_err());
    let socket = collector.socket_path().to_owned();
    let summary = collector.finish(RecordingEnd::Exited).unwrap();
    assert_eq!(summary.nothing, Some(NothingRecorded::NotLoaded));
    assert!(summary.process.is_none() && !socket.exists());
}

#[test]
fn the_next_image_of_an_exec_continues_the_capture() {
    let (dir, medium) = (directory(), Medium::default());
    let collector = start(dir.path(), &medium);
    let first = FakeTarget::start(collector.socket_path());
    first.writer().write(b"first");
    assert!(FakeTarget::connect(collector.socket_path()).is_err());
    first.area.control().image.store(image::IN_EXEC, SeqCst);
    let last = first.area.control().ticket.0.load(SeqCst) >> 16;
    let second = FakeTarget::start(collector.socket_path());
    assert!(second.writer().event(|_| b"second".to_vec()) > last);
    collector.finish(RecordingEnd::Exited).unwrap();
    let capture = medium.read();
    assert_eq!(capture.streams.into_values().collect::<Vec<_>>(), [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn a_long_path_is_refused_with_its_length() {
    let dir = directory().path().join("x".repeat(120));
    let refused = Collector::start(&dir, RecordingOptions::default(), Box::new(FileSink::new(io::sink()).unwrap()));
    assert!(matches!(refused, Err(Error::LongPath { len, .. }) if len > 120));
}
