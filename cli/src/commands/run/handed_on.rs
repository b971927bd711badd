//! What the programs need that an attached process starts or becomes: to read memtrack's library, and to connect.
//!
//! Where root records the program of another user, neither is possible by itself: the library is in a directory of root's.
//! Invariant: another user can change neither, see [`PrivateDirectory::admit`], and a program is told no library that it
//! cannot read: the loader would complain to its user.

use std::path::{Path, PathBuf};

use super::other_root::OtherRoot;
use super::private_directory::PrivateDirectory;
use crate::message;
use crate::shim;
use crate::shim::NoPlace;
use crate::sys::{effective_user, may_go_through, may_read, user_of};

/// The directory for the recording of a process. Where that is another user's, it is in one where he cannot move it, if there is any.
///
/// # Errors
/// It cannot be made.
pub(super) fn directory_for(pid: i32) -> Result<PrivateDirectory, NoPlace> {
    let guarded = || PrivateDirectory::guarded().ok();
    other_user(pid).and_then(|_| guarded()).map_or_else(PrivateDirectory::new, Ok)
}

/// The path of the library for the programs that the process starts; where these have another root directory, there is none. Of
/// another user it is a copy in the recording's directory, if he cannot read the library itself. With `warns` the user is told where
/// that cannot be.
pub(super) fn library_for(pid: i32, private: &PrivateDirectory, image: &[u8], warns: bool) -> Option<PathBuf> {
    let path = shim::find().ok().filter(|path| OtherRoot::of_process(pid).is_none() && !shim::is_special(path))?;
    let Some(user) = other_user(pid).filter(|user| !may_read(&path, *user)) else { return Some(path) };
    let copied = if private.is_guarded() {
        private.copy_library(image).map_err(|error| error.to_string())
    } else {
        Err(format!("others than root can move {}", private.path().display()))
    };
    let usable = copied.and_then(|copy| {
        let reached = private.path().parent().is_some_and(|parent| may_go_through(parent, user));
        if reached { Ok(copy) } else { Err(format!("user {} cannot reach {}", user.0, private.path().display())) }
    });
    match usable {
        Ok(copy) => Some(copy),
        Err(why) => {
            if warns {
                message::warning(format_args!(
                    "programs that process {pid} starts are not recorded, since its user cannot read memtrack's library: {why}; \
                     set TMPDIR to a directory of root's, as /var/tmp, that he can reach and that is not mounted noexec"
                ));
            }
            None
        }
    }
}

/// Where root records the program of another user: lets that user's programs connect.
pub(super) fn admit_user(private: &PrivateDirectory, socket: &Path, pid: i32) {
    if let Some((user, _)) = other_user(pid).filter(|_| private.is_guarded()) {
        // Without it they are not recorded, which is reported.
        let _ = private.admit(socket, user);
    }
}

/// The user of a process, and his group, if he is not the one who records.
fn other_user(pid: i32) -> Option<(u32, u32)> {
    user_of(pid).filter(|(user, _)| *user != effective_user())
}
