//! Whether the target's filters for system calls (seccomp) permit those that memtrack makes in it.
//!
//! A forbidden call may end the process, so none is tried: the filters are read and executed here. Who may not read them
//! goes on only if it is under as many filters itself, as in the same container.
//!
//! Invariant: a filter that is not understood forbids everything.

use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;
use crate::tracee::Tracee;

/// What memtrack calls in the target: name, number, and usual arguments.
const NEEDED: [(&str, u32, [u64; 6]); 10] = [
    ("memfd_create", 319, [0, 1, 0, 0, 0, 0]),
    ("mmap", 9, [0, 4096, 5, 2, 3, 0]),
    ("mprotect", 10, [0, 4096, 3, 0, 0, 0]),
    ("munmap", 11, [0, 4096, 0, 0, 0, 0]),
    ("openat", 257, [0xffff_ff9c, 0, 0o2_000_000, 0, 0, 0]),
    ("read", 0, [3, 0, 832, 0, 0, 0]),
    ("newfstatat", 262, [3, 0, 0, 0x1000, 0, 0]),
    ("close", 3, [3, 0, 0, 0, 0, 0]),
    ("futex", 202, [0, 128, 0, 0, 0, 0]),
    ("fcntl", 72, [3, libc::F_GET_SEALS as u64, 0, 0, 0, 0]),
];

/// Refuses a target whose filters forbid what is needed, or may do so.
pub(crate) fn check(facts: &ProcessFacts, own: &ProcessFacts, tracee: &Tracee) -> Result<(), Refusal> {
    match facts.seccomp {
        0 => return Ok(()),
        1 => return Err(Refusal::Seccomp("strict mode", "more than strict mode does".into())),
        _ => {}
    }
    if own.is_administrator() && own.seccomp == 0 {
        let mut index = 0;
        while let Some(filter) = tracee.filter(index).map_err(|_| unknown())? {
            let forbidden: Vec<_> = forbidden(&filter).collect();
            if !forbidden.is_empty() {
                return Err(Refusal::Seccomp("a filter", forbidden.join(", ")));
            }
            index += 1;
        }
        return Ok(());
    }
    let is_same = own.seccomp == 2 && own.filters.zip(facts.filters).is_some_and(|(own, theirs)| own >= theirs);
    if is_same { Ok(()) } else { Err(unknown()) }
}

fn unknown() -> Refusal {
    let names: Vec<_> = NEEDED.iter().map(|(name, ..)| *name).collect();
    Refusal::Seccomp("a filter that only root may read", names.join(", "))
}

fn forbidden(filter: &[libc::sock_filter]) -> impl Iterator<Item = &'static str> {
    let is_forbidden =
        |(_, number, arguments): &&(_, u32, [u64; 6])| !memtrack_seccomp::permits(filter, *number, arguments);
    NEEDED.iter().filter(is_forbidden).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::forbidden;

    const ALLOW: u32 = 0x7fff_0000;

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    #[test]
    fn filters_are_executed() {
        let allow = [instruction(0x06, 0, 0, ALLOW)];
        assert_eq!(forbidden(&allow).count(), 0);
        // Fails memfd_create with EPERM, and mmap of executable pages.
        let filter = [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 3, 0, 319),
            instruction(0x15, 0, 3, 9),
            instruction(0x20, 0, 0, 32),
            instruction(0x45, 0, 1, 4),
            instruction(0x06, 0, 0, 0x0005_0001),
            instruction(0x06, 0, 0, ALLOW),
        ];
        assert_eq!(forbidden(&filter).collect::<Vec<_>>(), ["memfd_create", "mmap"]);
        let strange = [instruction(0xffff, 0, 0, 0)];
        assert!(forbidden(&strange).count() > 5 && forbidden(&[]).count() > 5);
        let divides = [instruction(0x34, 0, 0, 0), instruction(0x06, 0, 0, ALLOW)];
        assert!(forbidden(&divides).count() > 5);
    }
}
