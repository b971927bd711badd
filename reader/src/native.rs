//! Modules of native code, as captures describe them.
//!
//! A native frame is a module and an offset in it, which is the same in every process and on every machine;
//! [`crate::symbols`] finds its name. Invariant: a module is identified by its path and its build-id, never by the path
//! alone, since the file may have been replaced; without a build-id by its file stamp.

use memtrack_format::file_stamp::{self, FileStamp};
use memtrack_format::mapped::MappedFile;
pub use memtrack_format::mapped::ModuleSource;

/// Whether the object at this path is the Python interpreter, or its library.
#[must_use]
pub fn is_interpreter_object(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    let version = file.strip_prefix("lib").unwrap_or(file).strip_prefix("python");
    version.is_some_and(|version| version.is_empty() || version.starts_with(|next: char| next.is_ascii_digit()))
}

/// A loaded object: an executable, a shared library, or a file that the process mapped itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NativeModule {
    /// Path of its file in the process, as the loader or the system gave it; empty when not known.
    pub path: Vec<u8>,
    /// Its GNU build-id; empty when it has none, or none could be read.
    pub build_id: Vec<u8>,
    /// Identifies its file if there is no build-id, if it was recorded.
    pub stamp: Option<FileStamp>,
    /// The load bias: runtime address - `bias` = offset of a frame.
    pub bias: u64,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// How it was found.
    pub source: ModuleSource,
}

impl NativeModule {
    /// For a page outside loaded objects: the module of the file that the collector found for it, and the offset in
    /// that module.
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

    /// The module with the build-id or stamp of a stored [`NativeModule::identity`].
    #[must_use]
    pub fn with_identity(self, identity: &[u8]) -> Self {
        let (build_id, stamp) = file_stamp::split(identity);
        Self { build_id: build_id.to_vec(), stamp, ..self }
    }

    /// The last part of its path; `<unknown>` without a path.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if name.is_empty() { "<unknown>".to_owned() } else { String::from_utf8_lossy(name).into_owned() }
    }

    /// The name of a frame without symbols: `libc.so.6+0x1234`.
    #[must_use]
    pub fn place(&self, offset: u64) -> String {
        format!("{}+{offset:#x}", self.name())
    }
}

/// Whether the name of a function is the place of a frame without symbols in the object at this path.
#[must_use]
pub fn is_place_in(function: &str, object: &str) -> bool {
    let file = object.rsplit('/').next().unwrap_or(object);
    function.strip_prefix(file).is_some_and(|rest| rest.starts_with("+0x"))
}

#[cfg(test)]
mod tests {
    use super::{NativeModule, is_place_in};

    #[test]
    fn places_are_named_after_the_file() {
        let module = |path: &[u8]| NativeModule { path: path.to_vec(), ..NativeModule::default() };
        assert_eq!(module(b"/usr/lib/libc.so.6").place(0x1234), "libc.so.6+0x1234");
        assert_eq!(module(b"").place(16), "<unknown>+0x10");
        assert!(is_place_in("libc.so.6+0x1234", "/usr/lib/libc.so.6") && !is_place_in("malloc", "/usr/lib/libc.so.6"));
        assert_eq!(module(b"/tmp/\xff").name(), "\u{fffd}");
    }
}
