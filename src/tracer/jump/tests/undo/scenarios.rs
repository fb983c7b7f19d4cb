//! The calls that are stopped at each instruction.

use super::*;

pub(super) fn all_scenarios() -> Vec<Scenario> {
    let known = u64::from(KNOWN);
    let ended = |function| what(Kind::Ended, function, known);
    let nothing: fn(&Lab, &mut Regs) = |_, _| {};
    let mut all = Vec::new();
    let mut add = |name, function, args, prepare, records: &[u64], asks, dropped| {
        all.push(Scenario { name, function, args, prepare, records: records.to_vec(), asks, dropped });
    };
    let (malloc, memalign, realloc, free) = (MALLOC, MEMALIGN, REALLOC, FREE);
    let began = |stack| what(Kind::Began, realloc, stack);
    let ended_of = |stack| what(Kind::Ended, realloc, stack) | FLAG_BEGAN;
    add("malloc", malloc, [24, 0, 0], nothing, &[ended(malloc)], 0, 0);
    add("realloc of nothing", realloc, [0, 24, 0], nothing, &[ended(realloc)], 0, 0);
    add("realloc", realloc, [16, 24, 0], nothing, &[began(known), ended_of(known)], 0, 0);
    add("free", free, [16, 0, 0], nothing, &[what(Kind::Freed, free, known)], 0, 0);
    add("free of nothing", free, [0, 0, 0], nothing, &[], 0, 0);
    let passed = what(Kind::Freed, free, known) | FLAG_TOLD;
    add("sized delete", PASSES_SIZE, [16, 24, 0], nothing, &[passed | FLAG_SIZED], 0, 0);
    add("aligned delete", PASSES_ALIGN, [16, 32, 0], nothing, &[passed], 0, 0);
    add("sized and aligned delete", PASSES_BOTH, [16, 24, 32], nothing, &[passed | FLAG_SIZED], 0, 0);
    add("sized delete of nothing", PASSES_SIZE, [0, 24, 0], nothing, &[], 0, 0);
    let to_realloc = [began(known), ended_of(known)];
    add("aligned delete on to a realloc", PASSES_TO_REALLOC, [16, 24, 0], nothing, &to_realloc, 0, 0);
    add("malloc, active off", malloc, [24, 0, 0], |lab, _| lab.poke(lab.base() + STATE_ACTIVE, 0), &[], 0, 0);
    add("free, active off", free, [24, 0, 0], |lab, _| lab.poke(lab.base() + STATE_ACTIVE, 0), &[], 0, 0);
    add("malloc, all ask", malloc, [24, 0, 0], |lab, _| lab.poke(lab.base() + STATE_ACTIVE, 2), &[], 1, 0);
    add("malloc, mode ask", malloc, [24, 0, 0], |lab, _| lab.set_half(cell_at(0) + CELL_MODE, 1), &[], 1, 0);
    let without_cell: fn(&Lab, &mut Regs) = |lab, _| lab.set_word(CELL_INDEX + 16 * cell_slot(lab.fs_base()), 0);
    add("malloc without a cell", malloc, [24, 0, 0], without_cell, &[], 1, 0);
    add("free without a cell", free, [24, 0, 0], without_cell, &[], 1, 0);
    let unlimited: fn(&Lab, &mut Regs) = |lab, _| {
        lab.set_word(cell_at(0) + CELL_STACK_BEGIN, 0);
        lab.set_word(cell_at(0) + CELL_STACK_END, 0);
    };
    add("malloc on an unknown stack", malloc, [24, 0, 0], unlimited, &[], 1, 0);
    let elsewhere: fn(&Lab, &mut Regs) = |lab, regs| lab.set_word(cell_at(0) + CELL_STACK_END, regs.sp() & !0xfff);
    add("malloc on another stack", malloc, [24, 0, 0], elsewhere, &[], 1, 0);
    let caller_only: fn(&Lab, &mut Regs) = |lab, _| lab.set_half(FREE_STACKS, 0);
    add("free, not walked", free, [16, 0, 0], caller_only, &[what(Kind::Freed, free, known) | FLAG_CALLER], 0, 0);
    let unknown_caller_only: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_half(FREE_STACKS, 0);
    };
    let by_nobody = what(Kind::Freed, free, 0) | FLAG_CALLER;
    add("free of an unknown caller, not walked", free, [16, 0, 0], unknown_caller_only, &[by_nobody], 0, 0);
    add("malloc, copied", malloc, [24, 0, 0], unknown_caller, &[what(Kind::Ended, malloc, 0) | FLAG_COPY], 0, 0);
    let copied = |kind, function| what(kind, function, 0) | FLAG_COPY;
    add("free, copied", free, [16, 0, 0], unknown_caller, &[copied(Kind::Freed, free)], 0, 0);
    let both = [copied(Kind::Began, realloc), copied(Kind::Ended, realloc) | FLAG_BEGAN];
    add("realloc, copied", realloc, [16, 24, 0], unknown_caller, &both, 0, 0);
    let listed: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, CallerRule::End(0))]);
    };
    let in_list = |kind, function| what(kind, function, 0) | FLAG_LISTED;
    add("malloc, listed", malloc, [24, 0, 0], listed, &[in_list(Kind::Ended, malloc)], 0, 0);
    add("free, listed", free, [16, 0, 0], listed, &[in_list(Kind::Freed, free)], 0, 0);
    let listed_both = [in_list(Kind::Began, realloc), in_list(Kind::Ended, realloc) | FLAG_BEGAN];
    add("realloc, listed", realloc, [16, 24, 0], listed, &listed_both, 0, 0);
    let round_the_end: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, CallerRule::End(0))]);
        for at in [CELL_LISTED, CELL_LIST_TAIL] {
            lab.set_word(cell_at(0) + at, LIST_WORDS - 3);
        }
    };
    let at_the_beginning = in_list(Kind::Ended, malloc);
    add("malloc, listed at the beginning again", malloc, [24, 0, 0], round_the_end, &[at_the_beginning], 0, 0);
    let no_room: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, CallerRule::End(0))]);
        lab.set_word(cell_at(0) + CELL_LISTED, LIST_WORDS);
    };
    add("malloc, no room for a list", malloc, [24, 0, 0], no_room, &[], 1, 0);
    let listed_before: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, CallerRule::End(0))]);
        Tails::default().publish(lab, tail_hash(0, &[lab.landing().0]), LISTED_BEFORE);
        lab.set_half(TAILED, 1);
    };
    let ended_before = what(Kind::Ended, malloc, LISTED_BEFORE.into());
    add("malloc, listed before", malloc, [24, 0, 0], listed_before, &[ended_before], 0, 0);
    let freed_before = what(Kind::Freed, free, LISTED_BEFORE.into());
    add("free, listed before", free, [16, 0, 0], listed_before, &[freed_before], 0, 0);
    let began_latest: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 0, |_| {});
    let of_latest = what(Kind::Ended, malloc, LISTED_BEFORE.into());
    add("latest walk: none", malloc, [24, 0, 0], began_latest, &[of_latest], 0, 0);
    let all_known: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 4, |_| {});
    add("latest walk: the same", malloc, [24, 0, 0], all_known, &[of_latest], 0, 0);
    let freed_latest = what(Kind::Freed, free, LISTED_BEFORE.into());
    add("latest walk: the same, of a free", free, [16, 0, 0], all_known, &[freed_latest], 0, 0);
    let outer_known: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 2, |_| {});
    add("latest walk: the same outer frames", malloc, [24, 0, 0], outer_known, &[of_latest], 0, 0);
    let other_inner: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 4, |row| row[4].word += 1);
    add("latest walk: another inner frame", malloc, [24, 0, 0], other_inner, &[of_latest], 0, 0);
    let other_outer: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 4, |row| row[1].word += 1);
    add("latest walk: another outer frame", malloc, [24, 0, 0], other_outer, &[of_latest], 0, 0);
    let other_rbp: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 3, |row| row[2].rbp += 8);
    add("latest walk: another rbp", malloc, [24, 0, 0], other_rbp, &[of_latest], 0, 0);
    let beyond: fn(&Lab, &mut Regs) = |lab, regs| latest(lab, regs, 4, |row| row[0].place = u64::MAX - 7);
    add("latest walk: a place that is none", malloc, [24, 0, 0], beyond, &[of_latest], 0, 0);
    let other_rules: fn(&Lab, &mut Regs) = |lab, regs| {
        latest(lab, regs, 4, |_| {});
        lab.set_half(RULES_GENERATION, lab.half(RULES_GENERATION) + 1);
    };
    add("latest walk: other rules since", malloc, [24, 0, 0], other_rules, &[of_latest], 0, 0);
    let too_long: fn(&Lab, &mut Regs) = |lab, regs| {
        latest(lab, regs, 4, |_| {});
        lab.set_half(walk_at(0) + WALK_LEN, u32::MAX);
    };
    add("latest walk: a length that is none", malloc, [24, 0, 0], too_long, &[of_latest], 0, 0);
    let to_zero: fn(&Lab, &mut Regs) = |lab, regs| {
        latest(lab, regs, 0, |_| {});
        let [.., third, _] = frames_of(regs);
        lab.poke(third.0 - 8, 0);
        let callers = [lab.landing().0, 0x5000_0000];
        Tails::default().publish(lab, tail_hash(0, &callers), LISTED_BEFORE + 1);
    };
    let ended_by_zero = what(Kind::Ended, malloc, u64::from(LISTED_BEFORE) + 1);
    add("latest walk: no more frames", malloc, [24, 0, 0], to_zero, &[ended_by_zero], 0, 0);
    let no_way: fn(&Lab, &mut Regs) = |lab, regs| {
        latest(lab, regs, 0, |_| {});
        lab.poke(frames_of(regs)[2].0 - 8, 0x5000_0077);
    };
    add("latest walk: no way to its end", malloc, [24, 0, 0], no_way, &[copied(Kind::Ended, malloc)], 0, 0);
    let skipped: fn(&Lab, &mut Regs) = |lab, regs| {
        latest(lab, regs, 4, |_| {});
        lab.set_half(walk_at(0) + WALK_SKIPS, 1);
    };
    add("latest walk: without", malloc, [24, 0, 0], skipped, &[of_latest], 0, 0);
    let listed_in_part: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        publish_rules(lab, &[(lab.landing().0, CallerRule::Caller { form: Form::Rsp, offset: 16, rbp: RBP_SAME })]);
    };
    add("malloc, listed in part", malloc, [24, 0, 0], listed_in_part, &[copied(Kind::Ended, malloc)], 0, 0);
    add("within another, listed in part", OUTER, [24, 0, 0], within_listed, &[in_list(Kind::Ended, OUTER)], 1, 0);
    let no_slot: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_word(COPY_BITS, u64::MAX);
    };
    add("malloc, no copy slot", malloc, [24, 0, 0], no_slot, &[], 1, 0);
    let last_slot: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_word(COPY_BITS, u64::MAX >> 1);
    };
    add(
        "malloc, the last copy slot",
        malloc,
        [24, 0, 0],
        last_slot,
        &[what(Kind::Ended, malloc, 63) | FLAG_COPY],
        0,
        0,
    );
    let out: fn(&Lab, &mut Regs) = |lab, regs| regs.gpr[reg::RDI] = lab.stack().end - 0x20;
    add("memalign", memalign, [0, 0, 0], out, &[ended(memalign) | FLAG_OUT], 0, 0);
    let out_fails: fn(&Lab, &mut Regs) = |lab, regs| {
        regs.gpr[reg::RDI] = lab.stack().end - 0x20;
        regs.gpr[reg::RSI] = 12;
    };
    add("memalign fails", memalign, [0, 12, 0], out_fails, &[ended(memalign) | FLAG_OUT], 0, 0);

    // the first call is timed
    let timed: fn(&Lab, &mut Regs) = |lab, _| lab.set_half(TIMED, 0);
    add("malloc, timed", malloc, [24, 0, 0], timed, &[ended(malloc)], 0, 0);
    add("free, timed", free, [16, 0, 0], timed, &[what(Kind::Freed, free, known)], 0, 0);
    let timed_copied: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_half(TIMED, 0);
    };
    add("realloc, copied, timed", realloc, [16, 24, 0], timed_copied, &both, 0, 0);

    // within others
    add("part of another, unknown", OUTER, [24, 0, 0], nothing, &[ended(OUTER)], 1, 0);
    add("a jump from another", TAIL, [24, 0, 0], nothing, &[ended(TAIL)], 0, 0);
    let part: fn(&Lab, &mut Regs) = |lab, _| nested(lab, OUTER, MALLOC, Nested::Part);
    add("part of another", OUTER, [24, 0, 0], part, &[ended(OUTER)], 0, 0);
    let own: fn(&Lab, &mut Regs) = |lab, _| nested(lab, OUTER, MALLOC, Nested::Own);
    add("within another", OUTER, [24, 0, 0], own, &[what(Kind::Ended, malloc, 2), ended(OUTER)], 0, 0);
    let own_free: fn(&Lab, &mut Regs) = |lab, _| nested(lab, OUTER_OF_FREE, FREE, Nested::Own);
    let both = [what(Kind::Freed, free, 3), ended(OUTER_OF_FREE)];
    add("free within another", OUTER_OF_FREE, [24, 0, 0], own_free, &both, 0, 0);
    let dead: fn(&Lab, &mut Regs) = |lab, regs| {
        lab.set_word(COPY_BITS, 1 << 5 | 1 << 6);
        frame(lab, 0, 0, regs.sp() - 0x40, 0x1234, what(Kind::Ended, REALLOC, 6) | FLAG_COPY | FLAG_BEGAN);
        frame(lab, 0, 1, regs.sp() - 0x80, 0x1234, what(Kind::Ended, MALLOC, 5) | FLAG_COPY);
    };
    add("malloc, dead frames", malloc, [24, 0, 0], dead, &[ended(malloc)], 0, 2);
    let alive: fn(&Lab, &mut Regs) =
        |lab, regs| frame(lab, 0, 7, regs.sp() + 0x40, 0x1234, what(Kind::Ended, MALLOC, 5));
    add("malloc, all frames in use", malloc, [24, 0, 0], alive, &[], 1, 0);

    // sampled
    fn sample(lab: &Lab, left: u64) {
        lab.set_half(SAMPLED, 1);
        lab.set_word(INTERVAL_AREA + 8, 1000);
        lab.set_word(DISTANCE_AREA + 8, 3 << 32);
        lab.set_word(cell_at(0) + CELL_LEFT, left);
        lab.set_half(cell_at(0) + CELL_INTERVAL, 1);
    }
    let one_short: fn(&Lab, &mut Regs) = |lab, _| sample(lab, 25);
    let just: fn(&Lab, &mut Regs) = |lab, _| sample(lab, 24);
    let picked = 1 << PICKED_SHIFT;
    add("malloc, not picked", malloc, [24, 0, 0], one_short, &[], 0, 0);
    add("malloc, picked", malloc, [24, 0, 0], just, &[ended(malloc) | picked], 0, 0);
    let no_room: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 24);
        (0..8).for_each(|word| lab.set_word(live_bucket(0x4000) + 8 * word, 0xdead_0000));
    };
    add("malloc, picked, no room", malloc, [24, 0, 0], no_room, &[ended(malloc) | picked], 0, 0);
    let just_copied: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        sample(lab, 24);
    };
    let copied_end = what(Kind::Ended, malloc, 0) | FLAG_COPY | picked;
    add("malloc, picked and copied", malloc, [24, 0, 0], just_copied, &[copied_end], 0, 0);
    let part_of_not_picked: fn(&Lab, &mut Regs) = |lab, _| {
        nested(lab, OUTER, MALLOC, Nested::Part);
        sample(lab, 73);
    };
    add("part of another, not picked", OUTER, [24, 3, 0], part_of_not_picked, &[], 0, 0);
    let part_of_picked: fn(&Lab, &mut Regs) = |lab, _| {
        nested(lab, OUTER, MALLOC, Nested::Part);
        sample(lab, 72);
    };
    add("part of another, picked", OUTER, [24, 3, 0], part_of_picked, &[ended(OUTER) | picked], 0, 0);
    let overflow = [u64::MAX, 3, 0];
    add("too large for a number", OUTER, overflow, part_of_picked, &[ended(OUTER) | picked], 0, 0);
    add("realloc of nothing, not picked", realloc, [0, 24, 0], one_short, &[], 0, 0);
    add("realloc, neither picked", realloc, [0x5000, 24, 0], one_short, &[], 0, 0);
    let of_picked: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        note_live(lab, Addr(0x5000));
    };
    add("realloc of a picked one", realloc, [0x5000, 24, 0], of_picked, &[began(known), ended_of(known)], 0, 0);
    add("realloc to nothing", realloc, [0x6000, 0, 0], of_picked, &[began(known), ended_of(known)], 0, 0);
    let both = [began(known) | picked, ended_of(known) | picked];
    add("realloc, picked", realloc, [0x5000, 24, 0], just, &both, 0, 0);
    add("free, not picked", free, [0x6000, 0, 0], of_picked, &[], 0, 0);
    add("free, picked", free, [0x5000, 0, 0], of_picked, &[what(Kind::Freed, free, known)], 0, 0);
    let of_same_page: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        note_live(lab, Addr(0x5000));
    };
    add("free, not picked, of a page with a picked one", free, [0x5010, 0, 0], of_same_page, &[], 0, 0);
    add("realloc, not picked, of such a page", realloc, [0x5010, 24, 0], of_same_page, &[], 0, 0);
    let moves_picked: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 24);
        note_live(lab, Addr(0x5000));
    };
    add("realloc of a picked one, picked", realloc, [0x5000, 24, 0], moves_picked, &both, 0, 0);
    let full_page: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        lab.write(SHARED + PAGE_AREA + 9, &[PAGE_STUCK]);
    };
    add("free in a page that sticks", free, [0x9000, 0, 0], full_page, &[what(Kind::Freed, free, known)], 0, 0);
    let out_just: fn(&Lab, &mut Regs) = |lab, regs| {
        regs.gpr[reg::RDI] = lab.stack().end - 0x20;
        sample(lab, 1);
    };
    add("memalign, picked", memalign, [0, 0, 0], out_just, &[ended(memalign) | FLAG_OUT | picked], 0, 0);
    let dead_counted: fn(&Lab, &mut Regs) = |lab, regs| {
        sample(lab, 100);
        frame(lab, 0, 0, regs.sp() - 0x40, 0x1234, what(Kind::Ended, OUTER, 0) | COUNTED << PICKED_SHIFT);
    };
    add("malloc, a dead frame of a counted call", malloc, [24, 0, 0], dead_counted, &[], 0, 1);

    // where the parts for calls that are not picked come first
    let (malloc_fast, free_fast) = (SAMPLED_MALLOC, SAMPLED_FREE);
    let picked_fast = [ended(malloc_fast) | picked];
    let freed_fast = [what(Kind::Freed, free_fast, known)];
    let least: fn(&Lab, &mut Regs) = |lab, _| sample(lab, 2);
    add("malloc, not picked, the fast way", malloc_fast, [24, 0, 0], one_short, &[], 0, 0);
    add("malloc of nothing, the fast way", malloc_fast, [0, 0, 0], least, &[], 0, 0);
    add("malloc, picked, the fast way", malloc_fast, [24, 0, 0], just, &picked_fast, 0, 0);
    add("malloc of too much, the fast way", malloc_fast, [u64::MAX, 0, 0], just, &picked_fast, 0, 0);
    add("malloc, a dead frame, the fast way", malloc_fast, [24, 0, 0], dead_counted, &[], 0, 1);
    let sampled_without: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        lab.set_word(CELL_INDEX + 16 * cell_slot(lab.fs_base()), 0);
    };
    add("malloc without a cell, the fast way", malloc_fast, [24, 0, 0], sampled_without, &[], 1, 0);
    let second_key: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        let slot = cell_slot(lab.fs_base());
        lab.set_word(CELL_INDEX + 16 * slot, CELL_GONE);
        lab.set_word(CELL_INDEX + 16 * ((slot + 1) % CELL_KEYS), lab.fs_base());
    };
    add("malloc, the key elsewhere, the fast way", malloc_fast, [24, 0, 0], second_key, &[], 0, 0);
    let bad_cell: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        lab.give_cell(CELLS);
        lab.set_word(cell_at(CELLS) + CELL_LEFT, 25);
    };
    add("malloc, no such cell, the fast way", malloc_fast, [24, 0, 0], bad_cell, &[], 1, 0);
    let asks: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        lab.set_half(cell_at(0) + CELL_MODE, 1);
    };
    add("malloc, mode ask, the fast way", malloc_fast, [24, 0, 0], asks, &[], 1, 0);
    add("free, mode ask, the fast way", free_fast, [24, 0, 0], asks, &[], 1, 0);
    let in_another: fn(&Lab, &mut Regs) = |lab, regs| {
        sample(lab, 25);
        frame(lab, 0, 7, regs.sp() + 0x40, 0x1234, what(Kind::Ended, MALLOC, 5));
    };
    add("malloc, all frames in use, the fast way", malloc_fast, [24, 0, 0], in_another, &[], 1, 0);
    let all_ask: fn(&Lab, &mut Regs) = |lab, _| {
        sample(lab, 25);
        lab.poke(lab.base() + STATE_ACTIVE, 2);
    };
    for (function, name) in [(malloc_fast, "malloc, all ask, the fast way"), (free_fast, "free, all ask, the fast way")]
    {
        add(name, function, [24, 0, 0], all_ask, &[], 1, 0);
    }
    add("free, not picked, the fast way", free_fast, [0x6000, 0, 0], of_picked, &[], 0, 0);
    add("free of nothing, the fast way", free_fast, [0, 0, 0], of_picked, &[], 0, 0);
    add("free, picked, the fast way", free_fast, [0x5000, 0, 0], of_picked, &freed_fast, 0, 0);
    add("free of such a page, the fast way", free_fast, [0x5010, 0, 0], of_same_page, &[], 0, 0);
    let sampled_part: fn(&Lab, &mut Regs) = |lab, _| {
        nested(lab, OUTER_OF_SAMPLED, SAMPLED_MALLOC, Nested::Part);
        sample(lab, 73);
    };
    add("part of another, not picked, the fast way", OUTER_OF_SAMPLED, [24, 3, 0], sampled_part, &[], 0, 0);
    add("free in a page that sticks, the fast way", free_fast, [0x9000, 0, 0], full_page, &freed_fast, 0, 0);
    add("free of a page alike, the fast way", free_fast, [0x7f00_0000_5000, 0, 0], of_picked, &[], 0, 0);
    add("free without a cell, the fast way", free_fast, [0x6000, 0, 0], sampled_without, &[], 1, 0);

    // no room
    let full: fn(&Lab, &mut Regs) = |lab, _| {
        lab.set_word(cell_at(0) + CELL_HEAD, RING_LEAST);
        lab.set_word(cell_at(0) + CELL_LIMIT, RING_LEAST);
    };
    add("malloc, full", malloc, [24, 0, 0], full, &[ended(malloc)], 0, 0);
    add("free, full", free, [24, 0, 0], full, &[what(Kind::Freed, free, known)], 0, 0);
    add("realloc, full", realloc, [24, 0, 0], full, &[began(known), ended_of(known)], 0, 0);
    let full_copied: fn(&Lab, &mut Regs) = |lab, regs| {
        unknown_caller(lab, regs);
        lab.set_word(cell_at(0) + CELL_HEAD, RING_LEAST);
        lab.set_word(cell_at(0) + CELL_LIMIT, RING_LEAST);
    };
    add(
        "realloc, full, copied",
        realloc,
        [24, 0, 0],
        full_copied,
        &[copied(Kind::Began, realloc), copied(Kind::Ended, realloc) | FLAG_BEGAN],
        0,
        0,
    );
    add("free, full, copied", free, [24, 0, 0], full_copied, &[copied(Kind::Freed, free)], 0, 0);
    let drained: fn(&Lab, &mut Regs) = |lab, _| {
        for (at, value) in [(CELL_HEAD, RING_LEAST), (CELL_LIMIT, RING_LEAST), (CELL_TAIL, RING_LEAST)] {
            lab.set_word(cell_at(0) + at, value);
        }
    };
    add("malloc, drained", malloc, [24, 0, 0], drained, &[ended(malloc)], 0, 0);
    // a ring that has grown: its first records are behind those of a small one
    let grown: fn(&Lab, &mut Regs) = |lab, _| {
        for (at, value) in [(CELL_RING, RING_MOST), (CELL_HEAD, 3 * RING_LEAST), (CELL_LIMIT, RING_MOST)] {
            lab.set_word(cell_at(0) + at, value);
        }
    };
    add("malloc, in a ring that has grown", malloc, [24, 0, 0], grown, &[ended(malloc)], 0, 0);
    add("free, in a ring that has grown", free, [24, 0, 0], grown, &[what(Kind::Freed, free, known)], 0, 0);

    // behind the function
    fn in_original(lab: &Lab, regs: &mut Regs, cell: u64) {
        frame(lab, cell, 0, regs.sp(), lab.landing().0, what(Kind::Ended, MALLOC, 1));
        lab.poke(regs.sp(), lab.back(MALLOC));
        regs.rip = lab.original(MALLOC).0;
    }
    let newer: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 0);
        lab.set_word(COPY_BITS, 1 << 5 | 1 << 6);
        frame(lab, 0, 1, regs.sp() - 0x40, 0x1234, what(Kind::Ended, MALLOC, 5) | FLAG_COPY);
        frame(lab, 0, 2, regs.sp() - 0x80, 0x1234, what(Kind::Ended, REALLOC, 6) | FLAG_COPY | FLAG_BEGAN);
    };
    add("leave, newer frames", malloc, [0x61, 0x62, 0x63], newer, &[ended(malloc)], 0, 2);
    let moved: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 1);
        lab.set_half(cell_at(1) + CELL_DEPTH, 1);
    };
    add("leave on another thread", malloc, [0x61, 0x62, 0x63], moved, &[], 0, 0);
    let moved_without_cell: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 1);
        lab.set_word(CELL_INDEX + 16 * cell_slot(lab.fs_base()), 0);
    };
    add("leave without a cell", malloc, [0x61, 0x62, 0x63], moved_without_cell, &[], 0, 0);
    let off: fn(&Lab, &mut Regs) = |lab, regs| {
        in_original(lab, regs, 0);
        lab.poke(lab.base() + STATE_ACTIVE, 0);
    };
    add("leave, active off", malloc, [0x61, 0x62, 0x63], off, &[], 0, 0);
    all
}

/// A check of a thread's latest walk.
struct Check {
    place: u64,
    word: u64,
    /// rbp of the frame, if it is one, and how many frames there are from it on.
    frame: Option<u32>,
    rbp: u64,
    hash: u64,
}

/// The frames of [`latest`], the innermost first: the stack pointer behind each return address, and these.
fn frames_of(regs: &Regs) -> [(u64, u64); 4] {
    let at = regs.sp() + 8;
    [(at, 0), (at + 32, 0x5000_0000), (at + 96, 0x5000_0011), (at + 160, 0x5000_0022)]
}

/// A stack that has no nodes, and is found by its list: one frame after the other by rsp, by rbp, and by what is stored
/// at rbp. The thread knows the outer `known` of its checks from its latest walk, after they were changed.
fn latest(lab: &Lab, regs: &mut Regs, known: usize, change: fn(&mut [Check])) {
    unknown_caller(lab, regs);
    let landing = lab.landing().0;
    let [_, second, third, last] = frames_of(regs);
    let rules = [
        (landing, CallerRule::Caller { form: Form::Rsp, offset: 32, rbp: -2 }),
        (second.1, CallerRule::Caller { form: Form::Rbp, offset: 16, rbp: -2 }),
        (third.1, CallerRule::Caller { form: Form::LoadRbp, offset: -8, rbp: 0 }),
        (last.1, CallerRule::End(0)),
        // what a handler calls from, whose walk ends there
        (lab.handler_landing().0, CallerRule::End(0)),
    ];
    publish_rules(lab, &rules);
    for (at, ra) in [second, third, last] {
        lab.poke(at - 8, ra);
    }
    // saved by the innermost frame, by the second one, and where the third one begins
    let of_third = third.0 + 16;
    lab.poke(second.0 - 16, third.0 - 16);
    lab.poke(third.0 - 16, of_third);
    lab.poke(of_third - 8, last.0);
    lab.poke(of_third, 0x1234);
    let callers = [landing, second.1, third.1, last.1];
    let mut tails = Tails::default();
    tails.publish(lab, tail_hash(0, &callers), LISTED_BEFORE);
    tails.publish(lab, tail_hash(0, &[lab.handler_landing().0]), LISTED_BEFORE + 2);
    lab.set_half(TAILED, 1);
    let hash_from = |inner: usize| {
        let mix = |hash: u64| hash.wrapping_mul(HASH) ^ hash.wrapping_mul(HASH) >> 32;
        callers[inner..].iter().rfold(HASH, |hash, caller| mix(hash ^ caller))
    };
    let frame = |(at, ra): (u64, u64), inner: usize, rbp: u64| Check {
        place: at - 8,
        word: ra,
        frame: Some(4 - inner as u32),
        rbp,
        hash: hash_from(inner),
    };
    let mut row = [
        frame(last, 3, 0x1234),
        Check { place: of_third - 8, word: last.0, frame: None, rbp: 0, hash: 0 },
        frame(third, 2, of_third),
        Check { place: third.0 - 16, word: of_third, frame: None, rbp: 0, hash: 0 },
        frame(second, 1, third.0 - 16),
    ];
    // the frames, not what is between them
    let len = match known {
        0 => 0,
        1 => 1,
        2 | 3 => 3,
        _ => row.len(),
    };
    change(&mut row);
    let part = walk_at(0);
    for (index, check) in (0..).zip(row) {
        lab.set_word(part + WALK_CHECKS + 16 * index, check.place);
        lab.set_word(part + WALK_CHECKS + 16 * index + 8, check.word);
        let joint = part + WALK_JOINTS + JOINT_SIZE * index;
        lab.set_word(joint + JOINT_HASH, check.hash);
        lab.set_word(joint + JOINT_OF_RBP, check.rbp);
        // the outermost frame needs no rbp
        let flags = if index == 0 { JOINT_FRAME } else { JOINT_FRAME | JOINT_RBP };
        lab.set_half(joint + JOINT_FLAGS, if check.frame.is_some() { flags } else { 0 });
        lab.set_half(joint + JOINT_FRAMES, check.frame.unwrap_or(0));
    }
    lab.set_half(part + WALK_LEN, len as u32);
    lab.set_half(part + WALK_GENERATION, lab.half(RULES_GENERATION));
}
