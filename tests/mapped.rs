//! Code that a process's loader does not know of: named after what the collector finds in the process's maps.
//!
//! The fixture maps parts of ELF files by hand and calls them; a test lets it end when its capture has the answer.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::ParsedStacks;
use crate::support::{Control, Dir, Outcome, RunningProcess, memtrack, wait_until};

/// The fixture's first block.
const BLOCK: u64 = 2_000_000;
/// Who may look at nothing.
const NOBODY: u32 = 65534;

/// A recording of the fixture.
struct Recording {
    dir: Dir,
    control: Control,
    running: RunningProcess,
}

/// Compiles code that is to be mapped; its function is called so.
fn code(dir: &Dir, file: &str, function: &str, options: &[&str]) -> PathBuf {
    let name = format!("-DNAME={function}");
    dir.compile("code", file, &[&["-shared", "-fPIC", "-nostdlib", "-Wl,-e,entry,--build-id", &name], options].concat())
}

impl Recording {
    /// Starts `memtrack run OPTIONS -- WRAPPER outside CASE CONTROL FILES`.
    fn start(dir: Dir, options: &[&str], wrapper: &[&str], case: &str, files: &[&Path]) -> Self {
        Self::start_as(dir, options, wrapper, case, files, |_| {})
    }

    fn start_as(
        dir: Dir,
        options: &[&str],
        wrapper: &[&str],
        case: &str,
        files: &[&Path],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let (program, control) = (dir.program("outside"), dir.control("control"));
        let mut command = dir.memtrack(["run", "--native", "-f", "-o", "capture.bin"]);
        command.args(options).arg("--").args(wrapper).arg(program).arg(case).arg(control.path()).args(files);
        prepare(&mut command);
        let running = RunningProcess::start(&mut command);
        Self { dir, control, running }
    }

    fn capture(&self) -> PathBuf {
        self.dir.path("capture.bin")
    }

    /// Waits until a capture has so many modules from maps.
    fn has(&self, capture: &Path, count: usize) {
        wait_until("files in the capture", || of_maps(capture).len() >= count);
    }

    /// Lets the fixture end; what memtrack said, and the directory.
    fn end(self) -> (Dir, Outcome) {
        self.control.let_go(2);
        let outcome = self.running.wait();
        assert_eq!((outcome.stdout.as_str(), outcome.status), ("done\n", 0), "{outcome:?}");
        (self.dir, outcome)
    }
}

/// The lines of `memtrack parse` about modules from maps; none while there is no capture.
fn of_maps(capture: &Path) -> Vec<String> {
    let outcome = Outcome::of(memtrack().arg("parse").arg(capture));
    let lines = outcome.stdout.lines().filter(|line| line.starts_with("MODULE ") && line.contains(" source=maps "));
    lines.map(str::to_owned).collect()
}

/// The functions of the block of this size, innermost first.
fn functions(capture: &Path, size: u64) -> Vec<String> {
    let stacks = ParsedStacks::of(capture);
    stacks.functions(stacks.block(size)).into_iter().map(str::to_owned).collect()
}

/// Records a case with one file until it is known, and gives the innermost function.
fn recorded(case: &str, directory: &str, options: &[&str]) -> (Dir, String) {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.path(directory)).expect("a directory");
    let file = code(&dir, &format!("{directory}/code.so"), "inner", options);
    let recording = Recording::start(dir, &[], &[], case, &[&file]);
    recording.has(&recording.capture(), 1);
    let (dir, _) = recording.end();
    let innermost = functions(&dir.path("capture.bin"), BLOCK).remove(0);
    (dir, innermost)
}

#[test]
fn a_segment_mapped_by_hand_has_names_whatever_its_file_is_called() {
    for directory in [".", "a b", "x (deleted)", "line\nfeed\\012"] {
        assert_eq!(recorded("segment", directory, &[]).1, "inner", "{directory:?}");
    }
}

#[test]
fn a_file_mapped_in_one_piece_and_linked_anyhow() {
    for options in [&[][..], &["-Wl,-z,noseparate-code"], &["-Wl,-Ttext-segment=0x5000000"]] {
        assert_eq!(recorded("whole", ".", options).1, "inner", "{options:?}");
        assert_eq!(recorded("segment", ".", options).1, "inner", "{options:?}");
    }
}

#[test]
fn every_page_of_a_file_is_of_it() {
    let (dir, innermost) = recorded("segment", ".", &["-DFAR"]);
    assert_eq!((innermost.as_str(), functions(&dir.path("capture.bin"), BLOCK + 1)[0].as_str()), ("inner", "far_away"));
    assert_eq!(of_maps(&dir.path("capture.bin")).len(), 1);
}

#[test]
fn a_file_without_a_path_is_named_by_module_and_offset() {
    let (dir, innermost) = recorded("memory", ".", &[]);
    assert!(innermost.starts_with("memfd:code in memory (deleted)+0x"), "{innermost}");
    assert!(!of_maps(&dir.path("capture.bin"))[0].ends_with("build_id=\"\""));
}

#[test]
fn a_file_without_a_build_id_gives_no_names() {
    let (_dir, innermost) = recorded("segment", ".", &["-Wl,--build-id=none"]);
    assert!(innermost.starts_with("code.so+0x"), "{innermost}");
}

#[test]
fn a_file_that_has_gone_is_not_named_after_another_at_its_path() {
    let dir = Dir::new();
    let (first, second) = (code(&dir, "code.so", "inner", &[]), code(&dir, "other.so", "decoy", &[]));
    let copy = dir.path("copy");
    std::fs::copy(&first, &copy).expect("a copy");
    let recording = Recording::start(dir, &[], &[], "gone", &[&first, &second]);
    recording.has(&recording.capture(), 1);
    let (dir, _) = recording.end();
    let capture = dir.path("capture.bin");
    let innermost = functions(&capture, BLOCK).remove(0);
    assert!(innermost.starts_with("code.so (deleted)+0x"), "{innermost}");
    // With the right build at its path again it has names, if it is known which was mapped: that takes a privilege.
    std::fs::rename(&copy, &first).expect("a file");
    assert_eq!(functions(&capture, BLOCK)[0], if is_privileged() { "inner" } else { &innermost });
}

/// Whether files that processes have mapped can be had, which takes more than being root in many a container.
fn is_privileged() -> bool {
    let mut files = std::fs::read_dir("/proc/self/map_files").into_iter().flatten().flatten();
    files.any(|file| std::fs::File::open(file.path()).is_ok())
}

#[test]
fn files_at_one_address_in_turn_are_told_apart() {
    let dir = Dir::new();
    let (first, second) = (code(&dir, "first.so", "inner", &[]), code(&dir, "second.so", "second", &[]));
    let recording = Recording::start(dir, &[], &[], "in_turn", &[&first, &second]);
    recording.has(&recording.capture(), 1);
    recording.control.let_go(1);
    wait_until("the last file", || recording.control.phase() == 2);
    wait_until("the last answer", || {
        let named = |size| functions(&recording.capture(), size)[0] == "inner";
        let blocks = ParsedStacks::of(&recording.capture()).blocks;
        blocks.iter().any(|block| block.size == BLOCK + 20) && named(BLOCK + 20)
    });
    let (dir, _) = recording.end();
    let capture = dir.path("capture.bin");
    assert_eq!(functions(&capture, BLOCK)[0], "inner");
    assert_eq!(functions(&capture, BLOCK + 20)[0], "inner");
    // It was there for less than a moment, so it may not be known; it is not mistaken.
    let between = functions(&capture, BLOCK + 10).remove(0);
    assert!(["second", "<unknown>"].contains(&between.as_str()), "{between}");
}

/// The capture of the child that `memtrack run --follow` records here.
fn of_child(dir: &Dir) -> Option<PathBuf> {
    dir.captures()
        .into_iter()
        .find(|path| path.to_str().is_some_and(|path| path.contains("capture.") && path.ends_with("-1.bin")))
}

#[test]
fn children_that_are_forked_or_exec_have_maps_of_their_own() {
    for (case, wrapper, size) in
        [("forked", &[][..], BLOCK + 10), ("segment", &["sh", "-c", "\"$@\"; exit", "sh"], BLOCK)]
    {
        let dir = Dir::new();
        let file = code(&dir, "code.so", "inner", &[]);
        let recording = Recording::start(dir, &["--follow"], wrapper, case, &[&file]);
        wait_until("the child", || of_child(&recording.dir).is_some());
        let child = of_child(&recording.dir).expect("a capture");
        recording.has(&child, 1);
        let (dir, outcome) = recording.end();
        assert_eq!(functions(&child, size)[0], "inner", "{outcome:?}");
        if case == "forked" {
            assert_eq!(functions(&dir.path("capture.bin"), BLOCK)[0], "inner");
        }
    }
}

#[test]
fn the_image_after_an_exec_is_looked_at_anew() {
    let dir = Dir::new();
    let file = code(&dir, "code.so", "inner", &[]);
    let recording = Recording::start(dir, &[], &["env"], "segment", &[&file]);
    recording.has(&recording.capture(), 1);
    let (dir, _) = recording.end();
    assert_eq!(functions(&dir.path("capture.bin"), BLOCK)[0], "inner");
}

#[test]
fn maps_that_may_not_be_read_are_one_warning() {
    let dir = Dir::new();
    let file = code(&dir, "code.so", "inner", &[]);
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o777)).expect("a directory");
    // SAFETY: no arguments, cannot fail.
    let privileged = unsafe { libc::geteuid() } == 0;
    if privileged && !memtrack().arg("--version").uid(NOBODY).output().is_ok_and(|output| output.status.success()) {
        return; // Nobody may not run what is to be tested.
    }
    let recording = Recording::start_as(dir, &[], &[], "hidden", &[&file], |command| {
        if privileged {
            chown(command.get_current_dir().expect("a directory").join("control"), Some(NOBODY), None)
                .expect("a file of nobody's");
            // Nobody may not write where root's temporary files are, if that is not the directory of all.
            let own = command.get_current_dir().expect("a directory").to_path_buf();
            command.env("TMPDIR", own).uid(NOBODY).gid(NOBODY);
        }
    });
    // By the time that the block is in the file, its code was asked about.
    let text = || Outcome::of(memtrack().arg("parse").arg(recording.capture())).stdout;
    wait_until("the block in the capture", || text().contains(&format!(" size={BLOCK} ")));
    let (dir, outcome) = recording.end();
    assert_eq!(outcome.stderr.matches("cannot read its memory maps").count(), 1, "{outcome:?}");
    assert_eq!(functions(&dir.path("capture.bin"), BLOCK)[0], "<unknown>");
}

/// A library that the loader knows is the process's own to tell; what its file says, is the file's that was loaded.
#[test]
fn a_library_of_any_name_that_is_replaced_afterwards() {
    for name in ["plain.so", "a b\n\\012.so", "x.so (deleted)"] {
        let dir = Dir::new();
        let library = |output: &str, options: &[&str]| {
            dir.compile(
                "library",
                output,
                &[&["-shared", "-fPIC", "-fno-optimize-sibling-calls", "-Wl,--build-id"], options].concat(),
            )
        };
        let (path, program) = (library(name, &[]), dir.program("loading"));
        let run = dir.run_with(&["--native"], &program, ["one".as_ref(), path.as_os_str()]);
        let stacks = ParsedStacks::of(&run.capture);
        assert_eq!(stacks.functions(stacks.block(1000))[0], "library_allocate", "{name:?}");
        assert!(of_maps(&run.capture).is_empty(), "{name:?}");
        let other = library("other.so", &["-O0", "-Dlibrary_allocate=decoy"]);
        std::fs::rename(other, &path).expect("a file");
        let stacks = ParsedStacks::of(&run.capture);
        let innermost = stacks.functions(stacks.block(1000))[0];
        assert!(innermost.contains("+0x"), "{innermost}");
    }
}

/// Without a build-id it is told by what the file system said of it.
#[test]
fn a_library_without_a_build_id_that_is_replaced_by_another_without_one() {
    let dir = Dir::new();
    let library = |output: &str, options: &[&str]| {
        let common = ["-shared", "-fPIC", "-fno-optimize-sibling-calls", "-Wl,--build-id=none"];
        dir.compile("library", output, &[&common, options].concat())
    };
    let (path, program) = (library("plain.so", &[]), dir.program("loading"));
    for options in [&["--native"][..], &["--native", "--aggregate"]] {
        let run = dir.run_with(options, &program, ["one".as_ref(), path.as_os_str()]);
        let table = || Outcome::of(memtrack().arg("table").arg("--allocated").arg(&run.capture));
        assert!(table().success().contains(" library_allocate at "), "{:?}", table());
        // Its content is the same, but nobody knows that.
        let kept = dir.path("kept.so");
        std::fs::rename(&path, &kept).expect("a file");
        let other = library("other.so", &["-O0", "-Dlibrary_allocate=decoy"]);
        std::fs::rename(other, &path).expect("a file");
        let replaced = table();
        assert!(replaced.stdout.contains("plain.so+0x") && !replaced.stdout.contains("decoy"), "{replaced:?}");
        assert!(replaced.stderr.contains("replaced or changed after the recording"), "{replaced:?}");
        // It is the very file again.
        std::fs::rename(&kept, &path).expect("a file");
        assert!(table().success().contains(" library_allocate at "), "{:?}", table());
    }
}

/// Its unwind tables are gone with it: to read them for the code that is there now would end the program.
#[test]
fn code_where_the_c_library_has_unloaded_a_module_itself() {
    let dir = Dir::new();
    let program = dir.compile("converter_gone", "converter_gone", &[]);
    for arguments in [&[][..], &["late"]] {
        if Outcome::of(dir.command(&program).args(arguments)).status == 77 {
            eprintln!("skipped: there is no such module, or it stays loaded");
            return;
        }
        let run = dir.run_with(&["--native"], &program, arguments);
        let stacks = ParsedStacks::of(&run.capture);
        let functions = stacks.functions(stacks.block(77_777));
        assert_eq!(functions[0], "allocate", "{functions:?}");
        assert!(!functions.iter().any(|function| function.contains("EUC-KR")), "{functions:?}");
    }
}

/// What is made while the program runs is of no file, however much of it there is.
#[test]
fn code_without_a_file_stays_unknown() {
    let dir = Dir::new();
    let program = dir.compile("native_odd", "native_odd", &["-fno-optimize-sibling-calls"]);
    let run = dir.run_with(&["--native"], &program, ["without_tables"]);
    assert!(of_maps(&run.capture).is_empty());
}

/// Who adds events up as they come waits for the file.
#[test]
fn sums_have_the_names_too() {
    let dir = Dir::new();
    let file = code(&dir, "code.so", "inner", &[]);
    let recording = Recording::start(dir, &["--aggregate"], &[], "segment", &[&file]);
    let table = || Outcome::of(memtrack().arg("table").arg(recording.capture())).stdout;
    wait_until("the block in the sums", || {
        let table = table();
        table.contains(" inner at ") || table.contains("<unknown>")
    });
    let (dir, _) = recording.end();
    let table = Outcome::of(memtrack().arg("table").arg(dir.path("capture.bin"))).success();
    assert!(table.contains(" inner at "), "{table}");
    let stats = Outcome::of(memtrack().arg("stats").arg(dir.path("capture.bin"))).success();
    assert!(stats.contains(" code  (not loaded by the dynamic loader)\n"), "{stats}");
}
