//! For programs that say something about their own recording: marks, snapshots, recordings of single phases, and limits in
//! tests.
//!
//! ```
//! # use memtrack_marks::{mark, measure};
//! let _ = mark("warm"); // does nothing where nothing is recorded
//! let (list, figures) = measure(|| vec![0_u8; 1000]);
//! if memtrack_marks::is_recording() {
//!     assert!(figures.expect("figures").peak_bytes < 1_000_000, "{} bytes", list.len());
//! }
//! ```
//!
//! Under `memtrack run` the functions ask the recording over its control socket (`docs/control-protocol.md`). Invariant:
//! without memtrack each of them is the test of one pointer, and changes nothing.

use std::ffi::c_int;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// How long the recording may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is tried to reach the recording, and the time between two tries.
const TRIES: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(2);
/// Maximum length of an answer, in bytes.
const MAX_ANSWER: u64 = 16 << 20;

/// Why something was not done.
#[derive(Debug)]
pub enum Error {
    /// memtrack is not there, or records nothing now.
    NotRecorded,
    /// The recording refused it; the reason.
    Refused(String),
    /// The recording could not be reached, or a file not be written.
    Failed(io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRecorded => f.write_str("nothing is recorded"),
            Self::Refused(reason) => f.write_str(reason),
            Self::Failed(error) => write!(f, "the recording cannot be asked: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// What was allocated in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Allocations, by all threads.
    pub allocations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The most of them that was live at one moment of the span, in bytes.
    pub peak_bytes: u64,
    /// What of them was live at its end, in bytes.
    pub kept_bytes: u64,
}

/// Whether memtrack records this process now.
#[must_use]
pub fn is_recording() -> bool {
    library().is_some_and(|is_recording| is_recording() != 0)
}

/// Names this moment in the capture, for `--from` and `--to mark:NAME`: 1 to 200 bytes without control characters.
///
/// # Errors
/// See [`Error`].
pub fn mark(name: &str) -> Result<(), Error> {
    if !is_recording() {
        return Err(Error::NotRecorded);
    }
    Recording::connect()?.ask("mark", &format!(",\"name\":{}", quoted(name))).map(drop)
}

/// Begins a recording of a program that `memtrack run --dormant` started, into a new file.
///
/// # Errors
/// See [`Error`].
pub fn start(path: &Path) -> Result<(), Error> {
    if library().is_none() {
        return Err(Error::NotRecorded);
    }
    let path = std::path::absolute(path)?;
    let path = path.to_str().ok_or_else(|| Error::Refused("the path is no UTF-8".into()))?;
    Recording::connect()?.ask("start", &format!(",\"output\":{}", quoted(path))).map(drop)
}

/// Ends what [`start`] began, and completes its capture.
///
/// # Errors
/// See [`Error`].
pub fn stop() -> Result<(), Error> {
    if !is_recording() {
        return Err(Error::NotRecorded);
    }
    Recording::connect()?.ask("stop", "").map(drop)
}

/// Writes a complete capture of everything up to now to a new file; the recording goes on.
///
/// # Errors
/// See [`Error`].
pub fn snapshot(path: &Path) -> Result<(), Error> {
    if !is_recording() {
        return Err(Error::NotRecorded);
    }
    let mut recording = Recording::connect()?;
    let answer = recording.ask("snapshot", &format!(",\"pid\":{}", std::process::id()))?;
    let odd = || Error::Refused("the answer is not one that this version knows".into());
    let number = |member: &str| answer.split_once(member)?.1.split([',', '}']).next()?.parse::<u64>().ok();
    let (descriptor, length) = number("\"descriptor\":").zip(number("\"length\":")).ok_or_else(odd)?;
    let tail = answer.split_once("\"tail\":\"").and_then(|(_, rest)| rest.split('"').next()).ok_or_else(odd)?;
    let status = recording.ask("status", "")?;
    let recorder =
        status.split_once("\"recorder\":").and_then(|(_, rest)| rest.split([',', '}']).next()).ok_or_else(odd)?;
    let source = File::open(format!("/proc/{recorder}/fd/{descriptor}"))?;
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    io::copy(&mut source.take(length), &mut file)?;
    file.write_all(&from_base64(tail).ok_or_else(odd)?)?;
    Ok(())
}

/// Runs a function, and says what was allocated meanwhile, by all threads; `None` where nothing is recorded, or where that
/// cannot be said, which a line on stderr explains. A limit that must not pass by that takes the figures with `expect` where
/// [`is_recording`].
///
/// The program memtrack is asked: `$MEMTRACK`, else the one in `PATH`. It needs a recording with exact times. Tests that
/// run at the same time count, and what it takes to ask (some 25 kB) in a `measure` around this one; so use
/// `--test-threads=1`:
///
/// ```text
/// memtrack run --allocation-timestamps --follow -o tests.bin cargo test -- --test-threads=1
/// ```
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, Option<Figures>) {
    let begin_ns = monotonic_ns();
    let result = work();
    let end_ns = monotonic_ns();
    if !is_recording() {
        return (result, None);
    }
    let figures = figures(begin_ns, end_ns);
    if let Err(error) = &figures {
        eprintln!("memtrack: not measured: {error}");
    }
    (result, figures.ok())
}

fn figures(begin_ns: u64, end_ns: u64) -> Result<Figures, Error> {
    let directory = TemporaryDirectory::new()?;
    let (capture, spans) = (directory.0.join("now.bin"), directory.0.join("spans"));
    fs::write(&spans, format!("{begin_ns} {end_ns}\n"))?;
    snapshot(&capture)?;
    let program = std::env::var_os("MEMTRACK").unwrap_or_else(|| "memtrack".into());
    let words = ["transform", "records", "--table", "spans", "-o", "-", "--spans"];
    let told = Command::new(program).args(words).arg(&spans).arg(&capture).output()?;
    if !told.status.success() {
        return Err(Error::Refused(String::from_utf8_lossy(&told.stderr).trim().into()));
    }
    Ok(figures_in(&String::from_utf8_lossy(&told.stdout)))
}

/// The figures of the only span: `["spans",[0],[allocations],[bytes],[peak],[kept]]`. Without a row nothing was allocated.
fn figures_in(lines: &str) -> Figures {
    let row = lines.lines().find_map(|line| line.strip_prefix("[\"spans\",[0],"));
    let mut numbers = row.into_iter().flat_map(|row| row.split(['[', ']', ','])).filter_map(|text| text.parse().ok());
    let mut next = || numbers.next().unwrap_or(0);
    Figures { allocations: next(), bytes: next(), peak_bytes: next(), kept_bytes: next() }
}

/// A directory that is removed with its two files.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("memtrack-span-{}-{}", std::process::id(), monotonic_ns()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // What cannot be removed is left in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// `memtrack_is_recording` of memtrack's library, if that was loaded with the program.
fn library() -> Option<extern "C" fn() -> c_int> {
    static FUNCTION: OnceLock<Option<extern "C" fn() -> c_int>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: a name that ends with a null.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memtrack_is_recording".as_ptr()) };
        // SAFETY: memtrack's library has a function of this type under this name, which is its own.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> c_int>(found) })
    })
}

/// A connection to the recording.
struct Recording {
    stream: UnixStream,
    answers: BufReader<io::Take<UnixStream>>,
}

impl Recording {
    /// Connects to the recording of this process, or to that of its parent.
    fn connect() -> Result<Self, Error> {
        // SAFETY: no arguments, cannot fail.
        let user = unsafe { libc::geteuid() };
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let own = PathBuf::from(format!("/tmp/memtrack-{user}"));
        let places: Vec<PathBuf> = runtime.map(|path| path.join("memtrack")).into_iter().chain([own]).collect();
        let pids = [std::process::id(), std::os::unix::process::parent_id()];
        let paths: Vec<PathBuf> =
            places.iter().flat_map(|place| pids.map(|pid| place.join(format!("{pid}.sock")))).collect();
        // The recorder gives the socket its name when it has started the program.
        let found = (0..TRIES).find_map(|number| {
            std::thread::sleep(if number == 0 { Duration::ZERO } else { BETWEEN });
            paths.iter().find_map(|path| UnixStream::connect(path).ok())
        });
        let stream = found.ok_or_else(|| Error::Failed(ErrorKind::NotFound.into()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let answers = BufReader::new(stream.try_clone()?.take(MAX_ANSWER));
        let mut made = Self { stream, answers };
        made.line()?;
        Ok(made)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }

    /// Sends a command with its members; returns the answer's line.
    fn ask(&mut self, command: &str, members: &str) -> Result<String, Error> {
        self.stream.write_all(format!("{{\"id\":1,\"command\":\"{command}\"{members}}}\n").as_bytes())?;
        let answer = self.line()?;
        match answer.split_once("\"error\":\"") {
            Some((_, reason)) if !answer.contains("\"ok\":") => {
                Err(Error::Refused(reason.trim_end().trim_end_matches("\"}").into()))
            }
            _ => Ok(answer),
        }
    }
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            '\0'..='\x1f' => quoted.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        (bits, count) = (bits << 6 | u32::from(digit(byte)?), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Error, Figures, figures_in, from_base64, mark, measure, quoted, snapshot, start, stop};

    #[test]
    fn without_memtrack_nothing_happens() {
        for done in [mark("x"), start("/x".as_ref()), stop(), snapshot("/x".as_ref())] {
            assert!(matches!(done, Err(Error::NotRecorded)), "{done:?}");
        }
        assert_eq!(measure(|| 7), (7, None));
    }

    #[test]
    fn texts_are_quoted_and_tails_decoded() {
        assert_eq!(quoted("a \"b\" \\ \n ü"), r#""a \"b\" \\ \u000a ü""#);
        assert_eq!(from_base64("bWVtdHJhY2s=").as_deref(), Some(&b"memtrack"[..]));
        assert_eq!((from_base64("").as_deref(), from_base64("a*")), (Some(&[][..]), None));
    }

    #[test]
    fn figures_are_those_of_the_row() {
        let lines = "{\"schema\":1}\n[\"process\",7]\n[\"spans\",[0],[3],[600],[400],[100]]\n[\"end\"]\n";
        let expected = Figures { allocations: 3, bytes: 600, peak_bytes: 400, kept_bytes: 100 };
        assert_eq!((figures_in(lines), figures_in("[\"end\"]")), (expected, Figures::default()));
    }
}
