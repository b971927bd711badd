//! Tests of rows of own code.

use super::{rows_by_own_line, top_rows};
use crate::reports::capture_info::Capture;
use crate::reports::display::DisplayOptions;
use crate::reports::fixture::of_stacks;
use crate::terminal::TextFormat;
use memtrack_format::Allocator;
use memtrack_reader::View;

const FIND: (&str, &str) = ("_find_and_load", "<frozen importlib._bootstrap>");
const PANDAS: (&str, &str) = ("<module>", "/v/site-packages/pandas/__init__.py");
const COPY: (&str, &str) = ("DataFrame.copy", "/v/site-packages/pandas/core/frame.py");
const READ: (&str, &str) = ("read_csv", "/v/site-packages/pandas/io/readers.py");
const LOAD: (&str, &str) = ("load", "/srv/report.py");

fn rows(capture: &mut Capture, display: &DisplayOptions) -> Vec<String> {
    capture.show(display).unwrap();
    let rows = rows_by_own_line(capture, View::Leaks, false, false);
    rows.iter().map(|row| format!("{} {}", row.tally.bytes, row.label(capture).whole().words())).collect()
}

#[test]
fn a_line_is_one_row_whatever_its_allocators() {
    let main = ("<module>", "/srv/main.py");
    let mut capture = of_stacks(&[(&[main, LOAD], 50), (&[main, LOAD], 20), (&[main], 60)]);
    capture.analysis.groups.change(1, |group| group.allocator = Allocator::Calloc);
    capture.show(&DisplayOptions::default()).unwrap();
    let rows = rows_by_own_line(&capture, View::Leaks, false, false);
    let rows: Vec<_> =
        rows.iter().map(|row| (row.tally.bytes, row.allocators(), row.label(&capture).whole().words())).collect();
    let load = (70, "malloc +1".to_owned(), "load at /srv/report.py:7".to_owned());
    assert_eq!(rows, [load, (60, "malloc".to_owned(), "<module> at /srv/main.py:7".to_owned())]);
}

#[test]
fn a_function_that_allocates_less_than_its_line_is_not_named() {
    let shown = |direct, through| {
        let (line, called): (&[_], &[_]) = (&[LOAD], &[LOAD, COPY]);
        rows(&mut of_stacks(&[(line, direct), (called, through)]), &DisplayOptions::default()).concat()
    };
    assert_eq!(shown(125, 1), "126 load at /srv/report.py:7");
    assert_eq!(shown(1, 125), "126 load at /srv/report.py:7, via DataFrame.copy at pandas/core/frame.py:7");
}

#[test]
fn functions_of_a_library_without_names_are_one() {
    let of_library = |function| (function, "/v/site-packages/imaging/x.so");
    let [first, second] = ["x.so+0x10", "x.so+0x2f"].map(of_library);
    let stacks: &[(&[(&str, &str)], u64)] =
        &[(&[LOAD, first], 60), (&[LOAD, second], 50), (&[LOAD, READ], 80), (&[first], 10)];
    let shown = rows(&mut of_stacks(stacks), &DisplayOptions::default());
    assert_eq!(shown, ["190 load at /srv/report.py:7, via imaging/x.so and 1 more", "10 x.so+0x10 at imaging/x.so:7"]);
}

#[test]
fn the_answer_has_three_own_lines_and_whose_the_rest_is() {
    let main = ("<module>", "/srv/main.py");
    let line = |file| ("work", file);
    let [a, b, c] = ["/srv/a.py", "/srv/b.py", "/srv/c.py"].map(line);
    let stacks: &[(&[(&str, &str)], u64)] = &[
        (&[main, a, READ], 300),
        (&[main, b], 200),
        (&[main, c], 150),
        (&[main], 40),
        (&[main, FIND, PANDAS, COPY], 200),
        (&[READ, COPY], 100),
        (&[], 10),
    ];
    let expected = [
        "  300 B  30.0 %  work at /srv/a.py:7, via read_csv at pandas/io/readers.py:7",
        "  200 B  20.0 %  work at /srv/b.py:7",
        "  150 B  15.0 %  work at /srv/c.py:7",
        "  200 B  20.0 %  imports",
        "  100 B  10.0 %  libraries, without own code",
        "   40 B   4.0 %  1 other line of own code",
    ];
    let format = TextFormat { width: None, color: false };
    let told = |with_imports| {
        let mut capture = of_stacks(stacks);
        capture.show(&DisplayOptions { with_imports, ..DisplayOptions::default() }).unwrap();
        top_rows(&capture, View::Leaks).lines(format)
    };
    assert_eq!(told(true), expected);
    // The view excludes imports, so shares are relative to the rest.
    assert_eq!(told(false)[..2], [expected[0].replace("30.0 %", "37.5 %"), expected[1].replace("20.0 %", "25.0 %")]);
    assert!(!told(false).iter().any(|line| line.contains("imports")));
}

#[test]
fn without_own_code_the_function_with_most_is_named() {
    let main = ("<module>", "/srv/main.py");
    let receive = ("recv", "/usr/lib/python3.11/multiprocessing/connection.py");
    let send = ("send", receive.1);
    let told = |received, copied| {
        let mut capture = of_stacks(&[(&[main], 100), (&[receive], received), (&[send], 100), (&[READ, COPY], copied)]);
        capture.show(&DisplayOptions::default()).unwrap();
        top_rows(&capture, View::Leaks).lines(TextFormat { width: None, color: false })[1..].to_vec()
    };
    assert_eq!(
        told(770, 30),
        [
            "  770 B  77.0 %  recv at multiprocessing/connection.py:7",
            "  100 B  10.0 %  standard libraries, without own code",
            "   30 B   3.0 %  libraries, without own code",
        ]
    );
    assert_eq!(told(20, 780)[0], "  780 B  78.0 %  DataFrame.copy at pandas/core/frame.py:7");
}

#[test]
fn a_line_that_imports_several_modules_says_how_many() {
    let main = ("<module>", "/srv/main.py");
    let numpy = ("<module>", "/v/site-packages/numpy/__init__.py");
    let shown = |stacks: &[(&[(&str, &str)], u64)]| {
        let with_imports = DisplayOptions { with_imports: true, ..DisplayOptions::default() };
        rows(&mut of_stacks(stacks), &with_imports)
    };
    let both = shown(&[(&[main, FIND, PANDAS], 60), (&[main, FIND, numpy], 40), (&[main, FIND], 5)]);
    assert_eq!(both, ["105 import pandas and 1 more at /srv/main.py:7"]);
    let one = shown(&[(&[main, FIND, PANDAS], 60), (&[main, FIND], 80)]);
    assert_eq!(one, ["140 import pandas at /srv/main.py:7"]);
    assert_eq!(shown(&[(&[main, FIND], 5)]), ["5 finding and loading modules at /srv/main.py:7"]);
    assert_eq!(shown(&[(&[FIND], 5)]), ["5 finding and loading modules"]);
}

#[test]
fn own_lines_come_first_and_imports_are_left_out_of_leaks() {
    let main = ("<module>", "/srv/main.py");
    let report = ("<module>", "/srv/report.py");
    let stacks: &[(&[(&str, &str)], u64)] = &[
        (&[main, LOAD, READ, COPY], 50),
        (&[main, LOAD, READ], 20),
        (&[main, FIND, PANDAS, COPY], 100),
        (&[main, FIND, report, READ], 30),
        (&[READ, COPY], 5),
        (&[], 1),
    ];
    let with_imports = DisplayOptions { with_imports: true, ..DisplayOptions::default() };
    assert_eq!(rows(&mut of_stacks(stacks), &with_imports)[0], "100 import pandas at /srv/main.py:7");
    let mut shown = of_stacks(stacks);
    let expected = [
        "70 load at /srv/report.py:7, via DataFrame.copy at pandas/core/frame.py:7 and 1 more",
        "30 <module> at /srv/report.py:7, via read_csv at pandas/io/readers.py:7",
        "5 DataFrame.copy at pandas/core/frame.py:7",
        "1 <no stack>",
    ];
    assert_eq!(rows(&mut shown, &DisplayOptions::default()), expected);
    let mut text = Vec::new();
    let format = TextFormat { width: None, color: false };
    shown.write_left_out(View::Leaks, format, &mut text).unwrap();
    shown.write_left_out(View::Allocated, format, &mut text).unwrap();
    assert_eq!(text, b"100 B allocated during imports not shown; use --with-imports\n");
}
