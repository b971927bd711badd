//! `memtrack live --metrics`: figures of a recording for a scraper, in the Prometheus text format over HTTP.
//!
//! The server is a loop of a few lines: a thread for each of at most [`MOST_CLIENTS`] connections, only GET, nothing of the request
//! but its first line is used, and a client that is slow or sends more than [`MOST_REQUEST`] bytes is dropped. A crate for that would be larger than the rest
//! of the command.
//!
//! Invariant: an answer has the newest figures; no client makes the follower wait.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memtrack_reader::analysis::unseen_bytes;

use super::board::Board;
use super::feed::LiveFeed;
use crate::live_windows::message::SummedCounts;
use crate::message;

/// Connections at once.
const MOST_CLIENTS: usize = 16;
/// The longest request.
const MOST_REQUEST: usize = 8 << 10;
/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lines of code that have figures of their own: each is a time series of the scraper.
const MOST_LINES: usize = 20;

/// Serves until it is interrupted.
///
/// # Errors
/// The address cannot be used, or the capture cannot be read.
pub(super) fn serve(feed: &LiveFeed, address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    let address = listener.local_addr().unwrap_or(address);
    message::note(format_args!("metrics at http://{address}/metrics; Ctrl-C ends"));
    let connected = AtomicUsize::new(0);
    thread::scope(|scope| {
        for stream in listener.incoming().flatten() {
            if let Some(failed) = feed.take_message() {
                anyhow::bail!("{failed}");
            }
            // Others are closed: scrapers come again.
            if connected.fetch_add(1, Relaxed) < MOST_CLIENTS {
                scope.spawn(|| {
                    // A connection that failed is the scraper's loss.
                    let _ = answer(&{ stream }, feed);
                    connected.fetch_sub(1, Relaxed);
                });
            } else {
                connected.fetch_sub(1, Relaxed);
            }
        }
        Ok(())
    })
}

fn answer(mut stream: &TcpStream, feed: &LiveFeed) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = request(stream)?;
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, body) = match (method, path.split('?').next().unwrap_or_default()) {
        ("GET", "/metrics" | "/") => match feed.board() {
            Some(board) => ("200 OK", text(&board)),
            None => ("503 Service Unavailable", "nothing was read yet\n".to_owned()),
        },
        ("GET", _) => ("404 Not Found", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The first line of a request whose head has come as a whole.
fn request(mut stream: &TcpStream) -> io::Result<String> {
    let (begun, mut bytes, mut part) = (Instant::now(), Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        let len = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..len]);
        if len == 0 || bytes.len() > MOST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// The figures.
pub(super) fn text(board: &Arc<Board>) -> String {
    let totals = &board.totals;
    let pid = board.capture.info.process.pid.unwrap_or(0);
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = write!(text, "# HELP memtrack_{name} {help}\n# TYPE memtrack_{name} {kind}\n");
        let _ = writeln!(text, "memtrack_{name}{{pid=\"{pid}\"}} {value}");
    };
    metric("recording", "gauge", "1 while the process is recorded, 0 when that has ended.", u64::from(!board.ended));
    if let Some(SummedCounts { running, missing }) = board.processes {
        metric("processes", "gauge", "Processes that run, whose sum these figures are.", running);
        metric("missing_processes", "gauge", "Processes that run, and are not in the sum.", missing);
    }
    metric("live_bytes", "gauge", "Bytes of live blocks.", totals.live.bytes);
    metric("live_blocks", "gauge", "Live blocks.", totals.live.count);
    if let Some(bytes) = board.capture.sample_bytes() {
        let live = board.live();
        let help =
            "Bytes between two samples of allocations on the average; figures of bytes and blocks are estimates.";
        metric("sample_bytes", "gauge", help, bytes.get());
        let help = "With 95 %, at most so many bytes of each call stack without samples.";
        metric("unseen_bytes", "gauge", help, unseen_bytes(bytes));
        metric("live_bytes_low", "gauge", "Lower end of the 95 % interval of live bytes.", live.bytes.0);
        metric("live_bytes_high", "gauge", "Upper end of the 95 % interval of live bytes.", live.bytes.1);
        metric("live_blocks_low", "gauge", "Lower end of the 95 % interval of live blocks.", live.count.0);
        metric("live_blocks_high", "gauge", "Upper end of the 95 % interval of live blocks.", live.count.1);
    }
    metric("peak_bytes", "gauge", "The most bytes that were live at a time.", totals.peak_bytes);
    if totals.rss_bytes > 0 {
        metric("resident_bytes", "gauge", "Resident memory without memtrack's own.", totals.rss_bytes);
    }
    metric("allocated_bytes_total", "counter", "Bytes allocated.", board.allocated_ever.bytes);
    metric("allocations_total", "counter", "Allocations.", board.allocated_ever.count);
    metric("freed_bytes_total", "counter", "Bytes freed.", board.freed_ever.bytes);
    metric("deallocations_total", "counter", "Deallocations.", board.freed_ever.count);
    metric("events_total", "counter", "Events of the recording.", totals.events);
    metric("behind_bytes", "gauge", "Bytes of the capture that were written and not yet read.", board.lag.bytes);
    let figures = [
        ("memtrack_line_live_bytes", "Live bytes"),
        ("memtrack_line_live_bytes_low", "Lower end of the 95 % interval of live bytes"),
        ("memtrack_line_live_bytes_high", "Upper end of the 95 % interval of live bytes"),
    ];
    let shown = if board.capture.is_sampled() { figures.len() } else { 1 };
    let lines = board.lines();
    for (at, (name, what)) in figures.into_iter().enumerate().take(shown) {
        let _ = write!(text, "# HELP {name} {what} of the lines of code that hold most.\n# TYPE {name} gauge\n");
        for (line, own, live) in lines.iter().take(MOST_LINES) {
            let (code, (low, high)) = (escaped(line), live.bytes_range());
            let value = [live.bytes, low, high][at];
            let _ = writeln!(text, "{name}{{pid=\"{pid}\",code=\"{code}\",own=\"{own}\"}} {value}");
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn labels_are_escaped_as_the_format_wants_it() {
        assert_eq!(escaped("a \"b\" \\ c\nd"), "a \\\"b\\\" \\\\ c\\nd");
    }
}
