//! What `/proc/PID/status` says of a process, and which refusal follows from it.
//!
//! Invariant: nothing here touches the process.

use std::fs;

use crate::refusal::Refusal;

/// Numbers of capabilities.
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;

/// The lines of a status file that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessFacts {
    pub(crate) pid: i32,
    /// The process that the thread belongs to.
    group: i32,
    parent: i32,
    state: u8,
    tracer: i32,
    /// Real, effective and saved user.
    users: Vec<u32>,
    /// 0: none, 1: strict, 2: a filter.
    pub(crate) seccomp: u32,
    /// Number of filters.
    pub(crate) filters: Option<u32>,
    ignored_signals: u64,
    has_memory: bool,
    /// All that it has mapped, and what of it is private memory that may be written.
    pub(crate) mapped_kb: u64,
    pub(crate) data_kb: u64,
    threads: u32,
    capabilities: u64,
    /// Those that it can have at most.
    bounding: u64,
}

impl ProcessFacts {
    pub(crate) fn read(pid: i32) -> Option<Self> {
        Some(Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/status")).ok()?))
    }

    pub(crate) fn parse(pid: i32, text: &str) -> Self {
        let mut facts = Self { pid, group: pid, ..Self::default() };
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            let number = value.parse().unwrap_or(0);
            match key {
                "Tgid" => facts.group = value.parse().unwrap_or(pid),
                "PPid" => facts.parent = value.parse().unwrap_or(0),
                "State" => facts.state = value.bytes().next().unwrap_or(0),
                "TracerPid" => facts.tracer = value.parse().unwrap_or(0),
                "Uid" => facts.users = value.split_ascii_whitespace().take(3).flat_map(str::parse).collect(),
                "Seccomp" => facts.seccomp = number,
                "Seccomp_filters" => facts.filters = Some(number),
                "SigIgn" => facts.ignored_signals = u64::from_str_radix(value, 16).unwrap_or(0),
                "CapEff" => facts.capabilities = u64::from_str_radix(value, 16).unwrap_or(0),
                "CapBnd" => facts.bounding = u64::from_str_radix(value, 16).unwrap_or(0),
                "Threads" => facts.threads = number,
                "VmSize" => (facts.has_memory, facts.mapped_kb) = (true, kilobytes(value)),
                "VmData" => facts.data_kb = kilobytes(value),
                _ => {}
            }
        }
        facts
    }

    /// Whether the process may use this capability.
    fn has(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }

    /// Whether it may trace the processes of its user namespace.
    pub(crate) fn may_trace(&self) -> bool {
        self.has(SYS_PTRACE)
    }

    /// Whether root has that right in its place, of what it could have.
    pub(crate) fn could_trace(&self) -> bool {
        self.bounding >> SYS_PTRACE & 1 == 1
    }

    /// The effective user.
    pub(crate) fn user(&self) -> Option<u32> {
        self.users.get(1).copied()
    }

    /// A user of it that is another one.
    pub(crate) fn other_user(&self, user: Option<u32>) -> Option<u32> {
        self.users.iter().find(|theirs| Some(**theirs) != user).copied()
    }

    /// Whether it can read the filters of others.
    pub(crate) fn is_administrator(&self) -> bool {
        self.has(SYS_ADMIN)
    }

    /// Whether the signal that ends an injected call would be lost.
    fn ignores_trap(&self) -> bool {
        self.ignored_signals >> (libc::SIGTRAP - 1) & 1 == 1
    }

    /// Who traces it, with the name of that process.
    pub(crate) fn tracer(&self) -> Option<(i32, String)> {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.tracer)).unwrap_or_default();
        (self.tracer != 0).then(|| (self.tracer, name.trim().into()))
    }

    /// Whether it is a thread of the kernel, all of which process 2 has started.
    fn is_of_kernel(&self) -> bool {
        const FIRST_THREAD: i32 = 2;
        self.pid == FIRST_THREAD || self.parent == FIRST_THREAD
    }

    /// The refusals that need no permission to find.
    pub(crate) fn check(&self, own: &Self) -> Result<(), Refusal> {
        if self.group != self.pid {
            return Err(Refusal::IsThread(self.group));
        }
        if self.pid == own.pid {
            return Err(Refusal::Itself);
        }
        match self.state {
            b'Z' if self.threads > 1 => return Err(Refusal::NoMainThread),
            b'Z' | b'X' => return Err(Refusal::Zombie),
            // One that is ending has given its memory back already.
            _ if !self.has_memory && !self.is_of_kernel() => return Err(Refusal::Zombie),
            _ if !self.has_memory => return Err(Refusal::Kernel),
            _ => {}
        }
        if let Some((pid, name)) = self.tracer() {
            return Err(Refusal::Traced { pid, name });
        }
        if matches!(self.state, b'T' | b't') {
            return Err(Refusal::Stopped(self.pid));
        }
        if self.ignores_trap() {
            return Err(Refusal::IgnoresTrap);
        }
        Ok(())
    }
}

/// The number of a value as `1 kB`.
fn kilobytes(value: &str) -> u64 {
    value.split_ascii_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ProcessFacts;
    use crate::refusal::Refusal;

    fn facts(text: &str) -> ProcessFacts {
        ProcessFacts::parse(50, text)
    }

    const USUAL: &str =
        "Tgid:\t50\nState:\tS (sleeping)\nTracerPid:\t0\nUid:\t1000\t1000\t1000\t1000\nVmSize:\t 1 kB\n";

    #[test]
    fn what_its_status_forbids_is_said() {
        let own = ProcessFacts { pid: 7, ..ProcessFacts::default() };
        let with = |more: &str| facts(&format!("{USUAL}{more}")).check(&own);
        assert!(with("").is_ok());
        assert!(matches!(with("Tgid:\t49\n"), Err(Refusal::IsThread(49))));
        assert!(matches!(with("State:\tZ (zombie)\n"), Err(Refusal::Zombie)));
        assert!(matches!(with("State:\tZ (zombie)\nThreads:\t2\n"), Err(Refusal::NoMainThread)));
        assert!(matches!(with("State:\tT (stopped)\n"), Err(Refusal::Stopped(50))));
        assert!(matches!(with("TracerPid:\t1\nState:\tt (tracing stop)\n"), Err(Refusal::Traced { pid: 1, .. })));
        assert!(matches!(with("SigIgn:\t0000000000000010\n"), Err(Refusal::IgnoresTrap)));
        assert!(matches!(facts("Tgid:\t50\nPPid:\t2\nState:\tS\n").check(&own), Err(Refusal::Kernel)));
        assert!(matches!(facts("Tgid:\t50\nPPid:\t9\nState:\tR\n").check(&own), Err(Refusal::Zombie)), "it ends");
        assert!(matches!(facts(USUAL).check(&facts(USUAL)), Err(Refusal::Itself)));
    }
}
