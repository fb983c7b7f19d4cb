use super::*;
use crate::allocators::Family;
use crate::base::addr::TaskId;
use crate::event::Call;

fn call() -> Call {
    let task = TaskId { tid: 1, serial: 1 };
    Call { function: FunctionId(0), task, stack: StackId(1), family: None, align: None, interval: 0 }
}

fn key(stack: u32, size: u64) -> SiteKey {
    SiteKey { stack: StackId(stack), task: 1, function: FunctionId(0), size, interval: 0 }
}

#[test]
fn sizes_round_down_to_eighths_of_an_octave() {
    let rounded: Vec<u64> = [0, 1, 15, 16, 17, 18, 1023, 1024, 1151, 1152, u64::MAX].map(round_down).into();
    assert_eq!(rounded, [0, 1, 15, 16, 16, 18, 960, 1024, 1024, 1152, 0xf << 60]);
}

#[test]
fn the_first_64_sizes_of_a_stack_are_exact() {
    let mut sites = Sites::default();
    let size_of_site = |sites: &mut Sites, stack, size| {
        let id = sites.intern(key(stack, size), 0);
        sites.get(id).unwrap().size
    };
    for n in 0..64 {
        assert_eq!(size_of_site(&mut sites, 1, 1001 + n), 1001 + n);
    }
    assert_eq!(size_of_site(&mut sites, 1, 2001), 1920);
    assert_eq!(size_of_site(&mut sites, 1, 2002), 1920, "the same site");
    assert_eq!(size_of_site(&mut sites, 1, 1033), 1033, "known sizes stay exact");
    assert_eq!(size_of_site(&mut sites, 2, 2001), 2001, "another stack");
    assert_eq!(sites.stats(0).count(), 66);
}

#[test]
fn sites_are_found_as_a_plain_map_finds_them() {
    let (mut sites, mut map) = (Sites::default(), std::collections::HashMap::new());
    let mut state = 1u64;
    for n in 0..400_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // more and more, some often, others seldom
        let stack = (state >> 40) % (1 + n / (1 + (state >> 33) % 32));
        let key = SiteKey {
            task: (state >> 20) as u32 % 2,
            function: FunctionId((state >> 16) as u16 % 2),
            interval: state >> 12 & 4096,
            ..key(stack as u32, 16 + (state >> 8) % 3)
        };
        if n == 300_000 {
            sites.inherit();
            map.clear();
        }
        let id = sites.intern(key, 0);
        assert_eq!(*map.entry(key).or_insert(id), id);
        assert!(sites.get(id).unwrap().is(&key) && id >= sites.inherited);
    }
    assert!(map.len() > 2 * MAX_LATEST && sites.latest.len() == MAX_LATEST, "{}", map.len());
}

#[test]
fn what_was_found_last_is_found_without_the_table() {
    let mut sites = Sites::default();
    let place = |key: &SiteKey| place_of(key, FIRST_LATEST);
    let same: Vec<SiteKey> = (0..).map(|stack| key(stack, 8)).filter(|key| place(key) == 7).take(2).collect();
    let [one, two] = same[..] else { panic!() };
    let ids = [one, two].map(|key| sites.intern(key, 0));
    assert_eq!((sites.latest[7].id, sites.intern(one, 0), sites.latest[7].id), (ids[1], ids[0], ids[0]));
    sites.of_stacks = Firsts::default();
    assert_eq!(sites.intern(one, 0), ids[0]);
    assert_ne!(sites.intern(two, 0), ids[1], "which is not there any more");
}

/// Also those whose site is of a rounded size, as many as there are. The answer is that of the table of all.
#[test]
fn sizes_are_found_without_the_table_once_there_is_room_for_all() {
    let mut sites = Sites::default();
    let sizes = || (0..500).map(|n| 1001 + 7 * n);
    let ids: Vec<u32> = sizes().map(|size| sites.intern(key(1, size), 0)).collect();
    assert!(sites.stats(0).count() < 90, "most are rounded");
    for _ in 0..100 {
        assert_eq!(sizes().map(|size| sites.intern(key(1, size), 0)).collect::<Vec<_>>(), ids);
    }
    // whatever is to be looked up there is made anew
    sites.of_stacks = Firsts::default();
    sites.by_key.clear();
    sites.first.clear();
    let before = sites.stats(0).count();
    let again: Vec<u32> = sizes().map(|size| sites.intern(key(1, size), 0)).collect();
    let same = again.iter().zip(&ids).filter(|(one, other)| one == other).count();
    assert!(same > 400 && before < 90, "{same} of 500");
    // these have no place there
    let large = [1 << 40, (1 << 40) + 1001, 1001].map(|size| sites.intern(key(2, size), 0));
    assert_eq!([1 << 40, (1 << 40) + 1001, 1001].map(|size| sites.intern(key(2, size), 0)), large);
    assert_ne!(large[1], large[2]);
}

#[test]
fn frees_are_charged_where_the_one_before_was_or_elsewhere() {
    let mut sites = Sites::default();
    let [of, one, two] = [1, 2, 3].map(|stack| sites.intern(key(stack, 8), 0));
    let charge = |sites: &mut Sites, key| {
        let before = sites.get(of).unwrap().charged();
        sites.intern_charged(of, before, key, 0)
    };
    for (stack, id) in [(2, one), (2, one), (3, two), (2, one)] {
        assert_eq!(charge(&mut sites, key(stack, 8)), id);
        assert_eq!(sites.get(of).unwrap().charged(), id);
    }
    sites.of_stacks = Firsts::default();
    sites.latest = Box::default();
    assert_eq!(charge(&mut sites, key(2, 8)), one, "remembered");
    assert!(charge(&mut sites, key(2, 9)) > two, "of another size");
    sites.inherit();
    let new = charge(&mut sites, key(2, 9));
    assert!(new >= sites.inherited, "the one before is from before the fork");
}

#[test]
fn a_site_keeps_what_all_its_blocks_have_in_common() {
    let traits = |family, align| Traits::of(&Call { family, align, ..call() });
    let [malloc, new] = [Some(Family::Malloc), Some(Family::New)];
    let mut site = Sites::default();
    let id = site.intern(key(1, 1), 0);
    let site = site.get_mut(id).unwrap();
    let mut told = |traits| {
        site.add_traits(traits);
        site.allocated.count(1);
        (site.traits().family, site.traits().align())
    };
    assert_eq!(told(traits(new, Some(16))), (new, Some(16)));
    assert_eq!(told(traits(new, None)), (new, None));
    assert_eq!(told(traits(malloc, Some(16))), (None, None));
    assert_eq!(told(traits(malloc, Some(16))), (None, None));
}

/// The worst case: every site on a stack of its own.
#[test]
fn a_site_takes_at_most_140_bytes() {
    let mut sites = Sites::default();
    let mut worst = 0.0f64;
    for n in 0..300_000u32 {
        sites.intern(key(n, 8), 0);
        if n > 20_000 && n % 64 == 0 {
            worst = worst.max(sites.memory() as f64 / f64::from(n));
        }
    }
    assert!(worst <= 140.0, "{worst} bytes per site");
    assert!(worst > 120.0, "{worst}: the measure misses something");
}
