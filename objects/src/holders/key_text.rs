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
                Some(format!("{:?}", f64::from_bits(bits)))
            }
            "builtins.int" => small_integer(self.memory, self.layout, key).map(|number| number.to_string()),
            "builtins.str" => text_of(self.memory, self.layout, key).map(|text| format!("'{}'", shortened(&text))),
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
        Some(format!("b'{}{more}'", bytes.escape_ascii()))
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

/// The begin of a text, without what a terminal does not show.
fn shortened(text: &str) -> String {
    let visible = text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char });
    let more = if text.chars().nth(MOST).is_some() { "…" } else { "" };
    visible.take(MOST).chain(more.chars()).collect()
}
