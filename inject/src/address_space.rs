//! Whether a process may map what a call in it needs: its limits of address space (RLIMIT_AS) and of data (RLIMIT_DATA).
//!
//! Invariant: nothing here touches the process.

use std::fs;

use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;

/// What the library, the memory that it shares and its tables take, with some room for the program, in kB.
const LIBRARY: u64 = 28 << 10;
/// The same for each thread that is recorded.
const THREAD: u64 = 64;
/// What a call takes where the library is there: its stack, and tables of objects that are new.
const CALL: u64 = 2 << 10;

/// What a call in a process needs, in kB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needed(u64);

impl Needed {
    /// To load the library, and to record so many threads.
    pub(crate) fn to_load(threads: usize) -> Self {
        Self(LIBRARY + THREAD * threads as u64)
    }

    /// To call the library that is there.
    pub(crate) fn to_call() -> Self {
        Self(CALL)
    }

    /// Refuses a process that may map less than that.
    pub(crate) fn check(self, pid: i32) -> Result<(), Refusal> {
        let Some(facts) = ProcessFacts::read(pid) else { return Ok(()) };
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        self.check_limits(&facts, &limits)
    }

    fn check_limits(self, facts: &ProcessFacts, limits: &str) -> Result<(), Refusal> {
        let kinds = [
            ("Max address space", "address space", "as", facts.mapped_kb),
            ("Max data size", "data", "data", facts.data_kb),
        ];
        for (line, name, option, used_kb) in kinds {
            let left_kb = soft_limit(limits, line).map(|bytes| (bytes >> 10).saturating_sub(used_kb));
            if let Some(left_kb) = left_kb.filter(|left_kb| *left_kb < self.0) {
                return Err(Refusal::NoAddressSpace { pid: facts.pid, name, option, left_kb, needed_kb: self.0 });
            }
        }
        Ok(())
    }
}

/// The limit that applies, in bytes; `None`: there is none.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::Needed;
    use crate::process_facts::ProcessFacts;

    fn limits(space: &str, data: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max data size             {data}               unlimited            bytes     \n\
             Max address space         {space}              unlimited            bytes     \n"
        )
    }

    #[test]
    fn what_is_left_of_each_limit_is_compared() {
        let facts = ProcessFacts::parse(7, "VmSize:\t  100000 kB\nVmData:\t   50000 kB\n");
        let check = |space: &str, data: &str| Needed::to_load(1).check_limits(&facts, &limits(space, data));
        assert!(check("unlimited", "unlimited").is_ok());
        assert!(check("200000000", "100000000").is_ok());
        let refused = |space, data| check(space, data).unwrap_err().to_string();
        let space = refused("110000000", "unlimited");
        assert!(space.contains("7 MB more address space") && space.contains("29 MB"), "{space}");
        assert!(space.contains("prlimit --pid 7 --as=unlimited"), "{space}");
        let data = refused("unlimited", "60000000");
        assert!(data.contains("8 MB more data") && data.contains("--data=unlimited"), "{data}");
        // More may be used already than the limit, which was lowered.
        assert!(refused("1000", "unlimited").contains(" 0 MB more"));
        assert!(Needed::to_call().check_limits(&facts, &limits("110000000", "unlimited")).is_ok());
        assert!(Needed::to_load(1).check_limits(&facts, "").is_ok(), "no limit is known");
    }
}
