//! The names under which other systems know where a recording comes from: its service and its host.
//!
//! Invariant: tables and pushed profiles of one recording have the same names.

use std::fs;

use memtrack_format::meta::Process;

/// Where nothing is known.
const UNKNOWN: &str = "unknown";

/// The name of the script, or of the program.
pub(crate) fn service(process: &Process) -> String {
    let path = process.script.as_ref().or(process.executable.as_ref());
    let name = path.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    name.map_or_else(|| UNKNOWN.into(), |name| String::from_utf8_lossy(name).into_owned())
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { UNKNOWN.into() } else { name.into() }
}
