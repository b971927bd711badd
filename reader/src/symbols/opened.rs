//! A pool of open module files, which symbolizers share: the captures of a process tree have most modules in common,
//! and opening a C library's debug file takes longer than reading a small process's capture.
//!
//! Invariant: only files of modules with a build-id are pooled, since they are the same for every capture.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::{Files, ModuleKey};

/// Maximum number of modules in the pool; with one more, all are closed.
const MOST: usize = 64;

/// The files that are not in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Opened(Arc<Mutex<FxHashMap<ModuleKey, Files>>>);

impl Opened {
    /// Takes the files of a module out, if they are here.
    pub(super) fn take(&self, key: &ModuleKey) -> Option<Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Returns the files of a module to the pool.
    pub(super) fn put(&self, key: ModuleKey, files: Files) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(key, files);
    }
}
