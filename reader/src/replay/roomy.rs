//! Growth of tables of up to a gigabyte.
//!
//! Items that begin at a multiple of their size are copied when their vector grows: then both are in memory. So a large
//! vector grows by a factor of eight. What of it has no items is never touched, and takes address space only. In turn an
//! allocator can give it the processor's large pages from its beginning: else each random access would miss the cache of
//! page addresses, too.

/// Bytes up to which a vector grows as usual.
const SMALL: usize = 512 << 10;

/// Adds an item; returns its number.
#[inline]
pub(super) fn add<T>(items: &mut Vec<T>, item: T) -> usize {
    if items.len() == items.capacity() {
        make_room(items);
    }
    items.push(item);
    items.len() - 1
}

#[cold]
fn make_room<T>(items: &mut Vec<T>) {
    if items.len() * size_of::<T>() >= SMALL {
        // Where there is no such room, it grows as usual.
        let _ = items.try_reserve_exact(7 * items.len());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_large_vector_grows_rarely() {
        let (mut items, mut grown) = (Vec::new(), 0);
        for number in 0..1_000_000_u64 {
            let before = items.capacity();
            assert_eq!(super::add(&mut items, [number; 2]) as u64, number);
            grown += u32::from(items.len() > 1 << 15 && items.capacity() != before);
        }
        assert_eq!((grown, items.get(999_999)), (2, Some(&[999_999; 2])));
    }
}
