//! Debug files through a client that stands in for elfutils' `debuginfod-find`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Fixture, address, expected, frames, module};
use crate::native::NativeModule;
use crate::symbols::hex::hex;
use crate::symbols::{DebugFileSearch, Debuginfod, Symbolizer};

impl Fixture {
    /// A client that answers with this file when it is asked for the build-id, and notes each request.
    fn client(&self, build_id: &[u8], file: &Path) -> PathBuf {
        let (client, log) = (self.path("debuginfod-find"), self.path("requests"));
        let (id, file, log) = (hex(build_id), file.display(), log.display());
        let script =
            format!("#!/bin/sh\necho \"$@\" >>{log}\n[ \"$1 $2\" = \"debuginfo {id}\" ] && echo {file} || exit 1\n");
        fs::write(&client, script).unwrap();
        fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).unwrap();
        client
    }

    /// A program without symbols whose debug file is elsewhere, and that file.
    fn stripped(&self) -> (NativeModule, u64, PathBuf) {
        let program = self.inlined(&[]);
        let mark = address(&program, "mark");
        let debug = self.path("away/program.debug");
        self.strip(&program, &debug);
        (module(&program), mark, debug)
    }
}

fn symbolizer(client: PathBuf) -> Symbolizer {
    Symbolizer::new(DebugFileSearch::new(&[], Some(Debuginfod::through(client))))
}

#[test]
fn a_fetched_debug_file_gives_names_and_is_asked_for_once() {
    let fixture = Fixture::new();
    let (module, mark, debug) = fixture.stripped();
    let mut symbolizer = symbolizer(fixture.client(&module.build_id, &debug));
    assert_eq!(frames(&mut symbolizer, &module, mark), expected());
    assert_eq!(frames(&mut symbolizer, &module, mark), expected());
    assert_eq!(fs::read_to_string(fixture.path("requests")).unwrap().lines().count(), 1);
}

#[test]
fn a_file_of_another_build_is_refused() {
    let fixture = Fixture::new();
    let (module, mark, _) = fixture.stripped();
    let another = Fixture::new();
    let html = fixture.path("page");
    fs::write(&html, b"<html>").unwrap();
    for sent in [another.inlined(&["-O0"]), html, fixture.path("absent")] {
        let mut symbolizer = symbolizer(fixture.client(&module.build_id, &sent));
        assert_eq!(frames(&mut symbolizer, &module, mark).len(), 1);
        assert!(symbolizer.problems()[0].reason.contains("sent the wrong file"), "{:?}", symbolizer.problems());
    }
}

#[test]
fn what_could_not_be_fetched_is_said() {
    let fixture = Fixture::new();
    let (module, mark, debug) = fixture.stripped();
    for (client, said) in [
        (fixture.client(b"another id", &debug), "no debuginfod server has it"),
        (fixture.path("absent"), "absent: No such file"),
    ] {
        let mut symbolizer = symbolizer(client);
        assert_eq!(frames(&mut symbolizer, &module, mark).len(), 1);
        let reason = &symbolizer.problems()[0].reason;
        assert!(reason.contains(said), "{reason}");
    }
}
