//! The data of a page: one JSON object, mostly columns of integers, deflated and in base64 while it is written.
//!
//! Invariant: what comes out has only base64's characters, so nothing from a capture can end the element it stands in.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::Value;

/// An object in the making.
pub(super) struct Columns {
    packed: DeflateEncoder<Vec<u8>>,
    begun: bool,
}

impl Columns {
    pub(super) fn new() -> Self {
        Self { packed: DeflateEncoder::new(Vec::new(), Compression::new(5)), begun: false }
    }

    /// A member of any kind. (Errors here and below: none, since all goes to memory; they are passed on all the same.)
    pub(super) fn json(&mut self, name: &str, value: &Value) -> io::Result<()> {
        self.key(name)?;
        write!(self.packed, "{value}")
    }

    /// A column.
    pub(super) fn column(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
        self.key(name)?;
        let mut before = "[";
        for number in numbers {
            write!(self.packed, "{before}{number}")?;
            before = ",";
        }
        self.packed.write_all(if before == "[" { b"[]" } else { b"]" })
    }

    /// A column of numbers that never fall, as the steps between them.
    pub(super) fn steps(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let mut last = 0;
        self.column(name, numbers.into_iter().map(|number| number.saturating_sub(std::mem::replace(&mut last, number))))
    }

    /// The object as base64.
    pub(super) fn finish(mut self, mut out: impl Write) -> io::Result<()> {
        self.packed.write_all(if self.begun { b"}" } else { b"{}" })?;
        let packed = self.packed.finish()?;
        // A multiple of three, so that only the last line is padded.
        for chunk in packed.chunks(3 * 1024) {
            let mut line: Vec<u8> = chunk.chunks(3).flat_map(base64).collect();
            line.push(b'\n');
            out.write_all(&line)?;
        }
        Ok(())
    }

    fn key(&mut self, name: &str) -> io::Result<()> {
        let before = if std::mem::replace(&mut self.begun, true) { "," } else { "{" };
        write!(self.packed, "{before}\"{name}\":")
    }
}

/// Up to three bytes as four characters.
fn base64(bytes: &[u8]) -> [u8; 4] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
    let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    let digit = |at: usize| if at > bytes.len() { b'=' } else { DIGITS[(bits >> (18 - 6 * at) & 63) as usize] };
    [digit(0), digit(1), digit(2), digit(3)]
}

#[cfg(test)]
mod tests {
    use super::{Columns, base64};

    #[test]
    fn base64_with_padding() {
        let text = |bytes: &[u8]| bytes.chunks(3).flat_map(base64).map(char::from).collect::<String>();
        assert_eq!(text(b"light work"), "bGlnaHQgd29yaw==");
        assert_eq!(text(b"light wor"), "bGlnaHQgd29y");
        assert_eq!(text(b"ab\xff\xff\xff"), "YWL///8=");
    }

    #[test]
    fn columns_and_steps() {
        let mut columns = Columns::new();
        columns.column("a", []).unwrap();
        columns.steps("b", [5, 5, 9]).unwrap();
        columns.json("c", &"</script>".into()).unwrap();
        let mut text = Vec::new();
        columns.finish(&mut text).unwrap();
        assert_eq!(super::super::testing::unpacked(&text), r#"{"a":[],"b":[5,0,4],"c":"</script>"}"#);
    }
}
