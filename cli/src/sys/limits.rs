//! Reads the resource limits of a process.
//!
//! It exists because a program that is ended by a limit rarely reports it. Invariant: an unknown limit is `None`, and
//! nothing is changed.

use std::mem::MaybeUninit;

/// The current limits of a process; `None` for unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    /// Address space in bytes (RLIMIT_AS).
    pub(crate) address_space: Option<u64>,
    /// Data segment in bytes (RLIMIT_DATA).
    pub(crate) data: Option<u64>,
    /// File size in bytes (RLIMIT_FSIZE).
    pub(crate) file_size: Option<u64>,
    /// CPU seconds after which SIGXCPU is sent (soft limit).
    pub(crate) cpu_seconds: Option<u64>,
    /// CPU seconds after which SIGKILL is sent (hard limit).
    pub(crate) most_cpu_seconds: Option<u64>,
}

impl ResourceLimits {
    /// The limits of a process that is not yet reaped.
    pub(crate) fn of(pid: i32) -> Self {
        let limit = |resource| {
            let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
            // SAFETY: no new limits are given; the old ones are written to a live local.
            let got = unsafe { libc::prlimit(pid, resource, std::ptr::null(), limit.as_mut_ptr()) };
            // SAFETY: all zeroes is a valid value.
            let limit = unsafe { limit.assume_init() };
            let finite = |value| (got == 0 && value != libc::RLIM_INFINITY).then_some(value);
            [finite(limit.rlim_cur), finite(limit.rlim_max)]
        };
        let ([address_space, _], [data, _]) = (limit(libc::RLIMIT_AS), limit(libc::RLIMIT_DATA));
        let ([file_size, _], [cpu_seconds, most_cpu_seconds]) = (limit(libc::RLIMIT_FSIZE), limit(libc::RLIMIT_CPU));
        Self { address_space, data, file_size, cpu_seconds, most_cpu_seconds }
    }
}

/// Bytes of address space of a process; `None`: it has ended.
pub(crate) fn address_space(pid: i32) -> Option<u64> {
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let pages: u64 = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?.split(' ').next()?.parse().ok()?;
    pages.checked_mul(u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::ResourceLimits;

    #[test]
    fn limits_of_a_process_that_is_not_reaped() {
        let script = "ulimit -v 500000; ulimit -t 7; exit 3";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: waitid writes to a live local.
        unsafe { libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
        let limits = ResourceLimits::of(pid);
        assert_eq!((limits.address_space, limits.cpu_seconds), (Some(500_000 * 1024), Some(7)));
        child.wait().unwrap();
    }
}
