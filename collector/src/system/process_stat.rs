//! What the system says of a process in one line: `/proc/PID/stat`.
//!
//! Invariant: fields are counted from behind the name of the program, which stands in parentheses and may contain anything.

use std::fs;

/// When this process was started, in clock ticks since the system was.
pub(crate) fn own_start() -> Option<u64> {
    ProcessStat::parse(&fs::read("/proc/self/stat").ok()?)?.field(22)?.parse().ok()
}

/// The line of one process.
#[derive(Debug)]
pub(crate) struct ProcessStat {
    /// What stands behind the name.
    rest: String,
}

impl ProcessStat {
    /// The number of the first field behind the name.
    const FIRST: usize = 3;

    /// Reads it; `None`: the process was waited for, or cannot be seen.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let end = line.iter().rposition(|byte| *byte == b')')?;
        Some(Self { rest: String::from_utf8_lossy(&line[end + 1..]).into_owned() })
    }

    /// The field with this number in proc(5).
    pub(super) fn field(&self, number: usize) -> Option<&str> {
        self.rest.split_ascii_whitespace().nth(number.checked_sub(Self::FIRST)?)
    }

    /// The same of a time, in nanoseconds.
    pub(super) fn nanoseconds(&self, number: usize) -> Option<u64> {
        let ticks: u64 = self.field(number)?.parse().ok()?;
        // SAFETY: reads a constant of the system.
        let a_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|ticks| *ticks > 0)?;
        Some(ticks.saturating_mul(1_000_000_000 / a_second))
    }

    /// Its last field: the exit status of a zombie, and 0 where that may not be read.
    pub(super) fn last(&self) -> Option<&str> {
        self.rest.split_ascii_whitespace().next_back()
    }

    /// Whether it sleeps, and a signal would end that: not where it is stopped, traced, or waits for a disk.
    pub(crate) fn sleeps(&self) -> bool {
        self.field(Self::FIRST) == Some("S")
    }

    /// Its processor time in ticks of the system's clock.
    pub(crate) fn processor_ticks(&self) -> Option<u64> {
        let number = |field| self.field(field)?.parse::<u64>().ok();
        Some(number(14)?.saturating_add(number(15)?))
    }

    /// Whether it has ended and was not waited for, or is about to go.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.field(Self::FIRST), Some("Z" | "X" | "x"))
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessStat;

    #[test]
    fn names_may_contain_anything() {
        let parent = |line: &[u8]| Some(ProcessStat::parse(line)?.field(4)?.to_owned());
        assert_eq!(parent(b"7 (a) b) (c)) S 12 7 7").as_deref(), Some("12"));
        assert_eq!(parent(b"7 (a\xff) R 1 7").as_deref(), Some("1"));
        assert_eq!(parent(b"7 (cat"), None);
        let zombie = ProcessStat::parse(b"7 (cat) Z 12 7 256").unwrap();
        assert_eq!((zombie.has_ended(), zombie.last()), (true, Some("256")));
    }
}
