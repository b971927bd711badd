//! Files in another root: that of a process in a container, or a copy of it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Fixture, address, expected, frames, module};
use crate::native::NativeModule;
use crate::symbols::hex::hex;
use crate::symbols::{DebugFileSearch, FileRoot, Symbolizer};

/// A directory of which the test knows that it has no links.
#[derive(Debug)]
struct PlainRoot(PathBuf);

impl FileRoot for PlainRoot {
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(self.0.join(path.strip_prefix("/").unwrap()))
    }
}

/// The module as it is called in the root that the fixture's directory is.
fn inside(program: &Path) -> NativeModule {
    NativeModule { path: b"/program".to_vec(), ..module(program) }
}

fn search(fixture: &Fixture) -> DebugFileSearch {
    DebugFileSearch::new(&[], None).with_root(Arc::new(PlainRoot(fixture.path(""))))
}

#[test]
fn what_is_not_on_this_machine_is_found_in_the_root() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let (module, mark) = (inside(&program), address(&program, "mark"));
    let search = search(&fixture);
    assert_eq!(frames(&mut Symbolizer::new(search.clone()), &module, mark), expected());
    assert!(search.used_root());
}

#[test]
fn files_of_this_machine_come_first() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let mark = address(&program, "mark");
    let search = search(&fixture);
    assert_eq!(frames(&mut Symbolizer::new(search.clone()), &module(&program), mark), expected());
    assert!(!search.used_root());
}

#[test]
fn debug_files_are_found_in_the_root_by_build_id_and_beside_the_program() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let id = hex(&module(&program).build_id);
    for place in ["program.debug".to_owned(), format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..])] {
        let program = fixture.inlined(&[]);
        let (module, mark) = (inside(&program), address(&program, "mark"));
        fixture.strip(&program, &fixture.path(&place));
        let mut symbolizer = Symbolizer::new(search(&fixture));
        assert_eq!(frames(&mut symbolizer, &module, mark), expected(), "{place}");
        fs::remove_file(fixture.path(&place)).unwrap();
    }
}

#[test]
fn another_build_and_one_that_nothing_identifies_are_refused() {
    let fixture = Fixture::new();
    for (options, changed) in [([].as_slice(), true), (&["-Wl,--build-id=none"], false)] {
        let program = fixture.inlined(options);
        let (mut module, mark) = (inside(&program), address(&program, "mark"));
        if changed {
            module.build_id[0] ^= 1;
        }
        module.stamp = None;
        let search = search(&fixture);
        let found = frames(&mut Symbolizer::new(search.clone()), &module, mark);
        assert_eq!((found, search.used_root()), (vec![(format!("program+{mark:#x}"), 0)], false), "{options:?}");
    }
}
