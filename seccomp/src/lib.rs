//! Says what a filter of system calls (seccomp) permits, by executing it as the kernel does: classic BPF, which has no loops.
//!
//! A call that is forbidden may end the process, so none can be tried. The library in the program asks about its own calls, and who is
//! about to make calls in another process about those. Invariant: a filter that is not understood permits nothing; nothing
//! is allocated.

pub mod own_calls;

/// How filters call this architecture.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const ALLOW: u32 = 0x7fff_0000;
const FAILS: u32 = 0x0005_0000;
const LOG: u32 = 0x7ffc_0000;
const ACTION: u32 = 0xffff_0000;
/// Words of what a filter sees of a call: number, architecture, the address of the instruction, six arguments.
const WORDS: usize = 16;
/// Words that a filter has to itself.
const SCRATCH: usize = 16;

/// Whether a filter plainly permits the call of this number with these arguments: it is made, and at most logged.
#[must_use]
pub fn permits(filter: &[libc::sock_filter], number: u32, arguments: &[u64; 6]) -> bool {
    matches!(result(filter, number, arguments).map(|result| result & ACTION), Some(ALLOW | LOG))
}

/// Whether the call is harmless to try: it is permitted, or plainly fails.
#[must_use]
pub fn spares(filter: &[libc::sock_filter], number: u32, arguments: &[u64; 6]) -> bool {
    let fails = |result: u32| result & ACTION == FAILS && result != FAILS;
    permits(filter, number, arguments) || result(filter, number, arguments).is_some_and(fails)
}

fn result(filter: &[libc::sock_filter], number: u32, arguments: &[u64; 6]) -> Option<u32> {
    let mut data = [0; WORDS];
    for (place, word) in data.iter_mut().zip([number, ARCHITECTURE]) {
        *place = word;
    }
    let words = arguments.iter().flat_map(|argument| [*argument as u32, (*argument >> 32) as u32]);
    for (place, word) in data.iter_mut().skip(4).zip(words) {
        *place = word;
    }
    run(filter, &data)
}

/// The filter's result; `None`: it is not understood.
fn run(filter: &[libc::sock_filter], data: &[u32; WORDS]) -> Option<u32> {
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
    let mut scratch = [0_u32; SCRATCH];
    // Jumps lead forward only, so there are no more steps than instructions.
    for _ in 0..filter.len() {
        let &libc::sock_filter { code, jt, jf, k } = filter.get(at)?;
        at = at.wrapping_add(1);
        let operand = if code & 8 == 0 { k } else { x };
        let branch = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            // Loads: a word of the call, a constant, a word of the scratch memory, the length of the call.
            0x20 => a = *data.get((k / 4) as usize).filter(|_| k.is_multiple_of(4))?,
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
            0x05 => at = at.checked_add(k as usize)?,
            0x15 | 0x1d => at = at.checked_add(branch(a == operand))?,
            0x25 | 0x2d => at = at.checked_add(branch(a > operand))?,
            0x35 | 0x3d => at = at.checked_add(branch(a >= operand))?,
            0x45 | 0x4d => at = at.checked_add(branch(a & operand != 0))?,
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
    use super::{ALLOW, ARCHITECTURE, LOG, permits, spares};

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    #[test]
    fn a_filter_is_executed() {
        let returns = |action| instruction(0x06, 0, 0, action);
        let all = |filter: &[libc::sock_filter]| permits(filter, 202, &[0, 128, 0, 0, 0, 0]);
        assert!(all(&[returns(ALLOW)]) && all(&[returns(LOG)]));
        // An error, a signal, a tracer; nothing; what does not end, and what is not understood.
        assert!([0x0005_0001, 0, 0x0003_0000, 0x7ff0_0000].iter().all(|action| !all(&[returns(*action)])));
        // A failure is harmless, but not one that looks like success.
        let tried = [0x0005_0001, 0x0005_0000, 0].map(|action| spares(&[returns(action)], 202, &[0; 6]));
        assert_eq!(tried, [true, false, false]);
        assert!(!all(&[]) && !all(&[instruction(0x05, 0, 0, u32::MAX), returns(ALLOW)]));
        assert!(!all(&[instruction(0xffff, 0, 0, 0), returns(ALLOW)]));
        // Of this architecture the call with this number, if the second argument is 128.
        let load = |offset| instruction(0x20, 0, 0, offset);
        let filter = |argument| {
            let is_here = [load(4), instruction(0x15, 0, 5, ARCHITECTURE)];
            let is_call = [load(0), instruction(0x15, 0, 3, 202)];
            let has_argument = [load(24), instruction(0x15, 0, 1, argument), returns(ALLOW), returns(0)];
            [is_here.as_slice(), &is_call, &has_argument].concat()
        };
        assert!(all(&filter(128)) && !all(&filter(129)));
        assert!(!permits(&filter(128), 203, &[0, 128, 0, 0, 0, 0]));
    }
}
