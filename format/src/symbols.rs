//! The payload of a symbols block: names of native code that were looked up and stored (`memtrack symbolize`).
//!
//! Each block is self-contained: a table of texts, then modules with offsets and their symbols. All numbers are prefix
//! varints, and each table begins with the count of its rows:
//!
//! ```text
//! texts      length bytes                                          UTF-8
//! modules    length path, length build-id, places
//!   places   offset - last offset, symbols                         ascending; see the reader's native module
//!     symbols  function file line                                  indices of texts, innermost function first
//! ```
//!
//! An unknown file is the empty text. If two blocks have the same offset of a module, a reader may use either.
//!
//! Invariant: `decode(encode(x)) = x`; a decoder allocates no more rows than there are bytes, and texts are shared.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fields::{FieldReader, FieldWriter};
use crate::varint;

/// Intended maximum size of a payload, in bytes: [`encode`] begins another one then.
const PART: usize = 4 << 20;

/// The symbols of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleSymbols {
    /// The module's path.
    pub path: Vec<u8>,
    /// Its build-id, or the [`crate::file_stamp`] of its file; empty when neither is known.
    pub build_id: Vec<u8>,
    /// Its symbols, by ascending offset.
    pub places: Vec<OffsetSymbols>,
}

/// The symbols of one offset in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetSymbols {
    /// The runtime address minus the load bias.
    pub offset: u64,
    /// The functions that are inlined at this offset, innermost first, and then the function itself.
    pub symbols: Vec<Symbol>,
}

/// A function with its source position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The function, demangled.
    pub function: Arc<str>,
    /// Its file; empty when not known.
    pub file: Arc<str>,
    /// The line; 0 when not known.
    pub line: u32,
}

/// Encodes into one payload or several.
#[must_use]
pub fn encode(modules: &[ModuleSymbols]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let mut part = SymbolsPayload::default();
    for module in modules {
        let mut rest = module.places.as_slice();
        while !rest.is_empty() {
            let fits = part.fit(rest);
            let (now, later) = rest.split_at(fits);
            if now.is_empty() {
                payloads.push(std::mem::take(&mut part).finish());
                continue;
            }
            part.add(module, now);
            rest = later;
        }
    }
    if part.modules > 0 {
        payloads.push(part.finish());
    }
    payloads
}

/// Decodes a payload; `None` if it is malformed.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<ModuleSymbols>> {
    let mut input = FieldReader::new(bytes);
    let texts: Vec<Arc<str>> = input.rows(|input| Some(Arc::from(String::from_utf8_lossy(input.bytes()?))))?;
    let modules = input.rows(|input| {
        let (path, build_id) = (input.bytes()?.to_vec(), input.bytes()?.to_vec());
        let mut offset = 0u64;
        let places = input.rows(|input| {
            offset = offset.checked_add(input.number()?)?;
            Some(OffsetSymbols { offset, symbols: input.rows(|input| symbol(input, &texts))? })
        })?;
        Some(ModuleSymbols { path, build_id, places })
    })?;
    input.is_at_end().then_some(modules)
}

/// Collects the rows of one payload.
#[derive(Debug, Default)]
struct SymbolsPayload<'a> {
    ids: HashMap<&'a str, u64>,
    texts: FieldWriter,
    modules: u64,
    rows: FieldWriter,
}

impl<'a> SymbolsPayload<'a> {
    /// How many of these offsets fit into this payload; at least one into an empty one.
    fn fit(&self, places: &[OffsetSymbols]) -> usize {
        let mut bytes = self.texts.len() + self.rows.len();
        let size = |place: &OffsetSymbols| {
            let texts = |symbol: &Symbol| symbol.function.len() + symbol.file.len() + 2 * varint::MAX_LEN;
            varint::MAX_LEN + place.symbols.iter().map(texts).sum::<usize>()
        };
        let fits = |place: &&OffsetSymbols| {
            bytes += size(place);
            bytes <= PART
        };
        let count = places.iter().take_while(fits).count();
        if self.modules == 0 { count.max(1) } else { count }
    }

    fn add(&mut self, module: &ModuleSymbols, places: &'a [OffsetSymbols]) {
        self.modules += 1;
        self.rows.bytes(&module.path);
        self.rows.bytes(&module.build_id);
        self.rows.number(places.len() as u64);
        let mut last = 0;
        for place in places {
            self.rows.number(place.offset.saturating_sub(last));
            last = place.offset;
            self.rows.number(place.symbols.len() as u64);
            for symbol in &place.symbols {
                for text in [&symbol.function, &symbol.file] {
                    let id = self.text(text);
                    self.rows.number(id);
                }
                self.rows.number(symbol.line.into());
            }
        }
    }

    fn text(&mut self, text: &'a str) -> u64 {
        let next = self.ids.len() as u64;
        *self.ids.entry(text).or_insert_with(|| {
            self.texts.bytes(text.as_bytes());
            next
        })
    }

    fn finish(self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.number(self.ids.len() as u64);
        out.raw(&self.texts.into_bytes());
        out.number(self.modules);
        out.raw(&self.rows.into_bytes());
        out.into_bytes()
    }
}

fn symbol(input: &mut FieldReader<'_>, texts: &[Arc<str>]) -> Option<Symbol> {
    let mut text = || texts.get(usize::try_from(input.number()?).ok()?).map(Arc::clone);
    Some(Symbol { function: text()?, file: text()?, line: input.small()? })
}

#[cfg(test)]
mod tests {
    use super::{ModuleSymbols, OffsetSymbols, Symbol, decode, encode};
    use proptest::prelude::*;

    fn place(offset: u64, functions: &[&str]) -> OffsetSymbols {
        let symbol = |&function: &&str| Symbol { function: function.into(), file: "a.c".into(), line: 7 };
        OffsetSymbols { offset, symbols: functions.iter().map(symbol).collect() }
    }

    fn example() -> Vec<ModuleSymbols> {
        vec![
            ModuleSymbols {
                path: b"/lib/x\xff".to_vec(),
                build_id: vec![1, 2],
                places: vec![place(9, &["f", "main"])],
            },
            ModuleSymbols {
                path: b"/bin/y".to_vec(),
                build_id: vec![],
                places: vec![place(0, &["g"]), place(1 << 40, &["g"])],
            },
        ]
    }

    #[test]
    fn round_trip() {
        let payloads = encode(&example());
        assert_eq!(payloads.len(), 1);
        assert_eq!(decode(&payloads[0]), Some(example()));
        assert!(encode(&[]).is_empty());
    }

    #[test]
    fn large_ones_take_several_blocks() {
        let long = "n".repeat(100_000);
        let places: Vec<_> = (0..100).map(|offset| place(offset, &[&format!("{long}{offset}")])).collect();
        let modules = [ModuleSymbols { path: b"m".to_vec(), build_id: vec![], places }];
        let payloads = encode(&modules);
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() <= super::PART));
        let read: Vec<_> = payloads.iter().flat_map(|payload| decode(payload).unwrap()).collect();
        let places: Vec<_> = read.into_iter().flat_map(|module| module.places).collect();
        assert_eq!(places, modules[0].places);
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..100, with: u8, cut in 0usize..100) {
            let _ = decode(&crate::fields::damaged(encode(&example()).remove(0), at, with, cut));
        }
    }
}
