//! What resident memory would be with other allocators or settings: the figures of reruns.
//!
//! Invariant: a figure is the resident memory of the account, changed by the difference of two reruns.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::terminal::TextFormat;
use crate::text::{Style, Styled, TextTable, column, paragraph};
use crate::units::size;

/// What the settings of one report come to.
#[derive(Clone, Debug)]
pub(crate) struct WhatIf {
    /// Anonymous memory of the rerun with the allocator of the recording, in bytes.
    pub(crate) as_recorded: u64,
    pub(crate) results: Vec<SettingResult>,
}

/// What one setting comes to.
#[derive(Clone, Debug)]
pub(crate) struct SettingResult {
    pub(crate) setting: String,
    /// The library that `malloc` was of; `None`: the C library.
    pub(crate) library: Option<PathBuf>,
    /// Anonymous memory of the rerun, and what is resident of the files that the setting has brought, in bytes.
    pub(crate) bytes: u64,
}

impl WhatIf {
    /// How many bytes more a setting takes.
    fn change(&self, result: &SettingResult) -> i64 {
        result.bytes.cast_signed().saturating_sub(self.as_recorded.cast_signed())
    }

    /// Resident memory with the setting, where it is so much without.
    fn resident(&self, result: &SettingResult, resident: u64) -> u64 {
        resident.saturating_add_signed(self.change(result))
    }

    /// The section of the text; `resident`: without any setting.
    pub(super) fn lines(&self, resident: u64, format: TextFormat) -> Vec<String> {
        let mut table = TextTable::new([column("resident"), column("change"), column("what if")]);
        table.row([size(resident).into(), "".into(), Styled::from("as recorded".to_owned()).into()]);
        for result in &self.results {
            let name = Styled::from(result.setting.clone());
            let file = result.library.as_ref().map(|file| format!(", {}", file.display()));
            let name = file.into_iter().fold(name, |name, file| name.and(Style::Dim, file));
            let cells = [size(self.resident(result, resident)), signed(self.change(result))];
            table.row(cells.map(Into::into).into_iter().chain([name.into()]));
        }
        let mut lines = table.lines(format);
        lines.extend(paragraph("measured: memtrack made the recorded calls again with each, and as recorded", format));
        lines
    }

    pub(super) fn json(&self, resident: u64) -> Vec<Value> {
        let row = |result: &SettingResult| {
            json!({
                "setting": result.setting,
                "library": result.library.as_ref().map(|file| file.to_string_lossy()),
                "resident_bytes": self.resident(result, resident),
                "change_bytes": self.change(result),
            })
        };
        self.results.iter().map(row).collect()
    }
}

/// A change with its sign.
fn signed(change: i64) -> String {
    format!("{}{}", if change < 0 { '-' } else { '+' }, size(change.unsigned_abs()))
}
