//! `memtrack ps`: the recordings that run, with their processes, as text or JSON.
//!
//! The text sums up children that have ended; JSON has them all. Invariant: figures count everything that was recorded when they were asked for, or are not told. Recordings that end meanwhile
//! are left out; that nothing is recorded is no error.

use std::io::{Write, stdout};
use std::iter;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use memtrack_collector::control::protocol::{ControlCommand, ProcessState, ProcessStatus};
use serde_json::json;

use crate::args::running::PsArgs;
use crate::control::recordings::{self, RunningRecording, unrecorded};
use crate::live::source;
use crate::message;
use crate::reports::capture_info::{quoted, visible};
use crate::terminal::TextFormat;
use crate::text::{TextTable, column};
use crate::units::{count, duration, plural, size};

/// For how long is waited for what was recorded until now, and captures are read to count what is live.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints the list.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(options: &PsArgs) -> Result<u8> {
    let deadline = Instant::now() + PATIENCE;
    let mut all = recordings::all_of_now(deadline);
    let ended = if options.json { Vec::new() } else { all.iter_mut().filter_map(take_ended_children).collect() };
    count_what_is_live(&mut all, deadline);
    let processes: Vec<&ProcessStatus> = all.iter().flat_map(|recording| &recording.status.processes).collect();
    let mut text = String::new();
    if options.json {
        let list = json!({"schema": "memtrack-ps", "version": 1, "processes": processes});
        text = format!("{list:#}\n");
    } else if processes.is_empty() {
        message::note("nothing is being recorded by this user; start with 'memtrack run PROGRAM'");
    } else {
        processes.iter().filter_map(|process| why_ended(process)).for_each(message::note);
        let format = TextFormat::new(options.colors.color, true);
        for line in table(&processes, now_ns()).lines(format) {
            text.push_str(&format!("{line}\n"));
        }
        ended.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output: cannot be written")?;
    Ok(0)
}

/// Takes out the children that have ended, of which a server that starts its workers again has ever more; sums them up.
fn take_ended_children(recording: &mut RunningRecording) -> Option<String> {
    let is_past = |process: &mut ProcessStatus| {
        process.number > 0 && process.state == ProcessState::Ended && why_ended(process).is_none()
    };
    let ended = recording.status.processes.extract_if(.., is_past).count();
    let pid = recording.client.pid();
    let number =
        plural(ended as u64, "recorded process that it started has", "recorded processes that it started have");
    (ended > 0).then(|| format!("process {pid}: {number} ended ('memtrack ps --json' lists what has ended)"))
}

/// Why a process is recorded no more that may run on.
fn why_ended(process: &ProcessStatus) -> Option<String> {
    let ProcessStatus { pid, write_error, unrecorded_program, stop_reason, .. } = process;
    let unwritten = write_error.as_ref().map(|reason| format!("its capture could not be written: {reason}"));
    let became = || Some(unrecorded(unrecorded_program.as_deref()?));
    let reason = unwritten.or_else(became).or_else(|| stop_reason.clone())?;
    Some(format!("process {pid} is recorded no more: {reason}"))
}

/// Counts what the recording process does not: reads the captures until the deadline, those with least records first, so
/// that a large one keeps no other from its figures. Of those that take longer, the recording process is asked to count.
fn count_what_is_live(all: &mut [RunningRecording], deadline: Instant) {
    let mut processes = Vec::new();
    for (place, recording) in all.iter_mut().enumerate() {
        let recorder = recording.status.recorder;
        let unknown = recording.status.processes.iter_mut().enumerate();
        let unknown = unknown.filter(|(_, process)| process.events.is_none());
        processes.extend(unknown.map(|(row, process)| ((place, row), recorder, process)));
    }
    processes.sort_by_key(|(_, _, process)| process.record_bytes);
    let mut too_large = Vec::new();
    for (place, recorder, process) in processes {
        let Some(capture) = &process.capture else { continue };
        // What was recorded and is not in the capture yet would be missing.
        let totals = if process.counting { None } else { source::totals(capture, recorder, deadline) };
        // Sums that could not be written once say nothing.
        let totals = totals.filter(|totals| process.write_error.is_none() || totals.events > 0);
        match totals {
            Some(totals) => {
                process.events = Some(totals.events);
                process.live_bytes = Some(totals.live.bytes);
                process.peak_bytes = Some(totals.peak_bytes);
            }
            None if process.state == ProcessState::Recording => too_large.push(place),
            None => {}
        }
    }
    let mut any = false;
    for (place, row) in too_large {
        let RunningRecording { client, status } = &mut all[place];
        let process = &mut status.processes[row];
        // What cannot be followed, as a capture that is no file, is refused.
        let is_counted = client.ask::<serde_json::Value>(ControlCommand::Count { pid: Some(process.pid) }).is_ok();
        process.counting |= is_counted;
        any |= is_counted;
    }
    if any {
        message::note("what could not be counted in a second is being counted now: ask again in a moment");
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// What is not known stands as a dash. What is recorded faster than it can be counted is never told in part: it is being counted.
fn table(processes: &[&ProcessStatus], now_ns: u64) -> TextTable {
    let mut table = TextTable::new([
        column("PID"),
        column("State"),
        column("For"),
        column("Events").optional(4),
        column("Live"),
        column("Peak").optional(3),
        column("Resident").optional(2),
        column("Capture").cut(),
        column("Command"),
    ]);
    for process in processes {
        let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), size);
        let started = process.started_ns.filter(|_| process.state != ProcessState::Ended);
        let cells = [
            process.pid.to_string(),
            process.state.name().to_owned(),
            started.map_or("-".into(), |started| duration(now_ns.saturating_sub(started))),
            process.events.map_or("-".into(), count),
            if process.counting { "counting".into() } else { bytes(process.live_bytes) },
            bytes(process.peak_bytes),
            bytes(process.resident_bytes),
            process.capture.as_ref().map_or("-".into(), |path| visible(&path.to_string_lossy())),
            visible(&command(process)),
        ];
        table.row(cells.map(Into::into));
    }
    table
}

/// What a process shows as its command line; of the path of its executable only the file name, so that what tells processes of one
/// interpreter apart is not cut off.
fn command(process: &ProcessStatus) -> String {
    let words = || {
        let (executable, arguments) = process.command_line.split_first()?;
        // With a space it may be a title that the process has written over its arguments: `nginx: master process /usr/sbin/nginx -g …`.
        let name = executable.rsplit_once('/').filter(|(folder, _)| !folder.contains(' '));
        let name = name.map_or(executable.as_str(), |(_, name)| name);
        let words = iter::once(name).chain(arguments.iter().map(String::as_str));
        Some(words.map(quoted).collect::<Vec<_>>().join(" "))
    };
    process.title.clone().or_else(words).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{ProcessState, ProcessStatus, table};
    use crate::terminal::TextFormat;

    #[test]
    fn columns_fit_and_unknown_figures_are_dashes() {
        let process = ProcessStatus {
            pid: 4711,
            recording: Some(1),
            number: 0,
            state: ProcessState::Recording,
            started: Some("2026-11-23T02:00:00.000Z".into()),
            started_ns: Some(1_000_000_000),
            events: None,
            live_bytes: Some(12_300_000),
            peak_bytes: Some(20_000_000),
            counting: false,
            resident_bytes: None,
            record_bytes: 0,
            capture: Some("/srv/memtrack-app.py.4711.bin".into()),
            write_error: None,
            unrecorded_program: None,
            stop_reason: None,
            command_line: ["/opt/venv/bin/python3", "app.py", "a b"].map(Into::into).into(),
            title: None,
        };
        let lines = |width| {
            let format = TextFormat { width, color: false };
            table(&[&process], 61_000_000_000).lines(format).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let whole = lines(None).join("\n");
        assert!(whole.ends_with("  python3 app.py 'a b'"), "{whole}");
        for text in ["4711  recording", "1 min 00 s", "12.3 MB", "20.0 MB", " - ", "/srv/memtrack-app.py.4711.bin"] {
            assert!(whole.contains(text), "{text}: {whole}");
        }
        let behind =
            ProcessStatus { events: None, live_bytes: None, peak_bytes: None, counting: true, ..process.clone() };
        let told = table(&[&behind], 0).lines(TextFormat { width: None, color: false });
        assert!(told.iter().any(|line| line.to_string().contains(" counting ")), "what is counted is no number");
        let titled = ProcessStatus { title: Some("app: worker 3".into()), ..process.clone() };
        let shown = table(&[&titled], 0).lines(TextFormat { width: None, color: false });
        assert!(shown.iter().any(|line| line.to_string().ends_with("  app: worker 3")), "its title");
        let written = ProcessStatus { command_line: vec!["shop: worker of /srv/app.sock".into()], ..process.clone() };
        let shown = table(&[&written], 0).lines(TextFormat { width: None, color: false });
        assert!(shown.iter().any(|line| line.to_string().contains("shop: worker of /srv/app.sock")), "written over");
        for width in [70, 80, 160] {
            assert!(lines(Some(width)).iter().all(|line| line.chars().count() <= width), "{width}");
        }
    }
}
