//! Made-up answers in, screens and words out.

use super::keys::Key;
use super::state::per_second;
use super::watch::{Figures, Moment, Watch, by_stack};
use super::{Action, Labels, Row, State, Subject, answer, draw};
use crate::base::addr::{FunctionId, StackId};
use crate::base::figures::Amount;
use crate::heapmodel::{SiteKey, SiteStats};
use crate::top::ctl::{Base, Change, Grouping, Order, TopAnswer, TopFrame, TopSite};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use rustc_hash::FxHashMap;

const SECOND: u64 = 1_000_000_000;

fn amount(objects: u64, bytes: u64) -> Amount {
    Amount { objects, bytes }
}

fn frame(function: &str, place: &str, dull: bool) -> TopFrame {
    TopFrame { function: function.to_owned(), place: place.to_owned(), dull }
}

fn site(id: u64, function: &str, live: Amount, grown: i64, recent: Amount) -> TopSite {
    let frames = vec![
        frame("std::vector<int>::push_back(int const&)", "/usr/include/c++/12/bits/stl_vector.h:1280", true),
        frame(function, &format!("/src/server/{function}.cc:1{id}"), false),
        frame("handle_request", "/src/server/main.cc:77", false),
        frame("main", "/src/server/main.cc:99", false),
    ];
    TopSite { id, frames, live, grown: Change { objects: grown / 100, bytes: grown }, recent, ..TopSite::default() }
}

/// The answer after so many seconds: one site grows, one is large, one only comes and goes.
fn told(second: u64) -> TopAnswer {
    let grown = second * 1000;
    TopAnswer {
        pid: 1234,
        program: "server".to_owned(),
        engine: "jump".to_owned(),
        elapsed_ns: (second + 60) * SECOND,
        waited_ns: Some(second * SECOND / 3),
        live: amount(110 + second, (8 << 20) + grown),
        peak_bytes: (9 << 20) + grown,
        allocated: amount(5000 + second * 500, (20 << 20) + second * 51_000),
        span_ns: if second == 0 { 0 } else { SECOND },
        recent: if second == 0 { Amount::default() } else { amount(500, 51_000) },
        base: Base { mark: None, at_ns: 60 * SECOND, live: amount(110, 8 << 20) },
        stacks: 3,
        sites: vec![
            site(1, "fill_cache", amount(100, (8 << 20) - 5000), 0, Amount::default()),
            site(2, "remember", amount(10 + second, 5000 + grown), grown as i64, amount(1, 1000)),
            site(3, "parse", Amount::default(), 0, amount(499, 50_000)),
        ],
        ..TopAnswer::default()
    }
}

fn state(attached: bool, seconds: u64) -> State {
    let mut state = State::new(Subject { pid: 1234, attached }, Order::Live, false);
    for second in 0..=seconds {
        state.update(told(second), Some(12 << 20));
    }
    state
}

fn screen(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(state, frame)).unwrap();
    terminal.backend().to_string()
}

fn press(state: &mut State, keys: &str) -> Vec<Action> {
    keys.chars().filter_map(|key| state.press(Key::Char(key))).collect()
}

/// The first word of each site's functions, in the order in which they are shown.
fn order(state: &State) -> Vec<String> {
    state.sites().iter().map(|site| site.frames[1].function.clone()).collect()
}

#[test]
fn the_screen() {
    insta::assert_snapshot!("wide", screen(&state(true, 30), 120, 24));
    let mut narrow = state(false, 30);
    press(&mut narrow, "c");
    narrow.press(Key::Down);
    narrow.press(Key::Enter);
    insta::assert_snapshot!("narrow_with_stack", screen(&narrow, 72, 26));
    let mut help = state(false, 3);
    press(&mut help, "?");
    insta::assert_snapshot!("help", screen(&help, 100, 24));
    insta::assert_snapshot!("words", answer(&state(false, 30), 2, 120));
}

/// However small the terminal is, and whatever is open: nothing breaks.
#[test]
fn any_size_can_be_drawn() {
    for keys in ["", "?", "/x", "m"] {
        for open in [false, true] {
            let mut state = state(false, 700);
            press(&mut state, keys);
            if open {
                state.press(Key::Enter);
            }
            for (width, height) in [(1, 1), (2, 30), (10, 3), (30, 10), (300, 2), (300, 100)] {
                screen(&state, width, height);
                screen(&State::new(Subject::default(), Order::Live, true), width, height);
            }
        }
    }
}

#[test]
fn keys_sort_and_ask_for_what_comes_first_then() {
    let mut state = state(false, 2);
    assert_eq!(order(&state), ["fill_cache", "remember", "parse"]);
    assert_eq!(press(&mut state, "g"), [Action::Ask]);
    assert_eq!(order(&state)[0], "remember");
    assert_eq!(press(&mut state, "g"), [], "nothing new");
    assert_eq!(press(&mut state, "b"), [Action::Ask]);
    assert_eq!(order(&state), ["parse", "remember", "fill_cache"]);
    assert_eq!((state.press(Key::Right), state.order()), (Some(Action::Ask), Order::Calls));
    assert_eq!((state.press(Key::Right), state.order()), (Some(Action::Ask), Order::Live));
    assert_eq!((state.press(Key::Left), state.order()), (Some(Action::Ask), Order::Calls));
    assert_eq!(press(&mut state, "l<>"), [Action::Ask, Action::Ask, Action::Ask]);
    assert_eq!(state.order(), Order::Live);
}

/// While a filter is typed, letters are letters.
#[test]
fn a_filter_is_typed_kept_and_dropped() {
    let mut state = state(false, 2);
    assert_eq!(press(&mut state, "/REMqs"), []);
    state.press(Key::Backspace);
    state.press(Key::Backspace);
    assert_eq!(order(&state), ["remember"]);
    state.press(Key::Enter);
    assert!(screen(&state, 120, 24).contains("1 of 3 with `REM`"));
    assert_eq!(press(&mut state, "q"), [Action::Quit], "it is typed no more");
    state.press(Key::Escape);
    assert_eq!(order(&state).len(), 3);
    // a place counts, too, of any frame
    press(&mut state, "/main.cc:77");
    assert_eq!(order(&state).len(), 3);
    state.press(Key::Char('x'));
    assert_eq!(order(&state), [""; 0]);
    assert!(screen(&state, 120, 24).contains("none of these sites"));
    state.press(Key::Escape);
    assert_eq!(order(&state).len(), 3);
}

/// The other side is asked for a filter that is kept, for none that is being typed; its answer is all that has the
/// text, in whichever frames.
#[test]
fn a_kept_filter_is_asked_for() {
    let mut state = state(false, 2);
    let asked = |state: &State| state.question(7, None).filter;
    press(&mut state, "/deep");
    assert_eq!(asked(&state), "");
    assert_eq!(state.press(Key::Enter), Some(Action::Ask));
    assert_eq!((asked(&state).as_str(), order(&state)), ("deep", Vec::<String>::new()));
    state.update(TopAnswer { filter: "deep".to_owned(), with_text: 7, stacks: 99, ..told(3) }, None);
    assert_eq!(order(&state).len(), 3);
    assert!(screen(&state, 120, 24).contains("site (3, of 7 stacks with `deep`)"));
    // another text is looked for in what there is until it is asked for
    press(&mut state, "/e");
    assert_eq!(order(&state), [""; 0]);
    assert!(screen(&state, 120, 24).contains("site (0 of 3 with `deepe`)"));
    assert_eq!(asked(&state), "deep");
    assert_eq!(state.press(Key::Escape), Some(Action::Ask));
    assert_eq!((asked(&state).as_str(), state.press(Key::Escape)), ("", None));
}

#[test]
fn a_key_groups_rows() {
    let mut state = state(false, 2);
    let asked = |state: &mut State| {
        assert_eq!(press(state, "f"), [Action::Ask]);
        state.question(7, None).group
    };
    assert_eq!(asked(&mut state), Grouping::Function);
    assert!(screen(&state, 120, 24).contains("  site "), "as the last answer has it");
    let mut groups = TopAnswer { group: Grouping::Function, stacks: 9, ..told(3) };
    groups.sites.truncate(1);
    (groups.sites[0].name, groups.sites[0].stacks) = ("std::vector<int>::grow".to_owned(), 5);
    state.update(groups, None);
    state.press(Key::Enter);
    let shown = screen(&state, 120, 24);
    assert!(shown.contains("function (1, of 9 stacks)") && shown.contains("std::vector<int>::grow "), "{shown}");
    assert!(shown.contains("stack that comes first of 5, innermost first"), "{shown}");
    assert_eq!([asked(&mut state), asked(&mut state)], [Grouping::Module, Grouping::Site]);
}

/// Its last frame stays in sight; another site's stack begins at its beginning.
#[test]
fn a_stack_is_gone_through() {
    let mut state = state(false, 2);
    press(&mut state, "jJ");
    assert_eq!(state.stack_from, 0, "no stack is shown");
    state.press(Key::Enter);
    press(&mut state, "JJ");
    assert_eq!(state.stack_from, 2);
    let shown = screen(&state, 120, 24);
    assert!(shown.contains("innermost first; 2 above") && shown.contains("│handle_request"), "{shown}");
    assert!(!shown.contains("push_back") && shown.contains("J K scroll"), "{shown}");
    for (key, from) in [(Key::PageDown, 3), (Key::Char('J'), 3), (Key::Char('K'), 2), (Key::PageUp, 0)] {
        state.press(key);
        assert_eq!(state.stack_from, from, "{key:?}");
    }
    press(&mut state, "Jj");
    assert_eq!(state.stack_from, 0);
    state.press(Key::Enter);
    state.press(Key::PageDown);
    assert_eq!(state.stack_from, 0, "rows, where no stack is shown");
    press(&mut State::default(), "JK");
}

/// The chosen site stays chosen where it comes to stand elsewhere.
#[test]
fn what_is_chosen_is_a_site_and_no_row() {
    let mut state = state(false, 2);
    for key in [Key::Down, Key::Down] {
        state.press(key);
    }
    let name = |state: &State| state.chosen(&state.sites()).map(|at| order(state)[at].clone());
    assert_eq!(name(&state).as_deref(), Some("remember"));
    press(&mut state, "g");
    assert_eq!((name(&state).as_deref(), order(&state)[0].as_str()), (Some("remember"), "remember"));
    for (key, expected) in [(Key::End, 2), (Key::PageDown, 2), (Key::Up, 1), (Key::PageUp, 0), (Key::Home, 0)] {
        state.press(key);
        assert_eq!(state.chosen(&state.sites()), Some(expected), "{key:?}");
    }
    State::default().press(Key::Down);
}

#[test]
fn what_others_must_do_is_told_and_letting_go_is_asked_twice() {
    let mut state = state(false, 2);
    assert_eq!(press(&mut state, "ms"), [Action::Mark("top-1".to_owned()), Action::Snapshot]);
    assert_eq!(press(&mut state, "m"), [Action::Mark("top-2".to_owned())]);
    assert_eq!(press(&mut state, "d"), []);
    assert_eq!(press(&mut state, "ld"), [], "another key between");
    assert_eq!(press(&mut state, "d"), [Action::Detach]);
    assert_eq!(state.press(Key::Interrupt), Some(Action::Quit));
    press(&mut state, "/");
    assert_eq!(state.press(Key::Interrupt), Some(Action::Quit), "even while a filter is typed");
}

#[test]
fn a_held_picture_stays() {
    let mut state = state(false, 2);
    press(&mut state, "p");
    let before = screen(&state, 120, 24);
    assert!(before.contains("held"));
    state.update(told(9), None);
    assert_eq!(screen(&state, 120, 24), before);
    press(&mut state, "p");
    state.update(told(10), None);
    assert_ne!(screen(&state, 120, 24), before);
}

/// Names are the program's, and the other side may be anybody.
#[test]
fn no_name_does_anything_to_the_terminal() {
    let mut evil = told(1);
    evil.program = "a\x1b[31mb\nc".to_owned();
    evil.engine = "\u{9b}2J".to_owned();
    evil.base.mark = Some("\x07".to_owned());
    for frame in &mut evil.sites[0].frames {
        frame.function = "\u{202e}evil\x1b]0;title\x07".to_owned();
        frame.place = "x\ty\r.c:1".to_owned();
    }
    let mut state = State::new(Subject { pid: 1, attached: false }, Order::Live, false);
    state.update(evil, None);
    state.press(Key::Enter);
    state.tell("told\x1b[2J");
    let active = |text: &str| text.chars().any(|c| c != '\n' && crate::export::escape::is_active(c));
    assert!(!active(&answer(&state, 9, 120)) && !active(&screen(&state, 100, 30)));
    assert!(answer(&state, 9, 120).contains("a?[31mb?c"));
    assert_eq!(answer(&state, 9, 120).lines().count(), 7, "a line for each site, four for the rest");
}

#[test]
fn another_program_is_told_of() {
    let mut state = state(false, 2);
    state.update(TopAnswer { image: 1, program: "next".to_owned(), ..told(0) }, None);
    assert!(screen(&state, 100, 24).contains("server has executed next: counted anew"));
}

#[test]
fn of_the_first_moments_nobody_says_how_slow_they_were() {
    let first = |elapsed_ns| {
        let mut state = state(false, 0);
        state.update(TopAnswer { elapsed_ns, waited_ns: Some(elapsed_ns), ..told(0) }, None);
        answer(&state, 3, 120)
    };
    assert!(!first(SECOND / 2).contains("slower"), "{}", first(SECOND / 2));
    assert!(first(SECOND).contains("more than 10,000 times slower"), "{}", first(SECOND));
}

#[test]
fn rates_are_those_of_the_time_between() {
    assert_eq!((per_second(500, SECOND / 2), per_second(500, 2 * SECOND), per_second(5, 0)), (1000, 250, 0));
    assert_eq!(per_second(u64::MAX, 1), u64::MAX);
    let first = answer(&state(false, 0), 3, 120);
    assert!(!first.contains("allocates") && first.contains(" -  "), "{first}");
}

fn stats(stack: u32, task: u32, live: Amount, allocated: Amount) -> SiteStats {
    SiteStats {
        key: SiteKey { stack: StackId(stack), task, function: FunctionId(3), size: 1, interval: 0 },
        inherited: false,
        allocated,
        freed: Amount::default(),
        deallocated: Amount::default(),
        live,
        at_peak: Amount::default(),
        temporary: 0,
        lifetime_ns: 0,
        freed_elsewhere: 0,
    }
}

/// Threads and sizes of a stack are one; sampled blocks count as often as they stand for.
#[test]
fn sites_add_up_by_stack() {
    let mut sampled = stats(8, 0, amount(1, 1), amount(2, 2));
    sampled.key.interval = 100;
    let frees = SiteStats { freed: amount(9, 9), ..stats(9, 0, Amount::default(), Amount::default()) };
    let sites = [stats(7, 0, amount(1, 10), amount(2, 20)), stats(7, 1, amount(3, 30), amount(4, 40)), sampled, frees];
    let stacks = by_stack(sites.into_iter());
    assert_eq!(stacks[&StackId(7)], Figures { function: FunctionId(3), live: amount(4, 40), allocated: amount(6, 60) });
    assert!(!stacks.contains_key(&StackId(9)), "it has only freed");
    // a byte of every hundred
    assert!((95..=105).contains(&stacks[&StackId(8)].live.bytes), "{:?}", stacks[&StackId(8)]);
}

fn moment(elapsed_ns: u64, stacks: &FxHashMap<StackId, Figures>) -> Moment {
    let sum = |of: fn(&Figures) -> Amount| stacks.values().map(of).fold(Amount::default(), Amount::plus);
    let (live, allocated) = (sum(|figures| figures.live), sum(|figures| figures.allocated));
    Moment { elapsed_ns, image: 0, live, allocated }
}

#[test]
fn the_base_is_the_first_look_the_mark_or_the_new_program() {
    let heap = |live: u64, allocated: u64| {
        by_stack([stats(1, 0, amount(live, live * 10), amount(allocated, allocated * 10))].into_iter())
    };
    let mut watch = Watch::default();
    let look = |watch: &mut Watch, at: u64, image: u32, heap: &FxHashMap<StackId, Figures>| {
        watch.look(Moment { image, ..moment(at, heap) }, heap, Order::Grown, 9)[0]
    };
    let first = look(&mut watch, 5, 0, &heap(10, 50));
    assert_eq!((first.grown.bytes, first.recent, watch.span()), (0, Amount::default(), (0, Amount::default())));
    let second = look(&mut watch, 9, 0, &heap(12, 60));
    assert_eq!((second.grown, second.recent), (Change { objects: 2, bytes: 20 }, amount(10, 100)));
    assert_eq!((watch.span(), watch.base().at_ns), ((4, amount(10, 100)), 5));
    watch.rebase(Base { mark: Some("m".to_owned()), at_ns: 9, live: amount(12, 120) }, &heap(12, 60));
    let third = look(&mut watch, 10, 0, &heap(11, 61));
    assert_eq!((third.grown, third.recent), (Change { objects: -1, bytes: -10 }, amount(1, 10)));
    assert_eq!(watch.base().mark.as_deref(), Some("m"));
    let new = look(&mut watch, 11, 1, &heap(3, 3));
    assert_eq!((new.grown, watch.base().mark.as_deref(), watch.span().0), (Change::default(), None, 0));
    // a mark that comes with the first question
    let mut marked = Watch::default();
    marked.rebase(Base { mark: Some("m".to_owned()), at_ns: 4, live: amount(10, 100) }, &heap(10, 50));
    let first = look(&mut marked, 5, 0, &heap(13, 53));
    assert_eq!((first.grown.objects, marked.base().mark.as_deref(), marked.span().0), (3, Some("m"), 0));
}

proptest! {
    /// Each look against sums that are made anew, in the plainest way.
    #[test]
    fn rows_are_the_first_of_all_by_their_order(
        first in prop::collection::vec((0u32..40, 0u64..50, 0u64..50), 0..60),
        then in prop::collection::vec((0u32..40, 0u64..50, 0u64..50), 0..60),
        most in 1usize..50,
        order in prop::sample::select(vec![Order::Live, Order::Grown, Order::Bytes, Order::Calls]),
    ) {
        let sites = |list: &[(u32, u64, u64)]| -> Vec<SiteStats> {
            list.iter().map(|&(stack, live, more)| {
                stats(stack, 0, amount(live, live * 7), amount(live + more, (live + more) * 7))
            }).collect()
        };
        // what was allocated never becomes less
        let (before, after) = (sites(&first), sites(&first).into_iter().chain(sites(&then)).collect::<Vec<_>>());
        let (old, new) = (by_stack(before.iter().copied()), by_stack(after.iter().copied()));
        let mut watch = Watch::default();
        watch.look(moment(0, &old), &old, order, most);
        let rows = watch.look(moment(SECOND, &new), &new, order, most);
        let of = |list: &[SiteStats], stack: StackId, what: fn(&SiteStats) -> Amount| {
            let own = list.iter().filter(|site| site.key.stack == stack);
            own.map(what).fold(Amount::default(), Amount::plus)
        };
        let rank = |stack: StackId| {
            let live = [of(&before, stack, |site| site.live), of(&after, stack, |site| site.live)];
            let allocated = [of(&before, stack, |site| site.allocated), of(&after, stack, |site| site.allocated)];
            match order {
                Order::Live => live[1].bytes as i64,
                Order::Grown => live[1].bytes as i64 - live[0].bytes as i64,
                Order::Bytes => (allocated[1].bytes - allocated[0].bytes) as i64,
                Order::Calls => (allocated[1].objects - allocated[0].objects) as i64,
            }
        };
        let mut all: Vec<i64> = new.keys().map(|stack| rank(*stack)).collect();
        all.sort_unstable_by_key(|rank| std::cmp::Reverse(*rank));
        let shown: Vec<i64> = rows.iter().map(|row| rank(row.stack)).collect();
        prop_assert!(rows.len() <= most);
        prop_assert_eq!(&shown[..], &all[..shown.len()]);
        for row in &rows {
            prop_assert_eq!(row.live, of(&after, row.stack, |site| site.live));
        }
    }

    /// Groups against sums that are made in the plainest way, by answers one after the other, of which each names what
    /// is new.
    #[test]
    fn groups_are_the_sums_of_all_stacks_with_the_text(
        lists in prop::collection::vec(prop::collection::vec((0u32..40, 1u64..50), 1..60), 1..4),
        most in 1usize..9,
        by_function in any::<bool>(),
        order in prop::sample::select(vec![Order::Live, Order::Grown, Order::Bytes, Order::Calls]),
    ) {
        let grouping = if by_function { Grouping::Function } else { Grouping::Module };
        let name = |stack: u32| if by_function { format!("f{}", stack % 7) } else { format!("m{}", stack % 3) };
        let mut labels = Labels::default();
        for list in &lists {
            let mut live: FxHashMap<u32, u64> = FxHashMap::default();
            list.iter().for_each(|(stack, bytes)| *live.entry(*stack).or_default() += bytes);
            let row = |(stack, bytes): (&u32, &u64)| Row {
                stack: StackId(*stack),
                function: FunctionId(1),
                live: amount(1, *bytes),
                grown: Change { objects: 1, bytes: -(*bytes as i64) },
                recent: amount(*bytes, 1),
            };
            let mut rows: Vec<Row> = live.iter().map(row).collect();
            rows.sort_by_key(|row| (std::cmp::Reverse(order.rank(row.live, row.grown, row.recent)), row.stack));
            labels.begin("text", 0);
            let asked = labels.to_name(&rows, grouping, most);
            for row in asked.iter().map(|at| rows[*at]).filter(|row| !labels.knows(row.stack)).collect::<Vec<_>>() {
                let stack = row.stack.0;
                labels.learn(row.stack, format!("f{}", stack % 7), format!("m{}", stack % 3), stack % 2 == 0);
            }
            let with_text = || rows.iter().filter(|row| row.stack.0 % 2 == 0);
            let groups = labels.groups(&rows, grouping, order, most);
            let mut names: Vec<String> = with_text().map(|row| name(row.stack.0)).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(groups.len(), names.len().min(most));
            for group in &groups {
                let own = || with_text().filter(|row| name(row.stack.0) == group.name);
                prop_assert_eq!(group.live.bytes, own().map(|row| row.live.bytes).sum::<u64>());
                prop_assert_eq!(group.stacks as usize, own().count());
                prop_assert_eq!(Some(rows[group.first].stack), own().next().map(|row| row.stack));
                // what its stack is called is asked for
                prop_assert!(asked.contains(&group.first));
            }
            let rank = |at: usize| order.rank(groups[at].live, groups[at].grown, groups[at].recent);
            prop_assert!((1..groups.len()).all(|at| rank(at - 1) >= rank(at)));
        }
    }

    /// Of sites, those that are new and as many of the known ones with the text as are wanted.
    #[test]
    fn sites_with_the_text_are_named(known in prop::collection::vec(any::<Option<bool>>(), 0..40), most in 0usize..20) {
        let mut labels = Labels::default();
        let rows: Vec<Row> = (0..known.len() as u32)
            .map(|stack| Row {
                stack: StackId(stack),
                function: FunctionId(1),
                live: amount(1, 1),
                grown: Change::default(),
                recent: Amount::default(),
            })
            .collect();
        for (row, has_text) in rows.iter().zip(&known) {
            if let Some(has_text) = has_text {
                labels.learn(row.stack, String::new(), String::new(), *has_text);
            }
        }
        let asked = labels.to_name(&rows, Grouping::Site, most);
        let expected: Vec<usize> = {
            let with_text = (0..known.len()).filter(|at| known[*at] == Some(true)).take(most);
            let new = (0..known.len()).filter(|at| known[*at].is_none());
            let mut all: Vec<usize> = with_text.chain(new).collect();
            all.sort_unstable();
            all
        };
        prop_assert_eq!(asked, expected);
    }
}
