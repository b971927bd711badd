//! Executes a filter of system calls, as the kernel does: classic BPF, which has no loops.
//!
//! `inject` has an interpreter of its own, for another purpose: neither crate uses the other. Invariant: a filter that
//! is not understood allows nothing.

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ACTION: u32 = 0xffff_0000;
/// Words of what a filter sees of a call: number, architecture, the address of the instruction, six arguments.
const WORDS: usize = 16;
/// Words that a filter has to itself.
const SCRATCH: usize = 16;

/// Whether a filter allows a call with these arguments.
pub(super) fn allows(filter: &[libc::sock_filter], number: u32, arguments: &[u64; 6]) -> bool {
    let mut data = [0; WORDS];
    for (place, word) in data.iter_mut().zip([number, ARCHITECTURE]) {
        *place = word;
    }
    let words = arguments.iter().flat_map(|argument| [*argument as u32, (*argument >> 32) as u32]);
    for (place, word) in data.iter_mut().skip(4).zip(words) {
        *place = word;
    }
    matches!(run(filter, &data).map(|result| result & ACTION), Some(ALLOW | LOG))
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
