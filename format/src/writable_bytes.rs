//! Bytes that numbers and records are written to, at positions.
//!
//! A trait, because a segment in shared memory is none of Rust's slices: another process reads it while it is written, so
//! there may be no mutable borrow of it. Invariant: no byte is written beyond the end.

/// A slice of bytes, or memory that is used as one.
pub trait WritableBytes {
    /// How many there are.
    fn length(&self) -> usize;

    /// Writes bytes at a position; `None`: they are more than there are from there on.
    #[must_use]
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()>;

    /// The same for any number of bytes.
    #[must_use]
    fn put_text(&mut self, at: usize, text: &[u8]) -> Option<()>;
}

impl<T: AsMut<[u8]> + AsRef<[u8]> + ?Sized> WritableBytes for T {
    #[inline(always)]
    fn length(&self) -> usize {
        self.as_ref().len()
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        *self.as_mut().get_mut(at..)?.first_chunk_mut()? = bytes;
        Some(())
    }

    fn put_text(&mut self, at: usize, text: &[u8]) -> Option<()> {
        self.as_mut().get_mut(at..)?.get_mut(..text.len())?.copy_from_slice(text);
        Some(())
    }
}
