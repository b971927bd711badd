//! How much of huge pages holds zeroes only: what pages of usual size would mostly not have taken.
//!
//! A huge page becomes resident as a whole with the first write to it. Which of its pages were written later the system does not
//! tell, so they are looked at.
//!
//! Invariant: reading them takes bounded time; of larger memory an even part is read, and counts for all of it.

use memtrack_format::resident::HugePages;

use super::memory::ProcessMemory;

/// Maximum number of bytes that are read, and bytes that are read at a time.
const MOST_BYTES: u64 = 64 << 20;
const PIECE: u64 = 2 << 20;

/// What these ranges of huge pages hold.
pub(super) fn huge_pages(memory: &ProcessMemory, ranges: &[(u64, u64)], page: u64) -> HugePages {
    let bytes = ranges.iter().map(|(start, end)| end - start).sum::<u64>();
    let step = usize::try_from(bytes.div_ceil(MOST_BYTES)).unwrap_or(usize::MAX).max(1);
    let pieces = ranges.iter().flat_map(|(start, end)| {
        (*start..*end).step_by(PIECE as usize).map(move |piece| (piece, PIECE.min(end - piece)))
    });
    let mut buffer = vec![0; if bytes == 0 { 0 } else { PIECE as usize }];
    let (mut read, mut zeroes) = (0, 0);
    for (start, len) in pieces.step_by(step) {
        let Some(buffer) = buffer.get_mut(..len as usize) else { break };
        if memory.read(buffer, start).is_ok() {
            read += len;
            let is_empty = |page: &&[u8]| page.iter().all(|byte| *byte == 0);
            zeroes += buffer.chunks_exact(page as usize).filter(is_empty).count() as u64 * page;
        }
    }
    let part = u128::from(zeroes) * u128::from(bytes) / u128::from(read.max(1));
    HugePages { bytes, zeroes: u64::try_from(part).unwrap_or(bytes).min(bytes) / page * page }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{MOST_BYTES, PIECE, ProcessMemory, huge_pages};

    const PAGE: usize = 4096;

    #[test]
    fn pages_of_zeroes_are_counted() {
        let mut bytes = vec![0_u8; 4 << 20];
        bytes[5 * PAGE + 17] = 1;
        bytes[6 * PAGE - 1] = 1;
        bytes[900 * PAGE] = 1;
        let memory = ProcessMemory::of(std::process::id().cast_signed()).unwrap();
        let start = bytes.as_ptr() as u64;
        let found = huge_pages(&memory, &[(start, start + PIECE), (start + PIECE, start + 2 * PIECE)], PAGE as u64);
        assert_eq!((found.bytes, found.zeroes), (2 * PIECE, 2 * PIECE - 2 * PAGE as u64));
        assert_eq!(huge_pages(&memory, &[], PAGE as u64).bytes, 0);
        // Nothing is mapped there.
        assert_eq!(huge_pages(&memory, &[(0, PIECE)], PAGE as u64).zeroes, 0);
    }

    #[test]
    fn of_much_memory_a_part_counts_for_all() {
        let bytes = vec![0_u8; (MOST_BYTES + MOST_BYTES / 2) as usize];
        let memory = ProcessMemory::of(std::process::id().cast_signed()).unwrap();
        let start = bytes.as_ptr() as u64;
        let found = huge_pages(&memory, &[(start, start + bytes.len() as u64)], PAGE as u64);
        assert_eq!((found.bytes, found.zeroes), (bytes.len() as u64, bytes.len() as u64));
    }
}
