//! Tests of complete pages and their data.

use super::columns::PackedColumns;
use super::{FEWEST_SITES, MOST_SITES, PageStart, Sources, VIEWS};
use super::{bounded, difference, flamegraph, testing};
use crate::reports::capture_info::Capture;
use crate::reports::fixture;
use serde_json::{Value, json};

fn page(capture: &mut Capture) -> Value {
    let mut page = Vec::new();
    flamegraph(capture, PageStart::default(), Vec::new(), None, &mut page).unwrap();
    testing::data(&page)
}

fn sum(column: &Value) -> u64 {
    column.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
}

#[test]
fn sums_are_those_of_the_views() {
    let mut capture = fixture::capture();
    let data = page(&mut capture);
    for (number, view) in VIEWS.iter().enumerate() {
        let rows = capture.analysis.view(*view);
        let expected = [rows.iter().map(|row| row.bytes).sum::<u64>(), rows.iter().map(|row| row.count).sum()];
        let got = ["Bytes", "Count"].map(|what| sum(&data[format!("new{what}{number}")]));
        assert_eq!(got, expected, "{view:?}");
    }
}

#[test]
fn nodes_are_in_preorder_with_the_heaviest_first() {
    let data = page(&mut fixture::capture());
    assert_eq!(data["nodeDepth"], json!([1, 2, 3, 1]));
    let names: Vec<_> = data["nodeFrame"]
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| {
            let name = data["frameName"][frame.as_u64().unwrap() as usize].as_u64().unwrap();
            data["strings"][name as usize].as_str().unwrap()
        })
        .collect();
    assert_eq!(names, ["<module>", "work", "Reader.read", "<no stack>"]);
}

#[test]
fn a_page_that_would_be_too_large_gets_fewer_sites() {
    let mut tried = Vec::new();
    let of_random_digits = |most: usize| {
        let mut data = PackedColumns::new();
        let random = |at: u64| at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) ^ at;
        data.column("a", (0..most as u64 / 20).map(random)).unwrap();
        data.finish()
    };
    let packed = bounded(100_000, |most| {
        tried.push(most);
        of_random_digits(most)
    });
    assert!(packed.unwrap().len() <= 100_000);
    assert!(tried.len() == 2 && tried[0] == MOST_SITES && tried[1] > FEWEST_SITES, "{tried:?}");
    let mut least = 0;
    bounded(100_000, |most| {
        least = most;
        of_random_digits(MOST_SITES)
    })
    .unwrap();
    assert!(least >= FEWEST_SITES, "it comes to an end: {least}");
}

#[test]
fn source_lines_are_there_only_if_they_were_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.py");
    std::fs::write(&path, "first\n    kept.append(secret)\n").unwrap();
    let mut capture = fixture::capture();
    let (name, file) =
        (capture.frames.name_id("work").unwrap(), capture.frames.name_id(path.to_str().unwrap()).unwrap());
    let frame = capture.frames.frame_id(name, file, 2).unwrap();
    let stack = capture.frames.stack_of(&[frame]).unwrap();
    capture.analysis.groups.change(0, |group| group.stack = stack);
    let mut strings = |sources| {
        let mut page = Vec::new();
        flamegraph(&mut capture, PageStart::default(), Vec::new(), sources, &mut page).unwrap();
        testing::data(&page)["strings"].to_string()
    };
    assert!(!strings(None).contains("secret"));
    assert!(strings(Some(Sources::default())).contains("kept.append(secret)\""));
}

#[test]
fn native_frames_are_told_from_python_and_from_the_interpreter() {
    let mut capture = fixture::capture();
    let mut native = |name: &str, module: &str| {
        let (name, file) = (capture.frames.name_id(name).unwrap(), capture.frames.name_id("").unwrap());
        let id = capture.frames.frame_id(name, file, 0).unwrap();
        capture.frames.set_module(id, module).unwrap();
        id
    };
    let ids = [native("PyObject_Malloc", "/usr/lib/libpython3.11.so.1.0"), native("parse", "/srv/libfast.so")];
    let stack = capture.frames.stack_of(&ids).unwrap();
    capture.analysis.groups.change(0, |group| group.stack = stack);
    let told = |data: Value| {
        let text = |column: &str, at: usize| data["strings"][data[column][at].as_u64().unwrap() as usize].clone();
        let native = data["frameNative"].as_array().unwrap().iter().enumerate().filter(|(_, native)| **native == 1);
        let mut told: Vec<_> = native
            .map(|(at, _)| format!("{} {} {}", text("frameName", at), text("frameModule", at), data["frameOrigin"][at]))
            .collect();
        told.sort();
        told
    };
    let expected = [r#""PyObject_Malloc" "libpython3.11.so.1.0" 4"#, r#""parse" "libfast.so" 0"#];
    assert_eq!(told(page(&mut capture)), expected);
    let mut text = Vec::new();
    difference(&fixture::empty(), &capture, PageStart::default(), None, &[], &mut text).unwrap();
    assert_eq!(told(testing::data(&text)), expected, "in a difference, too");
}

#[test]
fn nothing_in_a_name_can_leave_the_data() {
    let mut capture = fixture::empty();
    capture.info.process.command_line = vec![b"</script><b>&\"{{DATA}}".to_vec()];
    let mut page = Vec::new();
    flamegraph(&mut capture, PageStart::default(), Vec::new(), None, &mut page).unwrap();
    let text = str::from_utf8(&page).unwrap();
    assert!(!text.contains("<b>") && text.contains("<title>script&gt;&lt;b&gt;&amp;&quot;{{DATA}} - memtrack"));
    assert_eq!(testing::data(&page)["title"], "'</script><b>&\"{{DATA}}'");
}

#[test]
fn a_page_refers_to_nothing_outside() {
    let mut page = Vec::new();
    flamegraph(&mut fixture::capture(), PageStart::default(), Vec::new(), None, &mut page).unwrap();
    let text = str::from_utf8(&page).unwrap();
    assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("src=") && !text.contains("import("));
    assert!(text.contains("default-src 'none'"));
}

#[test]
fn a_difference_has_both_sides() {
    let (base, new) = (fixture::empty(), fixture::capture());
    let mut page = Vec::new();
    difference(&base, &new, PageStart::default(), Some("doubled".into()), &["a doubt".into()], &mut page).unwrap();
    let data = testing::data(&page);
    assert_eq!((sum(&data["newBytes4"]), sum(&data["baseBytes4"])), (1_505_096, 0));
    assert_eq!((&data["kind"], &data["notes"]), (&json!("diff"), &json!(["a doubt"])));
    assert_eq!((&data["scale"], &data["vanishedStacks"]), (&json!("doubled"), &json!([0, 0, 0, 0, 0, 0, 0])));
    assert_eq!(data["threads"], json!(["main", "pool-0"]));
}
