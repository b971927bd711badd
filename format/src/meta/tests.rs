//! Tests of the process block.

use super::{FieldWriter, Process, PythonVersion, StartTimes};

fn example() -> Process {
    Process {
        command_line: vec![b"python3".to_vec(), b"".to_vec(), b"\xff".to_vec()],
        executable: Some(b"/usr/bin/python3".to_vec()),
        pid: Some(7),
        start: StartTimes { ticks: Some(u64::MAX), ..StartTimes::default() },
        stop_reason: Some(b"collector gone".to_vec()),
        working_directory: Some(b"/srv".to_vec()),
        packages: vec![b"/srv/shop".to_vec(), b"/srv/shop/api".to_vec()],
        started_packages: vec![b"shop".to_vec(), b"server".to_vec()],
        installed_directories: vec![b"/srv/deps".to_vec()],
        ..Process::default()
    }
}

#[test]
fn round_trip_and_override() {
    let mut read = Process::default();
    assert!(read.update(&example().encode()));
    assert_eq!(read, example());
    assert!(read.update(&Process { exit_status: Some(139), ..Process::default() }.encode()));
    assert_eq!(read, Process { exit_status: Some(139), ..example() });
}

#[test]
fn a_flag_is_set_by_a_field_of_1_only() {
    for (value, set) in [(0, false), (1, true), (2, false)] {
        let mut payload = FieldWriter::default();
        super::put(&mut payload, 40, &super::number_bytes(value));
        let mut read = Process::default();
        assert!(read.update(&payload.into_bytes()));
        assert_eq!(read, Process { timestamps: set, ..Process::default() });
    }
    let whole = Process { native_traces: true, anonymized: true, ..Process::default() };
    let mut read = Process::default();
    assert!(read.update(&whole.encode()) && read == whole);
}

#[test]
fn versions_read_as_python_prints_them() {
    let text = |hex| PythonVersion { hex }.to_string();
    assert_eq!((text(0x030b_07f0), text(0x030e_00c2)), ("3.11.7".to_owned(), "3.14.0rc2".to_owned()));
}

#[test]
fn a_number_outside_of_its_type_leaves_the_field_unknown() {
    for tag in [32, 34, 35, 44] {
        let mut payload = FieldWriter::default();
        super::put(&mut payload, tag, &super::number_bytes(u64::MAX));
        let mut read = Process::default();
        assert!(read.update(&payload.into_bytes()));
        assert_eq!(read, Process::default());
    }
}

#[test]
fn a_list_is_overridden_as_a_whole() {
    let mut read = example();
    assert!(read.update(&Process { packages: vec![b"/opt".to_vec()], ..Process::default() }.encode()));
    assert_eq!(read, Process { packages: vec![b"/opt".to_vec()], ..example() });
}

#[test]
fn cut_payloads_are_told() {
    let whole = example().encode();
    assert!(!Process::default().update(&whole[..whole.len() - 1]));
}
