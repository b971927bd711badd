//! Files beside the capture: whole, stripped, replaced, damaged, gone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

use memtrack_format::file_stamp::FileStamp;
use object::{Object, ObjectSymbol};

use super::{FRAMES, Fixture, address, expected, frames, module, run};
use crate::native::NativeModule;
use crate::symbols::hex::hex;
use crate::symbols::{DebugFileSearch, Symbolizer, VariablePlace, WantedOffsets, variables};

#[test]
fn inlined_functions_have_their_lines() {
    let fixture = Fixture::new();
    for options in [[].as_slice(), &["-gz=zlib"], &["-Wl,--compress-debug-sections=zstd"], &["-gdwarf-4"], &["-no-pie"]]
    {
        let program = fixture.inlined(options);
        let (module, mark) = (module(&program), address(&program, "mark"));
        let mut symbolizer = fixture.symbolizer();
        assert_eq!(frames(&mut symbolizer, &module, mark), expected(), "{options:?}");
        let file = symbolizer.resolve(&module, mark)[0].file.clone().unwrap();
        assert!(file.ends_with("/inlined.c"), "{file}");
        assert_eq!(frames(&mut symbolizer, &module, 8), [("program+0x8".to_owned(), 0)]);
        assert!(symbolizer.problems().is_empty());
    }
}

#[test]
fn static_variables_have_the_names_of_the_table_or_of_what_is_exported() {
    const SOURCE: &str = "static long hidden[4];\nlong shown[2];\n\
        long *of(void) { static long within = 1; return &within; }\n\
        int main(void) { return hidden[1] + shown[1] + *of() == 9; }\n";
    let fixture = Fixture::new();
    let program = fixture.compile("gcc", "data.c", SOURCE, &["-O0", "-rdynamic", "-Wl,--build-id"]);
    let of = module(&program);
    let named = |offset: u64, name: &str| Some(VariablePlace { name: name.into(), offset });
    let names = ["hidden", "shown", "main"];
    let [hidden, shown, main] = names.map(|name| address(&program, name));
    let data = fs::read(&program).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let within = elf.symbols().find(|symbol| symbol.name().unwrap().starts_with("within.")).unwrap().address();
    let search = DebugFileSearch::new(&[fixture.path("debug")], None);
    let places = [hidden + 24, hidden + 32, shown, within + 7, main];
    let found = variables(&search, &of, &places);
    assert_eq!(found[0], named(24, "hidden"));
    assert_ne!(found[1].as_ref().map(|place| &*place.name), Some("hidden"));
    assert_eq!(found[2..], [named(0, "shown"), named(7, "within"), None]);
    fixture.strip(&program, &fixture.path(".debug/program.debug"));
    assert_eq!(variables(&search, &of, &places), found);
    fs::remove_file(fixture.path(".debug/program.debug")).unwrap();
    assert_eq!(variables(&search, &of, &places), [None, None, found[2].clone(), None, None]);
    let other = NativeModule { build_id: vec![1, 2, 3], ..of };
    assert_eq!(variables(&search, &other, &places), vec![None; 5]);
}

#[test]
fn without_debug_information_the_function_is_named() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&["-g0"]);
    let (module, mark) = (module(&program), address(&program, "mark"));
    assert_eq!(frames(&mut fixture.symbolizer(), &module, mark), [("outer".to_owned(), 0)]);
}

#[test]
fn debug_files_are_found_beside_the_program_and_by_build_id() {
    let fixture = Fixture::new();
    for place in ["program.debug", ".debug/program.debug"] {
        let program = fixture.inlined(&[]);
        let mark = address(&program, "mark");
        fixture.strip(&program, &fixture.path(place));
        assert_eq!(frames(&mut fixture.symbolizer(), &module(&program), mark), expected(), "{place}");
        fs::remove_file(fixture.path(place)).unwrap();
        let mut symbolizer = fixture.symbolizer();
        assert_eq!(frames(&mut symbolizer, &module(&program), mark), [(format!("program+{mark:#x}"), 0)]);
        assert!(symbolizer.problems()[0].reason.contains("stripped"), "{:?}", symbolizer.problems());
    }
    let program = fixture.inlined(&[]);
    let (module, mark) = (module(&program), address(&program, "mark"));
    let id = hex(&module.build_id);
    fixture.strip(&program, &fixture.path(&format!("debug/.build-id/{}/{}.debug", &id[..2], &id[2..])));
    fs::remove_file(&program).unwrap();
    assert_eq!(frames(&mut fixture.symbolizer(), &module, mark), expected());
}

#[test]
fn a_stripped_program_that_exports_other_functions_says_so() {
    let fixture = Fixture::new();
    for is_stripped in [true, false] {
        let program = fixture.inlined(&["-rdynamic"]);
        let mark = address(&program, "mark");
        let module = module(&program);
        if is_stripped {
            fixture.strip(&program, &fixture.path("program.debug"));
            fs::remove_file(fixture.path("program.debug")).unwrap();
        }
        let mut symbolizer = fixture.symbolizer();
        symbolizer.resolve(&module, mark + 0x10_0000);
        let problems = symbolizer.problems();
        assert_eq!(problems.len(), usize::from(is_stripped), "{problems:?}");
        assert!(problems.iter().all(|one| one.exports_others && one.reason.contains("exports")), "{problems:?}");
        // What it exports has its name.
        symbolizer.resolve(&module, mark);
        assert!(symbolizer.problems().is_empty());
    }
}

#[test]
fn files_are_opened_once_for_all_captures() {
    for (options, shared) in [([].as_slice(), true), (&["-Wl,--build-id=none"], false)] {
        let fixture = Fixture::new();
        let program = fixture.inlined(options);
        let (module, mark) = (module(&program), address(&program, "mark"));
        let search = DebugFileSearch::new(&[], None);
        assert_eq!(frames(&mut Symbolizer::new(search.clone()), &module, mark), expected());
        fs::remove_file(&program).unwrap();
        let mut next = Symbolizer::new(search.clone());
        assert_eq!(frames(&mut next, &module, mark) == expected(), shared, "{options:?}");
        // While one has the files, another looks for them itself.
        assert_ne!(frames(&mut Symbolizer::new(search), &module, mark), expected());
    }
}

#[test]
fn without_build_ids_the_checksum_decides() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&["-Wl,--build-id=none"]);
    let mark = address(&program, "mark");
    let debug = fixture.path("program.debug");
    fixture.strip(&program, &debug);
    let module = module(&program);
    assert!(module.build_id.is_empty());
    assert_eq!(frames(&mut fixture.symbolizer(), &module, mark), expected());
    let mut changed = fs::read(&debug).unwrap();
    changed.push(0);
    fs::write(&debug, changed).unwrap();
    assert_eq!(frames(&mut fixture.symbolizer(), &module, mark).len(), 1);
}

#[test]
fn another_build_names_nothing() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, mark) = (module(&program), address(&program, "mark"));
    fixture.inlined(&["-O0"]);
    let mut symbolizer = fixture.symbolizer();
    assert_eq!(frames(&mut symbolizer, &module, mark), [(format!("program+{mark:#x}"), 0)]);
    let problems = symbolizer.problems();
    assert!(problems.len() == 1 && problems[0].reason.contains("another file: expected build-id"), "{problems:?}");
    // None was recorded, but there is one now.
    let unknown = NativeModule { build_id: Vec::new(), ..module };
    assert_eq!(frames(&mut symbolizer, &unknown, mark).len(), 1);
    assert_eq!(symbolizer.problems().len(), 2);
}

#[test]
fn without_a_build_id_the_file_must_be_the_one_that_was_loaded() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&["-Wl,--build-id=none"]);
    let mark = address(&program, "mark");
    let found = fs::metadata(&program).unwrap();
    let modified_ns = found.mtime() * 1_000_000_000 + found.mtime_nsec();
    let stamp = FileStamp { inode: found.ino(), size: found.size(), modified_ns };
    let module = |stamp| NativeModule { stamp: Some(stamp), ..module(&program) };
    assert_eq!(frames(&mut fixture.symbolizer(), &module(stamp), mark), expected());
    let others = [
        FileStamp { inode: stamp.inode + 1, ..stamp },
        FileStamp { size: stamp.size + 1, ..stamp },
        FileStamp { modified_ns: stamp.modified_ns - 1, ..stamp },
    ];
    for other in others {
        let mut symbolizer = fixture.symbolizer();
        assert_eq!(frames(&mut symbolizer, &module(other), mark), [(format!("program+{mark:#x}"), 0)]);
        let problems = symbolizer.problems();
        assert!(problems.len() == 1 && problems[0].reason.contains("replaced or changed"), "{problems:?}");
    }
}

#[test]
fn names_of_cpp_and_rust_are_readable() {
    let fixture = Fixture::new();
    let source = "namespace app { template <class T> struct Box { T value; __attribute__((noinline)) T take(T more)\n\
                  { __asm__ volatile(\".globl mark\\nmark:\\n nop\"); return value + more; } }; }\n\
                  int main(int argc, char **) { return app::Box<int>{1}.take(argc); }\n";
    let program = fixture.compile("g++", "box.cpp", source, &["-O1"]);
    let found = frames(&mut fixture.symbolizer(), &module(&program), address(&program, "mark"));
    assert_eq!(found, [("app::Box<int>::take(int)".to_owned(), 2)]);

    let source = "mod deep { #[inline(never)] #[unsafe(export_name = \"mark\")] pub fn exported() { helper() }\n\
                  #[inline(never)] fn helper() { println!(\"{}\", std::process::id()); } }\n\
                  fn main() { deep::exported(); }\n";
    let program = fixture.compile("rustc", "main.rs", source, &["--edition=2024"]);
    let data = fs::read(&program).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let helper =
        Object::symbols(&file).find(|one| ObjectSymbol::name(one).is_ok_and(|name| name.contains("4deep6helper")));
    let offset = ObjectSymbol::address(&helper.unwrap()) + 4;
    let found = frames(&mut fixture.symbolizer(), &module(&program), offset);
    assert_eq!(found, [("main::deep::helper".to_owned(), 2)]);
}

#[test]
fn many_at_once_are_the_same_as_one_by_one() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, outer) = (module(&program), address(&program, "outer"));
    let offsets: Vec<_> = (outer - 64..outer + 64).collect();
    let other = NativeModule { path: b"/no/such/file".to_vec(), ..module.clone() };
    let wanted =
        [&module, &module, &other].map(|module| WantedOffsets { module: module.clone(), offsets: offsets.clone() });
    let (mut at_once, mut one_by_one) = (fixture.symbolizer(), fixture.symbolizer());
    at_once.prefetch(&wanted);
    for module in [&module, &other] {
        for &offset in &offsets {
            assert_eq!(at_once.resolve(module, offset), one_by_one.resolve(module, offset));
        }
    }
    assert_eq!(at_once.problems(), one_by_one.problems());
    assert_eq!(at_once.problems().len(), 1);
}

#[test]
fn names_that_are_known_need_no_file() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, mark) = (module(&program), address(&program, "mark"));
    let mut symbolizer = fixture.symbolizer();
    symbolizer.resolve(&module, mark);
    symbolizer.resolve(&module, 8);
    let named = symbolizer.named();
    // What has no name is not written down as if it had one.
    assert_eq!(named[0].places.len(), 1);
    fs::remove_file(&program).unwrap();
    let mut elsewhere = fixture.symbolizer();
    elsewhere.know(&named);
    assert_eq!(frames(&mut elsewhere, &module, mark), expected());
    assert_eq!(elsewhere.named(), named);
    assert_eq!(Arc::from(FRAMES[0].0), named[0].places[0].symbols[0].function);
}

#[test]
fn modules_without_files_are_explained() {
    let fixture = Fixture::new();
    let mut symbolizer = fixture.symbolizer();
    let paths: [&[u8]; 4] = [b"", b"[vdso]", b"/dev/zero", fixture.dir.path().as_os_str().as_encoded_bytes()];
    for path in paths {
        let module = NativeModule { path: path.to_vec(), ..NativeModule::default() };
        assert_eq!(frames(&mut symbolizer, &module, 1).len(), 1);
    }
    assert_eq!(symbolizer.problems().len(), 4, "{:?}", symbolizer.problems());
}

/// Whatever is cut off or turned over in the file: an answer, no panic, and no more than the module and the offset where
/// the build-id does not agree any more.
#[test]
fn damaged_files_are_read_as_far_as_they_go() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, mark) = (module(&program), address(&program, "mark"));
    let whole = fs::read(&program).unwrap();
    let ask = |bytes: &[u8]| {
        fs::write(&program, bytes).unwrap();
        let mut symbolizer = fixture.symbolizer();
        assert!(!symbolizer.resolve(&module, mark).is_empty());
        symbolizer.resolve(&module, u64::MAX);
    };
    for part in 0..200 {
        ask(&whole[..whole.len() * part / 200]);
    }
    let mut random = 12345u64;
    for _ in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
        }
        ask(&bytes);
    }
}

#[test]
fn shared_debug_information_is_followed() {
    if Command::new("dwz").arg("--version").output().is_err() {
        eprintln!("skipped: dwz is not installed");
        return;
    }
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let second = fixture.path("second");
    fs::copy(&program, &second).unwrap();
    let mark = address(&program, "mark");
    run(Command::new("dwz").current_dir(fixture.dir.path()).args(["-m", "shared", "program", "second"]));
    let mut symbolizer: Symbolizer = fixture.symbolizer();
    assert_eq!(frames(&mut symbolizer, &module(&program), mark), expected());
}
