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
const NEEDED: [(&str, u32, [u64; 6]); 9] = [
    ("memfd_create", 319, [0, 1, 0, 0, 0, 0]),
    ("mmap", 9, [0, 4096, 5, 2, 3, 0]),
    ("mprotect", 10, [0, 4096, 3, 0, 0, 0]),
    ("munmap", 11, [0, 4096, 0, 0, 0, 0]),
    ("openat", 257, [0xffff_ff9c, 0, 0o2_000_000, 0, 0, 0]),
    ("read", 0, [3, 0, 832, 0, 0, 0]),
    ("newfstatat", 262, [3, 0, 0, 0x1000, 0, 0]),
    ("close", 3, [3, 0, 0, 0, 0, 0]),
    ("futex", 202, [0, 128, 0, 0, 0, 0]),
];
const ARCHITECTURE: u32 = 0xc000_003e;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ACTION: u32 = 0xffff_0000;
/// Instructions that are executed at most: filters have no loops.
const MOST_STEPS: usize = 4096;
const SCRATCH: usize = 16;

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
    let permits = |number, arguments: &[u64; 6]| {
        let action = run(filter, &call_data(number, arguments)).map(|result| result & ACTION);
        matches!(action, Some(ALLOW | LOG))
    };
    NEEDED.iter().filter(move |(_, number, arguments)| !permits(*number, arguments)).map(|(name, ..)| *name)
}

/// What a filter sees of a call, in words.
fn call_data(number: u32, arguments: &[u64; 6]) -> [u32; 16] {
    let mut words = [0; 16];
    (words[0], words[1]) = (number, ARCHITECTURE);
    for (place, argument) in words[4..].chunks_exact_mut(2).zip(arguments) {
        (place[0], place[1]) = (*argument as u32, (argument >> 32) as u32);
    }
    words
}

/// Executes a filter; `None`: it is not understood.
fn run(filter: &[libc::sock_filter], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
    let mut scratch = [0_u32; SCRATCH];
    for _ in 0..MOST_STEPS {
        let &libc::sock_filter { code, jt, jf, k } = filter.get(at)?;
        at += 1;
        let operand = if code & 8 == 0 { k } else { x };
        let branch = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            // Loads: a word of the call, a constant, a word of the scratch memory, the length of the call.
            0x20 => a = *data.get(usize::try_from(k / 4).ok()?).filter(|_| k % 4 == 0)?,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *scratch.get(k as usize)?,
            0x61 => x = *scratch.get(k as usize)?,
            0x80 => a = 64,
            0x81 => x = 64,
            0x02 => *scratch.get_mut(k as usize)? = a,
            0x03 => *scratch.get_mut(k as usize)? = x,
            // Arithmetic.
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.checked_shl(operand)?,
            0x74 | 0x7c => a = a.checked_shr(operand)?,
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            // Jumps.
            0x05 => at = at.checked_add(usize::try_from(k).ok()?)?,
            0x15 | 0x1d => at += branch(a == operand),
            0x25 | 0x2d => at += branch(a > operand),
            0x35 | 0x3d => at += branch(a >= operand),
            0x45 | 0x4d => at += branch(a & operand != 0),
            // Results and moves.
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{ALLOW, forbidden};

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
