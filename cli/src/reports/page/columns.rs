//! The data of a page: one JSON object, mostly columns of integers, deflated and base64-encoded as it is written.
//!
//! Invariant: the output has only base64 characters, so no text of a capture can end the enclosing element.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::Value;

/// Text is passed to the encoder in parts of this size: each call has a fixed cost, like that of some ten thousand
/// bytes.
const PART: usize = 1 << 16;

/// A JSON object being built.
pub(super) struct PackedColumns {
    packed: DeflateEncoder<Vec<u8>>,
    text: Vec<u8>,
    begun: bool,
}

impl PackedColumns {
    pub(super) fn new() -> Self {
        let packed = DeflateEncoder::new(Vec::new(), Compression::new(5));
        Self { packed, text: Vec::with_capacity(2 * PART), begun: false }
    }

    /// Adds a member of any type. (Here and below, errors cannot occur, because the output is in memory.)
    pub(super) fn json(&mut self, name: &str, value: &Value) -> io::Result<()> {
        self.key(name);
        write!(self.text, "{value}")?;
        self.hand_over()
    }

    /// Adds a column.
    pub(super) fn column(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
        self.key(name);
        self.text.push(b'[');
        let mut digits = itoa::Buffer::new();
        for (at, number) in numbers.into_iter().enumerate() {
            if at > 0 {
                self.text.push(b',');
            }
            self.text.extend_from_slice(digits.format(number).as_bytes());
            if self.text.len() >= PART {
                self.hand_over()?;
            }
        }
        self.text.push(b']');
        Ok(())
    }

    /// Adds a column of non-decreasing numbers, as differences.
    pub(super) fn steps(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let mut last = 0;
        self.column(name, numbers.into_iter().map(|number| number.saturating_sub(std::mem::replace(&mut last, number))))
    }

    /// Completes the object.
    pub(super) fn finish(mut self) -> io::Result<PackedObject> {
        self.text.extend_from_slice(if self.begun { b"}" } else { b"{}" });
        self.hand_over()?;
        self.packed.finish().map(PackedObject)
    }

    fn key(&mut self, name: &str) {
        let before = if std::mem::replace(&mut self.begun, true) { "," } else { "{" };
        self.text.extend([before, "\"", name, "\":"].concat().into_bytes());
    }

    fn hand_over(&mut self) -> io::Result<()> {
        self.packed.write_all(&self.text)?;
        self.text.clear();
        Ok(())
    }
}

/// A complete object, deflated.
pub(super) struct PackedObject(Vec<u8>);

impl PackedObject {
    /// Its size in the page, in characters.
    pub(super) fn len(&self) -> usize {
        self.0.len().div_ceil(3) * 4
    }

    /// Writes it as base64.
    pub(super) fn write(&self, mut out: impl Write) -> io::Result<()> {
        // A multiple of three, so that only the last chunk is padded.
        for chunk in self.0.chunks(3 * 1024) {
            writeln!(out, "{}", STANDARD.encode(chunk))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::PackedColumns;

    #[test]
    fn numbers_of_any_length_over_several_parts() {
        let numbers: Vec<u64> = (0..200_000).map(|at| u64::MAX >> (at % 64)).chain([0, 9, 10, u64::MAX]).collect();
        let mut columns = PackedColumns::new();
        columns.column("a", numbers.clone()).unwrap();
        let mut text = Vec::new();
        columns.finish().unwrap().write(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_str(&super::super::testing::unpacked(&text)).unwrap();
        assert_eq!(value["a"], serde_json::json!(numbers));
    }

    #[test]
    fn columns_and_steps() {
        let mut columns = PackedColumns::new();
        columns.column("a", []).unwrap();
        columns.steps("b", [5, 5, 9]).unwrap();
        columns.json("c", &"</script>".into()).unwrap();
        let mut text = Vec::new();
        let packed = columns.finish().unwrap();
        packed.write(&mut text).unwrap();
        assert_eq!(text.iter().filter(|byte| **byte != b'\n').count(), packed.len());
        assert_eq!(super::super::testing::unpacked(&text), r#"{"a":[],"b":[5,0,4],"c":"</script>"}"#);
    }
}
