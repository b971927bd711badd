//! What a key of a dictionary is called that is neither a text nor a small number: as Python writes it, where it is a constant.
//!
//! Invariant: a text is no longer than [`MOST`] characters and what one item adds, and tuples are read to a depth of three.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::{small_integer, text_of};
use crate::object::leaf_contents::bytes_count;
use crate::object::types::{KnownTypes, ObjectKind, ObjectType};

/// Characters after which no more items of a tuple are read.
const MOST: usize = 60;
/// Bytes of a key that are shown.
const MOST_BYTES: u64 = 24;
const MOST_DEPTH: u32 = 3;

/// Reads what keys are called.
pub(crate) struct KeyReader<'a> {
    pub(crate) memory: &'a ObjectMemory<'a>,
    pub(crate) layout: &'a ObjectLayout,
    pub(crate) types: &'a KnownTypes,
}

impl KeyReader<'_> {
    /// What this key is called; an object of any other type only by that, so that keys of one type have one text.
    pub(crate) fn text(&self, key: u64) -> String {
        self.constant(key, 0)
    }

    fn constant(&self, key: u64, depth: u32) -> String {
        let Some(of) = self.layout.type_of(self.memory, key).and_then(|at| self.types.at(at)) else {
            return "?".into();
        };
        self.of_type(of, key, depth).unwrap_or_else(|| {
            let name = of.name.strip_prefix("builtins.").unwrap_or(&of.name);
            format!("<{name}>")
        })
    }

    fn of_type(&self, of: &ObjectType, key: u64, depth: u32) -> Option<String> {
        match of.name.as_str() {
            "builtins.bool" => {
                Some(if small_integer(self.memory, self.layout, key)? == 0 { "False" } else { "True" }.into())
            }
            "builtins.NoneType" => Some("None".into()),
            "builtins.float" => {
                let bits = self.memory.u64(self.layout.fields(key).checked_add(16)?)?;
                Some(float_text(f64::from_bits(bits)))
            }
            "builtins.int" => small_integer(self.memory, self.layout, key).map(|number| number.to_string()),
            "builtins.str" => text_of(self.memory, self.layout, key).map(|text| shortened(&text)),
            "builtins.bytes" => self.bytes(key),
            "builtins.tuple" if of.kind == ObjectKind::Tuple && depth < MOST_DEPTH => self.tuple(key, depth),
            _ => None,
        }
    }

    fn bytes(&self, key: u64) -> Option<String> {
        let count = bytes_count(self.memory, self.layout, key)?;
        let mut bytes = vec![0; count.min(MOST_BYTES) as usize];
        self.memory.read(self.layout.fields(key).checked_add(32)?, &mut bytes)?;
        let more = if count > MOST_BYTES { "…" } else { "" };
        let escaped = bytes.escape_ascii().to_string().replace("\\\"", "\"");
        let (escaped, quote) = match (bytes.contains(&b'\''), bytes.contains(&b'"')) {
            (true, false) => (escaped.replace("\\'", "'"), '"'),
            _ => (escaped, '\''),
        };
        Some(format!("b{quote}{escaped}{more}{quote}"))
    }

    fn tuple(&self, key: u64, depth: u32) -> Option<String> {
        let count = self.memory.u64(self.layout.fields(key).checked_add(16)?)?;
        let items = self.layout.fields(key).checked_add(self.layout.tuple_items)?;
        let mut text = String::from("(");
        for number in 0..count {
            if number > 0 {
                text += ", ";
            }
            if text.chars().count() > MOST {
                text += "…";
                break;
            }
            text += &self.constant(self.memory.u64(items.checked_add(number * 8)?)?, depth + 1);
        }
        text += if count == 1 { ",)" } else { ")" };
        Some(text)
    }
}

/// A number as Python's `repr` has it.
fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..=15) => {
            let text = number.to_string();
            if text.contains('.') { text } else { text + ".0" }
        }
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs()),
        Err(_) => scientific,
    }
}

/// The begin of a text in quotes, without what a terminal does not show, or shows as something else.
fn shortened(text: &str) -> String {
    let mut shown = String::from("'");
    for char in text.chars().take(MOST) {
        match char {
            '\\' | '\'' => shown.extend(['\\', char]),
            _ if char.is_control() || is_format(char) => shown.push(char::REPLACEMENT_CHARACTER),
            _ => shown.push(char),
        }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown + "'"
}

/// Whether a character changes how those beside it are shown.
fn is_format(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::{float_text, shortened};

    #[test]
    fn numbers_are_as_python_writes_them() {
        let numbers = [0.0, -0.0, 1.5, 1e15, 123_456_789_012_345_680.0, 1e16, 1e22, 0.0001, 1e-5, 1.5e-7, 1e300];
        let texts = [
            "0.0",
            "-0.0",
            "1.5",
            "1000000000000000.0",
            "1.2345678901234568e+17",
            "1e+16",
            "1e+22",
            "0.0001",
            "1e-05",
            "1.5e-07",
            "1e+300",
        ];
        assert_eq!(numbers.map(float_text), texts);
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(float_text), ["nan", "inf", "-inf"]);
    }

    #[test]
    fn texts_end_where_their_quotes_do() {
        assert_eq!(shortened("it's\\"), r"'it\'s\\'");
        assert_eq!(shortened("a\u{202e}b\n"), "'a\u{fffd}b\u{fffd}'");
        assert_eq!(shortened(&"x".repeat(61)), format!("'{}…'", "x".repeat(60)));
    }
}
