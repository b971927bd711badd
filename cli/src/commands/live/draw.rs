//! Draws the live view on a screen of any size.
//!
//! Invariant: drawing changes only state that depends on the screen size: the first visible row and the page size.

use memtrack_reader::analysis::unseen_bytes;
use memtrack_reader::live::LivePoint;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Sparkline};

use super::board::{Board, BoardRow, RowOrder};
use super::columns::{Column, cells, columns};
use super::view::{ARENAS, KEYS, LiveTab, LiveView};
use crate::live_windows::message::Lag;
use crate::reports::arenas;
use crate::reports::capture_info::visible;
use crate::units::{count, duration, percent, plural, size, size_within};

/// Columns of a chart's label.
const LABEL: u16 = 10;

/// Draws the view into this area, with or without colours.
pub(super) fn draw(view: &mut LiveView, color: bool, frame: &mut Frame<'_>, area: Rect) {
    let paint = LiveStyles { color };
    let chart = (area.height / 8).clamp(1, 6);
    let stacks = if view.stacks && view.tab != LiveTab::Threads { (area.height / 2).max(6) } else { 0 };
    let heights = [1, 1, chart, chart, 1, 1].map(Constraint::Length).into_iter();
    let heights = heights.chain([Constraint::Min(1), Constraint::Length(stacks), Constraint::Length(1)]);
    let [title, figures, heap, resident, tabs, head, body, below, foot] = Layout::vertical(heights).areas(area);
    let board = view.board.clone();
    frame.render_widget(paint.title(view, board.as_deref(), area.width), title);
    view.page = usize::from(body.height);
    match &board {
        None => frame.render_widget(Paragraph::new("  Reading what was recorded so far …"), body),
        Some(board) => {
            frame.render_widget(paint.figures(board, area.width), figures);
            paint.chart(frame, heap, "heap", &board.points, Color::Cyan, |point| point.live_bytes);
            paint.chart(frame, resident, "resident", &board.points, Color::Yellow, |point| point.rss_bytes);
            paint.rows(view, board, frame, (tabs, head, body));
            if stacks > 0 {
                paint.stacks(view, board, frame, below);
            }
        }
    }
    frame.render_widget(paint.foot(view), foot);
    if view.help {
        let has_arenas = board.as_ref().is_some_and(|board| board.arenas().count > 0);
        paint.help(frame, area, has_arenas);
    }
}

#[derive(Clone, Copy)]
struct LiveStyles {
    color: bool,
}

impl LiveStyles {
    fn in_color(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn title(self, view: &LiveView, board: Option<&Board>, width: u16) -> Line<'static> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut spans = vec![Span::styled(" memtrack live ", bold)];
        if let Some(board) = board {
            let (state, style) = match (view.paused, board.ended) {
                (true, _) => ("paused", self.in_color(Color::Yellow).add_modifier(Modifier::BOLD)),
                (false, true) => ("ended", self.in_color(Color::Yellow).add_modifier(Modifier::BOLD)),
                (false, false) => ("recording", Style::new()),
            };
            spans.push(Span::styled(format!(" {state} "), style));
            spans.push(Span::raw(duration(board.totals.time_ns)));
        }
        let whose = if view.whose.is_empty() { String::new() } else { format!("  {}", visible(&view.whose)) };
        let title = format!("  {}", visible(&view.title));
        if let Some(board) = board.filter(|board| board.lag.is_behind()) {
            let taken: usize = spans.iter().map(Span::width).sum();
            let names = whose.chars().count() + title.chars().count();
            let room = usize::from(width).saturating_sub(taken + names);
            spans.push(Span::styled(behind(board, room), self.in_color(Color::Yellow)));
        }
        spans.push(Span::styled(whose, self.in_color(Color::Cyan)));
        spans.push(Span::raw(title));
        Line::from(spans)
    }

    fn figures(self, board: &Board, width: u16) -> Line<'static> {
        let (totals, live) = (&board.totals, board.live());
        let resident = if totals.rss_bytes == 0 { "not sampled".into() } else { size(totals.rss_bytes) };
        // What is replayed is the state of an earlier moment.
        let moment = match board.lag.is_behind() {
            true => format!("at {}: ", duration(totals.time_ns)),
            false => String::new(),
        };
        let rate = |number: u64| per_second(number, board.window_ns);
        let blocks = if live.tally.count == 1 { "block" } else { "blocks" };
        let samples = board.capture.sample_bytes();
        // Each with its rank: what a screen has no room for is left out, the last ones first.
        let parts = [
            (0, format!(" {moment}live {}", live.size())),
            (3, format!(" in {} {blocks}", live.number())),
            (2, format!("   peak {}", size(totals.peak_bytes))),
            (1, format!("   resident {resident}")),
            (
                4,
                samples
                    .map_or_else(String::new, |bytes| format!("   estimates from samples {} apart", size(bytes.get()))),
            ),
            (
                6,
                samples.map_or_else(String::new, |bytes| {
                    format!("; unseen: at most {} of a stack", size(unseen_bytes(bytes)))
                }),
            ),
            (5, format!("   {}/s allocated", size(rate(board.allocated)))),
            (7, format!("   {} events/s", count(rate(board.events)))),
        ];
        Line::from(fitting(parts, width))
    }

    fn chart(
        self,
        frame: &mut Frame<'_>,
        area: Rect,
        name: &str,
        points: &[LivePoint],
        color: Color,
        value: impl Fn(&LivePoint) -> u64,
    ) {
        let [label, chart] = Layout::horizontal([Constraint::Length(LABEL), Constraint::Min(1)]).areas(area);
        let values = scaled(points, usize::from(chart.width), value);
        let most = values.iter().copied().max().unwrap_or(0);
        let mut lines = vec![Line::from(format!(" {name}"))];
        if area.height > 1 {
            lines.push(Line::styled(format!(" {}", size(most)), self.dim()));
        }
        frame.render_widget(Paragraph::new(lines), label);
        frame.render_widget(Sparkline::default().data(&values).max(most.max(1)).style(self.in_color(color)), chart);
    }

    fn rows(self, view: &mut LiveView, board: &Board, frame: &mut Frame<'_>, (tabs, head, body): (Rect, Rect, Rect)) {
        let rows = view.shown(board);
        let len = if view.tab == LiveTab::Threads { board.threads.len() } else { rows.len() };
        view.selected = view.selected.min(len.saturating_sub(1));
        view.top = top(view.selected, view.top, len, usize::from(body.height));
        frame.render_widget(self.tabs(view, board), tabs);
        let columns = columns(view.tab, view.order(), body.width, board.capture.is_sampled());
        let names: String = columns.iter().map(Column::head).collect();
        let width = usize::from(body.width);
        let text = format!("{names}  {}", subject(view, &rows));
        let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        frame.render_widget(Line::styled(format!("{text:<width$}"), style), head);
        let (top, page) = (view.top, usize::from(body.height));
        let lines: Vec<Line<'_>> = if view.tab == LiveTab::Threads {
            let threads = board.threads.iter().enumerate().skip(top).take(page);
            threads
                .map(|(at, thread)| {
                    let rate = per_second(thread.allocated.bytes, board.window_ns);
                    let figures = [size(thread.live.bytes), count(thread.live.count), format!("{}/s", size(rate))];
                    let noise = board.capture.is_sampled().then(|| half(thread.live.bytes_range()));
                    let figures = cells(&columns, &with_noise(figures, noise));
                    selected(
                        vec![Span::raw(figures), Span::raw(format!("  {}", visible(&thread.name)))],
                        at == view.selected,
                        body.width,
                    )
                })
                .collect()
        } else {
            let shown = rows.iter().enumerate().skip(top).take(page);
            shown.map(|(at, row)| self.row(view, board, row, &columns, at == view.selected, body.width)).collect()
        };
        let nothing = Line::styled(format!("  {}", nothing(view, board)), self.dim());
        frame.render_widget(Paragraph::new(if lines.is_empty() { vec![nothing] } else { lines }), body);
    }

    fn tabs(self, view: &LiveView, board: &Board) -> Line<'static> {
        let suspects = board.rows.iter().filter(|row| row.is_suspect(board.totals.live.bytes)).count();
        let grown: i64 = board.rows.iter().map(|row| row.grown).sum();
        let mark = if board.mark_ns == 0 { "start".into() } else { duration(board.mark_ns) };
        let names = [
            format!("1 Holders {}", size(board.totals.live.bytes)),
            format!("2 Since {mark} {}", signed(grown)),
            format!("3 Suspects {suspects}"),
            format!("4 Threads {}", board.threads.len()),
        ];
        let mut spans = vec![Span::raw(" ")];
        for (tab, name) in LiveTab::ALL.into_iter().zip(names) {
            let style = if tab == view.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            let style =
                if tab == LiveTab::Suspects && suspects > 0 && self.color { style.fg(Color::Red) } else { style };
            spans.extend([Span::styled(format!(" {name} "), style), Span::raw(" ")]);
        }
        Line::from(spans)
    }

    fn row(
        self,
        view: &LiveView,
        board: &Board,
        row: &BoardRow,
        columns: &[Column],
        is_selected: bool,
        width: u16,
    ) -> Line<'static> {
        let live = board.totals.live.bytes;
        let rate = format!("{}/s", size(per_second(row.allocated.bytes, board.window_ns)));
        let figures = match view.tab {
            LiveTab::Growth => [signed(row.grown), size(row.live.bytes), count(row.live.count), rate],
            LiveTab::Suspects => [
                signed(i64::try_from(row.risen).unwrap_or(i64::MAX)),
                format!("{} x", row.rising),
                size(row.live.bytes),
                rate,
            ],
            LiveTab::Holders | LiveTab::Threads => {
                [size(row.live.bytes), percent(row.live.bytes, live), signed(row.grown), rate]
            }
        };
        let noise = match view.tab {
            LiveTab::Suspects => None,
            LiveTab::Growth => Some(row.noise),
            LiveTab::Holders | LiveTab::Threads => Some(half(row.live.bytes_range())),
        };
        let is_noise = view.tab == LiveTab::Growth && row.is_noise();
        let figures = cells(columns, &with_noise(figures, noise.filter(|_| board.capture.is_sampled())));
        let room = usize::from(width).saturating_sub(figures.chars().count() + 2);
        let style = match row.live.bytes as f64 / live.max(1) as f64 {
            _ if is_noise => self.dim(),
            part if part >= 0.5 => self.in_color(Color::Red),
            part if part >= 0.2 => self.in_color(Color::Yellow),
            _ => Style::new(),
        };
        let own = if row.is_own { self.in_color(Color::Cyan).add_modifier(Modifier::BOLD) } else { Style::new() };
        let name = row.label.fit(Some(room)).words();
        selected(vec![Span::styled(figures, style), Span::styled(format!("  {name}"), own)], is_selected, width)
    }

    fn stacks(self, view: &mut LiveView, board: &Board, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::new().borders(Borders::TOP);
        let shown = view.shown(board);
        let Some(row) = shown.get(view.selected) else {
            frame.render_widget(Paragraph::new(" Select a line of code.").block(block), area);
            return;
        };
        let stacks = LiveView::stacks_of(board, row);
        let mut lines = Vec::new();
        let rows = usize::from(area.height).saturating_sub(1);
        if let Some((stack, tally)) = stacks.first() {
            let frames: Vec<_> = board.capture.frames.leaf_to_root(*stack).collect();
            let text = format!(
                " {}{} in {} by the largest of {}, innermost call first:",
                if row.live.bytes > 0 { "" } else { "allocated and freed: " },
                size_within(tally.bytes, tally.bytes_range()),
                plural(tally.count, "block", "blocks"),
                plural(stacks.len() as u64, "stack", "stacks"),
            );
            lines.push(Line::styled(text, Style::new().add_modifier(Modifier::BOLD)));
            lines.extend(arenas::summary(board.arenas_of(row)).map(|text| Line::raw(format!(" Of it {text}"))));
            for id in frames {
                if lines.len() >= rows {
                    break;
                }
                let (function, place) = board.capture.described(id.0);
                let style = if board.capture.is_own(id) {
                    self.in_color(Color::Cyan).add_modifier(Modifier::BOLD)
                } else {
                    Style::new()
                };
                lines.push(Line::from(vec![
                    Span::styled(format!("   {}", visible(function)), style),
                    Span::styled(format!("  {}", visible(&place)), self.dim()),
                ]));
                let known = board.capture.frames.frame(id);
                let path = board.capture.frames.file(id);
                let text =
                    view.sources.as_mut().and_then(|sources| sources.file(path).line(known.line).map(str::to_owned));
                if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
                    lines.push(Line::styled(format!("   {:>6}  {}", known.line, visible(text.trim_end())), self.dim()));
                }
            }
        }
        lines.truncate(rows);
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn foot(self, view: &LiveView) -> Line<'static> {
        if view.typing {
            return Line::from(format!(" /{}▏   Enter accepts, Esc cancels", visible(&view.search)));
        }
        if !view.message.is_empty() {
            return Line::styled(format!(" {}", visible(&view.message)), self.in_color(Color::Yellow));
        }
        if !view.search.is_empty() {
            return Line::from(format!(" /{}   Esc ends the search", visible(&view.search)));
        }
        let keys = " Tab views  Enter stacks  r mark  t tree  / search  w snapshot  ? help  q quit";
        Line::styled(keys, self.dim())
    }

    fn help(self, frame: &mut Frame<'_>, area: Rect, has_arenas: bool) {
        let line = |(keys, does): &(&str, &str)| {
            Line::from(vec![
                Span::styled(format!(" {keys:<11} "), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw((*does).to_owned()),
            ])
        };
        let arenas = ARENAS.iter().filter(|_| has_arenas).map(|text| Line::styled(format!(" {text}"), self.dim()));
        let lines: Vec<Line<'_>> = KEYS.iter().map(line).chain(arenas).collect();
        let (width, height) = (78.min(area.width), (lines.len() as u16 + 2).min(area.height));
        let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
        let place = Rect { x, y, width, height };
        frame.render_widget(Clear, place);
        let block = Block::bordered().title(" Keys ").title_bottom(" any key closes ");
        frame.render_widget(Paragraph::new(lines).block(block), place);
    }
}

/// How much of the recording is replayed, and what is not: as much of it as there is room for.
fn behind(board: &Board, room: usize) -> String {
    let Lag { bytes: _, events, ms } = board.lag;
    let (replayed, all) = (board.totals.events, board.totals.events.saturating_add(events));
    let part = u128::from(replayed) * 100 / u128::from(all.max(1));
    let events = format!("{} events to replay", count(events));
    let short = format!("  catching up, {part} %");
    let late = format!("{short}: {} behind", duration(ms * 1_000_000));
    let (medium, long) = match ms {
        0 => (short.clone(), format!("{short}: {events}")),
        _ => (late.clone(), format!("{late}, {events}")),
    };
    [long, medium].into_iter().find(|text| text.chars().count() <= room).unwrap_or(short)
}

/// The parts that fit on a line, chosen by rank. None is cut: a number that is cut is another number.
fn fitting<const N: usize>(parts: [(usize, String); N], width: u16) -> String {
    let mut ranked: Vec<&(usize, String)> = parts.iter().collect();
    ranked.sort_unstable_by_key(|(rank, _)| *rank);
    let mut room = usize::from(width);
    let mut shown = [false; N];
    for (rank, part) in ranked {
        let length = part.chars().count();
        // The first one stands on any screen.
        if *rank == 0 || length <= room {
            room = room.saturating_sub(length);
            shown[*rank] = true;
        }
    }
    parts.iter().filter(|(rank, _)| shown[*rank]).map(|(_, part)| part.as_str()).collect()
}

/// What the rows are about, with what is left out of them.
fn subject(view: &LiveView, rows: &[&BoardRow]) -> String {
    if view.tab == LiveTab::Threads {
        return "Thread".into();
    }
    let mark = if view.order() == RowOrder::Name { "▾" } else { "" };
    if !view.own_only {
        return format!("Code{mark}");
    }
    let sum = match view.tab {
        LiveTab::Growth => signed(rows.iter().map(|row| row.grown).sum()),
        _ => size(rows.iter().map(|row| row.live.bytes).sum()),
    };
    format!("Own code{mark} only: {sum} (o: all)")
}

/// The figures, with half the interval of the first one behind it.
fn with_noise<const N: usize>(figures: [String; N], noise: Option<u64>) -> Vec<String> {
    let mut figures = Vec::from(figures);
    if let Some(noise) = noise {
        figures.insert(1, size(noise));
    }
    figures
}

fn half((low, high): (u64, u64)) -> u64 {
    (high - low) / 2
}

fn nothing(view: &LiveView, board: &Board) -> String {
    if !view.search.is_empty() {
        return format!("nothing matches '{}'", visible(&view.search));
    }
    match view.tab {
        LiveTab::Suspects => "no line of code has been growing in each of the last windows".into(),
        LiveTab::Growth if board.mark_ns > 0 => "nothing has grown since the mark".into(),
        _ => "nothing is live".into(),
    }
}

fn per_second(number: u64, window_ns: u64) -> u64 {
    (u128::from(number) * 1_000_000_000).checked_div(u128::from(window_ns)).map_or(0, |rate| rate as u64)
}

fn signed(bytes: i64) -> String {
    match bytes {
        0 => "0 B".into(),
        more if more > 0 => format!("+{}", size(more.unsigned_abs())),
        less => format!("-{}", size(less.unsigned_abs())),
    }
}

/// One value for each column: the largest of the points in it.
fn scaled(points: &[LivePoint], width: usize, value: impl Fn(&LivePoint) -> u64) -> Vec<u64> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let span = (last.time_ns - first.time_ns).max(1);
    let mut values: Vec<Option<u64>> = vec![None; width];
    for point in points {
        let at =
            ((point.time_ns - first.time_ns) as u128 * (width.saturating_sub(1)) as u128 / u128::from(span)) as usize;
        if let Some(slot) = values.get_mut(at) {
            *slot = (*slot).max(Some(value(point)));
        }
    }
    // Without a point, memory is what it was.
    let mut before = 0;
    values
        .into_iter()
        .map(|value| {
            before = value.unwrap_or(before);
            before
        })
        .collect()
}

fn top(selected: usize, top: usize, len: usize, page: usize) -> usize {
    let lowest = (selected + 1).saturating_sub(page);
    top.clamp(lowest, selected.max(lowest)).min(len.saturating_sub(page).max(lowest))
}

/// A row; the selected one reversed over the full width.
fn selected(mut spans: Vec<Span<'static>>, is_selected: bool, width: u16) -> Line<'static> {
    if !is_selected {
        return Line::from(spans);
    }
    let used: usize = spans.iter().map(Span::width).sum();
    spans.push(Span::raw(" ".repeat(usize::from(width).saturating_sub(used))));
    let style = Style::new().add_modifier(Modifier::REVERSED).remove_modifier(Modifier::DIM);
    Line::from(spans.into_iter().map(|span| span.patch_style(style)).collect::<Vec<_>>())
}
