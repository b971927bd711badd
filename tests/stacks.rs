//! Native call stacks that are known beforehand, frame by frame with the lines of the calls.
//!
//! Invariant: a stack is compared as a whole; code that is not a fixture's stands in it as `…`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{Block, Dir, Labels, Outcome, ParsedStacks};

/// How the fixtures are compiled, unless a test is about that.
const PLAIN: &[&str] = &["-O1", "-fno-optimize-sibling-calls"];
const OPTIONS: [&[&str]; 5] = [
    PLAIN,
    &["-O0", "-fno-omit-frame-pointer"],
    &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"],
    &["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"],
    &["-Os", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-no-pie"],
];

/// What called main.
const START: &str = "…";

/// Records a program that must run as it does plain, and whose stacks must be whole.
#[track_caller]
fn recorded(dir: &Dir, program: &Path, arguments: &[PathBuf]) -> ParsedStacks {
    let run = dir.run_with(&["--native"], program, arguments);
    assert_eq!(run.outcome.status, 0, "{run:?}");
    assert_eq!(run.stats().number("/capture/truncated_stacks"), 0);
    ParsedStacks::of(&run.capture)
}

/// The stacks of the cases of stacks.c.
#[track_caller]
fn cases(options: &[&str]) -> ParsedStacks {
    let dir = Dir::new();
    let program = dir.compile("stacks", "stacks", &[&["-pthread"], options].concat());
    recorded(&dir, &program, &[])
}

/// The same for each of [`OPTIONS`], recorded once for all tests.
fn compiled_in_each_way() -> &'static [ParsedStacks] {
    static ALL: OnceLock<Vec<ParsedStacks>> = OnceLock::new();
    ALL.get_or_init(|| OPTIONS.map(cases).into())
}

/// That the block has this stack, innermost frame first, below the line that called malloc.
#[track_caller]
fn marked(stacks: &ParsedStacks, labels: &Labels, size: u64, expected: &[&str]) {
    let expected = [&["mark@mark"], expected, &[START]].concat();
    assert_eq!(stacks.told(labels, size), expected, "{:?}", stacks.frames(stacks.block(size)));
}

#[test]
fn inlined_functions_stand_in_their_callers_with_their_lines() {
    let labels = Labels::of("stacks.c");
    for stacks in compiled_in_each_way() {
        let expected = ["innermost@innermost", "middle@middle", "outer@outer", "main@main-outer"];
        marked(stacks, &labels, 1_000_001, &expected);
    }
}

#[test]
fn recursion_of_one_function_and_of_two() {
    let labels = Labels::of("stacks.c");
    for stacks in compiled_in_each_way() {
        let mut deep = vec!["recursive@bottom"];
        deep.extend(["recursive@recursive"; 2000]);
        deep.push("main@main-recursive");
        marked(stacks, &labels, 3_000_001, &deep);
        let turns = ["odd@odd", "even@even"].repeat(3);
        let expected = [&["even@even-bottom"], turns.as_slice(), &["main@main-even"]].concat();
        marked(stacks, &labels, 3_000_002, &expected);
    }
}

#[test]
fn callbacks_signal_handlers_and_threads() {
    let labels = Labels::of("stacks.c");
    for stacks in compiled_in_each_way() {
        marked(stacks, &labels, 4_000_001, &["compare@compare", "…", "sorts@sorts", "main@main-sorts"]);
        marked(stacks, &labels, 5_000_001, &["on_signal@on_signal", "…", "raises@raises", "main@main-raises"]);
        marked(stacks, &labels, 6_000_001, &["in_thread@in_thread"]);
    }
}

/// A function that calls by a jump has left the stack; what it jumped to returns to its caller.
#[test]
fn functions_that_jump_to_their_last_call_have_left() {
    let (stacks, labels) = (cases(&["-O2"]), Labels::of("stacks.c"));
    marked(&stacks, &labels, 2_000_001, &["main@main-jumps"]);
    assert_eq!(stacks.told(&labels, 2_000_002), ["main@main-malloc", START]);
}

/// What lies at an address is named by the library that was there at that time.
#[test]
fn libraries_that_take_each_others_place() {
    let dir = Dir::new();
    let library = |inner: &str| {
        let name = format!("-DINNER={inner}");
        let options = [&["-shared", "-fPIC", &name], PLAIN].concat();
        dir.compile("plugin", &format!("lib{inner}.so"), &options)
    };
    let libraries = [library("first"), library("second")];
    let program = dir.compile("stacks", "stacks", &[&["-pthread", "-ldl"], PLAIN].concat());
    let stacks = recorded(&dir, &program, &libraries);
    let output = Outcome::of(dir.command(&program).args(&libraries)).success();
    let (own, plugin) = (Labels::of("stacks.c"), Labels::of("plugin.c"));
    for round in 0..10 {
        let inner = format!("{}@inner", ["first", "second"][round as usize % 2]);
        let size = 7_000_001 + round;
        assert_eq!(stacks.told(&plugin, size), [inner.as_str(), "plugin@plugin", "…"]);
        assert_eq!(stacks.told(&own, size), ["…", "plugins@plugins", "main@main-plugins", START]);
    }
    assert_eq!(output, "9\n18\n", "the system does not put one where the other was");
}

/// Runs binutils' objcopy or strip.
#[track_caller]
fn tool(dir: &Dir, name: &str, arguments: &[&str]) {
    Outcome::of(dir.command(name).args(arguments)).success();
}

/// The build-id of a program, in hexadecimal digits.
#[track_caller]
fn build_id(program: &Path) -> String {
    let notes = Outcome::of(Command::new("readelf").arg("-n").arg(program)).success();
    let id = notes.split("Build ID: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    id.expect("a build-id").to_owned()
}

/// Names and lines of a stripped program come from its debug file, if that is still the one that it names.
#[test]
fn stripped_programs_with_separate_debug_files() {
    let dir = Dir::new();
    let program = dir.compile("stacks", "stacks", &[&["-pthread", "-Wl,--build-id"], PLAIN].concat());
    tool(&dir, "objcopy", &["--only-keep-debug", "stacks", "stacks.debug"]);
    tool(&dir, "objcopy", &["--strip-all", "--add-gnu-debuglink=stacks.debug", "stacks"]);
    recorded(&dir, &program, &[]);
    let labels = Labels::of("stacks.c");
    let expected = ["innermost@innermost", "middle@middle", "outer@outer", "main@main-outer"];
    let capture = dir.path("capture.bin");
    marked(&ParsedStacks::of(&capture), &labels, 1_000_001, &expected);

    std::fs::create_dir(dir.path(".debug")).expect("a directory");
    std::fs::rename(dir.path("stacks.debug"), dir.path(".debug/stacks.debug")).expect("a file");
    marked(&ParsedStacks::of(&capture), &labels, 1_000_001, &expected);

    // Or from a directory that is laid out like the system's.
    let id = build_id(&program);
    let by_id = dir.path("debug/.build-id").join(&id[..2]);
    std::fs::create_dir_all(&by_id).expect("a directory");
    std::fs::rename(dir.path(".debug/stacks.debug"), by_id.join(format!("{}.debug", &id[2..]))).expect("a file");
    let debug_dir = dir.path("debug");
    let options = ["--debug-dir".as_ref(), debug_dir.as_os_str()];
    marked(&ParsedStacks::with(&options, &capture), &labels, 1_000_001, &expected);

    let stacks = ParsedStacks::of(&capture);
    let [mark, outer, main, ..] = stacks.functions(stacks.block(1_000_001))[..] else { panic!("{stacks:?}") };
    for name in [mark, outer, main] {
        assert!(name.starts_with("stacks+0x"), "{name}");
    }
}

#[test]
fn containers_strings_and_operator_new_of_cpp() {
    for options in [["-O2", "-fno-optimize-sibling-calls"], ["-O0", "-fno-omit-frame-pointer"]] {
        let dir = Dir::new();
        let Some(program) = dir.compile_cpp("containers.cc", &options) else { return };
        let stacks = recorded(&dir, &program, &[]);
        let labels = Labels::of("containers.cc");
        let told = |size| stacks.told(&labels, size);
        assert_eq!(told(1_000_001), ["plain()@plain", "main@main-plain", START]);
        assert_eq!(told(1_100_001), ["array()@array", "main@main-array", START]);
        assert_eq!(told(1_200_064), ["aligned()@aligned", "main@main-aligned", START]);
        assert_eq!(told(4 * 500_001), ["…", "vector()@vector", "main@main-vector", START]);
        assert_eq!(told(3_000_002), ["…", "string()@string", "main@main-string", START]);
        assert_eq!(told(5_000_001), ["…", "owner()@owner", "main@main-owner", START]);
        assert_eq!(
            told(6_000_001),
            ["Shape::Shape(unsigned long)@shape", "method()@method", "main@main-method", START]
        );
        let allocators = |allocator: &str| {
            let blocks = stacks.blocks.iter().filter(|block| block.allocator == allocator && block.size >= 1_000_000);
            blocks.count()
        };
        assert_eq!((allocators("operator_new"), allocators("malloc")), (8, 0), "{:?}", stacks.blocks);
        // Before main began.
        let early: Vec<String> = told(7_000_001);
        assert_eq!(early[0], "early(unsigned long)@early");
        assert!(!early.iter().any(|name| name.starts_with("main")), "{early:?}");
    }
}

#[test]
fn a_rust_program_with_its_default_allocator() {
    let dir = Dir::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/owned.rs");
    let program = dir.path("owned");
    let mut compiler = dir.command(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    Outcome::of(compiler.args(["--edition=2024", "-g", "-O", "-o"]).arg(&program).arg(source)).success();
    let stacks = recorded(&dir, &program, &[]);
    let labels = Labels::of("owned.rs");
    let told = |size| stacks.told(&labels, size);
    assert_eq!(told(1_000_001), ["…", "owned::text@text", "owned::main@main-text", START]);
    assert_eq!(told(8 * 250_001), ["…", "owned::numbers@numbers", "owned::main@main-numbers", START]);
    assert_eq!(
        told(3_000_001),
        ["…", "owned::Record::new@boxed", "owned::record@record", "owned::main@main-record", START]
    );
    assert_eq!(told(4_000_001), ["…", "owned::text@text", "owned::main::{{closure}}@closure", START]);
    assert_eq!(
        told(5_000_001),
        [
            "…",
            "owned::text@text",
            "owned::nested@nested-0",
            "owned::nested@nested",
            "owned::nested@nested",
            "owned::main@main-nested",
            START
        ]
    );
    let block = |block: &&Block| block.size >= 1_000_000;
    assert_eq!(stacks.blocks.iter().filter(block).count(), 5);
}
