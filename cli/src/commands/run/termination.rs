//! Determines why the program was terminated: the signal, and the resource limit that caused it.
//!
//! Invariant: a limit is named only if the system reports that the program ran under it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use memtrack_collector::ProcessEnd;

use crate::reports::capture_info::{CPU_TIME_LIMIT, PERHAPS_KILLED};
use crate::sys::ResourceLimits;
use crate::units::{count, duration, size};

/// How the program ended, and under which limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Termination {
    /// `None`: unknown.
    pub(super) status: Option<ExitStatus>,
    pub(super) limits: ResourceLimits,
    /// CPU time in nanoseconds.
    pub(super) cpu_ns: Option<u64>,
    /// Processes in its control group that the OOM killer ended during the run.
    pub(super) oom_kills: u64,
    /// Processes and threads that pids.max of its control groups refused during the run.
    pub(super) refused_tasks: u64,
    /// The memory limit of its control groups, in bytes.
    pub(super) group_memory: Option<u64>,
}

impl Termination {
    /// Of a process whose end was not waited for, or that runs on.
    pub(super) fn unknown() -> Self {
        Self {
            status: None,
            limits: ResourceLimits::default(),
            cpu_ns: None,
            oom_kills: 0,
            refused_tasks: 0,
            group_memory: None,
        }
    }

    /// Of a process whose end the collector has seen.
    pub(super) fn of(end: &ProcessEnd) -> Self {
        let ProcessEnd { status, oom_kills, group_memory } = *end;
        Self { status, oom_kills, group_memory, ..Self::unknown() }
    }

    /// Describes the signal that ended the program, if any.
    pub(super) fn signal_text(&self) -> Option<String> {
        let Some(status) = self.status else { return self.perhaps_killed() };
        let signal = status.signal()?;
        let name = SIGNALS.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name);
        let name = match (name, self.signal_reason(signal)) {
            (Some(name), Some(reason)) => format!(" ({name}: {reason})"),
            (Some(name), None) => format!(" ({name})"),
            (None, _) => String::new(),
        };
        let core = if status.core_dumped() { ", with a core dump" } else { "" };
        Some(format!("ended by signal {signal}{name}{core}"))
    }

    /// What is said of an end of which the system tells no more than that the OOM killer was there.
    fn perhaps_killed(&self) -> Option<String> {
        let limit = self.group_memory.filter(|_| self.oom_kills > 0)?;
        let limit = size(limit);
        Some(format!("{PERHAPS_KILLED}, which killed a process in its cgroup then, whose memory limit is {limit}"))
    }

    /// The reason why the system sent a signal, if it can be determined.
    fn signal_reason(&self, signal: i32) -> Option<String> {
        let limits = &self.limits;
        Some(match signal {
            libc::SIGKILL if self.oom_kills > 0 => {
                let limit = self.group_memory.map(|bytes| format!(", whose memory limit is {}", size(bytes)));
                format!("the OOM killer killed a process in its cgroup{}", limit.unwrap_or_default())
            }
            libc::SIGKILL => self.reason_of_kill(),
            libc::SIGXCPU => {
                // When the kernel sends it, it raises the soft limit by one second.
                let told_at = limits.cpu_seconds.map(|raised| raised.saturating_sub(1));
                of_seconds(told_at.filter(|limit| self.has_used(*limit, SECOND_NS / 2))?)
            }
            libc::SIGXFSZ => format!("file size limit (ulimit -f), {}", size(limits.file_size?)),
            libc::SIGSYS => "forbidden system call (seccomp); memtrack itself makes some (futex, gettid and others: see \
                             \"seccomp\" in docs/limitations.md) where it does not see the filter; or sent by another process"
                .into(),
            _ => return None,
        })
    }

    /// SIGKILL can have any sender: it is put down to the limit of processor time only where as much was used.
    fn reason_of_kill(&self) -> String {
        const ANYBODY: &str = "sent by a process, or by the OOM killer";
        match (self.limits.most_cpu_seconds, self.cpu_ns) {
            (Some(limit), Some(_)) if self.has_used(limit, TICKS_NS) => of_seconds(limit),
            (Some(limit), Some(used)) if self.has_used(limit, limit.saturating_mul(SECOND_NS / MISCOUNTED)) => {
                format!(
                    "at {} of a {}, which the kernel counts by ticks; or {ANYBODY}",
                    duration(used),
                    of_seconds(limit)
                )
            }
            _ => ANYBODY.into(),
        }
    }

    /// Whether it has used so many seconds of processor time, if that is inexact by so much.
    fn has_used(&self, seconds: u64, inexact_ns: u64) -> bool {
        self.cpu_ns.unwrap_or(0).saturating_add(inexact_ns) / SECOND_NS >= seconds
    }

    /// Effects of control-group limits that [`Self::signal_text`] does not mention.
    pub(super) fn group_limits(&self) -> Option<String> {
        let killed = match self.oom_kills {
            0 => None,
            _ if self.status.and_then(|status| status.signal()) == Some(libc::SIGKILL) => None,
            1 => Some("the OOM killer killed a process of the control group".to_owned()),
            more => Some(format!("the OOM killer killed {} processes of the control group", count(more))),
        };
        let too_many =
            "the limit of the control group (pids.max) refused processes or threads; memtrack's threads count, too";
        let refused = (self.refused_tasks > 0).then_some(too_many);
        let all: Vec<_> = killed.into_iter().chain(refused.map(str::to_owned)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The memory limits that the program ran under, if any.
    pub(super) fn memory_limits(&self) -> Option<String> {
        let of = |name: &str, limit: Option<u64>| limit.map(|bytes| format!("{name} {}", size(bytes)));
        let all = [
            of("address space limit (ulimit -v)", self.limits.address_space),
            of("data limit (ulimit -d)", self.limits.data),
        ];
        let all: Vec<_> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

const SECOND_NS: u64 = 1_000_000_000;
/// The kernel enforces CPU limits in scheduler ticks, but reports exact CPU time; tolerance for the difference.
const TICKS_NS: u64 = 50_000_000;
/// Where processors are shared, 1/n of the ticks can be of time that others had (1/9 was seen on two busy processors).
const MISCOUNTED: u64 = 5;

fn of_seconds(limit: u64) -> String {
    format!("{CPU_TIME_LIMIT} of {} s", count(limit))
}

/// Names of the signals that terminate programs.
const SIGNALS: [(i32, &str); 22] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (29, "SIGIO"),
    (31, "SIGSYS"),
];

#[cfg(test)]
mod tests {
    use super::Termination;
    use crate::sys::ResourceLimits;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn termination(raw: i32) -> Termination {
        let (status, limits) = (Some(ExitStatus::from_raw(raw)), ResourceLimits::default());
        Termination { status, limits, cpu_ns: Some(1_010_000_000), ..Termination::unknown() }
    }

    #[test]
    fn signals_are_named() {
        let text = |raw| termination(raw).signal_text();
        assert_eq!(text(11).as_deref(), Some("ended by signal 11 (SIGSEGV)"));
        assert_eq!(text(0x80 | 6).as_deref(), Some("ended by signal 6 (SIGABRT), with a core dump"));
        assert_eq!(text(35).as_deref(), Some("ended by signal 35"));
        assert_eq!(text(3 << 8), None);
        assert_eq!(Termination::unknown().signal_text(), None);
        let perhaps = Termination { oom_kills: 1, group_memory: Some(200_000_000), ..Termination::unknown() };
        let expected =
            "ended perhaps by the OOM killer, which killed a process in its cgroup then, whose memory limit is 200 MB";
        assert_eq!(perhaps.signal_text().as_deref(), Some(expected));
    }

    #[test]
    fn the_limit_behind_a_signal_is_told_where_it_is_known() {
        let limits = ResourceLimits {
            cpu_seconds: Some(2),
            most_cpu_seconds: Some(1),
            file_size: Some(1000),
            ..ResourceLimits::default()
        };
        let text = |raw, limits, oom: bool| {
            Termination { limits, oom_kills: oom.into(), ..termination(raw) }.signal_text().unwrap()
        };
        let none = ResourceLimits::default();
        let cpu = "CPU time limit (ulimit -t) of 1 s)";
        assert_eq!(text(24, limits, false), format!("ended by signal 24 (SIGXCPU: {cpu}"));
        // Sent by a process: it ran under no such limit.
        assert_eq!(text(24, none, false), "ended by signal 24 (SIGXCPU)");
        assert_eq!(text(25, none, false), "ended by signal 25 (SIGXFSZ)");
        assert_eq!(text(9, limits, false), format!("ended by signal 9 (SIGKILL: {cpu}"));
        assert!(text(9, none, false).ends_with("(SIGKILL: sent by a process, or by the OOM killer)"));
        assert!(text(9, none, true).contains("killed a process in its cgroup"));
        let longer = ResourceLimits { most_cpu_seconds: Some(2), ..limits };
        assert!(text(9, longer, false).contains("(SIGKILL: sent by a process"));
        // Killed at 0.6 s by another process, under a limit of 1 s.
        let early = Termination { limits, cpu_ns: Some(600_000_000), ..termination(9) };
        assert!(early.signal_text().unwrap().contains("(SIGKILL: sent by a process"));
        // The kernel counted ticks in which others ran.
        let counted = Termination { limits, cpu_ns: Some(880_000_000), ..termination(9) }.signal_text().unwrap();
        assert!(counted.contains("at 880 ms of a CPU time limit (ulimit -t) of 1 s") && counted.contains("or sent by"));
        assert!(text(25, limits, false).ends_with("file size limit (ulimit -f), 1.00 kB)"));
    }

    #[test]
    fn limits_of_control_groups_are_told_once() {
        let told =
            |raw, oom_kills, refused_tasks| Termination { oom_kills, refused_tasks, ..termination(raw) }.group_limits();
        assert_eq!((told(0, 0, 0), told(9, 1, 0)), (None, None));
        assert!(told(0, 1, 0).unwrap().starts_with("the OOM killer killed a process of"));
        assert!(told(9, 2, 7).unwrap().starts_with("the limit of the control group (pids.max)"));
        assert!(told(0, 2, 7).unwrap().contains("killed 2 processes") && told(0, 2, 7).unwrap().contains("pids.max"));
    }

    #[test]
    fn limits_of_memory_are_told() {
        let limits = ResourceLimits { address_space: Some(500_000_000), ..ResourceLimits::default() };
        let told = |limits| Termination { limits, ..termination(0) }.memory_limits();
        assert_eq!(told(limits).as_deref(), Some("address space limit (ulimit -v) 500 MB"));
        assert_eq!(told(ResourceLimits::default()), None);
    }
}
