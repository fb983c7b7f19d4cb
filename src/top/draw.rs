//! The screen.

use super::keys::HELP;
use super::plain::{TITLES, WIDTHS, course, figures, head, seconds, whose};
use super::state::{Point, State};
use crate::export::text::{human_bytes, right};
use crate::top::ctl::{Grouping, Order, TopAnswer, TopSite};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState, Wrap};

/// Where a screen is lower than this, the sites get the room of the pictures.
const LOWEST_WITH_PICTURES: u16 = 18;

/// Lines of a picture with its frame.
const PICTURE: u16 = 6;

/// Where a screen is narrower than this, it has fewer columns, and one picture.
const NARROW: u16 = 90;

/// Draws the whole screen.
pub fn draw(state: &State, frame: &mut Frame<'_>) {
    let area = frame.area();
    let Some(answer) = state.last() else {
        frame.render_widget(Paragraph::new(format!("asking for the heap of process {} …", state.subject.pid)), area);
        return;
    };
    let pictures = if area.height >= LOWEST_WITH_PICTURES { PICTURE } else { 0 };
    let stack = if state.shows_stack { area.height.saturating_sub(pictures) * 2 / 5 } else { 0 };
    let [top, middle, sites, below, bottom] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(pictures),
        Constraint::Min(3),
        Constraint::Length(stack),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(state, answer, frame, top);
    if pictures > 0 {
        draw_pictures(state, frame, middle);
    }
    draw_sites(state, answer, frame, sites);
    if stack > 0 {
        draw_stack(state, frame, below);
    }
    draw_foot(state, frame, bottom);
    if state.shows_help {
        draw_help(frame, area);
    }
}

/// A colour, if they are wanted.
const fn color(state: &State, color: Color) -> Style {
    if state.color { Style::new().fg(color) } else { Style::new() }
}

fn draw_head(state: &State, answer: &TopAnswer, frame: &mut Frame<'_>, area: Rect) {
    let [traced, live] = head(state, answer);
    let [grown, rate] = course(answer);
    let gap = if rate.is_empty() { "" } else { "; " };
    let change = match answer.live.bytes.cmp(&answer.base.live.bytes) {
        std::cmp::Ordering::Greater => color(state, Color::Yellow),
        std::cmp::Ordering::Less => color(state, Color::Green),
        std::cmp::Ordering::Equal => Style::new(),
    };
    let lines = vec![
        Line::from(traced).bold(),
        Line::from(live),
        Line::from(vec![Span::styled(grown, change), Span::from(gap), Span::from(rate)]),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_pictures(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let areas = if area.width < NARROW {
        vec![area]
    } else {
        Layout::horizontal([Constraint::Ratio(1, 2), Constraint::Ratio(1, 2)]).areas::<2>(area).to_vec()
    };
    let live = |point: &Point| point.live;
    let rate = |point: &Point| point.rate;
    let pictures =
        [("live bytes", live as fn(&Point) -> u64, Color::Cyan), ("bytes allocated per second", rate, Color::Blue)];
    for (area, (name, value, hue)) in areas.into_iter().zip(pictures) {
        let room = usize::from(area.width.saturating_sub(2));
        let shown = || state.history.iter().skip(state.history.len().saturating_sub(room));
        let highest = shown().map(value).max().unwrap_or_default();
        let begins = shown().next().map_or(0, |point| point.at_ns);
        let span = shown().next_back().map_or(0, |point| point.at_ns.saturating_sub(begins));
        let time = seconds(span);
        let title = format!(" {name}, 0 to {}, the last {time} ", human_bytes(highest));
        // The newest stand at the right.
        let values: Vec<u64> =
            std::iter::repeat_n(0, room.saturating_sub(shown().count())).chain(shown().map(value)).collect();
        let picture = Sparkline::default()
            .block(Block::bordered().title(title))
            .data(&values)
            .max(highest.max(1))
            .style(color(state, hue));
        frame.render_widget(picture, area);
    }
}

/// The column that the sites are sorted by.
const fn sorted_column(order: Order) -> usize {
    match order {
        Order::Live => 0,
        Order::Grown => 1,
        Order::Bytes => 3,
        Order::Calls => 4,
    }
}

/// Which columns there is room for: all, or the sorted one, what is live and what has grown.
fn columns(state: &State, width: u16) -> Vec<usize> {
    let sorted = sorted_column(state.order);
    (0..TITLES.len()).filter(|column| width >= NARROW || *column < 2 || *column == sorted).collect()
}

fn draw_sites(state: &State, answer: &TopAnswer, frame: &mut Frame<'_>, area: Rect) {
    let columns = columns(state, area.width);
    let width_of = |column: usize| WIDTHS.get(column).copied().unwrap_or_default();
    let used: usize = columns.iter().map(|column| width_of(*column)).sum();
    let room = usize::from(area.width).saturating_sub(used + 2);
    let sorted = sorted_column(state.order);
    let title = |column: usize| {
        let title = TITLES.get(column).copied().unwrap_or_default();
        let title = if column == sorted { format!("▼{title}") } else { title.to_owned() };
        Cell::from(right(&title, width_of(column)))
    };
    let sites = state.sites();
    let site_title = format!("  {}", title_of_sites(state, answer, sites.len()));
    let heading = columns.iter().map(|column| title(*column)).chain([Cell::from(site_title)]);
    let heading = Row::new(heading.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::REVERSED));
    let row = |site: &&TopSite| {
        let figures = figures(site, answer.span_ns);
        let growth = match site.grown.bytes {
            1.. => color(state, Color::Yellow),
            0 => Style::new(),
            _ => color(state, Color::Green),
        };
        let cell = |column: &usize| {
            let text = figures.get(*column).map_or("", String::as_str);
            let cell = Cell::from(right(text, width_of(*column)));
            if *column == 1 { cell.style(growth) } else { cell }
        };
        let whose = Cell::from(format!("  {}", whose(site, room)));
        Row::new(columns.iter().map(cell).chain([whose]).collect::<Vec<_>>())
    };
    let widths = columns.iter().map(|column| Constraint::Length(width_of(*column) as u16));
    let widths: Vec<Constraint> = widths.chain([Constraint::Min(10)]).collect();
    let table = Table::new(sites.iter().map(row), widths)
        .header(heading)
        .column_spacing(0)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut chosen = TableState::default().with_selected(state.chosen(&sites));
    frame.render_stateful_widget(table, area, &mut chosen);
    if sites.is_empty() {
        let text = match state.filter.is_empty() {
            true => "nothing has been allocated yet",
            false if state.is_searched() => "no site has that text; Esc shows all again",
            false if state.is_typing => {
                "none of these sites has that text; Enter looks at all there are, Esc shows all again"
            }
            false => "none of these sites has that text; those of all are not there yet",
        };
        let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
        frame.render_widget(Paragraph::new(text), below);
    }
}

/// What the rows are, and of how many.
fn title_of_sites(state: &State, answer: &TopAnswer, rows: usize) -> String {
    let row = match answer.group {
        Grouping::Site => "site",
        Grouping::Function => "function",
        Grouping::Module => "module",
    };
    let filter = &state.filter;
    match (filter.is_empty(), state.is_searched()) {
        (false, true) => {
            format!("{row} ({rows}, of {} stacks with `{filter}`)", answer.with_text)
        }
        (false, false) => format!("{row} ({rows} of {} with `{filter}`)", answer.sites.len()),
        (true, _) if (rows as u64) < answer.stacks => format!("{row} ({rows}, of {} stacks)", answer.stacks),
        (true, _) => row.to_owned(),
    }
}

fn draw_stack(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let sites = state.sites();
    let site = state.with_stack(&sites);
    // another site's stack may have been scrolled
    let last = site.map_or(0, |site| site.frames.len().saturating_sub(1));
    let from = state.stack_from.min(last);
    let frames = site.into_iter().flat_map(|site| &site.frames).skip(from);
    let line = |frame: &crate::top::ctl::TopFrame| {
        let place = if frame.place.is_empty() { String::new() } else { format!("  {}", frame.place) };
        let line = Line::from(format!("{}{place}", frame.function));
        if frame.dull { line.dim() } else { line }
    };
    let stack = Paragraph::new(frames.map(line).collect::<Vec<_>>());
    let of_several = match site {
        Some(site) if site.stacks > 1 => format!(" that comes first of {}", site.stacks),
        _ => String::new(),
    };
    let above = match from {
        0 => String::new(),
        above => format!("; {above} above"),
    };
    let title = format!(" stack{of_several}, innermost first{above} ");
    frame.render_widget(stack.block(Block::bordered().title(title)), area);
}

fn draw_foot(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let held = if state.is_held { "held (p goes on)  " } else { "" };
    let line = if state.is_typing {
        Line::from(format!("/{}_   Enter keeps it, Esc drops it", state.filter))
    } else if state.notice.is_empty() {
        let leaves = if state.subject.attached { "q lets go and leaves" } else { "q leaves" };
        let stack = if state.shows_stack { "J K scroll  Enter closes" } else { "Enter stack" };
        let keys = format!("? help  < > sort  / filter  f group  {stack}  m mark  s snapshot  d detach");
        Line::from(format!("{held}{leaves}  {keys}")).dim()
    } else {
        Line::from(format!("{held}{}", state.notice)).style(color(state, Color::Yellow))
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let keys = HELP.iter().map(|(_, does)| does.len()).max().unwrap_or_default();
    let width = (keys as u16 + 14).min(area.width);
    let height = (HELP.len() as u16 + 2).min(area.height);
    let middle = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let line = |(keys, does): &(&'static str, &'static str)| {
        Line::from(vec![Span::from(format!(" {keys:<8}  ")).bold(), Span::from(*does)])
    };
    let lines: Vec<Line<'_>> = HELP.iter().map(line).collect();
    frame.render_widget(Clear, middle);
    let help = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(help.block(Block::bordered().title(" keys; any key closes this ")), middle);
}
