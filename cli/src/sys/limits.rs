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

/// What the limits of address space and data are compared with, in bytes; 0 for a process that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtualSizes {
    pub(crate) address_space: u64,
    pub(crate) data: u64,
}

impl VirtualSizes {
    /// Those of a process.
    pub(crate) fn of(pid: i32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let kibibytes = status.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
            kibibytes.parse::<u64>().ok()?.checked_mul(1024)
        };
        let [address_space, data] = ["VmSize:", "VmData:"].map(|name| field(name).unwrap_or(0));
        Self { address_space, data }
    }
}

#[cfg(test)]
mod tests {
    use super::{ResourceLimits, VirtualSizes};

    #[test]
    fn sizes_of_a_process() {
        let sizes = VirtualSizes::of(std::process::id().cast_signed());
        assert!(sizes.data > 4096 && sizes.address_space > sizes.data, "{sizes:?}");
        assert_eq!(VirtualSizes::of(-1), VirtualSizes::default());
    }

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
