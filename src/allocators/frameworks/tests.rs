use super::*;
use crate::base::memory::MemoryImage;

const BASE: u64 = 0x1000;

/// Memory of so many words, with texts behind them.
fn memory(words: &[u64], texts: &[(u64, &[u8])]) -> MemoryImage {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(0x1000, 0);
    for (at, text) in texts {
        let at = usize::try_from(*at - BASE).unwrap();
        bytes[at..at + text.len()].copy_from_slice(text);
    }
    MemoryImage { start: Addr(BASE), bytes }
}

fn tell(hook: Hook, arguments: [u64; 6], mut memory: MemoryImage) -> Option<HookEvent> {
    told(hook, &arguments, &mut memory, &mut |addr| (0x9000..0x9100).contains(&addr.0))
}

fn runs(name: &str) -> Option<HookEvent> {
    Some(HookEvent::Runs(name.to_owned()))
}

#[test]
fn functions_are_told_by_their_symbols() {
    assert_eq!(hook("_ZN7testing8TestInfo3RunEv"), Some(Hook::GoogleTest));
    assert_eq!(hook("_ZN4test16test_main_static17h0123456789abcdefE"), Some(Hook::Libtest));
    assert_eq!(hook("_RNvCs3mSbOeLENLV_4test16test_main_static"), Some(Hook::Libtest));
    for other in ["_ZN7testing8TestInfo3RunEvX", "_RNvNtCs3mSbOeLENLV_4test16test_main_static", "main", ""] {
        assert_eq!(hook(other), None, "{other}");
    }
}

#[test]
fn names_are_read_from_strings_of_both_libraries() {
    let arguments = [BASE, 0, 0, 0, 0, 0];
    let long = b"ATestSuiteWithALongName\0";
    // libstdc++: pointer, size, 16 bytes of capacity or text
    let gnu = [BASE + 0x100, 23, 30, 0, BASE + 48, 5, 0, 0];
    let at_once = memory(&gnu, &[(BASE + 0x100, long), (BASE + 48, b"Works\0")]);
    assert_eq!(tell(Hook::GoogleTest, arguments, at_once.clone()), runs("ATestSuiteWithALongName.Works"));
    // libc++: capacity with a flag, size, pointer; or size and text
    let llvm = [0x31, 23, BASE + 0x100, 0, 0, 0];
    let other = memory(&llvm, &[(BASE + 0x100, long), (BASE + 24, b"\x0aWorks\0")]);
    assert_eq!(tell(Hook::GoogleTest, arguments, other), runs("ATestSuiteWithALongName.Works"));
    // no zero behind it, no text, elsewhere
    let unended = memory(&gnu, &[(BASE + 0x100, b"ATestSuiteWithALongNameX"), (BASE + 48, b"Works\0")]);
    let no_text = memory(&gnu, &[(BASE + 0x100, b"ATestSuite\xffWithALongName\0"), (BASE + 48, b"Works\0")]);
    for wrong in [unended, no_text, memory(&[BASE + 0x100, 1 << 40, 0, 0], &[]), memory(&[], &[])] {
        assert_eq!(tell(Hook::GoogleTest, arguments, wrong), None);
    }
    assert_eq!(tell(Hook::GoogleTest, [0, 0, 0, 0, 0, 0], at_once), None);
}

#[test]
fn catch_has_the_name_first_and_later_behind_a_handle() {
    let case = memory(&[BASE + 16, 7, 0, 0], &[(BASE + 16, b"A case.\0")]);
    assert_eq!(tell(Hook::CatchCase, [1, 2, BASE, 0, 0, 0], case), runs("A case."));
    let handle = memory(&[BASE + 16, 0, BASE + 32, 7, 0, 0], &[(BASE + 32, b"A case.\0")]);
    assert_eq!(tell(Hook::CatchHandle, [1, 2, BASE, 0, 0, 0], handle), runs("A case."));
}

#[test]
fn doctest_s_tests_are_told_by_both_layouts() {
    let arguments = [BASE, 0, 0, 0, 0, 0];
    let texts: &[(u64, &[u8])] = &[(BASE + 0x100, b"works\0"), (BASE + 0x110, b"suite\0"), (BASE + 0x120, b"\0")];
    let told = |name: &str| Some(HookEvent::Tests(vec![(Addr(0x9010), name.to_owned())]));
    let newer = [0, 0, 0, 17, BASE + 0x100, BASE + 0x110, 0, 0, 0, 0, 0x9010];
    assert_eq!(tell(Hook::Doctest, arguments, memory(&newer, texts)), told("suite: works"));
    let older = [BASE, 17, BASE + 0x100, BASE + 0x120, 0, 0, 0, 0, 0x9010];
    assert_eq!(tell(Hook::Doctest, arguments, memory(&older, texts)), told("works"));
    let no_code = [0, 0, 0, 17, BASE + 0x100, BASE + 0x110, 0, 0, 0, 0, 0x8010];
    assert_eq!(tell(Hook::Doctest, arguments, memory(&no_code, texts)), None);
}

/// In whichever order the members lie, the file is no name.
#[test]
fn rust_s_tests_have_a_function_and_a_path() {
    let object = |function: u64, name: u64, size: u64| [7, BASE + 0x200, 10, name, size, 0, function];
    let mut words = vec![BASE + 24, BASE + 24 + 56, BASE + 24 + 112];
    words.extend(object(0x9010, BASE + 0x300, 10));
    words.extend(object(0x9020, BASE + 0x320, 4));
    words.extend(object(0x9010, BASE + 0x340, 7));
    let texts: &[(u64, &[u8])] = &[
        (BASE + 0x200, b"src/lib.rs"),
        (BASE + 0x300, b"tests::b_c"),
        (BASE + 0x320, b"r#if"),
        (BASE + 0x340, b"other::"),
    ];
    let arguments = [BASE, 3, 0, 0, 0, 0];
    assert_eq!(tell(Hook::Libtest, arguments, memory(&words, texts)), None, "a path does not end so");
    let mut texts = texts.to_vec();
    texts[3].1 = b"o::same";
    let tests = [(Addr(0x9010), "o::same, tests::b_c".to_owned()), (Addr(0x9020), "r#if".to_owned())];
    assert_eq!(tell(Hook::Libtest, arguments, memory(&words, &texts)), Some(HookEvent::Tests(tests.to_vec())));
    // two words that may be the test
    let mut two = words.clone();
    for object in two[3..].chunks_mut(7) {
        object[0] = 0x9030;
    }
    assert_eq!(tell(Hook::Libtest, arguments, memory(&two, &texts)), None);
    for count in [0, u64::MAX] {
        assert_eq!(tell(Hook::Libtest, [BASE, count, 0, 0, 0, 0], memory(&words, &texts)), None);
    }
}
