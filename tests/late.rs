//! Recording that begins and ends in a running program, again and again, by the library's exports (`fixtures/late.c`): what
//! is recorded of each span is what the program has counted, and the program finds itself as it was before.
//!
//! The test is the collector. Invariant: it reads the shared memory by the protocol of `transport`, and nothing else.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use memtrack_format::record::{Decoder, Record};
use memtrack_transport::handshake::DORMANT_VARIABLE;
use memtrack_transport::layout::{state, stop_reason};
use memtrack_transport::segment_chain::ChainReader;
use memtrack_transport::{Area, futex};

use crate::support::{Dir, memtrack};

/// Blocks of this size and above are those that the program counts.
const COUNTED: u64 = 5000;
const SLOTS: u32 = 64;

/// Where memtrack keeps the library that it preloads; any recording puts it there.
fn library(dir: &Dir) -> PathBuf {
    dir.memtrack(["run", "-q", "-o", "first.bin", "--", "true"]).status().expect("memtrack runs");
    let output = memtrack().arg("--version").output().expect("memtrack runs");
    let text = String::from_utf8(output.stdout).expect("a text");
    let path = text.split_whitespace().find(|word| word.ends_with(".so")).expect("the path of the library");
    path.into()
}

/// Follows the stream of one slot, and counts.
struct SlotStream {
    slot: u32,
    chain: ChainReader,
    copied: u32,
    bytes: Vec<u8>,
    decoder: Decoder,
    counted: u64,
    native: u64,
}

impl SlotStream {
    fn new(slot: u32) -> Self {
        let (chain, decoder) = (ChainReader::default(), Decoder::new());
        Self { slot, chain, copied: 0, bytes: Vec::new(), decoder, counted: 0, native: 0 }
    }

    fn read(&mut self, area: &Area) {
        let slot = area.slot(self.slot).unwrap();
        while self.chain.has_begun(slot) {
            let segment = self.chain.segment();
            let level = self.chain.look(area.segment(self.slot, segment).unwrap()).unwrap();
            self.copied = self.copied.max(level.start);
            area.copy_records(self.slot, segment, self.copied, level.fill, &mut self.bytes);
            self.copied = level.fill;
            if level.next == 0 {
                return;
            }
            area.control().note_drained(level.fill - level.start);
            if self.chain.advance(slot, level.next).unwrap() {
                futex::wake(&slot.taken);
            }
            self.copied = 0;
        }
    }

    fn decode(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut at = 0;
        while let Some((record, next)) = self.decoder.next(&bytes, at).expect("sound records") {
            at = next;
            self.counted += u64::from(matches!(record, Record::Alloc { size, .. } if size >= COUNTED));
            self.native += u64::from(matches!(record, Record::Module(_)));
        }
    }
}

/// A program that waits to be recorded.
struct DormantProgram {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl DormantProgram {
    fn start(dir: &Dir, program: &PathBuf, recordings: u32) -> Self {
        let mut command = dir.command(program);
        command.arg(recordings.to_string()).env("LD_PRELOAD", library(dir)).env(DORMANT_VARIABLE, "1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// What the program says next.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn answer(&mut self, number: u32) {
        // In one piece: the program reads once.
        self.process.stdin.as_mut().unwrap().write_all(format!("{number}\n").as_bytes()).unwrap();
    }

    /// Is its collector for one recording.
    #[track_caller]
    fn record(&mut self, has_native: bool) {
        let path = format!("/proc/{}/fd/{}", self.process.id(), self.line().trim());
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the program's memory file");
        let area = Area::create_on(file.as_fd(), SLOTS).unwrap();
        let control = area.control();
        control.native.store(u32::from(has_native), Relaxed);
        self.answer(SLOTS);
        let mut streams: Vec<SlotStream> = (0..SLOTS).map(SlotStream::new).collect();
        let is_over = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    streams.iter_mut().for_each(|stream| stream.read(&area));
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let counted = self.line();
            is_over.store(true, Relaxed);
            counted
        });
        let counted: u64 = counted.trim().parse().unwrap_or_else(|_| panic!("the program says {counted:?}"));
        for stream in &mut streams {
            stream.read(&area);
            stream.decode();
        }
        assert_eq!(streams.iter().map(|stream| stream.counted).sum::<u64>(), counted);
        assert_eq!(streams.iter().any(|stream| stream.native > 0), has_native);
        assert_eq!(
            (control.state.load(Relaxed), control.stop_reason.load(Relaxed)),
            (state::STOPPED, stop_reason::DETACHED)
        );
        assert_eq!((control.began_late.load(Relaxed), control.events_without_slot.load(Relaxed)), (1, 0));
        self.answer(0);
    }

    #[track_caller]
    fn ends(mut self) {
        assert_eq!(self.line(), "done\n");
        assert!(self.process.wait().unwrap().success());
    }
}

#[track_caller]
fn record(options: &[&str], recordings: u32, has_native: impl Fn(u32) -> bool) {
    let dir = Dir::new();
    let program = dir.compile("late", "late", options);
    let mut running = DormantProgram::start(&dir, &program, recordings);
    (0..recordings).for_each(|number| running.record(has_native(number)));
    running.ends();
}

#[test]
fn a_program_is_recorded_a_hundred_times_while_its_threads_allocate() {
    record(&["-pthread", "-Wl,-z,lazy"], 100, |_| false);
}

#[test]
fn slots_that_the_loader_protects_and_stubs_of_a_program_at_a_fixed_address_are_put_back() {
    record(&["-pthread", "-Wl,-z,relro,-z,now"], 5, |_| false);
    record(&["-pthread", "-no-pie", "-Wl,-z,lazy"], 5, |_| false);
}

#[test]
fn native_stacks_come_and_go_with_the_recordings_that_want_them() {
    record(&["-pthread"], 20, |number| number % 3 == 1);
}
