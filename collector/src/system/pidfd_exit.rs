//! How a process ended that was reaped by another, asked through its pidfd: Linux 6.15 or later.
//!
//! Invariant: what the system does not say, is `None`.

use std::os::fd::{AsRawFd, BorrowedFd};

/// What the system is asked, and tells: `struct pidfd_info` in its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    mask: u64,
    control_group: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`, and the request `PIDFD_GET_INFO` for that version.
const EXIT: u64 = 1 << 3;
const GET_INFO: u64 = 3 << 30 | (size_of::<PidfdInfo>() as u64) << 16 | 0xff << 8 | 11;

/// The status as one who waited for the process has it.
pub(crate) fn wait_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the request is made for a structure of this size, which is a local; older systems refuse it.
    let asked = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut info) };
    (asked == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::PidfdInfo;

    #[test]
    fn the_structure_is_that_of_the_system() {
        assert_eq!((size_of::<PidfdInfo>(), std::mem::offset_of!(PidfdInfo, exit_code)), (64, 60));
    }
}
