//! Which crate uses which: the arrows of the architecture, as cargo knows them.

use std::collections::BTreeSet;
use std::path::Path;
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
