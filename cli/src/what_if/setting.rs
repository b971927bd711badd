//! A setting of `--what-if`, and how fast calls are made again.
//!
//! Invariant: a setting names an allocator, or variables of the environment, or both.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::str::FromStr;

/// Allocators by name, with the names of their libraries, which the loader looks for.
const ALLOCATORS: [(&str, &[&str]); 3] = [
    ("jemalloc", &["libjemalloc.so.2", "libjemalloc.so"]),
    ("mimalloc", &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so"]),
    ("tcmalloc", &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"]),
];

/// Real time of a rerun at most, in nanoseconds: that of a longer recording passes faster.
const LONGEST_NS: u64 = 5_000_000_000;
/// jemalloc's settings, of which the last one of a name counts.
const CONFIGURATION: &str = "MALLOC_CONF";
/// How long jemalloc and mimalloc keep unused pages, in milliseconds.
const JEMALLOC_DECAY_MS: u64 = 10_000;
const MIMALLOC_DELAY_MS: u64 = 10;

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    text: String,
    /// `None`: the C library's.
    library: Option<OsString>,
    environment: Vec<(String, String)>,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut setting = Self { text: text.into(), library: None, environment: Vec::new() };
        for word in text.split_whitespace() {
            match word.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/')) {
                Some(("LD_PRELOAD", library)) => setting.library = Some(library.into()),
                Some((name, value)) => setting.environment.push((name.into(), value.into())),
                None if is_allocator(word) && setting.library.is_none() => setting.library = Some(word.into()),
                None if setting.library.is_some() => return Err(format!("{word:?} is a second allocator")),
                None => {
                    return Err(format!(
                        "{word:?} is neither jemalloc, mimalloc, tcmalloc, the path of an allocator's library, nor NAME=VALUE"
                    ));
                }
            }
        }
        if setting.library.is_none() && setting.environment.is_empty() {
            return Err(
                "name an allocator (jemalloc, mimalloc, tcmalloc or the path of its library) or NAME=VALUE".into()
            );
        }
        Ok(setting)
    }
}

fn is_allocator(word: &str) -> bool {
    word.contains('/') || word.contains(".so") || ALLOCATORS.iter().any(|(name, _)| *name == word)
}

impl Setting {
    /// That of the recording, which had its allocator from this file, or from the C library.
    pub(super) fn of_recording(library: Option<OsString>) -> Self {
        Self { text: "as recorded".into(), library, environment: Vec::new() }
    }

    /// The libraries to try, in order; `None`: the C library.
    pub(super) fn libraries(&self) -> Vec<Option<OsString>> {
        let Some(library) = &self.library else { return vec![None] };
        match ALLOCATORS.iter().find(|(name, _)| OsStr::new(name) == library) {
            Some((_, files)) => files.iter().map(|file| Some(OsString::from(file))).collect(),
            None => vec![Some(library.clone())],
        }
    }

    pub(super) fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// How fast the time of a recording passes in its rerun: allocators give back what was unused for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    recorded_ns: u64,
    rerun_ns: u64,
}

impl Pace {
    /// For calls up to this time after the start.
    pub(super) fn of(recorded_ns: u64) -> Self {
        Self { recorded_ns: recorded_ns.max(1), rerun_ns: recorded_ns.clamp(1, LONGEST_NS) }
    }

    /// When something of this time happens in the rerun.
    pub(super) fn scaled(self, time_ns: u64) -> u64 {
        let scaled = u128::from(time_ns) * u128::from(self.rerun_ns) / u128::from(self.recorded_ns);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// The value of a variable with what tells allocators that time passes faster, which the value itself may overrule.
    pub(super) fn with(self, name: &str, value: &str) -> String {
        let own = self.environment().into_iter().find(|(known, _)| *known == name && name == CONFIGURATION);
        own.map_or_else(|| value.to_owned(), |(_, own)| format!("{own},{value}"))
    }

    /// What tells allocators that time passes faster, unless the environment has other settings for them.
    pub(super) fn environment(self) -> Vec<(&'static str, String)> {
        if self.rerun_ns == self.recorded_ns {
            return Vec::new();
        }
        let decay = self.scaled(JEMALLOC_DECAY_MS).max(1);
        let delay = self.scaled(MIMALLOC_DELAY_MS).max(1);
        let settings =
            [(CONFIGURATION, format!("dirty_decay_ms:{decay}")), ("MIMALLOC_PURGE_DELAY", delay.to_string())];
        settings.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pace, Setting};

    #[test]
    fn a_setting_is_an_allocator_or_variables_or_both() {
        let setting: Setting = "jemalloc MALLOC_CONF=dirty_decay_ms:0".parse().unwrap();
        assert_eq!(setting.libraries()[0].as_deref(), Some("libjemalloc.so.2".as_ref()));
        assert_eq!(setting.environment().collect::<Vec<_>>(), [("MALLOC_CONF", "dirty_decay_ms:0")]);
        let setting: Setting = "MALLOC_ARENA_MAX=1".parse().unwrap();
        assert_eq!(setting.libraries(), [None]);
        let setting: Setting = "/a=b/lib.so".parse().unwrap();
        assert_eq!(setting.libraries()[0].as_deref(), Some("/a=b/lib.so".as_ref()));
        for wrong in ["", "jemaloc", "jemalloc mimalloc", "=1"] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_long_recording_passes_faster_and_so_do_the_times_of_allocators() {
        let pace = Pace::of(3_000_000_000);
        assert_eq!((pace.scaled(1_000), pace.environment().len()), (1_000, 0));
        let pace = Pace::of(50_000_000_000);
        assert_eq!(pace.scaled(50_000_000_000), 5_000_000_000);
        assert_eq!(pace.with("MALLOC_CONF", "narenas:1"), "dirty_decay_ms:1000,narenas:1");
        assert_eq!(pace.with("MALLOC_ARENA_MAX", "1"), "1");
        assert!(pace.environment().iter().all(|(_, value)| value == "dirty_decay_ms:1000" || value == "1"));
    }
}
