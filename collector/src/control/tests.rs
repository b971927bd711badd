//! The server with clients that ask, and with clients that do all that is wrong.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::directory::sockets_in;
use super::protocol::{ControlCommand, MAX_REQUEST, MarkAnswer, RecordingStatus, SnapshotAnswer, StopAnswer};
use super::{CommandHandler, ControlClient, ControlError, ControlServer, ControlSocket, Subscriber};
use crate::fake_target::HANGS;

#[derive(Default)]
struct FakeRecording {
    /// Is told when a command to detach has come.
    detaching: Mutex<Option<Sender<()>>>,
    marks: Mutex<Vec<String>>,
    subscribers: Mutex<Vec<Subscriber>>,
}

impl FakeRecording {
    /// Pushes a line to all; returns how many are left.
    fn push(&self, text: &str) -> usize {
        let line: Arc<[u8]> = format!("{{\"window\":{text}}}\n").into_bytes().into();
        let mut subscribers = self.subscribers.lock().unwrap();
        subscribers.retain(|subscriber| subscriber.push(&line));
        subscribers.len()
    }
}

impl CommandHandler for FakeRecording {
    fn status(&self) -> RecordingStatus {
        RecordingStatus { recorder: 7, processes: Vec::new() }
    }

    fn mark(&self, name: &str) -> Result<MarkAnswer, String> {
        let mut marks = self.marks.lock().unwrap();
        marks.push(name.into());
        Ok(MarkAnswer { time_ns: marks.len() as u64, captures: 1 })
    }

    fn snapshot(&self, _pid: Option<u32>) -> Result<SnapshotAnswer, String> {
        Err("not now".into())
    }

    fn detach(&self) -> Result<StopAnswer, String> {
        let detaching = self.detaching.lock().unwrap().take();
        detaching.ok_or("not now")?.send(()).unwrap();
        // As on a machine that gives the thread no time.
        std::thread::sleep(Duration::from_millis(1500));
        Ok(StopAnswer { captures: vec!["whole.bin".into()] })
    }

    fn live(&self, _pid: Option<u32>, _every: Duration, subscriber: Subscriber) -> Result<(), String> {
        self.subscribers.lock().unwrap().push(subscriber);
        Ok(())
    }
}

struct Running {
    recording: Arc<FakeRecording>,
    server: Option<ControlServer>,
    path: PathBuf,
    place: PathBuf,
    _directory: tempfile::TempDir,
}

impl Running {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("memtrack");
        let mut socket = ControlSocket::bind_in(std::slice::from_ref(&place)).unwrap();
        assert_eq!(sockets_in(std::slice::from_ref(&place)), [] as [PathBuf; 0]);
        socket.publish(4711).unwrap();
        let recording = Arc::new(FakeRecording::default());
        let handler: Arc<dyn CommandHandler> = Arc::<FakeRecording>::clone(&recording);
        let server = Some(ControlServer::start(socket, 4711, handler).unwrap());
        Self { recording, server, path: place.join("4711.sock"), place, _directory: directory }
    }

    fn connect(&self) -> ControlClient {
        ControlClient::connect(&self.path).unwrap()
    }

    /// A connection without a client's manners, after the greeting.
    fn raw(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(HANGS)).unwrap();
        let mut reader = BufReader::new(stream);
        let mut greeting = String::new();
        reader.read_line(&mut greeting).unwrap();
        assert!(greeting.starts_with(r#"{"memtrack":1,"version":""#), "{greeting}");
        reader
    }
}

/// What the server says until it closes the connection.
fn rest(mut reader: BufReader<UnixStream>) -> String {
    let mut rest = Vec::new();
    // A reset after the last words is an end, too.
    let _ = reader.read_to_end(&mut rest);
    String::from_utf8(rest).unwrap()
}

#[test]
fn requests_are_answered() {
    let running = Running::new();
    let mut client = running.connect();
    assert_eq!(client.pid(), 4711);
    assert_eq!(client.recorder(), std::process::id().cast_signed());
    assert_eq!(client.ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }).unwrap().recorder, 7);
    let mark = ControlCommand::Mark { name: "warm".into() };
    assert_eq!(client.ask::<MarkAnswer>(mark).unwrap().time_ns, 1);
    assert_eq!(*running.recording.marks.lock().unwrap(), ["warm"]);
    for (command, expected) in [
        (ControlCommand::Snapshot { pid: None }, "not now"),
        (ControlCommand::Mark { name: "a\nb".into() }, "control characters"),
        (ControlCommand::Start { pid: None, output: None, force: false, sample: None }, "--dormant"),
    ] {
        let error = client.ask::<serde_json::Value>(command).unwrap_err();
        assert!(matches!(&error, ControlError::Refused(text) if text.contains(expected)), "{error}");
    }
}

/// However long the answer to a command takes that has come: its client gets it.
#[test]
fn a_server_that_ends_answers_the_command_that_is_being_executed() {
    let mut running = Running::new();
    let mut client = running.connect();
    let (sender, came) = channel();
    *running.recording.detaching.lock().unwrap() = Some(sender);
    let asking = std::thread::spawn(move || client.ask::<StopAnswer>(ControlCommand::Detach));
    came.recv_timeout(HANGS).unwrap();
    running.server.take().unwrap().finish();
    assert_eq!(asking.join().unwrap().unwrap().captures, [PathBuf::from("whole.bin")]);
}

/// A recording that is ending is none to choose, and those who have chosen it are answered.
#[test]
fn who_is_connected_is_answered_where_nobody_is_found_any_more() {
    let mut running = Running::new();
    let mut client = running.connect();
    running.server.as_mut().unwrap().withdraw();
    assert_eq!(sockets_in(std::slice::from_ref(&running.place)), [] as [PathBuf; 0]);
    assert_eq!(client.ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }).unwrap().recorder, 7);
}

/// As `printf ... | nc -NU socket` does.
#[test]
fn requests_of_a_client_that_has_closed_its_end_are_answered() {
    let running = Running::new();
    let mut raw = running.raw();
    raw.get_mut()
        .write_all(b"{\"id\":1,\"command\":\"status\"}\n\nnonsense\n{\"id\":2,\"command\":\"fly\"}\n")
        .unwrap();
    raw.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    let said = rest(raw);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert_eq!(lines[0], r#"{"id":1,"ok":{"processes":[],"recorder":7}}"#);
    assert!(lines[1].starts_with(r#"{"error":"no request"#) && lines[2].starts_with(r#"{"id":2,"error":"#), "{said}");
}

#[test]
fn every_subscriber_gets_the_same_bytes_and_a_slow_one_skips() {
    let running = Running::new();
    let mut clients = [running.connect(), running.connect()];
    for client in &mut clients {
        client.ask::<serde_json::Value>(ControlCommand::Live { every_ms: 100, pid: None }).unwrap();
    }
    let filler = format!("\"{}\"", "x".repeat(100_000));
    assert_eq!(running.recording.push("1"), 2);
    let [one, other] = clients.each_mut().map(|client| client.next_line(None).unwrap().unwrap());
    assert_eq!((one.as_str(), &other), ("{\"window\":1}\n", &one));
    // Neither reads; each gets the newest lines, and how many are missing.
    (0..300).for_each(|_| assert_eq!(running.recording.push(&filler), 2));
    running.recording.push("2");
    for client in &mut clients {
        let (mut lines, mut skipped) = (0, 0);
        loop {
            let line: serde_json::Value = serde_json::from_str(&client.next_line(None).unwrap().unwrap()).unwrap();
            (lines, skipped) = (lines + 1, skipped + line["skipped"].as_u64().unwrap_or(0));
            if line["window"] == 2 {
                break;
            }
        }
        assert_eq!((lines + skipped, skipped > 200), (301, true), "{lines} {skipped}");
        // A subscriber may still ask.
        client.ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }).unwrap();
    }
    drop(clients);
    let begun = Instant::now();
    while running.recording.push("3") > 0 {
        assert!(begun.elapsed() < HANGS);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn unfit_clients_are_dropped_and_told_why() {
    let running = Running::new();
    let status = b"{\"id\":1,\"command\":\"status\"}\n";
    let cases: [(Vec<u8>, &str); 4] = [
        (vec![b'x'; MAX_REQUEST + 20_000], "too long"),
        (b"nonsense\n".repeat(20), "too many lines are no requests"),
        (status.repeat(3000), "before their answers were read"),
        (b"\n".repeat(3000), "before their answers were read"),
    ];
    for (bytes, expected) in cases {
        let mut raw = running.raw();
        // It may be dropped in the middle.
        let _ = raw.get_mut().write_all(&bytes);
        let said = rest(raw);
        assert!(said.contains(expected) || said.is_empty(), "{expected}: {said}");
    }
    running.connect().ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }).unwrap();
}

#[test]
fn a_thousand_hostile_clients_leave_the_server_as_it_was() {
    let running = Running::new();
    let mut kept = Vec::new();
    for number in 0..1000 {
        let Ok(stream) = UnixStream::connect(&running.path) else { continue };
        stream.set_nonblocking(true).unwrap();
        let bytes = match number % 5 {
            0 => vec![0; 100_000],
            1 => b"{\"id\":1,\"command\":\"status\"}\n".repeat(5000),
            2 => b"{\"id\":1,".to_vec(),
            3 => Vec::new(),
            _ => continue,
        };
        let _ = (&stream).write(&bytes);
        kept.push(stream);
    }
    let begun = Instant::now();
    running.connect().ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn the_socket_goes_with_the_server_and_stale_ones_are_removed() {
    let mut running = Running::new();
    let places = std::slice::from_ref(&running.place);
    assert_eq!(sockets_in(places), [running.path.clone()]);
    // A second recording of the same process id, in another namespace.
    let mut second = ControlSocket::bind_in(places).unwrap();
    second.publish(4711).unwrap();
    assert_eq!(sockets_in(places).len(), 2);
    drop(second);
    drop(running.server.take());
    assert!(!running.path.exists());
    // A recorder that was killed leaves its socket.
    let mut killed = ControlSocket::bind_in(places).unwrap();
    killed.publish(4711).unwrap();
    let (listener, file, _) = killed.into_parts();
    std::mem::forget(file);
    drop(listener);
    assert!(running.path.exists());
    assert_eq!(sockets_in(places), [] as [PathBuf; 0]);
    assert!(!running.path.exists());
}

#[test]
fn directories_that_others_may_use_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |place: &Path, expected: &str| {
        let error = ControlSocket::bind_in(&[place.into()]).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(sockets_in(&[place.into()]), [] as [PathBuf; 0]);
    };
    let open = directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    refused(&open, "others may access it");
    let link = directory.path().join("link");
    symlink(directory.path(), &link).unwrap();
    refused(&link, "no directory");
    refused(&directory.path().join("absent/memtrack"), "No such file");
    refused(&directory.path().join("x".repeat(90)), "too long");
}
