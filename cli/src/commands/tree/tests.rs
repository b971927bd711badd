//! Tests of the interactive tree, with keys and an in-memory screen.

use memtrack_format::Allocator;
use memtrack_reader::View;
use memtrack_reader::analysis::{Group, Sum, Tally};
use memtrack_reader::{StackId, ThreadId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::browser::{Browser, BrowserStart};
use super::draw::draw;
use super::keys::{BINDINGS, press};
use super::rows::TreeItem;
use crate::reports::capture_info::Capture;
use crate::reports::display::DisplayOptions;
use crate::reports::fixture;
use crate::reports::leaked::LeakMoment;
use crate::screen::NextAction;

const NO_ARENAS: Tally = Tally { bytes: 0, count: 0, variance: memtrack_reader::analysis::Variance::EXACT };
const PEAK: BrowserStart = BrowserStart { view: View::HighWaterMark, inverted: false, least: 1.0, arenas: NO_ARENAS };
const LEAKS: BrowserStart = BrowserStart { view: View::Leaks, ..PEAK };

/// A capture of stacks (words, outermost first) with bytes at the peak and leaked bytes.
fn capture(stacks: &[(&str, u64, u64)]) -> Capture {
    let mut capture = fixture::empty();
    let frames = &mut capture.frames;
    let file = frames.name_id("/srv/app.py").unwrap();
    let groups = stacks.iter().map(|&(words, peak, leaked)| {
        let stack = words.split(' ').fold(StackId::EMPTY, |parent, word| {
            let name = frames.name_id(word).unwrap();
            let line = u32::from(*word.as_bytes().last().unwrap());
            let frame = frames.frame_id(name, file, line).unwrap();
            frames.stack_id(parent, frame).unwrap()
        });
        let sum = |bytes| Sum { bytes, count: u64::from(bytes > 0), first_order: 0, first_time_ns: 0 };
        let group = Group::new(stack, Allocator::Malloc, ThreadId(0));
        Group { peak: sum(peak), leaked: sum(leaked), allocated: sum(peak + leaked), ..group }
    });
    capture.analysis.groups = groups.collect();
    capture
}

/// `main` calls `load` (with a chain of single callees), `save`, and a hundred small functions.
fn program() -> Capture {
    let small: Vec<String> = (0..100).map(|number| format!("main small{number:02}")).collect();
    let mut stacks =
        vec![("main load open read decode", 60_000, 0), ("main save", 30_000, 500), ("start importing", 2_000, 2_000)];
    stacks.extend(small.iter().map(|words| (words.as_str(), 10, 0)));
    capture(&stacks)
}

/// The lines on the screen.
fn screen(browser: &mut Browser<'_>, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(browser, false, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// The names of the rows, the selected one marked.
fn names(browser: &Browser<'_>) -> Vec<String> {
    let name = |(at, row): (usize, &super::rows::TreeRow)| {
        let name = match row.item {
            TreeItem::Call(node) => browser.forest.described(node).0.to_owned(),
            TreeItem::Rest(_) => format!("{} smaller", row.rest),
        };
        if at == browser.selected { format!("[{name}]") } else { name }
    };
    browser.rows.iter().enumerate().map(name).collect()
}

/// Presses keys: each character one, `<` for left, `>` for right, `^` up, `_` down, `!` Enter, `~` Esc.
fn type_keys(browser: &mut Browser<'_>, keys: &str) -> NextAction {
    let code = |char| match char {
        '<' => KeyCode::Left,
        '>' => KeyCode::Right,
        '^' => KeyCode::Up,
        '_' => KeyCode::Down,
        '!' => KeyCode::Enter,
        '~' => KeyCode::Esc,
        char => KeyCode::Char(char),
    };
    keys.chars().fold(NextAction::GoOn, |_, char| press(browser, KeyEvent::new(code(char), KeyModifiers::NONE)))
}

#[test]
fn what_is_large_is_open_at_first_and_small_calls_are_summed_up() {
    let capture = program();
    let browser = Browser::new(&capture, PEAK);
    assert_eq!(names(&browser), ["[main]", "load", "open", "read", "decode", "save", "100 smaller", "start"]);
}

#[test]
fn rows_have_the_figures_of_their_calls() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    let lines = screen(&mut browser, 100, 24);
    assert!(lines[0].starts_with(" memtrack tree "), "{lines:#?}");
    assert!(lines[1].contains("1 Peak 93.0 kB") && lines[1].contains("2 Leaks 2.50 kB"), "{lines:#?}");
    let row =
        |name: &str| lines.iter().find(|line| line.contains(name)).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(row("main "), ["91.0", "kB", "97.8", "%", "102", "▾", "main", "/srv/app.py:110"]);
    assert_eq!(row("save "), ["30.0", "kB", "32.3", "%", "30.0", "kB", "1", "├", "save", "/srv/app.py:101"]);
    assert_eq!(row("smaller"), ["1.00", "kB", "1.1", "%", "100", "└", "▸", "(100", "smaller)"]);
}

#[test]
fn every_view_has_the_totals_of_its_rows_both_ways_round() {
    let capture = fixture::capture();
    for view in [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary, View::Allocated] {
        let rows = capture.analysis.view(view);
        let expected = rows.iter().fold((0, 0), |sum, row| (sum.0 + row.bytes, sum.1 + row.count));
        for inverted in [false, true] {
            let browser = Browser::new(&capture, BrowserStart { view, inverted, ..PEAK });
            let whole = browser.forest.total(0);
            assert_eq!((whole.bytes, whole.count), expected, "{view:?}");
            let top = browser.rows.iter().filter(|row| browser.forest.parent(row.item.node()) == 0);
            assert_eq!(top.map(|row| row.total.bytes).sum::<u64>(), whole.bytes, "{view:?}");
        }
    }
}

/// A capture prepared for display. Words that begin with `lib` are library functions, those that begin with `import`
/// belong to the import system; all others are own code.
fn shown(stacks: &[(&str, u64, u64)], display: &DisplayOptions) -> (Capture, Tally) {
    let mut capture = capture(&[]);
    let frames = &mut capture.frames;
    let groups = stacks.iter().map(|&(words, peak, leaked)| {
        let frames_of = words.split(' ').map(|word| {
            let file = match &word[..3] {
                "lib" => "/v/lib/python3.11/site-packages/lib/core.py",
                "imp" => "<frozen importlib._bootstrap>",
                _ => "/srv/app.py",
            };
            let (name, file) = (frames.name_id(word).unwrap(), frames.name_id(file).unwrap());
            frames.frame_id(name, file, 7).unwrap()
        });
        let ids: Vec<_> = frames_of.collect();
        let sum = |bytes| Sum { bytes, count: u64::from(bytes > 0), first_order: 0, first_time_ns: 0 };
        let group = Group::new(frames.stack_of(&ids).unwrap(), Allocator::Malloc, ThreadId(0));
        Group { peak: sum(peak), leaked: sum(leaked), allocated: sum(peak + leaked), ..group }
    });
    capture.analysis.groups = groups.collect();
    let sum = Sum { bytes: 900_000, count: 9, ..Sum::default() };
    let arena = Group::new(StackId::EMPTY, Allocator::PymallocArena, ThreadId(0));
    capture.analysis.groups.push(&Group { peak: sum, leaked: sum, allocated: sum, ..arena });
    capture.info.leak_moment = LeakMoment::Finalization;
    capture.show(display).unwrap();
    let arenas = capture.analysis.take_arenas_out_of_leaks(View::Leaks);
    (capture, arenas)
}

/// A program whose cache keeps copies made by a library, five calls deep.
const CACHE: [(&str, u64, u64); 5] = [
    ("main remember libcopy libapply liblist libblock", 60_000, 60_000),
    ("main remember libcopy libapply liblist libindex", 100, 100),
    ("main remember", 10, 10),
    ("main load libread libparse decode", 30_000, 0),
    ("main import_it", 20_000, 20_000),
];

#[test]
fn calls_of_others_in_between_have_no_rows_until_all_are_asked_for() {
    let (capture, _) = shown(&CACHE, &DisplayOptions::default());
    let mut browser = Browser::new(&capture, LEAKS);
    assert_eq!(names(&browser), ["[main]", "remember", "libcopy", "libblock"]);
    let lines = screen(&mut browser, 100, 24);
    assert!(lines.iter().any(|line| line.ends_with("└   … 2 calls, then libblock  lib/core.py:7")), "{lines:#?}");
    type_keys(&mut browser, "a");
    assert_eq!(names(&browser), ["[main]", "remember", "libcopy", "libapply", "liblist", "libblock", "libindex"]);
    type_keys(&mut browser, "a1e");
    // Own code that a library calls has a row.
    let expected = [
        "<no stack>",
        "[main]",
        "remember",
        "libcopy",
        "libblock",
        "load",
        "libread",
        "libparse",
        "decode",
        "finding and loading modules",
    ];
    assert_eq!(names(&browser), expected);
}

#[test]
fn a_search_shows_what_had_no_row() {
    let (capture, _) = shown(&CACHE, &DisplayOptions::default());
    let mut browser = Browser::new(&capture, LEAKS);
    type_keys(&mut browser, "/liblist!");
    assert_eq!(names(&browser), ["main", "remember", "libcopy", "[liblist]", "libblock"]);
    assert_eq!(browser.rows[3].skipped, 1);
    type_keys(&mut browser, "~/libindex!");
    assert_eq!(names(&browser), ["main", "remember", "libcopy", "liblist", "libblock", "[libindex]"]);
    type_keys(&mut browser, "<");
    assert_eq!(browser.selected, 3, "its caller");
    type_keys(&mut browser, "<<");
    assert_eq!((names(&browser)[2].as_str(), browser.selected), ("[libcopy]", 2), "over the calls without rows");
}

#[test]
fn own_code_stands_out() {
    let (capture, _) = shown(&CACHE, &DisplayOptions::default());
    for color in [true, false] {
        let mut browser = Browser::new(&capture, LEAKS);
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        terminal.draw(|frame| draw(&mut browser, color, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let style_of = |name: &str| {
            let line = |y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>();
            let y = (0..24).find(|y| line(*y).contains(name)).unwrap();
            let x = line(y).chars().collect::<String>().split(name).next().unwrap().chars().count();
            let cell = &buffer[(x as u16, y)];
            (cell.modifier.contains(Modifier::BOLD), cell.fg != Color::Reset)
        };
        assert_eq!([style_of("remember"), style_of("libcopy")], [(true, color), (false, false)]);
    }
}

#[test]
fn leaks_are_without_imports_and_arenas_and_say_so() {
    let text = |display: &DisplayOptions| {
        let (capture, arenas) = shown(&CACHE, display);
        let mut browser = Browser::new(&capture, BrowserStart { arenas, ..LEAKS });
        screen(&mut browser, 100, 24).join("\n")
    };
    let without = text(&DisplayOptions::default());
    assert!(without.contains(" 2 Leaks 60.1 kB "), "{without}");
    let about = " Leaks: 60.1 kB in 3 allocations, live when Python began to finalize; 20.0 kB allocated during\n \
                 imports not shown; use --with-imports; 900 kB in 9 arenas reserved by Python's allocator (used and\n \
                 unused); record with --trace-python-allocators to see objects\n";
    assert!(without.contains(about), "{without}");
    assert!(!without.contains("no stack"), "{without}");
    let with = text(&DisplayOptions { with_imports: true, ..DisplayOptions::default() });
    assert!(
        with.contains(" 2 Leaks 80.1 kB ")
            && with.contains(" finding and loading modules\n")
            && !with.contains("not shown"),
        "{with}"
    );
    // Unfolded.
    let all = text(&DisplayOptions { all_frames: true, ..DisplayOptions::default() });
    assert!(all.contains(" liblist  /v/lib/python3.11/site-packages/lib/core.py:7\n"), "{all}");
}

#[test]
fn each_view_says_what_it_is_of() {
    let (capture, _) = shown(&CACHE, &DisplayOptions::default());
    let mut browser = Browser::new(&capture, PEAK);
    for (key, expected) in [
        ("1", " High-water mark: 1.01 MB in 14 allocations, live at the peak"),
        ("3", " Temporary allocations: 0 B in 0 allocations, freed after at most 0 more of the same thread"),
        ("4", " All allocations: 1.09 MB in 14 allocations, freed or not"),
    ] {
        type_keys(&mut browser, key);
        assert_eq!(screen(&mut browser, 100, 24)[2], expected);
    }
    assert_eq!(screen(&mut browser, 30, 8)[2], " All allocations: 1.09 MB in…");
}

#[test]
fn keys_open_close_and_move() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "_<");
    assert_eq!(names(&browser), ["main", "[load]", "save", "100 smaller", "start"]);
    type_keys(&mut browser, ">");
    assert_eq!(names(&browser)[..6], ["main", "[load]", "open", "read", "decode", "save"], "single file opens whole");
    type_keys(&mut browser, ">__^<<<<<");
    assert_eq!(names(&browser)[..3], ["main", "[load]", "save"], "left closes, and goes to the caller");
    type_keys(&mut browser, "G>");
    assert_eq!(names(&browser)[4..], ["[start]", "importing"]);
    type_keys(&mut browser, "^ ");
    assert_eq!((browser.rows.len(), browser.selected), (106, 3), "space opens the small ones");
    type_keys(&mut browser, "gc");
    assert_eq!(names(&browser), ["[main]", "start", "importing"]);
    type_keys(&mut browser, "e");
    assert_eq!(browser.rows.len(), 109, "everything below is open");
}

#[test]
fn views_keep_what_is_selected_or_go_to_its_caller() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "_____2");
    assert_eq!(names(&browser), ["start", "importing", "main", "[save]"]);
    type_keys(&mut browser, "1^");
    assert_eq!(names(&browser)[4], "[decode]");
    type_keys(&mut browser, "2");
    assert_eq!(names(&browser)[2], "[main]", "decode has leaked nothing");
    type_keys(&mut browser, "3");
    assert!(screen(&mut browser, 80, 24)[5].contains("No allocations"));
    type_keys(&mut browser, "_>G<e");
    assert_eq!(browser.rows.len(), 0);
}

#[test]
fn inverted_rows_begin_with_what_allocated() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "i");
    assert_eq!(names(&browser)[..3], ["[decode]", "read", "open"]);
    assert_eq!(browser.forest.own(browser.selected_node()).bytes, 60_000);
    assert!(screen(&mut browser, 80, 24)[3].contains("callers below"));
}

#[test]
fn sorting_changes_the_order_of_siblings_alone() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "s");
    assert_eq!(names(&browser)[1], "save", "self bytes: load has none");
    type_keys(&mut browser, "ss");
    assert_eq!(names(&browser)[1], "load", "by name");
    assert!(screen(&mut browser, 80, 24)[3].contains("Call▾"));
    type_keys(&mut browser, "_s");
    assert_eq!(names(&browser)[1], "[load]");
}

#[test]
fn a_search_finds_what_is_closed_and_tells_the_matched_total() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "c/SMALL4");
    assert_eq!(names(&browser)[browser.selected], "[small40]");
    let lines = screen(&mut browser, 80, 24);
    assert!(lines[23].starts_with(" /SMALL4▏   matched 100 B, 0.1 %"), "{}", lines[23]);
    type_keys(&mut browser, "!nn");
    assert_eq!(names(&browser)[browser.selected], "[small42]");
    type_keys(&mut browser, "NNN");
    assert_eq!(names(&browser)[browser.selected], "[small49]", "from the first match back to the last");
    assert_eq!(type_keys(&mut browser, "~"), NextAction::GoOn);
    assert!(browser.search.matches.is_empty());
    assert_eq!(type_keys(&mut browser, "~"), NextAction::Quit);
}

#[test]
fn a_search_that_is_dropped_leaves_the_selection() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "_/importing");
    assert_eq!(names(&browser)[browser.selected], "[importing]");
    type_keys(&mut browser, "~");
    assert_eq!(names(&browser)[1], "[load]");
    type_keys(&mut browser, "/nowhere");
    assert!(screen(&mut browser, 80, 24)[23].contains("no match"));
    assert_eq!(names(&browser)[1], "[load]");
    for _ in 0.."nowhere".len() {
        press(&mut browser, KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
    }
    assert_eq!((browser.search.text.as_str(), browser.search.typing), ("", true));
}

#[test]
fn the_selected_row_is_always_on_the_screen() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "e");
    for keys in ["G", "^^^^^", "g", "_____________________", "/small99!", "~c"] {
        type_keys(&mut browser, keys);
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).unwrap();
        terminal.draw(|frame| draw(&mut browser, false, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let reversed = (4..11).filter(|y| buffer[(30, *y)].modifier.contains(Modifier::REVERSED)).count();
        assert_eq!(reversed, 1, "after {keys}");
    }
}

#[test]
fn source_lines_and_allocators_of_the_selected_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.py");
    std::fs::write(&path, (1..=200).map(|line| format!("call({line})\n")).collect::<String>()).unwrap();
    let mut capture = program();
    let (function, file) =
        (capture.frames.name_id("read_it").unwrap(), capture.frames.name_id(path.to_str().unwrap()).unwrap());
    let frame = capture.frames.frame_id(function, file, 42).unwrap();
    let stack = capture.frames.stack_of(&[frame]).unwrap();
    capture.analysis.groups.change(0, |group| group.stack = stack);
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "p");
    let text = screen(&mut browser, 80, 30).join("\n");
    assert!(text.contains("total 60.0 kB in 1, self 60.0 kB in 1; malloc 60.0 kB"), "{text}");
    assert!(text.contains(">    42  call(42)") && text.contains("      41  call(41)"), "{text}");
    type_keys(&mut browser, "_");
    assert!(screen(&mut browser, 80, 30).join("\n").contains("No source: "));
    type_keys(&mut browser, "p");
    assert!(!screen(&mut browser, 80, 30).join("\n").contains("No source: "));
}

#[test]
fn help_names_every_key_and_any_key_closes_it() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    type_keys(&mut browser, "?");
    let text = screen(&mut browser, 80, 24).join("\n");
    BINDINGS.iter().for_each(|(_, keys, does)| assert!(text.contains(keys) && text.contains(does), "{keys}\n{text}"));
    assert_eq!(type_keys(&mut browser, "~"), NextAction::GoOn);
    assert!(!browser.help);
}

#[test]
fn control_keys_end_and_suspend() {
    let capture = program();
    let mut browser = Browser::new(&capture, PEAK);
    let control = |char| KeyEvent::new(KeyCode::Char(char), KeyModifiers::CONTROL);
    assert_eq!(press(&mut browser, control('z')), NextAction::Suspend);
    type_keys(&mut browser, "/a");
    assert_eq!(press(&mut browser, control('c')), NextAction::Quit, "also while a search is typed");
}

#[test]
fn screens_of_any_size_and_empty_captures_are_drawn() {
    for capture in [program(), fixture::empty()] {
        let mut browser = Browser::new(&capture, PEAK);
        type_keys(&mut browser, "p?");
        for (width, height) in [(1, 1), (5, 3), (20, 6), (72, 12), (300, 80)] {
            assert_eq!(screen(&mut browser, width, height).len(), usize::from(height));
        }
    }
}
