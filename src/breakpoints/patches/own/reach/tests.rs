use super::*;

const AT: Addr = Addr(0x7f00_0000_1000);

/// Whether a function with this code may jump anywhere, where memory elsewhere holds `pieces`.
fn jumps(code: &[u8], pieces: &[(u64, &[u8])]) -> bool {
    let read = |at: Addr, to: &mut [u8]| {
        let piece = pieces.iter().find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&at.0));
        let Some((start, bytes)) = piece else { return 0 };
        let rest = &bytes[(at.0 - start) as usize..];
        let n = rest.len().min(to.len());
        to[..n].copy_from_slice(&rest[..n]);
        n
    };
    jumps_anywhere(code, AT, &read)
}

/// The code, with `jmp rel32` to `target` behind it.
fn and_jump(code: &[u8], at: u64, target: u64) -> Vec<u8> {
    let next = at + code.len() as u64 + 5;
    let distance = i32::try_from(target.wrapping_sub(next).cast_signed()).unwrap();
    [code, &[0xe9], &distance.to_le_bytes()].concat()
}

#[test]
fn computed_jumps_are_told_from_addresses_that_were_read() {
    // xor eax, eax; ret
    assert!(!jumps(&[0x31, 0xc0, 0xc3], &[]));
    // add rcx, r8; jmp rcx
    assert!(jumps(&[0x4c, 0x01, 0xc1, 0xff, 0xe1], &[]));
    // mov rax, [rip+0]; test rax, rax; je +2; jmp rax; ret
    let hook = [0x48, 0x8b, 0x05, 0, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0x02, 0xff, 0xe0, 0xc3];
    assert!(!jumps(&hook, &[]));
    // the same with a call in between, which may change rax: mov rax, [rip+0]; call rdx; jmp rax
    assert!(jumps(&[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xff, 0xd2, 0xff, 0xe0], &[]));
    // in rbx, which it may not: mov rbx, [rip+0]; call rdx; mov rax, rbx; jmp rax
    assert!(!jumps(&[0x48, 0x8b, 0x1d, 0, 0, 0, 0, 0xff, 0xd2, 0x48, 0x89, 0xd8, 0xff, 0xe0], &[]));
    // je +4 over mov rax, [rcx]; add rax, rcx behind it: one of two ways is computed
    assert!(jumps(&[0x48, 0x8b, 0x01, 0x74, 0x03, 0x48, 0x01, 0xc8, 0xff, 0xe0], &[]));
    // jmp [rip+0]; jmp rdi, which the caller has given
    assert!(!jumps(&[0xff, 0x25, 0, 0, 0, 0], &[]));
    assert!(!jumps(&[0xff, 0xe7], &[]));
    // mov rax, [rsp+8]; jmp rax: it may have put it there itself
    assert!(jumps(&[0x48, 0x8b, 0x44, 0x24, 0x08, 0xff, 0xe0], &[]));
    // mov rsp, rcx; pop rcx; jmp rcx: a return, as unwinders make it; push rax; pop rcx; jmp rcx: none
    assert!(!jumps(&[0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1], &[]));
    assert!(jumps(&[0x50, 0x59, 0xff, 0xe1], &[]));
    // nothing leads to it but a jump that nobody sees: ret; jmp rax
    assert!(jumps(&[0xc3, 0xff, 0xe0], &[]));
}

#[test]
fn returns_to_what_was_pushed_are_jumps() {
    // push rcx; ret
    assert!(jumps(&[0x51, 0xc3], &[]));
    // call +4; pause; jmp back; mov [rsp], rcx; ret
    assert!(jumps(&[0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x0c, 0x24, 0xc3], &[]));
    // pop rbx; ret, and a call of the function itself
    assert!(!jumps(&[0x5b, 0xc3], &[]));
    assert!(!jumps(&[0xe8, 0xfb, 0xff, 0xff, 0xff, 0xc3], &[]));
}

#[test]
fn what_lies_elsewhere_is_looked_at_where_it_is_part_of_the_function() {
    let part = AT.0 + 0x8000;
    // add rcx, r8; jmp to a thunk: jmp rcx
    let code = and_jump(&[0x4c, 0x01, 0xc1], AT.0, part);
    assert!(jumps(&code, &[(part, &[0xff, 0xe1])]));
    // to a retpoline
    assert!(jumps(&code, &[(part, &[0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x0c, 0x24, 0xc3])]));
    // to another function, which has a table of its own: test rdi, rdi; lea rax, [rip]; add rax, rcx; jmp rax
    let other = [0x48, 0x85, 0xff, 0x48, 0x8d, 0x05, 0, 0, 0, 0, 0x48, 0x01, 0xc8, 0xff, 0xe0];
    assert!(!jumps(&code, &[(part, &other)]));
    // to a part of its own, which also comes back directly
    let mut back = vec![0x0f, 0x84];
    back.extend(i32::try_from((AT.0 + 3).wrapping_sub(part + 6).cast_signed()).unwrap().to_le_bytes());
    back.extend(other);
    assert!(jumps(&code, &[(part, &back)]));
    assert!(!jumps(&code, &[]), "it can't be read");
}

#[test]
fn branches_addresses_and_words_that_lead_into_an_entry_are_found() {
    let entry = 0x40_1000;
    let replaced = Replaced::of([entry, 0x40_2000]);
    let found = |target: u64, code: &[u8]| {
        let at = 0x41_0000;
        let distance = i32::try_from(target.wrapping_sub(at + code.len() as u64 + 4).cast_signed()).unwrap();
        let bytes = [code, &distance.to_le_bytes(), &[0x90; 9]].concat();
        replaced.led_into_by_code(&bytes, at).contains(&entry)
    };
    // call, jmp, jne, lea rcx
    for code in [&[0x90, 0x90, 0xe8][..], &[0x90, 0x90, 0xe9], &[0x90, 0x0f, 0x85], &[0x48, 0x8d, 0x0d]] {
        assert!(found(entry + 1, code) && found(entry + 4, code));
        assert!(!found(entry, code) && !found(entry + 5, code));
    }
    // mov rcx, [rip+…] reads what stands there
    assert!(!found(entry + 1, &[0x48, 0x8b, 0x0d]));
    let words = [[0x90; 3].as_slice(), &(entry + 2).to_le_bytes(), &(entry + 5).to_le_bytes()].concat();
    assert_eq!(replaced.led_into_by_words(&words, 5), [entry].into());
    assert_eq!(replaced.led_into_by_words(&words, 8), [].into());
    assert_eq!(replaced.led_into_by_halves(&words), [entry].into());
    assert_eq!(Replaced::of([]).led_into_by_words(&[0; 64], 0), [].into());
    assert!(replaced.holds(0x40_2004) && !replaced.holds(0x40_2005) && !replaced.holds(0x40_2000));
}

#[test]
fn short_branches_of_neighbours_are_found() {
    let at = 0x1000;
    let mut code = vec![0x90; 0x400];
    // the function: 16 bytes from 0x1200 on; behind it, jmp to its second byte
    code[0x210..0x212].copy_from_slice(&[0xeb, 0xef]);
    let (entry, end) = (0x1200, 0x1210);
    let found = |code: &[u8]| Replaced::of([entry]).led_into_by_neighbours(code, at, &[(entry, end)].into());
    assert_eq!(found(&code), [entry].into());
    // to its first
    code[0x211] = 0xee;
    assert_eq!(found(&code), [].into());
    // from before it: jne
    code[0x1f0..0x1f2].copy_from_slice(&[0x75, 0x11]);
    assert_eq!(found(&code), [entry].into());
}

/// Wherever a branch stands, at whatever alignment and across the ends of what is looked through at once, and however
/// far away it is: found, and only then.
#[test]
fn branches_are_found_wherever_they_stand() {
    let (at, len) = (0x7fff_0000_0000_u64, 3 * BLOCK);
    for entry in [at - 0x1000, at + 0x7000_0000, at - 0x7000_0000] {
        // the second one is far behind, so that addresses between them are no entries
        let replaced = Replaced::of([entry, entry + 0x100]);
        for place in (0..40).chain(BLOCK - 20..BLOCK + 20).chain(2 * BLOCK - 20..2 * BLOCK + 20).chain(len - 20..len) {
            let mut code = vec![0; len];
            let Some(room) = code.get_mut(place..).filter(|room| room.len() >= 7) else { continue };
            let next = at + place as u64 + 7;
            let distance = i32::try_from((entry + 3).wrapping_sub(next).cast_signed()).unwrap();
            room[..7].copy_from_slice(&[&[0, 0, 0xe8], distance.to_le_bytes().as_slice()].concat());
            assert_eq!(replaced.led_into_by_code(&code, at), [entry].into(), "at {place} of {len}");
            code[place + 2] = 0x90;
            assert_eq!(replaced.led_into_by_code(&code, at), [].into(), "at {place}: no branch");
        }
    }
}
