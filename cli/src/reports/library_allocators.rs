//! Libraries with an allocator of their own, whose blocks no report has.
//!
//! Invariant: only files are named that the recording found so.

use memtrack_format::meta::Process;

use crate::text::visible;
use crate::units::plural;

/// Number of libraries that are named.
const MOST: usize = 3;

/// `polars/_polars.abi3.so has an allocator of its own (jemalloc)`, of several as a list.
pub(super) fn named(process: &Process) -> Option<String> {
    let all = &process.library_allocators;
    let name = |entry: &Vec<u8>| {
        let entry = visible(&String::from_utf8_lossy(entry));
        let (kind, path) = entry.split_once(' ').unwrap_or(("", &entry));
        let mut parts = path.rsplit('/').take(2).collect::<Vec<_>>();
        parts.reverse();
        format!("{} ({kind})", parts.join("/"))
    };
    let mut names: Vec<String> = all.iter().take(MOST).map(name).collect();
    if let Some(more @ 1..) = all.len().checked_sub(MOST) {
        names.push(plural(more as u64, "further library", "further libraries"));
    }
    let verb = if all.len() == 1 { "has" } else { "have" };
    let last = names.pop()?;
    let list = if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) };
    Some(format!("{list} {verb} an allocator of {} own", if all.len() == 1 { "its" } else { "their" }))
}

/// That these blocks are missing.
pub(super) fn warning(process: &Process) -> Option<String> {
    let [of, taking] = match process.library_allocators.len() {
        1 => ["it", "it takes"],
        _ => ["them", "they take"],
    };
    let libraries = named(process)?;
    Some(format!("{libraries}: blocks in {of} are not seen, only the memory that {taking} from the system"))
}

#[cfg(test)]
mod tests {
    use super::warning;
    use memtrack_format::meta::Process;

    #[test]
    fn one_library_and_several() {
        let of = |entries: &[&str]| {
            let library_allocators = entries.iter().map(|entry| entry.as_bytes().to_vec()).collect();
            warning(&Process { library_allocators, ..Process::default() })
        };
        assert_eq!(of(&[]), None);
        let polars = "jemalloc /v/site-packages/polars/_polars.so";
        assert_eq!(
            of(&[polars]).unwrap(),
            "polars/_polars.so (jemalloc) has an allocator of its own: blocks in it are not seen, only the memory that it takes from the system"
        );
        assert_eq!(
            of(&[polars, "mimalloc /a/lib b.so", "jemalloc /x/c.so", "jemalloc /x/d.so"]).unwrap(),
            "polars/_polars.so (jemalloc), a/lib b.so (mimalloc), x/c.so (jemalloc) and 1 further library have an allocator of their own: \
             blocks in them are not seen, only the memory that they take from the system"
        );
    }
}
