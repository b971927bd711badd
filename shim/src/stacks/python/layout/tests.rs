//! The tables of layouts: which builds of CPython they are for.

use super::{Build, ForVersion, Version};

struct BuildOfLayout;

impl ForVersion for BuildOfLayout {
    type Output = (u8, bool);

    fn run<V: Version>(self) -> (u8, bool) {
        (V::L.minor, V::L.is_free_threaded)
    }
}

#[test]
fn each_build_is_read_with_its_own_layout() {
    for build in Build::ALL {
        let (minor, is_free_threaded) = build.dispatch(BuildOfLayout);
        assert_eq!(format!("{build:?}"), format!("V3{minor}{}", if is_free_threaded { "T" } else { "" }));
        assert_eq!(Build::find(minor, is_free_threaded), Some(*build));
    }
}

#[test]
fn unsupported_builds_cannot_be_constructed() {
    let minors = || Build::ALL.iter().map(|build| build.layout().minor);
    let (oldest, newest) = (minors().min().unwrap_or_default(), minors().max().unwrap_or_default());
    assert_eq!(supported_versions!(), format!("3.{oldest} to 3.{newest}"));
    assert_eq!(Build::find(oldest - 1, false), None);
    assert_eq!(Build::find(newest + 1, false), None);
    assert_eq!(Build::find(newest + 1, true), None);
    assert_eq!(Build::find(12, true), None);
}

#[test]
fn the_readme_names_the_supported_versions_once() {
    let readme = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"));
    assert_eq!(readme.matches("CPython 3.").count(), 1);
    assert!(readme.contains(concat!("CPython ", supported_versions!(), ",")));
}
