//! Whether the system has room for a copy of a process, where it promises no more memory than there is.
//!
//! Invariant: nothing here touches the process.

use std::fs;

use crate::refusal::Refusal;

/// `vm.overcommit_memory`: what is promised counts, whether it is used or not.
const STRICT: &str = "2";
/// What the program may need while its copy is there, in kB.
const RESERVE: u64 = 64 << 10;

/// Refuses a copy for which the system would promise more memory than it may, or all that is left.
pub(crate) fn check(pid: i32) -> Result<(), Refusal> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mode = read("/proc/sys/vm/overcommit_memory");
    if mode.trim() != STRICT {
        return Ok(());
    }
    check_strict(&read("/proc/meminfo"), &read(&format!("/proc/{pid}/status")))
}

fn check_strict(system: &str, process: &str) -> Result<(), Refusal> {
    let known = |text, name| number(text, name).unwrap_or(0);
    let left = known(system, "CommitLimit:").saturating_sub(known(system, "Committed_AS:"));
    // Private memory that may be written, which a fork is promised once more.
    let needed = known(process, "VmData:") + known(process, "VmStk:") + RESERVE;
    if needed <= left { Ok(()) } else { Err(Refusal::NoCommit { needed_kb: needed, left_kb: left }) }
}

/// The number in kB behind a name.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::check_strict;

    #[test]
    fn a_copy_needs_what_the_process_was_promised_and_a_reserve() {
        let system =
            |committed: u64| format!("MemFree: 9 kB\nCommitLimit:  1000000 kB\nCommitted_AS:\t{committed} kB\n");
        let process = "VmPeak: 900000 kB\nVmData:\t  400000 kB\nVmStk:       136 kB\n";
        assert!(check_strict(&system(500_000), process).is_ok());
        let refusal = check_strict(&system(600_000), process).unwrap_err().to_string();
        assert!(refusal.contains("476 MB") && refusal.contains("409 MB") && refusal.contains("--hold"), "{refusal}");
        // More may be promised already than the limit, which was lowered.
        assert!(check_strict(&system(2_000_000), process).is_err());
    }
}
