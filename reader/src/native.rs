//! Modules of native code, as a capture describes them: what an address-free native frame refers to.
//!
//! A native frame is a module and an offset in it, so that it means the same in every process and on every machine; the
//! names come from [`crate::symbols`]. Invariant: a module is told by its path and its build-id together, never by its
//! path alone, since another file may stand there by now; one without a build-id by what its file system said of the file.

use memtrack_format::file_stamp::{self, FileStamp};
use memtrack_format::mapped::MappedFile;

/// Whether the object at this path is the Python interpreter, or its library.
#[must_use]
pub fn is_interpreter_object(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    let version = file.strip_prefix("lib").unwrap_or(file).strip_prefix("python");
    version.is_some_and(|version| version.is_empty() || version.starts_with(|next: char| next.is_ascii_digit()))
}

/// Who says that a module is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModuleSource {
    /// The process, which asked its loader.
    #[default]
    Process,
    /// The system, in the process's maps: what the loader does not know of.
    Maps,
}

impl ModuleSource {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Maps => "maps",
        }
    }
}

/// A loaded object: an executable, a shared library, or what the process mapped by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NativeModule {
    /// Path of its file in the process, as the loader or the system gave it; empty when not known.
    pub path: Vec<u8>,
    /// Its GNU build-id; empty when it has none, or none could be read.
    pub build_id: Vec<u8>,
    /// What tells its file where it has no build-id, if that was recorded.
    pub stamp: Option<FileStamp>,
    /// What was added to the addresses of the file: runtime address - `bias` = offset of a frame.
    pub bias: u64,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Who says so.
    pub source: ModuleSource,
}

impl NativeModule {
    /// The module of a page that is in no loaded object, which was found to be of this file; and an offset in the page as
    /// one in that module.
    #[must_use]
    pub fn of_page(&self, file: &MappedFile, offset: u64) -> (Self, u64) {
        let MappedFile { bias, start, end, path, build_id, codes: _ } = file.clone();
        let address = self.bias.wrapping_add(offset);
        let stamp = None;
        (Self { path, build_id, stamp, bias, start, end, source: ModuleSource::Maps }, address.wrapping_sub(bias))
    }

    /// Its build-id or stamp as captures keep it.
    #[must_use]
    pub fn identity(&self) -> Vec<u8> {
        file_stamp::join(&self.build_id, self.stamp)
    }

    /// The same module with what a capture has kept as its [`NativeModule::identity`].
    #[must_use]
    pub fn with_identity(self, identity: &[u8]) -> Self {
        let (build_id, stamp) = file_stamp::split(identity);
        Self { build_id: build_id.to_vec(), stamp, ..self }
    }

    /// The last part of its path, for people; `<unknown>` when there is no path.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if name.is_empty() { "<unknown>".to_owned() } else { String::from_utf8_lossy(name).into_owned() }
    }

    /// What a frame is called that has no better name: `libc.so.6+0x1234`.
    #[must_use]
    pub fn place(&self, offset: u64) -> String {
        format!("{}+{offset:#x}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::NativeModule;

    #[test]
    fn places_are_named_after_the_file() {
        let module = |path: &[u8]| NativeModule { path: path.to_vec(), ..NativeModule::default() };
        assert_eq!(module(b"/usr/lib/libc.so.6").place(0x1234), "libc.so.6+0x1234");
        assert_eq!(module(b"").place(16), "<unknown>+0x10");
        assert_eq!(module(b"/tmp/\xff").name(), "\u{fffd}");
    }
}
