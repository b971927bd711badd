//! Bytes that numbers and records are written to, at positions.
//!
//! A trait, because a segment in shared memory is not a Rust slice: another process reads it while it is written, so a
//! mutable borrow of it would be undefined behaviour. Invariant: no byte is written beyond the end.

/// A slice of bytes, or memory that is used as one.
pub trait WritableBytes {
    /// The number of bytes.
    fn length(&self) -> usize;

    /// Writes bytes at a position; `None` where they do not fit.
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
