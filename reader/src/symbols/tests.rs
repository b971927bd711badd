//! Programs whose addresses are known, compiled here: what is found for them, and what is refused.

mod files;
mod roots;
mod servers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use object::{Object, ObjectSymbol};
use tempfile::TempDir;

use super::{DebugFileSearch, Symbolizer};
use crate::native::NativeModule;

/// `mark` stands in `inner`, line 2, which is inlined in `middle`, line 4, which is inlined in `outer`, line 5.
const INLINED: &str = r#"static inline __attribute__((always_inline)) int inner(int x) {
    __asm__ volatile(".globl mark\nmark:\n nop"); return x * 3;
}
static inline __attribute__((always_inline)) int middle(int x) { return inner(x) + 1; }
__attribute__((noinline)) int outer(int x) { return middle(x) - 2; }
int main(int argc, char **argv) { (void)argv; return outer(argc) == 99; }
"#;

/// What [`INLINED`] has at its mark.
const FRAMES: [(&str, u32); 3] = [("inner", 2), ("middle", 4), ("outer", 5)];

/// A directory with programs.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles a source, with debug information, to a program of this name.
    fn compile(&self, compiler: &str, source_name: &str, source: &str, options: &[&str]) -> PathBuf {
        let (from, to) = (self.path(source_name), self.path("program"));
        std::fs::write(&from, source).unwrap();
        run(Command::new(compiler).args(["-g", "-o"]).arg(&to).arg(&from).args(options));
        to
    }

    fn inlined(&self, options: &[&str]) -> PathBuf {
        self.compile("gcc", "inlined.c", INLINED, &[&["-O2", "-Wl,--build-id"], options].concat())
    }

    /// Moves the debug information of the program to `to`, and leaves a link to it.
    fn strip(&self, program: &Path, to: &Path) {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        run(Command::new("objcopy").arg("--only-keep-debug").arg(program).arg(to));
        run(Command::new("objcopy").arg("--strip-all").arg(program));
        let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
        link.push(to);
        run(Command::new("objcopy").arg(link).arg(program));
    }

    /// Looks in the fixture's own directory only.
    fn symbolizer(&self) -> Symbolizer {
        Symbolizer::new(DebugFileSearch::new(&[self.path("debug")], None))
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The program as a capture would describe it.
fn module(program: &Path) -> NativeModule {
    let data = std::fs::read(program).unwrap();
    let build_id = object::File::parse(&*data).unwrap().build_id().unwrap().unwrap_or_default().to_vec();
    NativeModule { path: program.as_os_str().as_encoded_bytes().to_vec(), build_id, ..NativeModule::default() }
}

/// The address of a symbol.
fn address(program: &Path, symbol: &str) -> u64 {
    let data = std::fs::read(program).unwrap();
    let file = object::File::parse(&*data).unwrap();
    file.symbols().find(|one| one.name() == Ok(symbol)).unwrap().address()
}

/// Functions and lines at an address.
fn frames(symbolizer: &mut Symbolizer, module: &NativeModule, offset: u64) -> Vec<(String, u32)> {
    symbolizer.resolve(module, offset).iter().map(|symbol| (symbol.function.to_string(), symbol.line)).collect()
}

fn expected() -> Vec<(String, u32)> {
    FRAMES.map(|(function, line)| (function.to_owned(), line)).to_vec()
}

#[test]
fn without_time_there_are_no_names_and_it_says_so() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, offset) = (module(&program), address(&program, "mark"));
    let long = Duration::from_secs(600);
    let plenty = DebugFileSearch::limited(long, long, None);
    assert_eq!(frames(&mut Symbolizer::new(plenty.clone()), &module, offset), expected());
    assert!(!plenty.is_over() && !plenty.is_brief());
    let brief = DebugFileSearch::limited(Duration::ZERO, long, None);
    let function = frames(&mut Symbolizer::new(brief.clone()), &module, offset);
    assert_eq!(function, [(expected().last().unwrap().0.clone(), 0)]);
    assert!(!brief.is_over() && brief.is_brief());
    let none = DebugFileSearch::limited(Duration::ZERO, Duration::ZERO, None);
    let unnamed = frames(&mut Symbolizer::new(none.clone()), &module, offset);
    assert_eq!(unnamed, [(module.place(offset), 0)]);
    assert!(none.is_over() && !none.is_too_large());
}

/// Nothing is done here that a clock would tell, so that a fourth of the time counts.
#[test]
fn a_busy_machine_leaves_no_names_out() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, offset) = (module(&program), address(&program, "mark"));
    let limit = Duration::from_millis(100);
    let idle = DebugFileSearch::limited(limit, limit, Some(|| Some(Duration::ZERO)));
    let mut symbolizer = Symbolizer::new(idle.clone());
    let begun = Instant::now();
    let names = frames(&mut symbolizer, &module, offset);
    assert!(names == expected() || begun.elapsed() >= 4 * limit, "{names:?}");
    let mut place = offset;
    while !idle.is_over() {
        place += 1;
        frames(&mut symbolizer, &module, place);
    }
    assert!(begun.elapsed() >= 4 * limit, "{:?}", begun.elapsed());
}

#[test]
fn the_time_may_be_limited_while_names_are_looked_up() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, offset) = (module(&program), address(&program, "mark"));
    let moment = Arc::new(OnceLock::new());
    let search = DebugFileSearch::new(&[], None).limited_from(Arc::clone(&moment), Duration::ZERO, Duration::ZERO);
    let mut symbolizer = Symbolizer::new(search.clone());
    assert_eq!(frames(&mut symbolizer, &module, offset), expected());
    assert!(!search.is_over() && !search.is_brief());
    moment.set(Instant::now()).unwrap();
    assert_eq!(frames(&mut symbolizer, &module, offset), expected(), "what is known stays known");
    assert_eq!(frames(&mut symbolizer, &module, offset + 1), [(module.place(offset + 1), 0)]);
    assert!(search.is_over());
}
