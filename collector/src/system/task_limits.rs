//! How many processes and threads this process may still start: `ulimit -u` (RLIMIT_NPROC) and `pids.max` of its control
//! groups.
//!
//! memtrack's threads count against the limits of the program, so a program near its limit could fail to start threads
//! that it can start without memtrack. Invariant: if it is unknown, there is room; the answer is cheap if the limits
//! are far away.

use std::fs;
use std::mem::MaybeUninit;

use crate::system::control_groups;

/// Bits of CAP_SYS_ADMIN and CAP_SYS_RESOURCE, which free from `ulimit -u`.
const EXEMPT: u64 = 1 << 21 | 1 << 24;
/// With this many tasks left, the limit is far, whatever happens concurrently.
const FAR: u64 = 256;

/// Whether memtrack may start this many threads and processes without noticeably reducing what the recorded programs
/// have left.
///
/// # Errors
/// The number that is left.
pub fn room_for_tasks(wanted: u64) -> Result<(), u64> {
    match tasks_left() {
        Some(left) if left < least(wanted, own_tasks()) => Err(left),
        _ => Ok(()),
    }
}

/// The number that must be left.
fn least(wanted: u64, own: u64) -> u64 {
    (4 * wanted).max(own.saturating_add(wanted))
}

fn own_tasks() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "Threads:").and_then(|threads| threads.parse().ok()).unwrap_or(1)
}

fn tasks_left() -> Option<u64> {
    [left_of_user(), control_groups::tasks_left()].into_iter().flatten().min()
}

/// Tasks that the user may still start; `None`: no limit, or it does not apply.
fn left_of_user() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: writes to a live local of its type.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NPROC, limit.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid value.
    let limit = unsafe { limit.assume_init() }.rlim_cur;
    if got != 0 || limit == libc::RLIM_INFINITY || all_tasks().is_some_and(|all| limit > all.saturating_add(FAR)) {
        return None;
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let user = field(&status, "Uid:")?;
    let capabilities = u64::from_str_radix(field(&status, "CapEff:")?, 16).ok()?;
    (user != "0" && capabilities & EXEMPT == 0).then(|| limit.saturating_sub(tasks_of(user)))
}

/// Tasks of all users.
fn all_tasks() -> Option<u64> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().nth(3)?.rsplit('/').next()?.parse().ok()
}

fn tasks_of(user: &str) -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let statuses = entries
        .filter(|entry| is_process(&entry.file_name()))
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let threads = |status: String| field(&status, "Threads:")?.parse::<u64>().ok();
    statuses.filter(|status| field(status, "Uid:") == Some(user)).filter_map(threads).sum()
}

/// The first word of a line of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::{all_tasks, field, least, own_tasks, tasks_of};

    #[test]
    fn memtrack_takes_no_more_than_it_leaves() {
        // At the start, and for a further process when there are many.
        assert_eq!((least(6, 1), least(3, 7), least(3, 40)), (24, 12, 43));
    }

    #[test]
    fn tasks_are_counted() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let user = field(&status, "Uid:").unwrap();
        // Threads of other tests come and go: of one moment are two counts only where nothing changed around them.
        let quiet = || Some((own_tasks(), tasks_of(user))).filter(|(own, _)| own_tasks() == *own);
        let (own, mine) = std::iter::repeat_with(quiet).flatten().next().unwrap();
        assert!(own >= 1 && mine >= own, "{own} of {mine}");
        assert!(all_tasks().is_none_or(|all| all > 0));
        assert_eq!(tasks_of("4000000000"), 0);
    }
}
