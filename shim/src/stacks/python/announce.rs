//! What the collector is told about the interpreter.
//!
//! Invariant: the version is stored last, with release: a reader that sees it sees the rest.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::discovery::{reason, version_hex};
use super::interpreter::build;
use crate::platform::shared_area;

/// Tells the collector about the interpreter; again whenever one was found after a dlopen.
pub(crate) fn tell_collector() {
    let Some(area) = shared_area::area() else { return };
    let control = area.control();
    let note = reason().unwrap_or("").as_bytes();
    store_text(&control.python_note, note);
    control.python_note_len.store(note.len().min(size_of_val(&control.python_note)) as u32, Relaxed);
    // Free-threaded builds have no pymalloc.
    let is_free_threaded = build().is_some_and(|build| build.layout().is_free_threaded);
    if is_free_threaded && control.python_allocator[0].load(Relaxed) == u64::from_le_bytes(*b"pymalloc") {
        store_text(&control.python_allocator, b"mimalloc");
    }
    control.python_version.store(version_hex(), Release);
}

/// Stores a text in words of the control page, padded with zeroes.
pub(crate) fn store_text(words: &[AtomicU64], text: &[u8]) {
    for (at, word) in words.iter().enumerate() {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(text.iter().skip(at.wrapping_mul(8))) {
            *to = *from;
        }
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}
