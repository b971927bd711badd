//! The processes that a program has started, and those that these have, as the system has them now.
//!
//! Invariant: only processes that run: none that has ended and waits for its parent.

use std::collections::BTreeMap;
use std::fs;

use crate::system::process_stat::ProcessStat;

/// The ids of all descendants of a process, in ascending order. One whose parent has ended is found no more.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for child in pids {
        if let Some(parent) = parent_of(child) {
            children.entry(parent).or_default().push(child);
        }
    }
    let (mut found, mut looked_at) = (vec![pid], 0);
    while let Some(parent) = found.get(looked_at) {
        // Each is the child of one process, so none is found twice.
        found.extend(children.remove(parent).unwrap_or_default());
        looked_at += 1;
    }
    found.remove(0);
    found.sort_unstable();
    found
}

/// A process, its parent, and so on.
pub fn lineage(pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    while let Some(parent) = found.last().and_then(|pid| parent_of(*pid)).filter(|parent| !found.contains(parent)) {
        found.push(parent);
    }
    found
}

/// The parent of a process that has not ended.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = ProcessStat::of(pid)?;
    stat.field(4).filter(|_| !stat.has_ended())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::{descendants, lineage};

    #[test]
    fn children_and_theirs() {
        let script = "sleep 600 & echo $!; read -r line; kill $!";
        let shell = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut shell = shell.unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let sleeping: i32 = line.trim().parse().unwrap();
        assert!(descendants(shell.id().cast_signed()).contains(&sleeping));
        let own = std::process::id().cast_signed();
        assert_eq!(lineage(sleeping)[..3], [sleeping, shell.id().cast_signed(), own]);
        let all = descendants(own);
        assert!(all.contains(&sleeping) && all.contains(&shell.id().cast_signed()), "{all:?}");
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        shell.wait().unwrap();
    }
}
