//! The user of another process, and what that may read.
//!
//! Invariant: only the calling thread has another user's rights in between, and it has its own again afterwards.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The user and the group whose rights a process has. Its directory in /proc is root's, where it has changed its user since its program
/// began.
pub(crate) fn user_of(pid: i32) -> Option<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let effective = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    Some((effective("Uid:")?, effective("Gid:")?))
}

/// Whether this user, with no groups but this one, may read a file.
pub(crate) fn may_read(path: &Path, user: (u32, u32)) -> bool {
    may_open(path, user, 0)
}

/// Whether he may use the paths of what is in a directory.
pub(crate) fn may_go_through(directory: &Path, user: (u32, u32)) -> bool {
    may_open(&directory.join("."), user, libc::O_PATH)
}

/// Opens it with his rights, on a thread of its own, which ends. Where these cannot be had, it is not known, and counts as yes.
fn may_open(path: &Path, (user, group): (u32, u32), flags: i32) -> bool {
    let open = || !has_rights_of(user, group) || OpenOptions::new().read(true).custom_flags(flags).open(path).is_ok();
    std::thread::scope(|scope| {
        let begun = std::thread::Builder::new().spawn_scoped(scope, open);
        begun.is_ok_and(|thread| thread.join().unwrap_or(false))
    })
}

/// Gives the calling thread the rights of another user for files; whether that was permitted.
fn has_rights_of(user: u32, group: u32) -> bool {
    const NONE: u32 = u32::MAX;
    // By number: the C library's function would change the groups of all threads.
    // SAFETY: no groups are read of a null pointer.
    let without_groups = unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) } == 0;
    // SAFETY: takes a number, and is of the calling thread.
    unsafe { libc::setfsgid(group) };
    // SAFETY: as above.
    unsafe { libc::setfsuid(user) };
    // SAFETY: as above; an invalid number changes nothing, and the present one is returned.
    let is_group = unsafe { libc::setfsgid(NONE) }.cast_unsigned() == group;
    // SAFETY: as above.
    let is_user = unsafe { libc::setfsuid(NONE) }.cast_unsigned() == user;
    without_groups && is_group && is_user
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::{may_go_through, may_read, user_of};
    use crate::sys::effective_user;

    #[test]
    fn another_user_reads_what_he_may() {
        let (user, group) = user_of(std::process::id().cast_signed()).unwrap();
        assert_eq!(user, effective_user());
        assert_eq!(user_of(i32::MAX), None);
        if user != 0 {
            // Only root has other users' rights.
            return;
        }
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let of_directory = |mode| std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(mode)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
        of_directory(0o700);
        assert!(may_read(&path, (user, group)) && !may_read(&path, (65534, 65534)));
        assert!(!may_go_through(directory.path(), (65534, 65534)));
        of_directory(0o711);
        assert!(may_read(&path, (65534, 65534)) && may_go_through(directory.path(), (65534, 65534)));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
        assert!(!may_read(&path, (65534, 65534)) && std::fs::File::open(&path).is_ok());
    }
}
