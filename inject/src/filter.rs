//! Whether the target's filters for system calls (seccomp) permit those that memtrack makes in it.
//!
//! A forbidden call may end the process, so none is tried: the filters are read and executed here. Who may not read them
//! goes on only if it is under as many filters itself, as in the same container.
//!
//! Invariant: a filter that is not understood forbids everything.

use memtrack_seccomp::{own_calls, permits, spares};

use crate::refusal::Refusal;
use crate::target::TargetProcess;
use crate::tracee::Tracee;

type SystemCall = (&'static str, i64, [u64; 6]);

const POINTER: u64 = 0x7fff_0000_1000;

/// What memtrack and its library call in the target when recording begins or ends: name, number, and usual arguments.
const NEEDED: [SystemCall; 11] = [
    ("memfd_create", libc::SYS_memfd_create, [0, 1, 0, 0, 0, 0]),
    ("mmap", libc::SYS_mmap, [0, 4096, 5, 2, 3, 0]),
    ("mprotect", libc::SYS_mprotect, [0, 4096, 3, 0, 0, 0]),
    ("munmap", libc::SYS_munmap, [0, 4096, 0, 0, 0, 0]),
    ("openat", libc::SYS_openat, [0xffff_ff9c, 0, 0o2_000_000, 0, 0, 0]),
    ("read", libc::SYS_read, [3, 0, 832, 0, 0, 0]),
    ("newfstatat", libc::SYS_newfstatat, [3, 0, 0, 0x1000, 0, 0]),
    ("close", libc::SYS_close, [3, 0, 0, 0, 0, 0]),
    ("futex", libc::SYS_futex, [0, 128, 0, 0, 0, 0]),
    ("fcntl", libc::SYS_fcntl, [3, libc::F_GET_SEALS as u64, 0, 0, 0, 0]),
    ("getpid", libc::SYS_getpid, [0; 6]),
];

/// What they call besides when it begins.
const NEEDED_TO_BEGIN: [SystemCall; 2] = [
    ("madvise", libc::SYS_madvise, [POINTER, 1 << 16, libc::MADV_DONTDUMP as u64, 0, 0, 0]),
    ("mremap", libc::SYS_mremap, [POINTER, 0, 1 << 16, libc::MREMAP_MAYMOVE as u64, 0, 0]),
];

/// The flags of a thread.
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// What may fail, but must not end the process.
const TRIED: [SystemCall; 3] = [
    ("membarrier", libc::SYS_membarrier, [libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u64, 0, 0, 0, 0, 0]),
    ("membarrier", libc::SYS_membarrier, [libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u64, 0, 0, 0, 0, 0]),
    ("membarrier", libc::SYS_membarrier, [libc::MEMBARRIER_CMD_GLOBAL as u64, 0, 0, 0, 0, 0]),
];

/// The same when it begins.
const TRIED_TO_BEGIN: [SystemCall; 2] = [
    ("clone", libc::SYS_clone, [THREAD as u64, POINTER, POINTER, POINTER, POINTER, 0]),
    ("statx", libc::SYS_statx, [0xffff_ff9c, POINTER, 0, 0xfff, POINTER, 0]),
];

/// What the library does for children and to find its collector, where there is no filter.
const OTHERS: [SystemCall; 5] = [
    ("socket", libc::SYS_socket, [1, libc::SOCK_STREAM as u64, 0, 0, 0, 0]),
    ("connect", libc::SYS_connect, [3, POINTER, 110, 0, 0, 0]),
    ("sendmsg", libc::SYS_sendmsg, [3, POINTER, 0, 0, 0, 0]),
    ("recvmsg", libc::SYS_recvmsg, [3, POINTER, 0, 0, 0, 0]),
    ("setsockopt", libc::SYS_setsockopt, [3, 1, 20, POINTER, 16, 0]),
];

/// What a target's filters leave to memtrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// As much as without them.
    Everything,
    /// What is needed, without these of the library's [own calls](own_calls), as bits, and whatever it does besides.
    Restricted(u32),
}

/// What is to be done in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Begin,
    End,
}

impl Purpose {
    fn needed(self) -> impl Iterator<Item = &'static SystemCall> {
        NEEDED.iter().chain(if self == Self::Begin { &NEEDED_TO_BEGIN[..] } else { &[] })
    }

    fn tried(self) -> impl Iterator<Item = &'static SystemCall> {
        TRIED.iter().chain(if self == Self::Begin { &TRIED_TO_BEGIN[..] } else { &[] })
    }
}

/// Refuses a target whose filters forbid what is needed, or may do so.
pub(crate) fn check(target: &TargetProcess, tracee: &Tracee, purpose: Purpose) -> Result<Permission, Refusal> {
    let (facts, own) = (&target.facts, &target.own);
    match facts.seccomp {
        0 => return Ok(Permission::Everything),
        1 => return Err(Refusal::Seccomp("strict mode", "more than strict mode does".into())),
        _ => {}
    }
    if own.is_administrator() && own.seccomp == 0 {
        let mut filters = Vec::new();
        while let Some(filter) = tracee.filter(filters.len()).map_err(|_| unknown(purpose))? {
            filters.push(filter);
        }
        let forbidden: Vec<_> =
            filters.iter().map(|filter| forbidden(filter, purpose)).find(|names| !names.is_empty()).unwrap_or_default();
        if !forbidden.is_empty() {
            return Err(Refusal::Seccomp("a filter", forbidden.join(", ")));
        }
        return Ok(permission(&filters));
    }
    let is_same = own.seccomp == 2 && own.filters.zip(facts.filters).is_some_and(|(own, theirs)| own >= theirs);
    if is_same { Ok(Permission::Everything) } else { Err(unknown(purpose)) }
}

fn unknown(purpose: Purpose) -> Refusal {
    let mut names: Vec<_> = purpose.needed().chain(purpose.tried()).map(|(name, ..)| *name).collect();
    names.dedup();
    Refusal::SeccompUnread(names.join(", "))
}

/// The needed calls that a filter forbids.
fn forbidden(filter: &[libc::sock_filter], purpose: Purpose) -> Vec<&'static str> {
    let not = |answer: fn(&[libc::sock_filter], u32, &[u64; 6]) -> bool| {
        move |(_, number, arguments): &&SystemCall| !answer(filter, *number as u32, arguments)
    };
    let all = purpose.needed().filter(not(permits)).chain(purpose.tried().filter(not(spares)));
    let mut names: Vec<_> = all.map(|(name, ..)| *name).collect();
    names.dedup();
    names
}

fn permission(filters: &[Vec<libc::sock_filter>]) -> Permission {
    let calls = filters.iter().fold(0, |calls, filter| calls | own_calls::forbidden(filter));
    let permits_others = |filter: &Vec<libc::sock_filter>| {
        OTHERS.iter().all(|(_, number, arguments)| permits(filter, *number as u32, arguments))
    };
    if calls == 0 && filters.iter().all(permits_others) {
        Permission::Everything
    } else {
        Permission::Restricted(calls)
    }
}

#[cfg(test)]
mod tests {
    use memtrack_seccomp::own_calls::OwnCall;

    use super::{Permission, Purpose, permission};

    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const FAIL: u32 = 0x0005_0001;

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    fn forbidden(filter: &[libc::sock_filter]) -> Vec<&'static str> {
        super::forbidden(filter, Purpose::Begin)
    }

    /// A filter that allows all calls but one.
    fn all_but(number: i64, action: u32) -> Vec<libc::sock_filter> {
        let is_it = [instruction(0x20, 0, 0, 0), instruction(0x15, 0, 1, number as u32)];
        [is_it.as_slice(), &[instruction(0x06, 0, 0, action), instruction(0x06, 0, 0, ALLOW)]].concat()
    }

    #[test]
    fn filters_are_executed() {
        let allow = [instruction(0x06, 0, 0, ALLOW)];
        assert!(forbidden(&allow).is_empty());
        // Fails memfd_create with EPERM, and mmap of executable pages.
        let filter = [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 3, 0, 319),
            instruction(0x15, 0, 3, 9),
            instruction(0x20, 0, 0, 32),
            instruction(0x45, 0, 1, 4),
            instruction(0x06, 0, 0, FAIL),
            instruction(0x06, 0, 0, ALLOW),
        ];
        assert_eq!(forbidden(&filter), ["memfd_create", "mmap"]);
        let strange = [instruction(0xffff, 0, 0, 0)];
        assert!(forbidden(&strange).len() > 5 && forbidden(&[]).len() > 5);
        let divides = [instruction(0x34, 0, 0, 0), instruction(0x06, 0, 0, ALLOW)];
        assert!(forbidden(&divides).len() > 5);
    }

    #[test]
    fn what_may_fail_may_not_end_the_process() {
        assert_eq!(forbidden(&all_but(libc::SYS_membarrier, KILL)), ["membarrier"]);
        assert!(forbidden(&all_but(libc::SYS_membarrier, FAIL)).is_empty());
        assert_eq!(forbidden(&all_but(libc::SYS_getpid, FAIL)), ["getpid"]);
        // Whoever may not begin may have begun before the filter was there.
        let filter = all_but(libc::SYS_mremap, KILL);
        assert_eq!(forbidden(&filter), ["mremap"]);
        assert!(super::forbidden(&filter, Purpose::End).is_empty());
    }

    #[test]
    fn the_library_is_told_what_it_may_not_do() {
        let of = |number| permission(&[all_but(libc::SYS_uselib, KILL), all_but(number, KILL)]);
        assert_eq!(of(libc::SYS_uselib), Permission::Everything);
        assert_eq!(of(libc::SYS_gettid), Permission::Restricted(OwnCall::ThreadId.bit()));
        assert_eq!(of(libc::SYS_connect), Permission::Restricted(0));
    }
}
