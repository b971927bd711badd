//! The documents name exactly the allocators that captures can have.
//!
//! A new allocator has to be added to each schema that enumerates them, and to formats.md.

use std::path::{Path, PathBuf};

use memtrack_format::Allocator;
use serde_json::Value;

/// The schemas that enumerate allocators.
const SCHEMAS: [&str; 2] = ["memtrack-stats-1.schema.json", "memtrack-table-1.schema.json"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn names() -> Vec<&'static str> {
    Allocator::ALL.iter().map(|allocator| allocator.name()).collect()
}

#[test]
fn schemas_enumerate_every_allocator() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(docs().join("schemas")).expect("a folder of schemas").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a schema");
        let file = entry.file_name().to_str().expect("a plain name").to_owned();
        for enumerated in enumerations(&serde_json::from_str(&text).expect("JSON")) {
            assert_eq!(enumerated, names(), "{file}");
            found.push(file.clone());
        }
    }
    found.sort_unstable();
    assert_eq!(found, SCHEMAS);
}

#[test]
fn formats_md_names_every_allocator_in_order() {
    let text = std::fs::read_to_string(docs().join("formats.md")).expect("formats.md");
    let (_, section) = text.split_once("\n### Allocators\n").expect("a section on allocators");
    let section = section.split("\n#").next().unwrap_or_default();
    // Every second part stands between backquotes.
    let mut named: Vec<_> = section.split('`').skip(1).step_by(2).filter(|word| names().contains(word)).collect();
    let mut seen = Vec::new();
    named.retain(|word| {
        !seen.contains(word) && {
            seen.push(*word);
            true
        }
    });
    assert_eq!(named, names());
}

/// The lists of values of a schema in which `malloc` stands.
fn enumerations(schema: &Value) -> Vec<Vec<&str>> {
    let own = schema.get("enum").and_then(Value::as_array).map(|values| values.iter().filter_map(Value::as_str));
    let own = own.map(Iterator::collect::<Vec<_>>).filter(|values| values.contains(&"malloc"));
    let inner: Vec<&Value> = match schema {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    own.into_iter().chain(inner.into_iter().flat_map(enumerations)).collect()
}
