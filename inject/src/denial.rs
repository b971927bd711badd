//! Why the kernel does not permit memtrack to trace a process, out of what can be read about both.
//!
//! Invariant: nobody is told to get a right that he has, and nothing is done to the process.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;

/// What restricts memtrack where it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Surroundings {
    /// The setting of the security module Yama; `None` where it is not active.
    yama_scope: Option<u32>,
    /// It is in a user namespace of its own, which the process is not known to be in, too.
    is_in_other_namespace: bool,
    /// A filter of its system calls does not permit ptrace.
    is_filtered: bool,
    /// As what a security module confines it.
    label: Option<String>,
}

/// Why memtrack, of which this is known, may not trace a process.
pub(crate) fn why_denied(process: &ProcessFacts, own: &ProcessFacts) -> Refusal {
    Surroundings::of(process.pid, own).why(process, own)
}

impl Surroundings {
    fn of(process: i32, own: &ProcessFacts) -> Self {
        Self {
            yama_scope: read("/proc/sys/kernel/yama/ptrace_scope").and_then(|scope| scope.parse().ok()),
            is_in_other_namespace: is_in_other_namespace(process),
            is_filtered: own.seccomp != 0 && !permits_ptrace(),
            label: ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"].into_iter().find_map(read),
        }
    }

    /// The reason that would remain whatever else was changed.
    fn why(&self, process: &ProcessFacts, own: &ProcessFacts) -> Refusal {
        let user = own.user();
        match (self.yama_scope, process.other_user(user)) {
            (Some(3), _) => Refusal::YamaNobody,
            _ if own.may_trace() => self.why_in_spite_of_right(),
            _ if user == Some(0) && own.could_trace() => Refusal::CapabilityUnused,
            _ if user == Some(0) => Refusal::CapabilityDropped,
            _ if self.is_filtered => Refusal::OwnSeccomp,
            (Some(2), _) => Refusal::YamaPrivileged,
            (_, Some(other)) => Refusal::AnotherUser(other),
            (Some(1), None) => Refusal::YamaParent,
            _ => Refusal::NotDumpable,
        }
    }

    fn why_in_spite_of_right(&self) -> Refusal {
        match &self.label {
            _ if self.is_in_other_namespace => Refusal::UserNamespace,
            _ if self.is_filtered => Refusal::OwnSeccomp,
            Some(label) if !is_unconfined(label) => Refusal::Confined(label.clone()),
            _ => Refusal::Unexplained,
        }
    }
}

/// Whether a security module calls this free: AppArmor so, SELinux by the type in the middle.
fn is_unconfined(label: &str) -> bool {
    label.starts_with("unconfined") || label.contains(":unconfined_t:") || label == "kernel"
}

/// Whether memtrack is not in the first user namespace, nor in one with the process, as far as can be read.
fn is_in_other_namespace(process: i32) -> bool {
    const FIRST: &str = "user:[4026531837]";
    let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/user")).ok();
    let own: Option<PathBuf> = of("self");
    own.is_some_and(|own| own != Path::new(FIRST) && of(&process.to_string()) != Some(own))
}

/// Whether memtrack can make the system call: a filter that forbids it answers before the kernel looks for the process.
fn permits_ptrace() -> bool {
    // SAFETY: takes numbers only; there is no process 0.
    let asked = unsafe { libc::ptrace(libc::PTRACE_DETACH, 0, 0_usize, 0_usize) };
    asked == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_matches(['\0', '\n', ' ']);
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::Surroundings;
    use crate::process_facts::ProcessFacts;
    use crate::refusal::Refusal;

    const TRACE: u64 = 1 << 19;

    fn facts(user: u32, capabilities: u64, bounding: u64) -> ProcessFacts {
        let text = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{capabilities:x}\nCapBnd:\t{bounding:x}\n");
        ProcessFacts::parse(7, &text)
    }

    #[test]
    fn the_reason_of_a_denial_is_the_first_that_would_remain() {
        let target = facts(1000, 0, 0);
        let why = |user, capabilities, yama_scope| {
            let surroundings = Surroundings { yama_scope, ..Surroundings::default() };
            surroundings.why(&target, &facts(user, capabilities, capabilities))
        };
        assert!(matches!(why(1000, TRACE, Some(3)), Refusal::YamaNobody));
        assert!(matches!(why(1000, 0, Some(2)), Refusal::YamaPrivileged));
        assert!(matches!(why(1001, 0, Some(1)), Refusal::AnotherUser(1000)));
        assert!(matches!(why(1000, 0, Some(1)), Refusal::YamaParent));
        assert!(matches!(why(1000, 0, Some(0)), Refusal::NotDumpable));
        assert!(matches!(why(1000, 0, None), Refusal::NotDumpable));
        let filtered = Surroundings { is_filtered: true, yama_scope: Some(1), ..Surroundings::default() };
        assert!(matches!(filtered.why(&target, &facts(1000, 0, 0)), Refusal::OwnSeccomp));
    }

    #[test]
    fn root_is_told_what_it_lacks_and_not_to_be_root() {
        let target = facts(0, u64::MAX, u64::MAX);
        let usual = Surroundings::default;
        for yama_scope in [None, Some(0), Some(1), Some(2)] {
            let why = |effective, bounding| {
                Surroundings { yama_scope, ..usual() }.why(&target, &facts(0, effective, bounding))
            };
            assert!(matches!(why(0, 0), Refusal::CapabilityDropped), "{yama_scope:?}");
            assert!(matches!(why(0, TRACE), Refusal::CapabilityUnused), "{yama_scope:?}");
            assert!(matches!(why(TRACE, TRACE), Refusal::Unexplained), "{yama_scope:?}");
        }
        let why = |surroundings: Surroundings| surroundings.why(&target, &facts(0, TRACE, TRACE));
        assert!(matches!(why(Surroundings { is_in_other_namespace: true, ..usual() }), Refusal::UserNamespace));
        assert!(matches!(why(Surroundings { is_filtered: true, ..usual() }), Refusal::OwnSeccomp));
        let labelled = |label: &str| Surroundings { label: Some(label.into()), ..usual() };
        assert!(matches!(why(labelled("docker-default (enforce)")), Refusal::Confined(_)));
        for label in ["unconfined", "unconfined_u:unconfined_r:unconfined_t:s0", "kernel"] {
            assert!(matches!(why(labelled(label)), Refusal::Unexplained), "{label}");
        }
    }
}
