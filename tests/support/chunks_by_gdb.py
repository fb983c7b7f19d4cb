"""Counts the chunks of a glibc heap, by what they are, as libc's own debug information has its structures: run by gdb in the process that it is attached to.

Prints `chunks ` and a JSON object: state -> [count, bytes, headers included].
"""

import json
import struct

import gdb

SIZE_BITS = 7
HEAP_SIZE = 64 << 20

inferior = gdb.selected_inferior()
sums = {}


def note(state, size):
    """Adds a chunk."""
    count, total = sums.get(state, (0, 0))
    sums[state] = (count + 1, total + size)


def linked(first):
    """The chunks' user addresses on a list that safe-linking protects (glibc 2.32 and later), from the first one's on."""
    at = first
    while at:
        yield at
        (word,) = struct.unpack("<Q", inferior.read_memory(at, 8))
        at = word ^ (at >> 12)


def cached():
    """User addresses of the chunks that threads keep."""
    for thread in inferior.threads():
        thread.switch()
        cache = gdb.parse_and_eval("tcache")
        if int(cache) != 0:
            entries = cache["entries"]
            for index in range(entries.type.range()[1] + 1):
                yield from linked(int(entries[index]))


def arenas():
    """All of them, the main one first."""
    first = gdb.parse_and_eval("&main_arena")
    arena = first
    while True:
        yield arena
        arena = arena["next"]
        if arena == first:
            return


def regions(arena, is_main):
    """Where an arena has its chunks: begin, end."""
    top = int(arena["top"])
    if is_main:
        yield int(gdb.parse_and_eval("(unsigned long) mp_.sbrk_base")), top
        return
    heap_info = gdb.lookup_type("heap_info").pointer()
    heap = gdb.Value(top & -HEAP_SIZE).cast(heap_info)
    while int(heap) != 0:
        start = int(heap) + heap_info.target().sizeof
        if int(heap["prev"]) == 0:
            start += arena.type.target().sizeof
        start = -(-start // 16) * 16
        yield start, top if start <= top < int(heap) + HEAP_SIZE else int(heap) + int(heap["size"])
        heap = heap["prev"]


in_cache = set(cached())
for number, arena in enumerate(arenas()):
    bins = arena["fastbinsY"]
    fast = set()
    for index in range(bins.type.range()[1] + 1):
        # these lists lead from chunk to chunk, whose links lie at their user addresses
        at = int(bins[index])
        while at:
            fast.add(at)
            (word,) = struct.unpack("<Q", inferior.read_memory(at + 16, 8))
            at = word ^ ((at + 16) >> 12)
    for start, end in regions(arena, number == 0):
        memory = bytes(inferior.read_memory(start, end - start + 16))
        at = start
        while at < end:
            (word,) = struct.unpack_from("<Q", memory, at - start + 8)
            size = word & ~SIZE_BITS
            if size <= 16:
                break
            (following,) = struct.unpack_from("<Q", memory, at + size - start + 8)
            if at + 16 in in_cache:
                note("tcache", size)
            elif at in fast:
                note("fast", size)
            else:
                note("live" if following & 1 else "free", size)
            at += size
    note("top", int(arena["top"]["mchunk_size"]) & ~SIZE_BITS)
print("chunks", json.dumps(sums))
