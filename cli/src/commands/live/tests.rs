//! Tests of the live view, with keys and an in-memory screen.

use std::sync::Arc;

use memtrack_format::Allocator;
use memtrack_reader::analysis::{Group, Sum, Tally, Variance, ViewVariances, share_live};
use memtrack_reader::live::{LivePoint, LiveTotals};
use memtrack_reader::{StackId, ThreadId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::board::{Board, GrowthRecord, SUSPICIOUS, rows, threads};
use super::draw::draw;
use super::view::{ARENAS, KEYS, LiveView, ShownProcess, ViewRequest};
use crate::live_windows::message::{AT_MARK, LIVE, Lag, SummedCounts};
use crate::reports::diff_noise::DiffNoise;
use crate::reports::display::DisplayOptions;
use crate::reports::fixture;
use crate::screen::NextAction;

/// What is live by function and line (with what was live at the mark, and allocated in the window), as a board.
fn board(lines: &[(&str, u64, u64, u64)], growth: &mut GrowthRecord) -> Arc<Board> {
    let mut capture = fixture::empty();
    let file = capture.frames.name_id("/srv/app.py").unwrap();
    let groups = (1_u32..).zip(lines).map(|(line, &(function, live, at_mark, allocated))| {
        let function = capture.frames.name_id(function).unwrap();
        let frame = capture.frames.frame_id(function, file, line).unwrap();
        let stack = capture.frames.stack_id(StackId::EMPTY, frame).unwrap();
        let sum = |bytes| Sum { bytes, count: u64::from(bytes > 0), first_order: 0, first_time_ns: 0 };
        let group = Group::new(stack, Allocator::Malloc, ThreadId(0));
        Group { peak: sum(live), allocated: sum(at_mark), temporary: sum(allocated), ..group }
    });
    capture.analysis.groups = groups.collect();
    capture.fold(&DisplayOptions::default()).unwrap();
    let mut rows = rows(&capture, true);
    growth.note(&mut rows, true, DiffNoise::of_moments(&capture));
    let live = Tally { bytes: lines.iter().map(|line| line.1).sum(), count: lines.len() as u64, ..Tally::default() };
    let points = (0..100).map(|at| LivePoint { time_ns: at * 100_000_000, live_bytes: at * 1000, rss_bytes: 500_000 });
    let totals = LiveTotals {
        time_ns: 12_340_000_000,
        events: 5000,
        live,
        peak_bytes: 2_000_000,
        rss_bytes: 8_000_000,
        ..LiveTotals::default()
    };
    Arc::new(Board {
        threads: threads(&capture),
        capture,
        rows,
        totals,
        points: points.collect(),
        window_ns: 1_000_000_000,
        events: 1234,
        allocated: lines.iter().map(|line| line.3).sum(),
        allocated_ever: Tally { bytes: 77, count: 7, ..Tally::default() },
        freed_ever: Tally { bytes: 33, count: 3, ..Tally::default() },
        mark_ns: 4_000_000_000,
        ended: false,
        lag: Lag::default(),
        processes: None,
    })
}

fn view(lines: &[(&str, u64, u64, u64)]) -> LiveView {
    let mut view = LiveView::default();
    view.update(board(lines, &mut GrowthRecord::default()));
    view
}

const LINES: [(&str, u64, u64, u64); 4] = [
    ("Cache.put", 900_000, 100_000, 50_000),
    ("load", 300_000, 300_000, 0),
    ("parse", 1_000, 9_000, 7),
    ("gone", 0, 5_000, 0),
];

fn screen(view: &mut LiveView, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, false, frame, frame.area())).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn press(view: &mut LiveView, keys: &str) -> ViewRequest {
    let code = |char| match char {
        '!' => KeyCode::Enter,
        '~' => KeyCode::Esc,
        '_' => KeyCode::Down,
        char => KeyCode::Char(char),
    };
    keys.chars().fold(ViewRequest::Nothing, |_, char| view.press(KeyEvent::new(code(char), KeyModifiers::NONE)))
}

/// The first column and the name of each row.
fn named(view: &mut LiveView) -> Vec<String> {
    let lines = screen(view, 80, 24);
    let head = lines.iter().position(|line| line.ends_with("Code")).unwrap();
    let rows = lines[head + 1..].iter().take_while(|line| !line.is_empty());
    rows.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "at").unwrap();
        format!("{} {} {}", words[0], words[1], words[at - 1])
    })
    .collect()
}

#[test]
fn golden_screens() {
    for (width, height) in [(80, 24), (200, 60)] {
        let mut view = view(&LINES);
        let mut text = screen(&mut view, width, height).join("\n");
        press(&mut view, "!");
        text.push_str("\n----\n");
        text.push_str(&screen(&mut view, width, height).join("\n"));
        text.push('\n');
        fixture::compare(&format!("live-{width}x{height}.txt"), text.as_bytes());
    }
}

#[test]
fn a_view_that_is_behind_says_by_how_much() {
    let title = |lag| {
        let mut board = Arc::into_inner(board(&LINES, &mut GrowthRecord::default())).unwrap();
        board.lag = lag;
        let mut view = LiveView::default();
        view.update(Arc::new(board));
        screen(&mut view, 120, 24).remove(0)
    };
    assert!(!title(Lag { bytes: 1 << 20, events: 20_000, ms: 900 }).contains("catching up"));
    let late = title(Lag { bytes: 1 << 10, events: 20_000, ms: 4_200 });
    assert!(late.contains("catching up, 20 %: 4.20 s behind, 20,000 events to replay"), "{late}");
    let large = title(Lag { bytes: 9 << 20, events: 0, ms: 0 });
    assert!(large.contains("catching up, 100 %: 0 events to replay"), "{large}");
    // Of a program that has ended: no time passes any more, and a loop at full rate has few bytes.
    let ended = title(Lag { bytes: 1 << 10, events: 20_000_000, ms: 0 });
    assert!(ended.contains("catching up, 0 %: 20,000,000 events to replay"), "{ended}");
}

#[test]
fn a_view_that_is_behind_keeps_its_programs_name_on_a_narrow_screen() {
    let mut board = Arc::into_inner(board(&LINES, &mut GrowthRecord::default())).unwrap();
    board.lag = Lag { bytes: 1 << 10, events: 8_560_968, ms: 11_100 };
    let mut view = LiveView::default();
    view.update(Arc::new(board));
    let title = |view: &mut LiveView, width| screen(view, width, 24).remove(0);
    let narrow = title(&mut view, 80);
    assert!(narrow.contains("catching up, 0 %: 11.1 s behind  ") && narrow.ends_with("empty.bin"), "{narrow}");
    let narrower = title(&mut view, 66);
    assert!(narrower.contains("catching up, 0 %  ") && narrower.ends_with("empty.bin"), "{narrower}");
    assert!(title(&mut view, 120).contains("behind, 8,560,968 events to replay  empty.bin"));
}

/// The line with the names of the columns.
fn head(view: &mut LiveView, width: u16) -> String {
    screen(view, width, 24).into_iter().find(|line| line.contains("Live") && !line.contains("live")).unwrap()
}

#[test]
fn the_column_that_rows_are_sorted_by_is_marked_and_each_view_has_its_own_order() {
    let mut view = view(&[LINES[0], LINES[1], ("churn", 0, 0, 650_000_000)]);
    assert_eq!(head(&mut view, 80), "    Live▾    Part     Grown  Code");
    press(&mut view, "s");
    assert_eq!(head(&mut view, 80), "     Live    Part    Grown▾  Code");
    press(&mut view, "s");
    // It takes the place of another one where there is no room for both.
    assert_eq!(head(&mut view, 80), "     Live    Part  Allocated▾  Code");
    assert_eq!(head(&mut view, 120), "     Live    Part     Grown  Allocated▾  Code");
    assert!(screen(&mut view, 80, 24).iter().any(|line| line.contains("0.0 %    650 MB/s  churn")));
    press(&mut view, "2");
    assert_eq!(head(&mut view, 80), "    Grown▾     Live     Blocks  Code");
    press(&mut view, "3");
    assert_eq!(head(&mut view, 80), "    Grown▾ Windows     Live  Code");
    press(&mut view, "sss");
    assert_eq!(head(&mut view, 80), "     Grown Windows     Live  Code▾");
    press(&mut view, "1");
    assert_eq!(head(&mut view, 80), "     Live    Part  Allocated▾  Code");
    press(&mut view, "ss3s");
    assert_eq!(head(&mut view, 80), "    Grown▾ Windows     Live  Code");
    press(&mut view, "1");
    assert_eq!(head(&mut view, 80), "    Live▾    Part     Grown  Code");
}

#[test]
fn a_view_of_own_code_only_says_so_with_what_it_holds() {
    let mut board = Arc::into_inner(board(&LINES, &mut GrowthRecord::default())).unwrap();
    for row in &mut board.rows {
        row.is_own = row.label.whole().words().starts_with("load");
    }
    let mut view = LiveView::default();
    view.update(Arc::new(board));
    press(&mut view, "o");
    assert_eq!(head(&mut view, 80), "    Live▾    Part     Grown  Own code only: 300 kB (o: all)");
    press(&mut view, "2");
    assert_eq!(head(&mut view, 80), "    Grown▾     Live     Blocks  Own code only: 0 B (o: all)");
    press(&mut view, "o");
    assert_eq!(head(&mut view, 80), "    Grown▾     Live     Blocks  Code");
}

#[test]
fn tabs_have_the_rows_that_they_are_named_after() {
    let mut view = view(&LINES);
    assert_eq!(named(&mut view), ["900 kB Cache.put", "300 kB load", "1.00 kB parse"]);
    press(&mut view, "2");
    assert_eq!(named(&mut view), ["+800 kB Cache.put", "-5.00 kB gone", "-8.00 kB parse"]);
    press(&mut view, "1/LOA!");
    assert_eq!(named(&mut view), ["300 kB load"]);
    press(&mut view, "~");
    assert_eq!(named(&mut view).len(), 3);
    assert!(screen(&mut view, 80, 24).iter().any(|line| line.contains("3 Suspects 0")));
}

#[test]
fn a_line_that_frees_all_it_allocates_is_found_by_its_rate() {
    let mut view = view(&[LINES[0], LINES[1], ("churn", 0, 0, 650_000_000)]);
    assert_eq!(named(&mut view), ["900 kB Cache.put", "300 kB load"]);
    // By growth, then by rate.
    press(&mut view, "ss");
    assert_eq!(named(&mut view), ["0 B churn", "900 kB Cache.put", "300 kB load"]);
    assert!(screen(&mut view, 120, 24).iter().any(|line| line.contains("650 MB/s") && line.contains("churn")));
    press(&mut view, "!");
    let shown = screen(&mut view, 120, 24);
    assert!(shown.iter().any(|line| line.contains("allocated and freed: 650 MB in 1 block")), "{shown:#?}");
}

#[test]
fn what_the_rows_allocated_is_all_that_was_allocated() {
    let lines = [LINES[0], LINES[2], ("churn", 0, 0, 650_000_000), ("gone", 0, 5_000, 30)];
    let board = board(&lines, &mut GrowthRecord::default());
    assert_eq!(board.rows.iter().map(|row| row.allocated.bytes).sum::<u64>(), board.allocated);
}

#[test]
fn suspects_have_grown_in_each_of_the_last_windows() {
    let mut growth = GrowthRecord::default();
    let mut view = LiveView::default();
    for window in 0..=u64::from(SUSPICIOUS) {
        let up_and_down = if window % 2 == 0 { 900_000 } else { 800_000 };
        let lines =
            [("leak", 100_000 + window * 50_000, 0, 1), ("cache", up_and_down, 0, 1), ("noise", 1000 + window, 0, 1)];
        view.update(board(&lines, &mut growth));
        press(&mut view, "3");
        assert_eq!(view.len(), usize::from(window >= u64::from(SUSPICIOUS)));
    }
    assert_eq!(named(&mut view), ["+200 kB leak"]);
}

#[test]
fn a_paused_view_stays_and_a_selected_line_stays_selected() {
    let mut view = view(&LINES);
    press(&mut view, "_");
    press(&mut view, "p");
    let more = [LINES[0], LINES[1], LINES[2], ("other", 5_000_000, 0, 0)];
    view.update(board(&more, &mut GrowthRecord::default()));
    assert_eq!(named(&mut view).len(), 3);
    assert!(screen(&mut view, 80, 24)[0].contains("paused"));
    press(&mut view, "p");
    assert_eq!(named(&mut view)[0], "5.00 MB other");
    let selected = view.board.clone().map(|board| view.shown(&board)[view.selected].label.whole().words());
    assert!(selected.unwrap().starts_with("load"));
}

#[test]
fn keys_ask_for_what_the_help_says() {
    let mut view = view(&LINES);
    assert_eq!(press(&mut view, "r"), ViewRequest::Mark);
    assert_eq!(press(&mut view, "w"), ViewRequest::Snapshot);
    for (key, shown) in [("n", ShownProcess::Next), ("N", ShownProcess::Previous), ("a", ShownProcess::All)] {
        assert_eq!(press(&mut view, key), ViewRequest::Show(shown));
    }
    assert_eq!(press(&mut view, "t"), ViewRequest::Then(NextAction::Tree));
    press(&mut view, "?");
    let help = screen(&mut view, 80, 24).join("\n");
    assert!(KEYS.iter().all(|(_, does)| help.contains(does)), "{help}");
    assert_eq!(press(&mut view, "q"), ViewRequest::Then(NextAction::Quit));
}

/// An arena counts to the line that happened to need it.
#[test]
fn arenas_of_pythons_allocator_are_told_of_a_line_and_in_the_help() {
    let mut arenas = Arc::into_inner(board(&LINES, &mut GrowthRecord::default())).unwrap();
    arenas.capture.analysis.groups.change_all(|group| group.allocator = Allocator::PymallocArena);
    let mut with_arenas = LiveView::default();
    with_arenas.update(Arc::new(arenas));
    for (mut view, is_told) in [(view(&LINES), false), (with_arenas, true)] {
        press(&mut view, "!");
        let stacks = screen(&mut view, 80, 24).join("\n");
        let sentence = "Of it 900 kB in 1 arena reserved by Python's allocator (used and unused)";
        assert_eq!(stacks.contains(sentence), is_told, "{stacks}");
        press(&mut view, "?");
        let help = screen(&mut view, 80, 24).join("\n");
        assert!(ARENAS.iter().all(|line| help.contains(line) == is_told), "{help}");
        assert!(KEYS.iter().all(|(_, does)| help.contains(does)), "{help}");
    }
}

#[test]
fn metrics_have_totals_and_the_lines_that_hold_most() {
    let text = super::metrics::text(&board(&LINES, &mut GrowthRecord::default()));
    for line in [
        "# TYPE memtrack_live_bytes gauge",
        "memtrack_live_bytes{pid=\"0\"} 1201000",
        "memtrack_allocated_bytes_total{pid=\"0\"} 77",
        "memtrack_line_live_bytes{pid=\"0\",code=\"Cache.put at /srv/app.py:1\",own=\"true\"} 900000",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
}

/// What is not own code may be in several parts: rows of one name.
#[test]
fn rows_of_one_name_are_one_series_and_one_suspect() {
    let mut growth = GrowthRecord::default();
    for window in 0..=u64::from(SUSPICIOUS) {
        let lines = [("lib", 100_000 + window * 50_000, 0, 1), ("Cache.put", 900_000, 0, 1)];
        let mut board = Arc::into_inner(board(&lines, &mut GrowthRecord::default())).unwrap();
        let lib = board.rows.iter().find(|row| row.label.whole().words().starts_with("lib")).cloned().unwrap();
        board.rows.push(lib);
        growth.note(&mut board.rows, true, DiffNoise::of_moments(&board.capture));
        let suspects = board.rows.iter().filter(|row| row.is_suspect(board.totals.live.bytes)).count();
        assert_eq!(suspects, if window < u64::from(SUSPICIOUS) { 0 } else { 2 });
        let text = super::metrics::text(&Arc::new(board));
        let series: Vec<&str> = text.lines().filter(|line| line.contains("lib at")).collect();
        assert_eq!(series.len(), 1, "{series:?}");
        assert!(series[0].ends_with(&format!(" {}", 2 * (100_000 + window * 50_000))), "{series:?}");
    }
}

#[test]
fn metrics_of_a_sum_say_how_many_processes_it_has() {
    let mut board = Arc::into_inner(board(&LINES, &mut GrowthRecord::default())).unwrap();
    board.processes = Some(SummedCounts { running: 512, missing: 3 });
    let text = super::metrics::text(&Arc::new(board));
    for line in ["memtrack_processes{pid=\"0\"} 512", "memtrack_missing_processes{pid=\"0\"} 3"] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
}

#[test]
fn any_screen_and_no_figures_are_drawn() {
    let mut empty = LiveView::default();
    for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
        screen(&mut empty, width, height);
        let mut view = view(&LINES);
        press(&mut view, "!");
        screen(&mut view, width, height);
        press(&mut view, "4?");
        screen(&mut view, width, height);
    }
}

/// A recording of samples, of which a line holds 600 at the mark, and 36 more now.
fn sampled(shared: bool) -> Board {
    let mut board = Arc::into_inner(board(&[("cache", 0, 0, 0)], &mut GrowthRecord::default())).unwrap();
    let mut capture = fixture::empty();
    let mean = 512 << 10;
    capture.info.process.sample_bytes = Some(mean);
    let of = |samples: f32| Variance::of_numbers([samples * 2.7e11, samples * 1.4e17, samples * 3e6, samples * 5e9]);
    let (before, now) = (of(600.0), of(636.0));
    let [before, now] = if shared { share_live([before, now], of(36.0)) } else { [before, now] };
    let sum = |samples: u64| Sum { bytes: samples * mean, count: samples * 1700, first_order: 0, first_time_ns: 0 };
    let group = Group::new(StackId::EMPTY, Allocator::Malloc, ThreadId(0));
    capture.analysis.groups = [Group { peak: sum(636), allocated: sum(600), ..group }].into_iter().collect();
    capture.analysis.variances = Some(vec![ViewVariances::default().with(LIVE, now).with(AT_MARK, before)]);
    board.rows = rows(&capture, true);
    board.totals.live = Tally { bytes: 636 * mean, count: 636 * 1700, ..Tally::default() };
    board.capture = capture;
    board
}

#[test]
fn what_a_line_has_held_since_the_mark_is_no_chance_of_its_growth() {
    let noise = |shared| sampled(shared).rows[0].noise;
    let grown = 36 * (512 << 10);
    // 36 samples are known to a third, 1236 in both moments to more than all that has grown.
    assert!((5_000_000..9_000_000).contains(&noise(true)), "{}", noise(true));
    assert!(noise(false) > 30_000_000, "{}", noise(false));
    let board = sampled(true);
    assert!(board.rows[0].grown == grown && !board.rows[0].is_noise() && sampled(false).rows[0].is_noise());
    // What it holds is as sure as ever.
    let [with, without] = [true, false].map(|shared| sampled(shared).rows[0].live.bytes_range());
    assert_eq!(with, without);
}

#[test]
fn a_suspect_of_samples_has_grown_by_more_than_what_came_may_be_by_chance() {
    let noise = |came: f32, follows: bool| {
        let mut growth = GrowthRecord::default();
        let mut board = sampled(false);
        let one = Variance::of_numbers([2.7e11, 1.4e17, 3e6, 5e9]);
        for window in 0..=u64::from(SUSPICIOUS) {
            board.rows[0].live.bytes += 9 * (512 << 10);
            board.rows[0].live.variance = Variance::of_numbers(one.numbers().map(|of| of * (600 + 9 * window) as f32));
            board.rows[0].allocated.variance = Variance::of_numbers(one.numbers().map(|of| of * came));
            growth.note(&mut board.rows, follows, DiffNoise::of_moments(&board.capture));
        }
        (board.rows[0].is_suspect(board.totals.live.bytes), board.rows[0].risen_noise)
    };
    let (kept, replaced, unknown) = (noise(9.0, true), noise(2000.0, true), noise(9.0, false));
    assert!(kept.0 && kept.1 < 9_000_000, "{kept:?}");
    assert!(!replaced.0 && replaced.1 > 30_000_000, "{replaced:?}");
    assert_eq!(unknown, replaced);
}

#[test]
fn figures_that_fit_are_whole_and_those_that_matter_most_come_first() {
    let figures = |width| {
        let mut view = LiveView::default();
        view.update(Arc::new(sampled(true)));
        screen(&mut view, width, 24).remove(1)
    };
    assert_eq!(figures(80), " live 333 MB ± 26.7 MB   peak 2.00 MB   resident 8.00 MB   0 B/s allocated");
    assert_eq!(figures(44), " live 333 MB ± 26.7 MB   resident 8.00 MB");
    let wide = figures(200);
    for part in ["in 1,081,200", "blocks", "estimates from samples 524 kB apart; unseen: at most 1.57 MB of a stack"] {
        assert!(wide.contains(part), "{wide}");
    }
}
