//! Which crate uses which: the arrows of the architecture, as cargo knows them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Each crate, and the crates of the workspace that it uses: these and no others, so that the list is the truth.
const ARROWS: [(&str, &[&str]); 11] = [
    ("memtrack-format", &[]),
    ("memtrack-transport", &[]),
    ("memtrack-seccomp", &[]),
    ("memtrack-shim", &["memtrack-format", "memtrack-seccomp", "memtrack-transport"]),
    ("memtrack-collector", &["memtrack-format", "memtrack-transport"]),
    ("memtrack-inject", &["memtrack-seccomp"]),
    ("memtrack-objects", &["memtrack-format", "memtrack-inject"]),
    ("memtrack-reader", &["memtrack-format"]),
    (
        "memtrack-cli",
        &["memtrack-collector", "memtrack-format", "memtrack-inject", "memtrack-objects", "memtrack-reader"],
    ),
    ("memtrack-marks", &[]),
    ("memtrack-tests", &[]),
];

/// The rooms of crates in which data flows one way: modules at the root of the crate, each of which uses only those before it.
const ROOMS: [(&str, &[&str]); 2] = [
    (
        "collector",
        &[
            "system",
            "program",
            "sink",
            "file",
            "maps",
            "resident",
            "pictures",
            "recording",
            "session",
            "processes",
            "collector",
            "control",
        ],
    ),
    (
        "objects",
        &[
            "side_by_side",
            "prefetch",
            "memory",
            "allocators",
            "interpreter",
            "object",
            "references",
            "finding",
            "picture",
            "holders",
            "pointers",
            "picture_reader",
        ],
    ),
];

#[test]
fn rooms_use_only_those_before_them() {
    for (name, rooms) in ROOMS {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let mut files = Vec::new();
        rust_files(&source, &mut files);
        for file in files {
            let beneath = file.strip_prefix(&source).expect("in the crate");
            let room = beneath.components().next().expect("a name").as_os_str().to_string_lossy();
            let room = room.trim_end_matches(".rs");
            // What a crate's own tests have in common uses whatever they test.
            if ["lib", "tests", "fake_target"].contains(&room) {
                continue;
            }
            let place = rooms.iter().position(|known| *known == room);
            let place = place.unwrap_or_else(|| panic!("{}: {room} is not in the list of rooms", file.display()));
            for used in used_rooms(&fs::read_to_string(&file).expect("text")) {
                let is_before = rooms[..=place].contains(&&*used) || !rooms.contains(&&*used);
                assert!(is_before, "{}: uses {used}, which comes after {room}", file.display());
            }
        }
    }
}

/// All files of Rust code below a directory.
fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// What a file uses of its crate, apart from its unit tests: the first module of each path.
fn used_rooms(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = code.flat_map(|line| line.split("crate::").skip(1));
    let is_name = |letter: &char| letter.is_ascii_lowercase() || *letter == '_';
    paths.map(|path| path.chars().take_while(is_name).collect()).collect()
}

/// Dependencies of tests are not counted: a test may take any, but never the shim.
#[test]
fn crates_use_exactly_what_they_should() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    assert_eq!(names(packages.iter()), ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect());
    for (name, allowed) in ARROWS {
        let package = packages.iter().find(|package| package["name"] == name).expect(name);
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        let own = dependencies.iter().filter(|dependency| dependency["path"].is_string());
        let used = names(own.clone().filter(|dependency| dependency["kind"] != "dev"));
        let allowed = allowed.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(used, allowed, "{name} uses what stands on the left, and is to use what stands on the right");
        assert!(!names(own).contains("memtrack-shim"), "{name}: nobody may depend on the shim");
    }
}

#[test]
fn the_format_depends_on_its_checksum_only() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let format = packages.iter().find(|package| package["name"] == "memtrack-format").expect("the format");
    let dependencies = format["dependencies"].as_array().expect("dependencies");
    assert_eq!(
        names(dependencies.iter().filter(|dependency| dependency["kind"] != "dev")),
        ["crc32fast".to_owned()].into()
    );
}

fn names<'a>(values: impl Iterator<Item = &'a Value>) -> BTreeSet<String> {
    values.filter_map(|value| value["name"].as_str().map(Into::into)).collect()
}

fn metadata() -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--format-version=1", "--offline", "--manifest-path"]).arg(root);
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}
