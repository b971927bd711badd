//! What only C knows about Python: allocations of several kinds that one line makes through ctypes.

use crate::support::{Dir, Outcome, Stats};

/// One line that calls four functions, each with a size that nothing else has.
const FOUR: &str = "\
import ctypes, mmap
c = ctypes.CDLL(None)
size = ctypes.c_size_t
for name in ('malloc', 'calloc', 'aligned_alloc', 'mmap'):
    getattr(c, name).restype = ctypes.c_void_p
def four():
    return c.malloc(size(7000001)), c.calloc(size(1), size(7000003)), c.aligned_alloc(size(64), size(7000064)), c.mmap(None, size(7000064), 3, 34, -1, size(0))
kept = four()
print(all(kept))
";

#[test]
fn four_functions_on_one_line_of_python_are_four_rows() {
    let dir = Dir::new();
    if Outcome::of(dir.command("sh").args(["-c", "command -v python3"])).status != 0 {
        eprintln!("skipped: this machine has no python3");
        return;
    }
    let script = dir.write("four.py", FOUR.as_bytes());
    let capture = dir.path("capture.bin");
    let mut command = dir.memtrack(["run", "-q", "-o"]);
    assert_eq!(Outcome::of(command.arg(&capture).arg(&script)).success(), "True\n");
    let records = Outcome::of(dir.memtrack(["parse"]).arg(&capture)).success();
    let mut rows: Vec<[&str; 2]> =
        records.lines().filter(|line| field(line, "size").starts_with("70000")).map(row).collect();
    rows.sort_unstable();
    let expected = [["aligned_alloc", "7000064"], ["calloc", "7000003"], ["malloc", "7000001"], ["mmap", "7000064"]];
    assert_eq!(rows, expected);
    // Where the interpreter knows columns, each call of the line is a row of its own.
    let stats = Stats::of(&capture);
    let top = stats.0["top_by_size"].as_array().expect("rows");
    let four = top.iter().filter(|row| row["function"] == "four" && row["line"] == 7);
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap_or(0);
    let sum = four.fold((0, 0), |sum, row| (sum.0 + number(row, "count"), sum.1 + number(row, "bytes") / 1_000_000));
    assert_eq!(sum, (4, 28), "{top:?}");
}

/// Allocator and size of a record.
fn row(line: &str) -> [&str; 2] {
    ["allocator", "size"].map(|name| field(line, name))
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    line.split_ascii_whitespace().find_map(value).unwrap_or("")
}
