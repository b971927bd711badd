//! Draws the interactive tree on a screen of any size.
//!
//! Invariant: drawing changes only state that depends on the screen size: the first visible row and the page size.

use memtrack_reader::analysis::{CallTree, Tally};
use memtrack_reader::{FrameId, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph};

use super::browser::Browser;
use super::forest::SiblingOrder;
use super::keys::BINDINGS;
use super::rows::{TreeItem, TreeRow, figure};
use crate::reports::capture_info::visible;
use crate::reports::view;
use crate::units::{count, percent, plural, size};

/// Narrower screens have no count column; below the next width also no self column.
const WIDE: u16 = 100;
const MIDDLE: u16 = 72;
/// Lower screens have no source lines, and only one line that describes the view.
const HIGH: u16 = 12;
/// Maximum number of lines that describe the view.
const MOST_ABOUT: usize = 3;

/// Draws the screen, with or without colours.
pub(super) fn draw(browser: &mut Browser<'_>, color: bool, frame: &mut Frame<'_>) {
    let area = frame.area();
    let source = if browser.source && area.height >= HIGH { (area.height / 3).clamp(5, 18) } else { 0 };
    let about = wrapped(&browser.about(), usize::from(area.width), if area.height < HIGH { 1 } else { MOST_ABOUT });
    let heights = [1, 1, about.len() as u16, 1].map(Constraint::Length).into_iter();
    let heights = heights.chain([Constraint::Min(0), Constraint::Length(source), Constraint::Length(1)]);
    let [title, views, meaning, head, body, below, foot] = Layout::vertical(heights).areas(area);
    let paint = TreeStyles { color };
    frame.render_widget(paint.title(browser), title);
    frame.render_widget(paint.views(browser), views);
    frame.render_widget(Paragraph::new(about.into_iter().map(Line::from).collect::<Vec<_>>()), meaning);
    browser.page = usize::from(body.height);
    browser.top = top(browser);
    let columns = VisibleColumns { width: area.width };
    frame.render_widget(paint.head(browser, &columns), head);
    let rows = browser.rows.iter().enumerate().skip(browser.top).take(browser.page);
    let lines: Vec<Line<'_>> =
        rows.map(|(at, row)| paint.row(browser, &columns, row, at == browser.selected)).collect();
    let nothing = Line::from("  No allocations in this view.");
    frame.render_widget(Paragraph::new(if lines.is_empty() { vec![nothing] } else { lines }), body);
    if source > 0 {
        paint.source(browser, frame, below);
    }
    frame.render_widget(paint.foot(browser), foot);
    if browser.help {
        paint.help(frame, area);
    }
}

/// The first visible row, chosen so that the selected row is visible.
fn top(browser: &Browser<'_>) -> usize {
    let Browser { selected, page, .. } = *browser;
    let lowest = (selected + 1).saturating_sub(page);
    let most = browser.rows.len().saturating_sub(page);
    browser.top.clamp(lowest, selected.max(lowest)).min(most.max(lowest))
}

/// The columns that fit.
struct VisibleColumns {
    width: u16,
}

impl VisibleColumns {
    fn row(&self, [total, part, own, count]: [String; 4]) -> String {
        let mut text = format!(" {total:>8} {part:>7}");
        if self.width >= MIDDLE {
            text.push_str(&format!(" {own:>8}"));
        }
        if self.width >= WIDE {
            text.push_str(&format!(" {count:>11}"));
        }
        text + "  "
    }
}

/// The styles.
#[derive(Clone, Copy)]
struct TreeStyles {
    color: bool,
}

impl TreeStyles {
    fn in_color(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn title(self, browser: &Browser<'_>) -> Line<'static> {
        let info = &browser.forest.capture.info;
        let mut spans = vec![
            Span::styled(" memtrack tree ", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!(" {}", visible(&info.title()))),
        ];
        let warnings = info.warnings().join("; ");
        if !warnings.is_empty() {
            spans.push(Span::styled(format!("  ! {}", visible(&warnings)), self.in_color(Color::Yellow)));
        }
        Line::from(spans)
    }

    fn views(self, browser: &Browser<'_>) -> Line<'static> {
        let mut spans = vec![Span::raw(" ")];
        if browser.is_live {
            return Line::from(" q goes back to the live view");
        }
        for (at, (view, Tally { bytes, .. })) in browser.views.iter().zip(browser.wholes).enumerate() {
            let is_shown = at == browser.view;
            let style = if is_shown { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            spans.push(Span::styled(format!(" {} {} {} ", at + 1, short(*view), size(bytes)), style));
            spans.push(Span::raw(" "));
        }
        Line::from(spans)
    }

    fn head(self, browser: &Browser<'_>, columns: &VisibleColumns) -> Line<'static> {
        let mark = |sort, text: &str| if browser.sort == sort { format!("{text}▾") } else { text.to_owned() };
        let call = if browser.inverted { "Call, with its callers below" } else { "Call" };
        let [total, own] = [mark(SiblingOrder::Total, "Total"), mark(SiblingOrder::Own, "Self")];
        let text = columns.row([total, "Part".into(), own, mark(SiblingOrder::Count, "Count")])
            + &mark(SiblingOrder::Name, call);
        let width = usize::from(columns.width);
        Line::styled(format!("{text:<width$}"), Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED))
    }

    fn row(self, browser: &Browser<'_>, columns: &VisibleColumns, row: &TreeRow, selected: bool) -> Line<'static> {
        let whole = figure(browser.forest.total(0), browser.sort);
        let part = figure(row.total, browser.sort);
        let own = match row.item {
            TreeItem::Call(node) if browser.forest.own(node) != Tally::default() => {
                size(browser.forest.own(node).bytes)
            }
            TreeItem::Call(_) | TreeItem::Rest(_) => String::new(),
        };
        let text = columns.row([size(row.total.bytes), percent(part, whole), own, count(row.total.count)]);
        let marker = match (row.has_more, row.is_open) {
            (false, _) => "  ",
            (_, true) => "▾ ",
            (_, false) => "▸ ",
        };
        let room = usize::from(columns.width).saturating_sub(text.chars().count() + row.branches.chars().count() + 2);
        let skipped = match row.skipped {
            0 => String::new(),
            more => format!("… {}, then ", plural(more as u64, "call", "calls")),
        };
        let room = room.saturating_sub(skipped.chars().count());
        let mut spans = vec![
            Span::styled(text, self.weight(part, whole)),
            Span::styled(row.branches.clone(), self.dim()),
            Span::raw(marker),
            Span::styled(skipped, self.dim()),
        ];
        spans.extend(self.name(browser, row, room));
        if selected { whole_line(spans, columns.width) } else { Line::from(spans) }
    }

    /// Colour by share of the total: the larger, the warmer.
    fn weight(self, part: u64, whole: u64) -> Style {
        match part as f64 / whole.max(1) as f64 {
            part if part >= 0.5 => self.in_color(Color::Red),
            part if part >= 0.2 => self.in_color(Color::Yellow),
            _ => Style::new(),
        }
    }

    fn name(self, browser: &Browser<'_>, row: &TreeRow, room: usize) -> Vec<Span<'static>> {
        let node = match row.item {
            TreeItem::Rest(_) => {
                return vec![Span::styled(format!("({} smaller)", count(row.rest as u64)), self.dim())];
            }
            TreeItem::Call(node) => node,
        };
        let (function, place) = browser.forest.described(node);
        let [function, place] = [visible(function), visible(&place)];
        let style = match browser.is_match(node) {
            true if self.color => Style::new().fg(Color::Magenta).add_modifier(Modifier::BOLD),
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false if browser.forest.is_own(node) => self.in_color(Color::Cyan).add_modifier(Modifier::BOLD),
            false => Style::new(),
        };
        let function = head(&function, room);
        let rest = room.saturating_sub(function.chars().count() + 2);
        let place = if rest >= 8 { format!("  {}", tail(&place, rest)) } else { String::new() };
        vec![Span::styled(function, style), Span::styled(place, self.dim())]
    }

    fn source(self, browser: &mut Browser<'_>, frame: &mut Frame<'_>, area: Rect) {
        let node = browser.selected_node();
        let capture = browser.forest.capture;
        let key = browser.forest.key(node);
        let (path, line) = match key {
            CallTree::NO_FRAME => ("", 0),
            key => (capture.frames.file(FrameId(key)), capture.frames.frame(FrameId(key)).line),
        };
        let (function, place) = browser.forest.described(node);
        let figures = self.figures(browser, node);
        let title = if node == 0 { String::new() } else { format!(" {} ", visible(&format!("{function}  {place}"))) };
        let source = browser.sources.file(path);
        let block = Block::new().borders(Borders::TOP).title(tail(&title, usize::from(area.width).saturating_sub(2)));
        let mut lines = vec![figures];
        if source.is_changed() {
            let text = " The file changed after the recording; lines may not match.";
            lines.push(Line::styled(text, self.in_color(Color::Yellow)));
        }
        let rows = usize::from(area.height).saturating_sub(1 + lines.len());
        match source.around(line, rows) {
            Ok(texts) => lines.extend(texts.iter().map(|(number, text)| self.source_line(*number, text, line))),
            Err(reason) => lines.push(Line::styled(format!(" No source: {reason}."), self.dim())),
        }
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn source_line(self, number: u32, text: &str, line: u32) -> Line<'static> {
        let is_here = number == line;
        let style = if is_here { Style::new().add_modifier(Modifier::BOLD) } else { self.dim() };
        Line::styled(format!(" {} {number:>5}  {text}", if is_here { ">" } else { " " }), style)
    }

    /// All figures of a call.
    fn figures(self, browser: &Browser<'_>, node: u32) -> Line<'static> {
        let (total, own) = (browser.forest.total(node), browser.forest.own(node));
        let allocators = browser.forest.allocators(node);
        let by = allocators.iter().map(|(allocator, tally)| format!("{} {}", allocator.name(), size(tally.bytes)));
        Line::from(format!(
            " total {} in {}, self {} in {}; {}",
            size(total.bytes),
            count(total.count),
            size(own.bytes),
            count(own.count),
            by.collect::<Vec<_>>().join(", ")
        ))
    }

    fn foot(self, browser: &Browser<'_>) -> Line<'static> {
        let search = &browser.search;
        let matched = || {
            let number = search.matches.iter().filter(|hit| **hit).count();
            match (search.text.is_empty(), number) {
                (true, _) => String::new(),
                (_, 0) => "   no match".into(),
                _ => {
                    let part = percent(search.total.bytes, browser.forest.total(0).bytes);
                    format!("   matched {}, {part}", size(search.total.bytes))
                }
            }
        };
        if search.typing {
            return Line::from(format!(" /{}▏{}   Enter accepts, Esc cancels", visible(&search.text), matched()));
        }
        if !search.text.is_empty() {
            return Line::from(format!(" /{}{}   n N next, previous   Esc ends", visible(&search.text), matched()));
        }
        let keys = " ↑↓←→ open  / search  Tab view  a all calls  i invert  p source  ? help  q quit";
        Line::styled(keys, self.dim())
    }

    fn help(self, frame: &mut Frame<'_>, area: Rect) {
        let line = |(_, keys, does): &(_, &str, &str)| {
            Line::from(vec![
                Span::styled(format!(" {keys:<13} "), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw((*does).to_owned()),
            ])
        };
        let lines: Vec<Line<'_>> = BINDINGS.iter().map(line).collect();
        let (width, height) = (78.min(area.width), (lines.len() as u16 + 2).min(area.height));
        let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
        let place = Rect { x, y, width, height };
        frame.render_widget(Clear, place);
        let block = Block::bordered().title(" Keys ").title_bottom(" any key closes ");
        frame.render_widget(Paragraph::new(lines).block(block), place);
    }
}

/// The selected row: reversed over the full width, without dim text, which would look like a second selection.
fn whole_line(mut spans: Vec<Span<'static>>, width: u16) -> Line<'static> {
    let used: usize = spans.iter().map(Span::width).sum();
    spans.push(Span::raw(" ".repeat(usize::from(width).saturating_sub(used))));
    let style = Style::new().add_modifier(Modifier::REVERSED).remove_modifier(Modifier::DIM);
    Line::from(spans.into_iter().map(|span| span.patch_style(style)).collect::<Vec<_>>())
}

fn short(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "Peak",
        // The same word as on pages; all four fit into 80 columns.
        View::Allocated => "All",
        View::Pinned => "Pinned",
        View::Objects => "Objects",
        View::Temporary => "Temporary",
        View::Leaks | View::LeaksAtExit => view::title(view),
    }
}

/// Wraps a text, indented by one column; the last of at most `most` lines is cut.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let room = width.saturating_sub(2);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        // The last line keeps the rest of the text and is cut.
        let is_last = lines.len() == most;
        match lines.last_mut() {
            Some(line) if is_last || line.chars().count() + 1 + word.chars().count() <= room => {
                line.extend([" ", word]);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.iter().map(|line| format!(" {}", head(line, room))).collect()
}

/// Cuts the end of a text that is too long.
fn head(text: &str, room: usize) -> String {
    match text.chars().count() > room {
        true => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
        false => text.into(),
    }
}

/// Cuts the beginning of a text that is too long: the end of a path or line is more informative.
fn tail(text: &str, room: usize) -> String {
    let len = text.chars().count();
    match len > room {
        true => ['…'].into_iter().chain(text.chars().skip(len - room.saturating_sub(1))).collect(),
        false => text.into(),
    }
}
