//! The opened files of modules, handed from one symbolizer to the next: the captures of a process tree have most of their
//! modules in common, and opening a C library's debug file takes longer than reading a small process's capture.
//!
//! Invariant: only files of modules with a build-id are kept, which prove to be the same whichever capture asks.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::{Files, ModuleKey};

/// Modules that are kept at once; with one more, all are let go.
const MOST: usize = 64;

/// Files that nobody uses at the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Opened(Arc<Mutex<FxHashMap<ModuleKey, Files>>>);

impl Opened {
    /// Hands out the files of a module, if they are here.
    pub(super) fn take(&self, key: &ModuleKey) -> Option<Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Keeps the files of a module for the next who asks.
    pub(super) fn put(&self, key: ModuleKey, files: Files) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(key, files);
    }
}
