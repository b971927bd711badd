//! Names of the cells of a notebook, whose files exist for its kernel only: `Cell In[2]` for `/tmp/ipykernel_71/826335694.py`.
//!
//! A variable names a file with them, an object of JSON, which `%%memtrack` writes before it has a page made. Invariant: a path without
//! such a name is shortened as everywhere.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::LazyLock;

use memtrack_reader::{Frames, paths};

/// Names the file.
const VARIABLE: &str = "MEMTRACK_CELLS";
static NAMES: LazyLock<HashMap<String, String>> =
    LazyLock::new(|| std::env::var_os(VARIABLE).and_then(|path| names_in(&path)).unwrap_or_default());

/// The path of a source file or of a native object, shortened, or the name of the cell.
pub(crate) fn short<'p>(frames: &Frames, path: &'p str) -> Cow<'p, str> {
    NAMES.get(path).map_or_else(|| paths::short(frames, path), Cow::from)
}

/// `None` for what is no such file.
fn names_in(path: &OsStr) -> Option<HashMap<String, String>> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::names_in;

    #[test]
    fn what_is_no_object_of_names_gives_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in [(r#"{"/tmp/ipykernel_7/1.py": "Cell In[2]"}"#, Some(1)), ("[3]", None), ("", None)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(names_in(file.path().as_os_str()).map(|names| names.len()), expected, "{text}");
        }
        assert!(names_in("/no/such/file".as_ref()).is_none());
    }
}
