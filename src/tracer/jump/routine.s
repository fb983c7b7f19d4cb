# The routine of the jump engine: what a thread does at an allocator call, in its own process, without a stop.
#
# It lies at the beginning of the code region, is copied there from our own image, and finds the state page at a fixed
# distance. A stub of each wrapped function (jump/stub.rs) calls `enter` before the function runs, and `leave` behind
# it. Where blocks are sampled, stubs of malloc and of functions that only give back call `fast_malloc` or `fast_free`
# in place of `enter`:
#
#     stub:   active = 0?  -> original          the patch over the function's first instruction jumps here
#             push rax                          the save area begins
#             mov  eax, function | size << 16 | way << 24
#             call enter                        CF: pass the call through
#             pop  rax
#             jc   pass                         with SF, if it was counted
#             lea  rsp, [rsp+8]                 the slot of the caller's return address ...
#             call original                     ... gets ours: the stack has the layout of an untraced program
#     back:   lea  rsp, [rsp-8]
#             push rax                          the result
#             call leave                        puts the caller's address back into the slot
#             pop  rax
#             ret
#     pass:   jmp  original
#
# Of functions that only give back nothing is behind the `pop rax` but the jump to the original.
#
# The stack inside of enter and leave, by offset from rsp:
#
#       0  rbp of the walk          56  r8              96  return address into the stub
#       8  as eax in the stub       64  rdi            104  rax
#      12  when it began, if timed
#      16  the thread's cell        72  rsi            112  the slot: the caller's return address
#      24  steps left               80  rdx
#      28  with what interval the call is picked, COUNTED, or CHANGED
#      32  r11   40  r10   48  r9   88  rcx
#
# No vector register, no system call, no call of anything else; flags are not kept, the direction flag is not touched.
# What the program may write to (all of the shared region) is checked before it serves as an address. jump/undo.rs knows
# each instruction from `long` to the end by its place between the labels: a change here is a change there.

    .pushsection .text.heaptrace_jump, "ax", @progbits
    .p2align 6
    .globl heaptrace_jump_begin
    .hidden heaptrace_jump_begin
heaptrace_jump_begin:
    .quad {MAGIC}
    .quad {VERSION}
    .long heaptrace_jump_ask - heaptrace_jump_begin
    .long heaptrace_jump_full_enter - heaptrace_jump_begin
    .long heaptrace_jump_full_leave - heaptrace_jump_begin
    .long heaptrace_jump_foreign - heaptrace_jump_begin
heaptrace_jump_hash:
    .quad {HASH}

    .macro save
    push rcx
    push rdx
    save_rest
    .endm

    .macro save_rest
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    sub rsp, 32
    .endm

    # Flags are kept.
    .macro restore
    lea rsp, [rsp + 32]
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    ret
    .endm

    # r10 = the cell of this thread; r11 = the shared region. Jumps to \none without one. Changes rcx, rdx, rdi, r8, r9.
    .macro find_cell none
    mov r11, qword ptr [rip + heaptrace_jump_begin + {STATE_SHARED}]
    mov rcx, qword ptr fs:[0]
    mov rdx, qword ptr [rip + heaptrace_jump_hash]
    imul rdx, rcx
    shr rdx, {CELL_SHIFT}
    mov edi, {CELL_KEYS}
31:
    mov r8, rdx
    shl r8, 4
    add r8, r11
    mov r9, qword ptr [r8 + {CELL_INDEX}]
    cmp r9, rcx
    je 32f
    test r9, r9
    jz \none
    inc edx
    and edx, {CELL_KEYS} - 1
    dec edi
    jnz 31b
    jmp \none
32:
    mov edx, dword ptr [r8 + {CELL_INDEX} + 8]
    cmp edx, {CELLS}
    jae \none
    shl rdx, {CELL_BITS}
    lea r10, [r11 + rdx + {CELL_AREA}]
    .endm

    # The frame at r9 is dead: counts it, and gives its copy slot back, unless the tracer does. Changes r8.
    .macro drop_frame
    inc qword ptr [r10 + {CELL_DROPPED}]
    mov r8, qword ptr [r9 + {FRAME_WHAT}]
    bt r8, {FLAG_BEGAN_BIT}
    jc 33f
    bt r8, {FLAG_COPY_BIT}
    jnc 33f
    and r8d, {COPIES} - 1
    lock btr qword ptr [r11 + {COPY_BITS}], r8
33:
    mov qword ptr [r9 + {FRAME_SLOT}], 0
    .endm

    # rsi = the bucket of the block at rdi.
    .macro find_bucket
    mov rsi, qword ptr [rip + heaptrace_jump_hash]
    imul rsi, rdi
    shr rsi, {LIVE_SHIFT}
    shl rsi, {LIVE_BITS}
    lea rsi, [r11 + rsi + {LIVE_AREA}]
    .endm

    # Goes to \none if the block at rdi was not picked. Changes rdx, rsi.
    .macro find_picked none
    mov rdx, rdi
    shr rdx, {PAGE_BITS}
    movzx edx, dx
    movzx edx, byte ptr [r11 + rdx + {PAGE_AREA}]
    test edx, edx
    jz \none
    cmp edx, {PAGE_STUCK}
    jae 45f
    find_bucket
44:
    cmp qword ptr [rsi], rdi
    je 45f
    add rsi, 8
    test sil, {LIVE_BUCKET} - 1
    jnz 44b
    jmp \none
45:
    .endm

    # From the stack ecx, whose node is at r9, to that of its caller at rsi (not 0): by the node's hint, or by the
    # index. Goes to \missed if there is none. Changes rax, rdx, r8.
    .macro look_up missed
    mov r8d, dword ptr [r9 + {NODE_HINT}]
    cmp r8d, {NODES}
    jae \missed
    mov rax, r8
    shl rax, {NODE_BITS}
    lea rax, [r11 + rax + {NODE_AREA}]
    cmp qword ptr [rax + {NODE_RA}], rsi
    jne 36f
    cmp dword ptr [rax + {NODE_PARENT}], ecx
    jne 36f
    mov ecx, r8d
    mov r9, rax
    jmp 39f
36:
    mov r8, qword ptr [r11 + {INDEX_WORD}]
    mov r9, r8
    shr r9, 32
    cmp r9, {INDEX_MOST} - 1
    ja \missed
    mov r8d, r8d
    cmp r8, {NODE_AREA}
    ja \missed
    add r8, r11
    mov rax, rcx
    imul rax, qword ptr [rip + heaptrace_jump_hash]
    xor rax, rsi
    imul rax, qword ptr [rip + heaptrace_jump_hash]
    shr rax, 32
    and rax, r9
37:
    mov edx, dword ptr [r8 + rax * 4]
    test edx, edx
    jz \missed
    cmp edx, {NODES}
    jae \missed
    shl rdx, {NODE_BITS}
    cmp qword ptr [r11 + rdx + {NODE_AREA} + {NODE_RA}], rsi
    jne 38f
    cmp dword ptr [r11 + rdx + {NODE_AREA} + {NODE_PARENT}], ecx
    jne 38f
    lea r9, [r11 + rdx + {NODE_AREA}]
    shr rdx, {NODE_BITS}
    mov ecx, edx
    jmp 39f
38:
    inc rax
    and rax, r9
    dec dword ptr [rsp + 24]
    jnz 37b
    jmp \missed
39:
    .endm

    # From the frame whose rule begins at \at + \rule to its caller's: rdi = stack pointer, [rsp] = rbp, r10 = the
    # stack's last word. Sets these, and rsi to the return address. Jumps to \ended where the rule is that the walk
    # ends, to \missed where the stack is not as the rule says. Changes rax, \words.
    .macro find_caller at, rule, words, ended, missed
    movzx eax, byte ptr [\at + \rule]
    movsx \words, word ptr [\at + \rule + {TO_RBP}]
    cmp eax, {FORM_RSP}
    je 61f
    cmp eax, {FORM_RBP}
    je 62f
    cmp eax, {FORM_END}
    je \ended
    cmp eax, {FORM_LOAD}
    jne \missed
    movsxd rax, dword ptr [\at + \rule + {TO_OFFSET}]
    add rax, qword ptr [rsp]
    cmp rax, rdi
    jb \missed
    cmp rax, r10
    ja \missed
    mov rax, qword ptr [rax]            # the CFA
    cmp \words, {RBP_SAME}
    je 65f
    shl \words, 3
    add \words, qword ptr [rsp]
    jmp 64f
62:
    movsxd rax, dword ptr [\at + \rule + {TO_OFFSET}]
    add rax, qword ptr [rsp]
    jmp 63f
61:
    movsxd rax, dword ptr [\at + \rule + {TO_OFFSET}]
    add rax, rdi
63:
    cmp \words, {RBP_SAME}
    je 65f
    lea \words, [rax + \words * 8]
64:
    cmp \words, rdi
    jb \missed
    cmp \words, r10
    ja \missed
    mov \words, qword ptr [\words]
    mov qword ptr [rsp], \words
65:
    mov \words, rax
    sub \words, rdi
    dec \words
    cmp \words, {LARGEST_FRAME}
    jae \missed
    lea \words, [rax - 8]
    cmp \words, r10
    ja \missed
    mov rsi, qword ptr [\words]
    mov rdi, rax
    .endm

    # [rsp] = rbp, which [rsp - 112] says the place of. Goes to \missed if that is not on the stack. Changes rax, rdx.
    .macro find_rbp missed
    mov rdx, qword ptr [rsp - 112]
    test rdx, rdx
    jz 66f
    lea rax, [rsp + 112]
    cmp rdx, rax
    jb \missed
    cmp rdx, r10
    ja \missed
    mov rdx, qword ptr [rdx]
    mov qword ptr [rsp], rdx
    mov qword ptr [rsp - 112], 0
66:
    .endm

    # \hash = one more step of the hash of a list. Changes \words.
    .macro mix hash, words
    imul \hash, qword ptr [rip + heaptrace_jump_hash]
    mov \words, \hash
    shr \words, 32
    xor \hash, \words
    .endm

    # rsi = the stack that has no nodes, and whose list has the hash rax. Goes to \none if the tracer has not published
    # it. Changes rcx, rdi.
    .macro find_tail none
    mov edi, eax
    shr edi, {TAIL_SHIFT}
53:
    mov rsi, rdi
    shl rsi, {TAIL_BITS}
    add rsi, r11
    mov rcx, qword ptr [rsi + {TAIL_AREA} + {TAIL_HASH}]
    cmp rcx, rax
    je 54f
    test rcx, rcx
    jz \none
    inc edi
    and edi, {TAILS} - 1
    dec dword ptr [rsp + 24]
    jnz 53b
    jmp \none
54:
    mov ecx, dword ptr [rsi + {TAIL_AREA} + {TAIL_STACK}]
    cmp qword ptr [rsi + {TAIL_AREA} + {TAIL_HASH}], rax
    jne \none                           # freed meanwhile: that may be another one's
    mov esi, ecx
    test ecx, ecx
    jz \none
    .endm

    # r8 = the entry of the rule of the frame at rsi. Goes to \none if there is none. Changes rax, rcx.
    .macro find_rule none
    mov rax, qword ptr [rip + heaptrace_jump_hash]
    imul rax, rsi
    shr rax, {RULE_SHIFT}
51:
    mov r8, rax
    shl r8, {RULE_BITS}
    add r8, r11
    mov rcx, qword ptr [r8 + {RULE_AREA}]
    cmp rcx, rsi
    je 55f
    test rcx, rcx
    jz \none
    inc eax
    and eax, {RULES} - 1
    dec dword ptr [rsp + 24]
    jnz 51b
    jmp \none
55:
    .endm

# ---------------------------------------------------------------- before the function

# Where blocks are sampled: a call whose block is not picked, of a thread that is recorded and has no other call in
# progress, is counted and passed through here, as `enter` would do it. All others go on to `enter`. The stack by offset
# from rsp: 0 rdx, 8 rcx, 16 return address into the stub, 24 rax, 32 the slot.

    # rax = the shared region, rcx = the cell of this thread, whose calls are recorded, and which has no frame. Goes on
    # to `enter` without one. Changes rdx.
    .macro find_idle_cell
    push rcx
    push rdx
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], {RECORD}
    jne heaptrace_jump_long
    mov rcx, qword ptr fs:[0]
    mov rdx, qword ptr [rip + heaptrace_jump_hash]
    imul rdx, rcx
    shr rdx, {CELL_SHIFT}
    shl edx, 4
    mov rax, qword ptr [rip + heaptrace_jump_begin + {STATE_SHARED}]
    cmp qword ptr [rax + rdx + {CELL_INDEX}], rcx
    jne heaptrace_jump_long             # there it looks at the entries that follow, too
    mov edx, dword ptr [rax + rdx + {CELL_INDEX} + 8]
    cmp edx, {CELLS}
    jae heaptrace_jump_long
    shl edx, {CELL_BITS}
    lea rcx, [rax + rdx + {CELL_AREA}]
    cmp qword ptr [rcx + {CELL_MODE}], 0    # and the depth, which is the other half
    jne heaptrace_jump_long
    .endm

# rcx and rdx are pushed, as `enter` does first; eax is what the stub has put there.
    .globl heaptrace_jump_long
    .hidden heaptrace_jump_long
heaptrace_jump_long:
    mov rax, qword ptr [rsp + 16]
    mov eax, dword ptr [rax + {STUB_EAX}]
    jmp enter_pushed

# It asks for rdi bytes, and calls nothing that is wrapped.
    .p2align 5
    .globl heaptrace_jump_fast_malloc
    .hidden heaptrace_jump_fast_malloc
heaptrace_jump_fast_malloc:
    find_idle_cell
    cmp rdi, 1
    mov rax, rdi
    adc rax, 0                          # one of no bytes counts as one byte
    mov rdx, qword ptr [rcx + {CELL_LEFT}]
    sub rdx, rax
    jbe heaptrace_jump_long             # it is picked
    mov qword ptr [rcx + {CELL_LEFT}], rdx
    .globl heaptrace_jump_fast_bytes
    .hidden heaptrace_jump_fast_bytes
heaptrace_jump_fast_bytes:
    add qword ptr [rcx + {CELL_BYTES}], rdi
    .globl heaptrace_jump_fast_calls
    .hidden heaptrace_jump_fast_calls
heaptrace_jump_fast_calls:
    inc qword ptr [rcx + {CELL_CALLS}]
    .globl heaptrace_jump_fast_counted
    .hidden heaptrace_jump_fast_counted
heaptrace_jump_fast_counted:
    pop rdx
    pop rcx
    or eax, -1                          # SF
    stc
    ret

# It gives rdi back.
    .p2align 5
    .globl heaptrace_jump_fast_free
    .hidden heaptrace_jump_fast_free
heaptrace_jump_fast_free:
    find_idle_cell
    mov rdx, rdi
    shr rdx, {PAGE_BITS}
    movzx edx, dx
    movzx edx, byte ptr [rax + rdx + {PAGE_AREA}]
    test edx, edx
    jz heaptrace_jump_fast_passed
    cmp edx, {PAGE_STUCK}
    jae heaptrace_jump_long
    # blocks of its page were picked: as find_bucket and find_picked
    mov rdx, qword ptr [rip + heaptrace_jump_hash]
    imul rdx, rdi
    shr rdx, {LIVE_SHIFT}
    shl edx, {LIVE_BITS}
    lea rax, [rax + rdx + {LIVE_AREA}]
2:
    cmp qword ptr [rax], rdi
    je heaptrace_jump_long
    add rax, 8
    test al, {LIVE_BUCKET} - 1
    jnz 2b
    .globl heaptrace_jump_fast_passed
    .hidden heaptrace_jump_fast_passed
heaptrace_jump_fast_passed:
    pop rdx
    pop rcx
    xor eax, eax                        # no SF, and ZF: behind the call that it was not made
    stc
    ret

    .globl heaptrace_jump_enter
    .hidden heaptrace_jump_enter
heaptrace_jump_enter:
    push rcx
    push rdx
enter_pushed:
    save_rest
    .globl heaptrace_jump_enter_body
    .hidden heaptrace_jump_enter_body
heaptrace_jump_enter_body:
    mov qword ptr [rsp + 24], {STEPS}   # and not picked
    mov dword ptr [rsp + 8], eax
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], {RECORD}
    jne enter_inactive
    shr eax, 24
    cmp eax, {WAY_FREE}
    jb 3f
    ja enter_guard                      # there is no other way above it
    test rdi, rdi                       # free(NULL)
    jz enter_pass
    # What the allocator reads first is before the block. The processor would have looked ahead to that while it had
    # nothing else to do.
    prefetchw byte ptr [rdi - 16]
3:
    find_cell enter_ask_without_cell
    mov qword ptr [rsp + 16], r10
    cmp dword ptr [r10 + {CELL_MODE}], 0
    jne enter_ask
    mov ecx, dword ptr [r10 + {CELL_DEPTH}]
    test ecx, ecx
    jnz enter_nested

    # --- the walk: rdi = stack pointer, rsi = return address, ecx = node so far, r9 = where that is, r10 = the stack's
    # last word
enter_walk:
    cmp dword ptr [r11 + {SAMPLED}], 0
    jne enter_sampled
enter_recorded:
    mov dword ptr [rsp + 12], 0
    imul eax, dword ptr [r10 + {CELL_HEAD}], {TIMED_FACTOR}
    shr eax, {TIMED_SHIFT}
    cmp eax, dword ptr [r11 + {TIMED}]
    jne enter_untimed
    .globl heaptrace_jump_clock_entered
    .hidden heaptrace_jump_clock_entered
heaptrace_jump_clock_entered:
    rdtsc                               # the low half will do
    mov dword ptr [rsp + 12], eax
enter_untimed:
    mov r9, r10
    mov r10, qword ptr [r9 + {CELL_STACK_END}]
    sub r10, 8
    jb enter_ask                        # not known
    lea rdi, [rsp + 112]
    cmp rdi, qword ptr [r9 + {CELL_STACK_BEGIN}]
    jb enter_ask
    cmp rdi, r10
    ja enter_ask
    mov qword ptr [rsp], rbp
    mov rsi, qword ptr [rdi]
    add rdi, 8
    xor ecx, ecx
    mov qword ptr [rsp - 112], rcx
    lea r9, [r11 + {NODE_AREA}]
    cmp dword ptr [rsp + 8], {FREES}
    jae walk_of_free
    jmp walk_look_up

    # r9 = the frame's node. Mostly the next node is that of the caller, and rbp is the caller's, or saved: a few
    # instructions a frame. A saved rbp is read only where a frame outside needs it, which is rare: [rsp - 112] says
    # where it lies, 0: [rsp] is rbp.
    .p2align 5
walk_next:
    mov eax, dword ptr [r9 + {NODE_OFFSET}]
    add rdi, rax
    cmp rdi, r10
    ja walk_last
walk_load:
    mov rsi, qword ptr [rdi - 8]
    cmp qword ptr [r9 + {NODE_SIZE} + {NODE_RA}], rsi
    jne walk_look_up
walk_to_next:
    inc ecx
    add r9, {NODE_SIZE}
walk_step:
    cmp dword ptr [r9 + {NODE_FORM}], {FORM_PLAIN}
    je walk_next
    movzx eax, word ptr [r9 + {NODE_FORM}]
    cmp eax, {FORM_NEXT}
    jne walk_form
    mov eax, dword ptr [r9 + {NODE_OFFSET}]
    movsx rdx, word ptr [r9 + {NODE_FORM} + {TO_RBP}]
    lea rdx, [rax + rdx * 8]
    add rdx, rdi
    mov qword ptr [rsp - 112], rdx
    jmp walk_next

    # the last word, or beyond
walk_last:
    lea rax, [rdi - 8]
    cmp rax, r10
    jbe walk_load
    jmp walk_missed

walk_form:
    cmp al, {FORM_RSP}
    jne walk_by_rbp
    mov eax, dword ptr [r9 + {NODE_OFFSET}]
    movsx rdx, word ptr [r9 + {NODE_FORM} + {TO_RBP}]
    cmp edx, {RBP_SAME}
    je 67f
    lea rdx, [rax + rdx * 8]
    add rdx, rdi
    mov qword ptr [rsp - 112], rdx
67:
    add rdi, rax
    lea rax, [rdi - 8]
    cmp rax, r10
    ja walk_missed
    mov rsi, qword ptr [rax]
    jmp walk_look_up

walk_by_rbp:
    find_rbp walk_missed
    find_caller r9, {NODE_FORM}, r8, walk_end, walk_missed
    test byte ptr [r9 + {NODE_NEXT}], 1
    jz walk_look_up
    cmp qword ptr [r9 + {NODE_SIZE} + {NODE_RA}], rsi
    je walk_to_next

walk_look_up:
    test rsi, rsi
    jz walk_ended
    look_up walk_unknown
    jmp walk_step

walk_of_free:
    test byte ptr [rsp + 10], {TOLD}
    jnz walk_passed_on
    cmp dword ptr [r11 + {FREE_STACKS}], 0
    jne walk_look_up
    test rsi, rsi
    jz walk_missed
    look_up walk_without_caller         # a caller that has no node: the record has its address
    mov rsi, {FLAG_CALLER}
    mov eax, ecx
    or rsi, rax
    jmp walked

walk_without_caller:
    mov rsi, {FLAG_CALLER}
    jmp walked

    # --- an operator that passes its block on to a function that has a record: size and alignment wait for that
walk_passed_on:
    mov r10, qword ptr [rsp + 16]
    mov rsi, qword ptr [r10 + {CELL_HEAD}]
    mov rdi, qword ptr [rsp + 64]
    movzx eax, byte ptr [rsp + 10]
    xor r9d, r9d
    mov ecx, eax
    shr ecx, 2
    and ecx, 3
    mov rdx, qword ptr [rsp + rcx * 8 + 64]     # the arguments lie there, the block is the first of them
    cmovz rdx, r9
    mov r9, {FLAG_TOLD}
    and eax, 3
    jz walk_unsized
    mov r8, qword ptr [rsp + rax * 8 + 64]
    mov rax, {FLAG_SIZED}
    or r9, rax
    # the block last: whoever is interrupted in between begins again, and must not take what another one had
walk_keep:
    mov qword ptr [r10 + {CELL_TOLD}], 0
    mov qword ptr [r10 + {CELL_TOLD_SIZE}], r8
    mov qword ptr [r10 + {CELL_TOLD_ALIGN}], rdx
    mov qword ptr [r10 + {CELL_TOLD_FLAGS}], r9
    mov qword ptr [r10 + {CELL_TOLD_HEAD}], rsi
    mov qword ptr [r10 + {CELL_TOLD}], rdi
    jmp enter_pass
    # it has no size, but the operator that has passed the block on to it may have had one, which stays
walk_unsized:
    cmp qword ptr [r10 + {CELL_TOLD}], rdi
    jne walk_keep
    cmp qword ptr [r10 + {CELL_TOLD_HEAD}], rsi
    jne walk_keep
    mov qword ptr [r10 + {CELL_TOLD_ALIGN}], rdx
    jmp enter_pass

walk_end:
    mov ecx, dword ptr [r9 + {NODE_STACK}]
walk_ended:
    test ecx, ecx
    jz walk_missed
    mov esi, ecx

    # --- rsi = what is recorded of the stack, with its flag
    .globl heaptrace_jump_walked
    .hidden heaptrace_jump_walked
heaptrace_jump_walked:
walked:
    mov r10, qword ptr [rsp + 16]
    mov ecx, dword ptr [rsp + 12]
    test ecx, ecx
    jz walked_untimed
    .globl heaptrace_jump_clock_walked
    .hidden heaptrace_jump_clock_walked
heaptrace_jump_clock_walked:
    rdtsc
    sub eax, ecx
    cmp eax, {TIMED_MOST}
    jae walked_untimed
    add qword ptr [r10 + {CELL_TSC}], rax
    inc qword ptr [r10 + {CELL_TIMED}]
walked_untimed:
    mov eax, dword ptr [rsp + 8]
    movzx edx, ax
    shl rdx, 32
    or rsi, rdx
    mov edx, dword ptr [rsp + 28]
    shl rdx, {PICKED_SHIFT}
    or rsi, rdx
    shr eax, 24
    cmp eax, {WAY_FREE}
    je enter_gives_back
    cmp eax, {WAY_REALLOC}
    je enter_realloc
    mov edx, {ENDED}
    shl rdx, 48
    or rdx, rsi
    cmp eax, {WAY_ALLOC_OUT}
    jne enter_frame
    bts rdx, {FLAG_OUT_BIT}

    # --- rdx = the frame's last word; the frame, which the call is about to need
enter_frame:
    mov ecx, dword ptr [r10 + {CELL_DEPTH}]
    mov r9d, ecx
    shl r9, {FRAME_BITS}
    lea r9, [r10 + r9 + {CELL_FRAMES}]
    lea rax, [rsp + 112]
    inc ecx
    # claimed before it is filled: a handler that runs in between takes another one
    mov dword ptr [r10 + {CELL_DEPTH}], ecx
    .globl heaptrace_jump_claimed
    .hidden heaptrace_jump_claimed
heaptrace_jump_claimed:
    mov qword ptr [r9 + {FRAME_SLOT}], rax
    mov qword ptr [r9 + {FRAME_WHAT}], rdx
    mov rax, qword ptr [rsp + 112]
    mov qword ptr [r9 + {FRAME_CALLER}], rax
    mov rax, qword ptr [rsp + 64]
    mov qword ptr [r9 + {FRAME_ARGS}], rax
    mov rax, qword ptr [rsp + 72]
    mov qword ptr [r9 + {FRAME_ARGS} + 8], rax
    mov rax, qword ptr [rsp + 80]
    mov qword ptr [r9 + {FRAME_ARGS} + 16], rax
    .globl heaptrace_jump_framed
    .hidden heaptrace_jump_framed
heaptrace_jump_framed:
    cmp dword ptr [rsp + 28], 0
    jne enter_drawn
enter_drawn_done:
    bt rdx, {FLAG_BEGAN_BIT}
    jc enter_began
    .globl heaptrace_jump_entered
    .hidden heaptrace_jump_entered
heaptrace_jump_entered:
    clc
    .globl heaptrace_jump_enter_end
    .hidden heaptrace_jump_enter_end
heaptrace_jump_enter_end:
    restore

    # --- the frame is there, and the call picked: draws anew; r8 and rdi: see enter_count
    .globl heaptrace_jump_drawn
    .hidden heaptrace_jump_drawn
heaptrace_jump_drawn:
enter_drawn:
    cmp dword ptr [rsp + 28], {COUNTED}
    je heaptrace_jump_count
    ja enter_drawn_done
    mov eax, dword ptr [r10 + {CELL_DRAW}]
    inc eax
    mov dword ptr [r10 + {CELL_DRAW}], eax
    movzx eax, ax                       # that many there are
    mov rax, qword ptr [r11 + rax * 8 + {DISTANCE_AREA}]
    mov ecx, dword ptr [r11 + {SAMPLED}]
    and ecx, 15
    mov dword ptr [r10 + {CELL_INTERVAL}], ecx
    mov r8, rdx
    mul qword ptr [r11 + rcx * 8 + {INTERVAL_AREA}]
    shrd rax, rdx, 32
    shr rdx, 32
    jz 43f
    mov rax, -2                         # further than a program gets
43:
    inc rax
    mov qword ptr [r10 + {CELL_LEFT}], rax
    mov rcx, qword ptr [r10 + {CELL_CALLS}]
    mov qword ptr [r10 + {CELL_SINCE}], rcx
    mov rdx, r8
    jmp enter_drawn_done

    # --- a call that gives something back is recorded before it is made
    .globl heaptrace_jump_realloc
    .hidden heaptrace_jump_realloc
heaptrace_jump_realloc:
enter_realloc:
    mov edx, {ENDED}
    shl rdx, 48
    or rdx, rsi
    cmp qword ptr [rsp + 64], 0
    je enter_frame
    bts rdx, {FLAG_BEGAN_BIT}
    jmp enter_frame
    .globl heaptrace_jump_began
    .hidden heaptrace_jump_began
heaptrace_jump_began:
enter_began:
    mov rsi, rdx
    btr rsi, {FLAG_BEGAN_BIT}
    mov rax, 1 << 48                    # the kind of an end is that of a beginning and one more
    sub rsi, rax
    jmp enter_publish
enter_gives_back:
    mov rax, {FREED} << 48
    or rsi, rax
enter_publish:
    mov rax, qword ptr [r10 + {CELL_HEAD}]
    cmp rax, qword ptr [r10 + {CELL_LIMIT}]
    jae enter_full
enter_has_room:
    mov r8, r10
    sub r8, r11
    sub r8, {CELL_AREA}
    shl r8, {RING_BITS} - {CELL_BITS}
    mov ecx, dword ptr [r10 + {CELL_RING}]
    dec ecx
    and ecx, eax
    and ecx, {RING_MOST} - 1            # whatever the program has written there
    shl rcx, {RECORD_BITS}
    add r8, rcx
    lea r8, [r11 + r8 + {RING_AREA}]
    prefetchw byte ptr [r8 + {AHEAD}]
    mov qword ptr [r8 + {RECORD_WHAT}], rsi
    mov rcx, qword ptr [rsp + 64]
    mov qword ptr [r8 + {RECORD_ARGS}], rcx
    mov rcx, qword ptr [rsp + 72]
    mov qword ptr [r8 + {RECORD_ARGS} + 8], rcx
    mov rcx, qword ptr [rsp + 80]
    mov qword ptr [r8 + {RECORD_ARGS} + 16], rcx
    mov rcx, qword ptr [rsp + 112]
    mov qword ptr [r8 + {RECORD_CALLER}], rcx
    mov rcx, qword ptr [r10 + {CELL_CALLS}]
    sub rcx, qword ptr [r10 + {CELL_SINCE}]
    mov qword ptr [r8 + {RECORD_RESULT}], rcx
    cmp qword ptr [r10 + {CELL_TOLD_HEAD}], rax
    je enter_passed_on
enter_number:
    mov ecx, 1
    lock xadd qword ptr [r11 + {SEQ}], rcx
    # the commit window: rcx = the number, then the key; rax = the head; r8 = the record
    .globl heaptrace_jump_commit
    .hidden heaptrace_jump_commit
heaptrace_jump_commit:
    lea rcx, [rcx + rcx + 1]
    .globl heaptrace_jump_commit_key
    .hidden heaptrace_jump_commit_key
heaptrace_jump_commit_key:
    mov qword ptr [r8 + {RECORD_KEY}], rcx
    inc rax
    .globl heaptrace_jump_commit_head
    .hidden heaptrace_jump_commit_head
heaptrace_jump_commit_head:
    mov qword ptr [r10 + {CELL_HEAD}], rax
    .globl heaptrace_jump_committed
    .hidden heaptrace_jump_committed
heaptrace_jump_committed:
    cmp dword ptr [rsp + 28], {REMOVES}
    je heaptrace_jump_remove
    .globl heaptrace_jump_removed
    .hidden heaptrace_jump_removed
heaptrace_jump_removed:
    or eax, -1                          # no CF, and no ZF, which says behind the call that it was not made
    .globl heaptrace_jump_committed_end
    .hidden heaptrace_jump_committed_end
heaptrace_jump_committed_end:
    restore
    .globl heaptrace_jump_committed_done
    .hidden heaptrace_jump_committed_done
heaptrace_jump_committed_done:

    # --- an operator was called since the thread's last record: has it passed this block on?
enter_passed_on:
    mov rcx, qword ptr [rsp + 64]
    cmp qword ptr [r10 + {CELL_TOLD}], rcx
    jne enter_number
    bt rsi, {FREED_BIT}
    jnc enter_number                    # a realloc: no operator delete calls that
    mov rcx, qword ptr [r10 + {CELL_TOLD_ALIGN}]
    mov qword ptr [r8 + {RECORD_RESULT}], rcx
    mov rcx, qword ptr [r10 + {CELL_TOLD_SIZE}]
    mov qword ptr [r8 + {RECORD_OUT}], rcx
    mov rcx, qword ptr [r10 + {CELL_TOLD_FLAGS}]
    or qword ptr [r8 + {RECORD_WHAT}], rcx
    jmp enter_number

    # --- no room, as the tracer read it last: look, wait for a moment, then ask
enter_full:
    mov ecx, dword ptr [r11 + {SPINS}]
    and ecx, {SPINS_MASK}
7:
    mov rdx, qword ptr [r10 + {CELL_TAIL}]
    add rdx, qword ptr [r10 + {CELL_RING}]
    mov qword ptr [r10 + {CELL_LIMIT}], rdx
    cmp rax, rdx
    jb enter_has_room
    inc qword ptr [r10 + {CELL_SPUN}]
    pause
    dec ecx
    jg 7b
    inc qword ptr [r10 + {CELL_WAITS}]
    .globl heaptrace_jump_full_enter
    .hidden heaptrace_jump_full_enter
heaptrace_jump_full_enter:
    int3
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], 0
    jne enter_full
    # The tracer is gone. A frame that was made goes with the call.
    bt rsi, 48
    jc enter_pass                       # a free has none
    jmp heaptrace_jump_entered

    # --- a call within a call of this thread; ecx = frames
    .globl heaptrace_jump_nested
    .hidden heaptrace_jump_nested
heaptrace_jump_nested:
enter_nested:
    lea rdi, [rsp + 112]
    mov rsi, qword ptr [rdi]
    lea r8, [rip + heaptrace_jump_begin]
    mov r9, rsi
    sub r9, r8
    cmp r9, {CODE_SIZE}
    jb enter_pass                       # the function in progress has jumped here: part of its call
    cmp ecx, {FRAMES}
    ja enter_ask
    mov rax, qword ptr [r10 + {CELL_STACK_BEGIN}]
    mov rdx, qword ptr [r10 + {CELL_STACK_END}]
    cmp rdi, rax
    jb enter_ask
    cmp rdi, rdx
    jae enter_ask
8:
    mov r9d, ecx
    dec r9
    shl r9, {FRAME_BITS}
    lea r9, [r10 + r9 + {CELL_FRAMES}]
    mov r8, qword ptr [r9 + {FRAME_SLOT}]
    test r8, r8
    jz enter_ask                        # claimed by what this handler has interrupted, and not filled yet
    cmp r8, rax
    jb enter_ask                        # on another stack
    cmp r8, rdx
    jae enter_ask
    cmp r8, rdi
    ja enter_within
    drop_frame
    dec ecx
    mov dword ptr [r10 + {CELL_DEPTH}], ecx
    jnz 8b
    jmp enter_walk
enter_within:
    cmp ecx, {FRAMES}
    jae enter_ask
    # the outer function in the low half, the inner one in the high half
    movzx r9d, word ptr [r9 + {FRAME_WHAT} + 4]
    movzx eax, word ptr [rsp + 8]
    shl eax, 16
    or r9d, eax
    mov rax, qword ptr [rip + heaptrace_jump_hash]
    imul rax, rsi
    shr rax, {NESTED_SHIFT}
    mov edx, {NESTED_KEYS}
34:
    mov r8, rax
    shl r8, 4
    add r8, r11
    mov rdi, qword ptr [r8 + {NESTED}]
    test rdi, rdi
    jz enter_ask
    cmp rdi, rsi
    jne 35f
    cmp dword ptr [r8 + {NESTED} + 8], r9d
    je 12f
35:
    inc eax
    and eax, {NESTED_KEYS} - 1
    dec edx
    jnz 34b
    jmp enter_ask
12:
    mov eax, dword ptr [r8 + {NESTED} + 12]
    cmp eax, {NESTED_PART}
    je enter_pass
    cmp eax, {NESTED_OWN}
    je enter_walk
    jmp enter_ask

    # --- only what is picked is recorded
enter_sampled:
    mov eax, dword ptr [rsp + 8]
    cmp eax, {FREES}
    jae sampled_free
    shr eax, 16                         # al says where the size is
    mov edx, eax
    and edx, 3
    mov rdi, qword ptr [rsp + rdx * 8 + 64]
    test al, {SIZE_MULTIPLIED}
    jz 41f
    mov edx, eax
    shr edx, 2
    and edx, 3
    mov r9, rax
    mov rax, qword ptr [rsp + rdx * 8 + 64]
    mul rdi
    mov rdi, rax
    mov rax, r9
    jo sampled_picked                   # no program has that much
41:
    cmp rdi, 1
    mov rsi, rdi
    adc rsi, 0                          # one of no bytes counts as one byte
    mov r8, qword ptr [r10 + {CELL_LEFT}]
    sub r8, rsi
    jbe sampled_picked
    test al, {SIZE_CHANGES}
    jz 42f
    cmp qword ptr [rsp + 64], 0
    je 42f
    test rdi, rdi
    jz enter_recorded                   # it gives the block back
    mov r9, rdi
    mov rdi, qword ptr [rsp + 64]
    find_picked 46f
    jmp sampled_change
46:
    mov rdi, r9
42:
    test al, {SIZE_SIMPLE}
    jnz heaptrace_jump_count
    mov dword ptr [rsp + 28], {COUNTED}
    movzx edx, word ptr [rsp + 8]
    shl rdx, 32
    mov rax, {COUNTED} << {PICKED_SHIFT} | {ENDED} << 48
    or rdx, rax
    jmp enter_frame

    # r8 = the bytes that are left, rdi = the size
    .globl heaptrace_jump_count
    .hidden heaptrace_jump_count
heaptrace_jump_count:
    mov qword ptr [r10 + {CELL_LEFT}], r8
    .globl heaptrace_jump_count_bytes
    .hidden heaptrace_jump_count_bytes
heaptrace_jump_count_bytes:
    add qword ptr [r10 + {CELL_BYTES}], rdi
    .globl heaptrace_jump_count_calls
    .hidden heaptrace_jump_count_calls
heaptrace_jump_count_calls:
    inc qword ptr [r10 + {CELL_CALLS}]
    .globl heaptrace_jump_counted
    .hidden heaptrace_jump_counted
heaptrace_jump_counted:
    cmp dword ptr [rsp + 28], 0
    jne heaptrace_jump_entered
    or eax, -1                          # SF
    stc
    .globl heaptrace_jump_counted_end
    .hidden heaptrace_jump_counted_end
heaptrace_jump_counted_end:
    restore
    .globl heaptrace_jump_counted_done
    .hidden heaptrace_jump_counted_done
heaptrace_jump_counted_done:

    # The block was picked: recorded, and not counted here.
sampled_change:
    mov dword ptr [rsp + 28], {CHANGED}     # nothing of it gets to bits 60 to 63
    .globl heaptrace_jump_change
    .hidden heaptrace_jump_change
heaptrace_jump_change:
    mov qword ptr [r10 + {CELL_LEFT}], r8
    jmp enter_recorded
sampled_picked:
    mov eax, dword ptr [r10 + {CELL_INTERVAL}]
    and eax, 15
    mov dword ptr [rsp + 28], eax
    jmp enter_recorded
sampled_free:
    mov rdi, qword ptr [rsp + 64]
    find_picked enter_pass
    mov dword ptr [rsp + 28], {REMOVES}     # nothing of it gets there, either
    jmp enter_recorded

    # The free is recorded: before it is made, the block is no picked one any more.
    .globl heaptrace_jump_remove
    .hidden heaptrace_jump_remove
heaptrace_jump_remove:
    mov rdi, qword ptr [rsp + 64]
    find_bucket
47:
    cmp qword ptr [rsi], rdi
    je 49f
48:
    add rsi, 8
    test sil, {LIVE_BUCKET} - 1
    jnz 47b
    jmp heaptrace_jump_removed
49:
    mov rax, rdi
    xor edx, edx
    lock cmpxchg qword ptr [rsi], rdx
    .globl heaptrace_jump_taken_out
    .hidden heaptrace_jump_taken_out
heaptrace_jump_taken_out:
    jne 48b
    shr rdi, {PAGE_BITS}
    movzx edi, di
    cmp byte ptr [r11 + rdi + {PAGE_AREA}], {PAGE_STUCK}
    jae heaptrace_jump_removed
    lock dec byte ptr [r11 + rdi + {PAGE_AREA}]
    .globl heaptrace_jump_remove_end
    .hidden heaptrace_jump_remove_end
heaptrace_jump_remove_end:
    jmp heaptrace_jump_removed

    # --- nobody has met the return address rsi below the stack ecx: mostly the rules of the frames are known, and the
    # tracer needs their addresses only. The thread lists them in its own part of the list area: nothing of that is
    # there for the tracer before CELL_LISTED says so. edx = how often it looks for room
walk_unknown:
    cmp dword ptr [r11 + {LIST_DEPTH}], 0
    je walk_missed
    find_rbp walk_missed
    cmp dword ptr [r11 + {TAILED}], 0
    jne latest_begin
walk_listed:
    mov r9, qword ptr [rsp + 16]
    mov edx, dword ptr [r11 + {SPINS}]
    and edx, {SPINS_MASK}
    shl edx, 2                          # the tracer takes what lies there, one list after the other
list_room:
    mov r8, qword ptr [r9 + {CELL_LISTED}]
    mov eax, dword ptr [r11 + {LIST_DEPTH}]
    add eax, 2                          # the first word, and one frame more than may be walked to
    add rax, r8
    sub rax, qword ptr [r9 + {CELL_LIST_TAIL}]
    cmp rax, {LIST_WORDS}
    ja list_full
    mov eax, r8d
    and eax, {LIST_WORDS} - 1
    add eax, dword ptr [r11 + {LIST_DEPTH}]
    add eax, 2
    cmp eax, {LIST_WORDS}
    ja list_skip
    # rdx = where the list begins, up to its end
    mov rdx, r9
    sub rdx, r11
    sub rdx, {CELL_AREA}
    shl rdx, {LIST_BITS} - {CELL_BITS}
    and r8d, {LIST_WORDS} - 1
    lea rdx, [rdx + r8 * 8]
    lea rdx, [r11 + rdx + {LIST_AREA}]
    mov qword ptr [rdx], rcx
    shl rcx, {NODE_BITS}
    mov eax, dword ptr [r11 + {LIST_DEPTH}]
    sub eax, dword ptr [r11 + rcx + {NODE_AREA} + {NODE_DEPTH}]
    jb walk_missed
    cmp eax, {LIST_MOST}
    jae walk_missed
    lea rax, [rdx + rax * 8 + 16]
    mov qword ptr [r9 + {CELL_LIST_LIMIT}], rax
    lea r9, [rdx + 8]
list_next:
    test rsi, rsi
    jz list_ended
    mov qword ptr [r9], rsi
    add r9, 8
    mov rax, qword ptr [rsp + 16]
    cmp r9, qword ptr [rax + {CELL_LIST_LIMIT}]
    jae list_ended
    find_rule walk_missed
    find_caller r8, {RULE_AREA} + {RULE_FORM}, rcx, list_ended, walk_missed
    jmp list_next
    # r9 = how many were listed, rax = the hash of these
list_ended:
    sub r9, rdx
    shr r9, 3
    dec r9
    mov rax, qword ptr [rip + heaptrace_jump_hash]
    mov rcx, r9
52:
    test rcx, rcx
    jz 56f
    xor rax, qword ptr [rdx + rcx * 8]
    mix rax, rsi
    dec rcx
    jmp 52b
56:
    xor rax, qword ptr [rdx]
    mix rax, rsi
    or rax, 1
    cmp dword ptr [r11 + {TAILED}], 0
    je list_latest
    find_tail list_latest
    jmp walked
    # the same list as a moment ago, which the tracer may not have taken yet: it is not told twice
list_latest:
    mov rdi, qword ptr [rsp + 16]
    mov esi, eax
    shr esi, 32 - {LATEST_BITS}
    shl esi, 4
    lea rsi, [rdi + rsi + {CELL_LATEST}]
    mov rcx, qword ptr [rdi + {CELL_LISTED}]
    cmp qword ptr [rsi], rax
    jne list_told
    mov r8, qword ptr [rsi + 8]
    sub rcx, r8
    cmp rcx, {LIST_WORDS} / 2
    mov rcx, r8
    jb list_numbered
    mov rcx, qword ptr [rdi + {CELL_LISTED}]
    # rcx = its number: where it begins
list_told:
    mov dword ptr [rdx + 4], r9d
    lea r9, [rcx + r9 + 1]
    mov qword ptr [rsi], 0
    mov qword ptr [rdi + {CELL_LISTED}], r9
    mov qword ptr [rsi + 8], rcx
    mov qword ptr [rsi], rax
list_numbered:
    mov esi, ecx
    bts rsi, {FLAG_LISTED_BIT}
    jmp walked

    # too few words are left up to the end of the thread's part: r8 = CELL_LISTED
list_skip:
    mov rax, r9
    sub rax, r11
    sub rax, {CELL_AREA}
    shl rax, {LIST_BITS} - {CELL_BITS}
    add rax, r11
    and r8d, {LIST_WORDS} - 1
    mov qword ptr [rax + r8 * 8 + {LIST_AREA}], {LIST_SKIP}
    mov r8, qword ptr [r9 + {CELL_LISTED}]
    or r8, {LIST_WORDS} - 1
    inc r8
    mov qword ptr [r9 + {CELL_LISTED}], r8
    jmp list_room
list_full:
    mov dword ptr [rsp + 12], 0         # not timed: what it waits is counted in pauses
    inc qword ptr [r9 + {CELL_SPUN}]
    pause
    dec edx
    jg list_room
    jmp enter_ask

    # --- the tracer knows stacks that have no nodes. Mostly their outer frames are those of the thread's latest such
    # walk, of which it keeps a row of checks (WALK_AREA), the outermost frame's first: places on the stack, and what
    # stood there. This walk goes by the rules up to a frame that stood in the same place, compares all that the rules
    # read outside of it, and puts what is new on the row.
    #
    # A handler may interrupt this and walk, too: each walk takes a number, and the word with that and the row's length
    # is changed only while it is as this walk has left it. Where anything is not as it should be the list is made as if
    # there were no row.
    #
    # Offsets from rsp, where no handler writes (the red zone):
    #
    #      -8 rdi         -16 rsi     -24 rbp of the walk     -32 the stack: as they were
    #     -40 number and length       -48 the generation of the rules
    #     -56 where the checks begin  -104 where they end     -64 where new frames begin   -72 where the last must begin
    #     -80 the hash of the joint   -88 its flags           -84 how many frames it has      -96 what -40 has become
latest_skipped:
    dec dword ptr [r8 + {WALK_SKIPS}]
    jmp walk_listed
latest_begin:
    mov r8, qword ptr [rsp + 16]
    sub r8, r11
    sub r8, {CELL_AREA}
    shl r8, {WALK_BITS} - {CELL_BITS}
    lea r8, [r11 + r8 + {WALK_AREA}]
    cmp dword ptr [r8 + {WALK_SKIPS}], 0
    jne latest_skipped
    mov qword ptr [rsp - 8], rdi
    mov qword ptr [rsp - 16], rsi
    mov rax, qword ptr [rsp]
    mov qword ptr [rsp - 24], rax
    mov qword ptr [rsp - 32], rcx
    mov eax, dword ptr [r11 + {RULES_GENERATION}]
    mov dword ptr [rsp - 48], eax
    xor edx, edx
    # read first: a word of which a half was just written is not there for some time
    mov rcx, qword ptr [r8 + {WALK_NUMBER}]
    inc dword ptr [r8 + {WALK_NUMBER}]
    inc rcx                             # a carry, once in 2^32 walks, makes this one give up, as a handler in between does
    mov qword ptr [rsp - 40], rcx
    shr rcx, 32
    cmp eax, dword ptr [r8 + {WALK_GENERATION}]
    cmovne ecx, edx
    cmp ecx, {WALK_MOST}
    cmova ecx, edx
    lea rax, [r8 + {WALK_CHECKS}]
    mov qword ptr [rsp - 56], rax
    shl ecx, 4
    lea rdx, [rax + rcx]
    add rax, {WALK_MOST} * 16
    mov qword ptr [rsp - 104], rax
    lea r9, [r8 + {WALK_NEW}]
    mov qword ptr [rsp - 64], r9
    lea rax, [r9 + ({WALK_MOST} - 3) * 32]
    mov qword ptr [rsp - 72], rax

    # rdi and rsi as in walk_look_up, rdx = the end of the checks that may still be met, r9 = the end of the new frames
latest_frame:
    lea rax, [rdi - 8]
61:
    cmp rdx, qword ptr [rsp - 56]
    je latest_new
    cmp qword ptr [rdx - 16], rax
    ja latest_new
    jb 62f
    cmp qword ptr [rdx - 8], rsi
    jne 62f
    mov rcx, rdx
    sub rcx, qword ptr [rsp - 56]
    add rcx, rcx
    add rcx, qword ptr [rsp - 56]
    mov r8, qword ptr [rcx + {WALK_JOINT} + {JOINT_FLAGS}]
    test r8d, {JOINT_FRAME}
    jz 62f
    test r8d, {JOINT_RBP}
    jz latest_joint
    mov r8, qword ptr [rcx + {WALK_JOINT} + {JOINT_OF_RBP}]
    cmp r8, qword ptr [rsp]
    je latest_joint
62:
    sub rdx, 16
    jmp 61b

    # the frame is known: is what is outside of it as it was?
latest_joint:
    mov rax, qword ptr [rcx + {WALK_JOINT} + {JOINT_HASH}]
    mov qword ptr [rsp - 80], rax
    mov rax, qword ptr [rcx + {WALK_JOINT} + {JOINT_FLAGS}]
    mov qword ptr [rsp - 88], rax
    mov r8, qword ptr [rsp - 56]
    lea rax, [rdx - 16]
    .p2align 4
63:
    cmp rax, r8
    je latest_equal
    mov rcx, qword ptr [rax - 16]
    cmp rcx, rdi
    jb 64f
    cmp rcx, r10
    ja 64f
    mov rcx, qword ptr [rcx]
    cmp rcx, qword ptr [rax - 8]
    jne 64f
    sub rax, 16
    jmp 63b
64:
    lea rdx, [rax - 16]                 # only what is outside of that one may still be met

latest_new:
    cmp r9, qword ptr [rsp - 72]
    jae latest_far
    lea rax, [rdi - 8]
    mov qword ptr [r9], rax
    mov qword ptr [r9 + 8], rsi
    mov rax, qword ptr [rsp]
    mov qword ptr [r9 + 16], rax
    test rsi, rsi
    jz latest_zero
    find_rule latest_far
    xor ecx, ecx
    cmp byte ptr [r8 + {RULE_AREA} + {RULE_FORM}], {FORM_RSP}
    setne cl
    lea ecx, [rcx * 2 + {NEW_FRAME}]    # and NEW_NEEDS_RBP
    mov dword ptr [r9 + 24], ecx
    find_caller r8, {RULE_AREA} + {RULE_FORM}, rcx, latest_ended, latest_far
    movsx rcx, word ptr [r8 + {RULE_AREA} + {RULE_FORM} + {TO_RBP}]
    mov rax, rdi
    add r9, 32
    cmp byte ptr [r8 + {RULE_AREA} + {RULE_FORM}], {FORM_LOAD}
    jne 65f
    movsxd rax, dword ptr [r8 + {RULE_AREA} + {RULE_FORM} + {TO_OFFSET}]
    add rax, qword ptr [r9 - 16]
    mov qword ptr [r9], rax
    mov qword ptr [r9 + 8], rdi
    mov dword ptr [r9 + 24], 0
    mov rax, qword ptr [r9 - 16]
    add r9, 32
65:
    cmp rcx, {RBP_SAME}
    je latest_frame
    lea rcx, [rax + rcx * 8]
    mov qword ptr [r9], rcx
    mov rax, qword ptr [rsp]
    mov qword ptr [r9 + 8], rax
    mov dword ptr [r9 + 24], {NEW_RBP}
    add r9, 32
    jmp latest_frame

    # the walk's end, and no joint
latest_zero:
    mov dword ptr [r9 + 24], 0
    jmp 66f
latest_ended:
    mov dword ptr [r9 + 24], {NEW_FRAME}
66:
    add r9, 32
    mov rdx, qword ptr [rsp - 56]
    mov rax, qword ptr [rip + heaptrace_jump_hash]
    mov qword ptr [rsp - 80], rax
    mov qword ptr [rsp - 88], 0

    # rdx = the end of the checks that hold
latest_equal:
    mov r8, qword ptr [rsp - 56]
    mov rax, qword ptr [rsp - 40]
    mov rsi, qword ptr [rsp - 80]
    mov ecx, dword ptr [rsp - 84]
    cmp r9, qword ptr [rsp - 64]
    jne 67f
    cmp rax, qword ptr [r8 - {WALK_CHECKS} + {WALK_NUMBER}]
    je latest_hashed
    jmp latest_failed
67:
    mov rdi, rdx
    sub rdi, r8
    shl rdi, 28
    mov ecx, eax
    or rcx, rdi
    cmpxchg qword ptr [r8 - {WALK_CHECKS} + {WALK_NUMBER}], rcx
    jne latest_failed
    mov qword ptr [rsp - 96], rcx
    mov eax, dword ptr [rsp - 48]
    mov dword ptr [r8 - {WALK_CHECKS} + {WALK_GENERATION}], eax
    mov ecx, dword ptr [rsp - 84]
    mov edi, dword ptr [rsp - 88]
    shr edi, 1
    mov rax, rdx
    sub rax, r8
    lea r8, [r8 + rax * 2 + {WALK_JOINTS} - {WALK_CHECKS}]
    # rdx = the next check, r8 = what belongs to it, rsi = the hash, ecx = frames, edi = whether rbp matters here
68:
    cmp r9, qword ptr [rsp - 64]
    je latest_put
    sub r9, 32
    cmp rdx, qword ptr [rsp - 104]
    jae latest_far
    mov eax, dword ptr [r9 + 24]
    test eax, {NEW_FRAME}
    jnz 69f
    mov dword ptr [r8 + {JOINT_FLAGS}], 0
    test eax, {NEW_RBP}
    jz 70f
    test edi, edi
    jz 68b                              # nothing depends on it
    xor edi, edi
    jmp 70f
69:
    shr eax, 1
    or edi, eax
    xor rsi, qword ptr [r9 + 8]
    mix rsi, rax
    inc ecx
    mov qword ptr [r8 + {JOINT_HASH}], rsi
    mov rax, qword ptr [r9 + 16]
    mov qword ptr [r8 + {JOINT_OF_RBP}], rax
    lea eax, [rdi * 2 + {JOINT_FRAME}]
    mov dword ptr [r8 + {JOINT_FLAGS}], eax
    mov dword ptr [r8 + {JOINT_FRAMES}], ecx
70:
    mov rax, qword ptr [r9]
    mov qword ptr [rdx], rax
    mov rax, qword ptr [r9 + 8]
    mov qword ptr [rdx + 8], rax
    add rdx, 16
    add r8, 32
    jmp 68b
latest_put:
    mov r8, qword ptr [rsp - 56]
    sub rdx, r8
    shl rdx, 28
    mov rax, qword ptr [rsp - 96]
    mov edi, eax
    or rdx, rdi
    cmpxchg qword ptr [r8 - {WALK_CHECKS} + {WALK_NUMBER}], rdx
    je latest_hashed
    mov dword ptr [r8 - {WALK_CHECKS} + {WALK_LEN}], 0
    jmp latest_failed

    # rsi = the hash of all frames, ecx = how many these are
latest_hashed:
    mov rax, qword ptr [rsp - 32]
    mov rdx, rax
    shl rdx, {NODE_BITS}
    add ecx, dword ptr [r11 + rdx + {NODE_AREA} + {NODE_DEPTH}]
    cmp ecx, dword ptr [r11 + {LIST_DEPTH}]
    ja latest_far
    xor rax, rsi
    mix rax, rsi
    or rax, 1
    find_tail latest_failed
    jmp walked

    # it would fail again: the next calls do without
latest_far:
    mov r8, qword ptr [rsp - 56]
    mov dword ptr [r8 - {WALK_CHECKS} + {WALK_SKIPS}], {WALK_SKIPPED}
latest_failed:
    mov rdi, qword ptr [rsp - 8]
    mov rsi, qword ptr [rsp - 16]
    mov rax, qword ptr [rsp - 24]
    mov qword ptr [rsp], rax
    mov rcx, qword ptr [rsp - 32]
    jmp walk_listed

    # --- there is no rule, or the stack is not as it says: copy it for the tracer
walk_missed:
    mov r10, qword ptr [rsp + 16]
    cmp dword ptr [r10 + {CELL_DEPTH}], 0
    jne enter_ask                       # our own return address is on it
    lea rdi, [rsp + 112]
    mov rcx, qword ptr [r10 + {CELL_STACK_END}]
    sub rcx, rdi
    cmp rcx, {COPY_SIZE} - {COPY_STACK}
    ja enter_ask
    mov eax, dword ptr [r11 + {SPINS}]
    and eax, {SPINS_MASK}
    shl eax, 2                          # the tracer takes what lies there, and gives one free after the other
13:
    mov rdx, qword ptr [r11 + {COPY_BITS}]
    not rdx
    bsf rdx, rdx
    jz walk_no_slot
    lock bts qword ptr [r11 + {COPY_BITS}], rdx
    .globl heaptrace_jump_claim
    .hidden heaptrace_jump_claim
heaptrace_jump_claim:
    jc 13b
    .globl heaptrace_jump_copy
    .hidden heaptrace_jump_copy
heaptrace_jump_copy:
    # rdx = the slot, rdi = the stack pointer, rcx = bytes of stack
    mov r9, qword ptr [rsp + 16]
    inc qword ptr [r9 + {CELL_COPIES}]
    mov r8, rdx
    shl r8, {COPY_SHIFT}
    lea r8, [r11 + r8 + {COPY_AREA}]
    mov rax, qword ptr [rsp + 104]
    mov qword ptr [r8], rax
    mov rax, qword ptr [rsp + 88]
    mov qword ptr [r8 + 8], rax
    mov rax, qword ptr [rsp + 80]
    mov qword ptr [r8 + 16], rax
    mov qword ptr [r8 + 24], rbx
    mov qword ptr [r8 + 32], rdi
    mov qword ptr [r8 + 40], rbp
    mov rax, qword ptr [rsp + 72]
    mov qword ptr [r8 + 48], rax
    mov rax, qword ptr [rsp + 64]
    mov qword ptr [r8 + 56], rax
    mov rax, qword ptr [rsp + 56]
    mov qword ptr [r8 + 64], rax
    mov rax, qword ptr [rsp + 48]
    mov qword ptr [r8 + 72], rax
    mov rax, qword ptr [rsp + 40]
    mov qword ptr [r8 + 80], rax
    mov rax, qword ptr [rsp + 32]
    mov qword ptr [r8 + 88], rax
    mov qword ptr [r8 + 96], r12
    mov qword ptr [r8 + 104], r13
    mov qword ptr [r8 + 112], r14
    mov qword ptr [r8 + 120], r15
    and rcx, -8
    mov qword ptr [r8 + {COPY_LEN}], rcx
    shr rcx, 3
    mov rsi, rdi
    lea rdi, [r8 + {COPY_STACK}]
    rep movsq
    mov rsi, {FLAG_COPY}
    or rsi, rdx
    jmp walked

    .globl heaptrace_jump_copied
    .hidden heaptrace_jump_copied
heaptrace_jump_copied:
walk_no_slot:
    mov dword ptr [rsp + 12], 0         # not timed: what it waits is counted in pauses
    mov r9, qword ptr [rsp + 16]
    inc qword ptr [r9 + {CELL_SPUN}]
    pause
    dec eax
    jg 13b
    jmp enter_ask

enter_inactive:
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], 0
    jne enter_ask_without_cell
    .globl heaptrace_jump_pass
    .hidden heaptrace_jump_pass
heaptrace_jump_pass:
enter_pass:
    xor eax, eax                        # no SF
    stc
    .globl heaptrace_jump_pass_end
    .hidden heaptrace_jump_pass_end
heaptrace_jump_pass_end:
    restore
    .globl heaptrace_jump_pass_done
    .hidden heaptrace_jump_pass_done
heaptrace_jump_pass_done:

    # --- a function that looks at the stack: our return addresses must not be on it
enter_guard:
    find_cell enter_pass
    mov qword ptr [rsp + 16], r10
    cmp dword ptr [r10 + {CELL_DEPTH}], 0
    je enter_pass
    # --- the tracer takes the call from here on: it sets the thread back to the function's first instruction
enter_ask:
    mov r10, qword ptr [rsp + 16]
    inc qword ptr [r10 + {CELL_ASKS}]
enter_ask_without_cell:
    .globl heaptrace_jump_ask
    .hidden heaptrace_jump_ask
heaptrace_jump_ask:
    int3
    jmp enter_pass                      # it is gone

# ---------------------------------------------------------------- behind the function

    .globl heaptrace_jump_leave
    .hidden heaptrace_jump_leave
heaptrace_jump_leave:
    save
    .globl heaptrace_jump_leave_body
    .hidden heaptrace_jump_leave_body
heaptrace_jump_leave_body:
    lea rsi, [rsp + 112]
    mov qword ptr [rsp + 16], 0
    find_cell leave_without_cell
    mov qword ptr [rsp + 16], r10
    mov ecx, dword ptr [r10 + {CELL_DEPTH}]
    cmp ecx, {FRAMES}
    ja leave_without_cell
20:
    test ecx, ecx
    jz leave_without_cell
    dec ecx
    mov r9d, ecx
    shl r9, {FRAME_BITS}
    lea r9, [r10 + r9 + {CELL_FRAMES}]
    cmp qword ptr [r9 + {FRAME_SLOT}], rsi
    jne 20b
    # found: those above it are dead
    mov edi, ecx
    mov rdx, r9
21:
    inc edi
    cmp edi, dword ptr [r10 + {CELL_DEPTH}]
    jae leave_found
    add r9, {FRAME_SIZE}
    cmp qword ptr [r9 + {FRAME_SLOT}], 0
    je 21b
    drop_frame
    jmp 21b
    # rdx = the frame, ecx = the frames that are left without it
leave_found:
    mov r9, rdx
    mov rax, qword ptr [r9 + {FRAME_CALLER}]
    mov qword ptr [rsi], rax
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], 0
    je leave_unrecorded
    movzx eax, byte ptr [r9 + {FRAME_WHAT} + 7]
    shr eax, {PICKED_SHIFT} - 56
    cmp eax, {COUNTED}
    je leave_unrecorded
    mov rax, qword ptr [r10 + {CELL_HEAD}]
    cmp rax, qword ptr [r10 + {CELL_LIMIT}]
    jae leave_full
leave_has_room:
    mov r8, r10
    sub r8, r11
    sub r8, {CELL_AREA}
    shl r8, {RING_BITS} - {CELL_BITS}
    mov edx, dword ptr [r10 + {CELL_RING}]
    dec edx
    and edx, eax
    and edx, {RING_MOST} - 1
    shl rdx, {RECORD_BITS}
    add r8, rdx
    lea r8, [r11 + r8 + {RING_AREA}]
    prefetchw byte ptr [r8 + {AHEAD}]
    mov rdx, qword ptr [rsi]
    mov qword ptr [r8 + {RECORD_CALLER}], rdx
    mov rdx, qword ptr [rsp + 104]
    mov qword ptr [r8 + {RECORD_RESULT}], rdx
    mov rdi, qword ptr [r9 + {FRAME_ARGS}]
    mov qword ptr [r8 + {RECORD_ARGS}], rdi
    mov rsi, qword ptr [r9 + {FRAME_ARGS} + 8]
    mov qword ptr [r8 + {RECORD_ARGS} + 8], rsi
    mov rsi, qword ptr [r9 + {FRAME_ARGS} + 16]
    mov qword ptr [r8 + {RECORD_ARGS} + 16], rsi
    mov rsi, qword ptr [r9 + {FRAME_WHAT}]
    mov qword ptr [r8 + {RECORD_WHAT}], rsi
    mov qword ptr [r8 + {RECORD_OUT}], 0
    bt rsi, {FLAG_OUT_BIT}
    jc leave_out
leave_block:
    cmp dword ptr [r11 + {SAMPLED}], 0
    jne leave_sampled
leave_release:
    mov dword ptr [r10 + {CELL_DEPTH}], ecx
    # the frame is given back, and the record not yet there: rax = the head, r8 = the record
    .globl heaptrace_jump_released
    .hidden heaptrace_jump_released
heaptrace_jump_released:
    mov qword ptr [r9 + {FRAME_SLOT}], 0    # a search in all cells must not find it
    mov rcx, qword ptr [r11 + {SEQ}]
    add rcx, rcx
    mov qword ptr [r8 + {RECORD_KEY}], rcx
    inc rax
    .globl heaptrace_jump_ended_head
    .hidden heaptrace_jump_ended_head
heaptrace_jump_ended_head:
    mov qword ptr [r10 + {CELL_HEAD}], rax
    .globl heaptrace_jump_left
    .hidden heaptrace_jump_left
heaptrace_jump_left:
    restore
    .globl heaptrace_jump_left_done
    .hidden heaptrace_jump_left_done
heaptrace_jump_left_done:

leave_out:
    test edx, edx                       # an int: 0 if it has succeeded, and written to where the first argument points
    jnz leave_release
    mov rdx, qword ptr [rdi]
    mov qword ptr [r8 + {RECORD_OUT}], rdx
    jmp leave_block
    # rdi = the block that was passed in, if one was, rsi = the frame's word, rdx = the block that comes out: before
    # anybody can give it back. Who is interrupted here is done with by the tracer, which does all of it once more: at
    # worst an address is there too often.
leave_sampled:
    test rdx, rdx
    jz leave_release
    mov qword ptr [rsp], rax
    mov qword ptr [rsp + 8], rdx
    mov qword ptr [rsp + 24], rsi
    bt rsi, {FLAG_BEGAN_BIT}
    jnc 53f
    find_picked 53f
    find_bucket
51:
    cmp qword ptr [rsi], rdi
    jne 52f
    mov rax, rdi
    xor edx, edx
    lock cmpxchg qword ptr [rsi], rdx
    jne 52f
    shr rdi, {PAGE_BITS}
    movzx edi, di
    cmp byte ptr [r11 + rdi + {PAGE_AREA}], {PAGE_STUCK}
    jae 53f
    lock dec byte ptr [r11 + rdi + {PAGE_AREA}]
    jmp 53f
52:
    add rsi, 8
    test sil, {LIVE_BUCKET} - 1
    jnz 51b
53:
    mov rsi, qword ptr [rsp + 24]
    shr rsi, {PICKED_SHIFT}
    jz leave_noted
    mov rdi, qword ptr [rsp + 8]
    mov rdx, rdi
    shr rdx, {PAGE_BITS}
    movzx edx, dx
    cmp byte ptr [r11 + rdx + {PAGE_AREA}], {PAGE_STUCK}
    jae leave_noted
    lock inc byte ptr [r11 + rdx + {PAGE_AREA}]
    find_bucket
55:
    cmp qword ptr [rsi], 0
    jne 56f
    xor eax, eax
    lock cmpxchg qword ptr [rsi], rdi
    je leave_noted
56:
    add rsi, 8
    test sil, {LIVE_BUCKET} - 1
    jnz 55b
    mov byte ptr [r11 + rdx + {PAGE_AREA}], {PAGE_FULL}     # no room: all blocks there are taken for picked ones
leave_noted:
    mov rax, qword ptr [rsp]
    jmp leave_release
leave_unrecorded:
    mov dword ptr [r10 + {CELL_DEPTH}], ecx
    mov qword ptr [r9 + {FRAME_SLOT}], 0
    jmp heaptrace_jump_left
leave_full:
    mov edi, dword ptr [r11 + {SPINS}]
    and edi, {SPINS_MASK}
22:
    mov rdx, qword ptr [r10 + {CELL_TAIL}]
    add rdx, qword ptr [r10 + {CELL_RING}]
    mov qword ptr [r10 + {CELL_LIMIT}], rdx
    cmp rax, rdx
    jb leave_has_room
    inc qword ptr [r10 + {CELL_SPUN}]
    pause
    dec edi
    jg 22b
    inc qword ptr [r10 + {CELL_WAITS}]
    .globl heaptrace_jump_full_leave
    .hidden heaptrace_jump_full_leave
heaptrace_jump_full_leave:
    int3
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], 0
    jne leave_full
    jmp leave_unrecorded

    # --- a call that another thread has begun (a fiber), or of a thread whose cell was taken: its frame is in any cell
leave_without_cell:
    mov r11, qword ptr [rip + heaptrace_jump_begin + {STATE_SHARED}]
    lea rsi, [rsp + 112]
    xor ecx, ecx
23:
    mov r10, rcx
    shl r10, {CELL_BITS}
    lea r10, [r11 + r10 + {CELL_AREA}]
    lea r9, [r10 + {CELL_FRAMES}]
    mov edx, {FRAMES}
24:
    cmp qword ptr [r9 + {FRAME_SLOT}], rsi
    je 25f
    add r9, {FRAME_SIZE}
    dec edx
    jnz 24b
    inc ecx
    cmp ecx, {CELLS}
    jb 23b
    .globl heaptrace_jump_lost
    .hidden heaptrace_jump_lost
heaptrace_jump_lost:
    ud2                                 # nobody knows where to return to
25:
    # Its record would need the other thread's ring: the tracer takes it.
    mov rax, qword ptr [r9 + {FRAME_CALLER}]
    mov qword ptr [rsi], rax
    cmp dword ptr [rip + heaptrace_jump_begin + {STATE_ACTIVE}], 0
    je 26f
    .globl heaptrace_jump_foreign
    .hidden heaptrace_jump_foreign
heaptrace_jump_foreign:
    int3
26:
    mov qword ptr [r9 + {FRAME_SLOT}], 0
    jmp heaptrace_jump_left

    .globl heaptrace_jump_end
    .hidden heaptrace_jump_end
heaptrace_jump_end:
    .popsection
