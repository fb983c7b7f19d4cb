"""An independent decoder of the traces that heaptrace writes.

It was written from the published description of the Fuchsia trace format
(https://fuchsia.dev/fuchsia-src/reference/tracing/trace-format) and from docs/trace.md, and shares nothing with heaptrace's own
writer and reader. It holds a trace to every rule of both, and tells in JSON what is in it:

    python decode_fxt.py TRACE [--torn] [--events]

The status is 1, with a sentence and the place in bytes, if a rule is broken. A trace may end in the middle of a record only with
--torn. --events adds one line of JSON for each event before the summary.
"""

import argparse
import json
import struct
import sys

MAGIC = 0x0016547846040010
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PROVIDER = 1
OBJECT_PROCESS, OBJECT_THREAD = 1, 2
MAX_WORDS = 4095
MAX_STRING = 32000
NO_MODULE = 0xFFFFFFFF
STACK_NODE = struct.Struct("<IIQII")


class Broken(Exception):
    """A rule does not hold."""

    def __init__(self, offset, what):
        super().__init__(f"at byte {offset}: {what}")


class Tear(Exception):
    """The trace ends in the middle of a record."""


def bits(word, low, high):
    """The bits `low` to `high` of a word, both included."""
    return word >> low & (1 << high - low + 1) - 1


class Words:
    """The words of one record."""

    def __init__(self, data, offset):
        self.data, self.offset, self.at = data, offset, 0

    def broken(self, what):
        return Broken(self.offset + self.at, what)

    def word(self):
        if self.at + 8 > len(self.data):
            raise self.broken("the record is too short for what its header says")
        (value,) = struct.unpack_from("<Q", self.data, self.at)
        self.at += 8
        return value

    def stream(self, length):
        """`length` bytes, padded with zeros to whole words."""
        end, padded = self.at + length, self.at + (length + 7) // 8 * 8
        if padded > len(self.data):
            raise self.broken(f"a stream of {length} bytes goes beyond the record's end")
        if any(self.data[end:padded]):
            raise self.broken("padding is not zero")
        value = self.data[self.at : end]
        self.at = padded
        return value

    def text(self, length):
        if length > MAX_STRING:
            raise self.broken(f"a string of {length} bytes")
        try:
            return self.stream(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.broken(f"a string is not UTF-8: {error}") from None

    def end(self):
        if self.at != len(self.data):
            raise self.broken(f"{len(self.data) - self.at} bytes of the record mean nothing")


class Segment:
    """What the records of one segment refer to."""

    def __init__(self):
        self.strings, self.threads = {}, {}
        self.ticks = None
        self.session = None
        self.functions, self.stacks, self.modules, self.processes = {}, {}, set(), set()
        self.images = {}
        self.last_time = {}
        self.open_blobs = {}
        self.provider = False
        self.section = False


class Heap:
    """The live blocks of a process."""

    def __init__(self, blocks=None):
        self.blocks, self.pending = dict(blocks or {}), {}

    def bytes(self):
        return sum(self.blocks.values()) + sum(size for size in self.pending.values() if size is not None)

    def copy(self):
        heap = Heap(self.blocks)
        heap.pending = dict(self.pending)
        return heap


class Decoder:
    def __init__(self, data, torn, show):
        self.data, self.torn, self.show = data, torn, show
        self.offset = 0
        self.segment = None
        self.segments = 0
        self.records, self.events, self.blobs, self.counters = {}, {}, {}, 0
        self.event_bytes = 0
        self.heaps, self.live = {}, {}
        self.last_counter = {}
        self.wrong_counters = 0
        self.ended, self.names = set(), False
        self.tear = None
        self.span = None
        self.longest_event = 0

    def run(self):
        try:
            while self.offset < len(self.data):
                self.record()
        except Tear as tear:
            if not self.torn:
                raise Broken(self.offset, str(tear)) from None
            self.tear = self.offset
        if self.segments == 0:
            raise Broken(0, "no magic number")
        if self.segment.open_blobs and self.tear is None:
            raise Broken(self.offset, f"blobs without their ends: {sorted(self.segment.open_blobs)}")

    def record(self):
        data, offset = self.data, self.offset
        if offset + 8 > len(data):
            raise Tear("the file ends in the middle of a word")
        (header,) = struct.unpack_from("<Q", data, offset)
        kind = bits(header, 0, 3)
        if kind == 15:
            raise Broken(offset, "a large record: heaptrace writes none")
        size = bits(header, 4, 15)
        if size == 0:
            raise Broken(offset, "a record of no words")
        if offset + 8 * size > len(data):
            raise Tear("the file ends in the middle of a record")
        words = Words(data[offset : offset + 8 * size], offset)
        words.word()
        readers = {
            0: ("metadata", self.metadata),
            1: ("initialization", self.initialization),
            2: ("string", self.string_record),
            3: ("thread", self.thread),
            4: ("event", self.event),
            5: ("blob", self.blob),
            7: ("kernel object", self.kernel_object),
        }
        if kind not in readers:
            raise Broken(offset, f"a record of type {kind}: heaptrace writes none")
        if self.segment is None and header != MAGIC:
            raise Broken(offset, "the trace does not begin with the magic number")
        name, read = readers[kind]
        self.records[name] = self.records.get(name, 0) + 1
        read(header, words, size)
        words.end()
        self.offset += 8 * size

    def reserved(self, header, low, high=63):
        if bits(header, low, high):
            raise Broken(self.offset, f"the reserved bits {low} to {high} are not zero")

    def string(self, ref, words):
        if ref == 0:
            return ""
        if ref & 0x8000:
            return words.text(ref & 0x7FFF)
        if ref not in self.segment.strings:
            raise words.broken(f"string {ref} was not registered in this segment")
        return self.segment.strings[ref]

    def thread_of(self, ref, words):
        if ref == 0:
            return words.word(), words.word()
        if ref not in self.segment.threads:
            raise words.broken(f"thread {ref} was not registered in this segment")
        return self.segment.threads[ref]

    def metadata(self, header, words, size):
        kind = bits(header, 16, 19)
        if kind == 4:
            if header != MAGIC:
                raise words.broken("trace info that is no magic number")
            if self.segment is not None and self.segment.open_blobs:
                raise words.broken("a segment begins inside a blob")
            self.segment = Segment()
            self.segments += 1
        elif kind == 1:
            self.reserved(header, 60)
            name = words.text(bits(header, 52, 59))
            if (bits(header, 20, 51), name) != (PROVIDER, "heaptrace"):
                raise words.broken(f"provider {bits(header, 20, 51)}, {name!r}")
            self.segment.provider = True
        elif kind == 2:
            self.reserved(header, 52)
            if bits(header, 20, 51) != PROVIDER or not self.segment.provider:
                raise words.broken("a section of an unknown provider")
            self.segment.section = True
        elif kind == 3:
            self.reserved(header, 56)
        else:
            raise words.broken(f"metadata of type {kind}")

    def initialization(self, header, words, size):
        self.reserved(header, 16)
        if not self.segment.section:
            raise words.broken("an initialization record before the provider's section")
        if self.segment.ticks is not None:
            raise words.broken("a second initialization record in a segment")
        self.segment.ticks = words.word()
        if self.segment.ticks == 0:
            raise words.broken("no ticks per second")

    def begun(self, words, session=True):
        if self.segment.ticks is None:
            raise words.broken("a record before the initialization record")
        if session and self.segment.session is None:
            raise words.broken("a record before the blob heaptrace.session")

    def string_record(self, header, words, size):
        self.begun(words, session=False)
        index, length = bits(header, 16, 30), bits(header, 32, 46)
        self.reserved(header, 31, 31)
        self.reserved(header, 47)
        if index == 0:
            raise words.broken("string 0 can't be registered")
        self.segment.strings[index] = words.text(length)

    def thread(self, header, words, size):
        self.begun(words)
        self.reserved(header, 24)
        index = bits(header, 16, 23)
        if index == 0:
            raise words.broken("thread 0 can't be registered")
        self.segment.threads[index] = (words.word(), words.word())

    def kernel_object(self, header, words, size):
        self.begun(words)
        self.reserved(header, 44)
        kind, ref, count = bits(header, 16, 23), bits(header, 24, 39), bits(header, 40, 43)
        koid = words.word()
        self.string(ref, words)
        arguments = self.arguments(count, words)
        if kind not in (OBJECT_PROCESS, OBJECT_THREAD):
            raise words.broken(f"a kernel object of type {kind}")
        if kind == OBJECT_THREAD and not isinstance(arguments.get("process"), int):
            raise words.broken(f"thread {koid:#x} without its process")

    def arguments(self, count, words):
        found = {}
        for _ in range(count):
            begin = words.at
            header = words.word()
            kind, size = bits(header, 0, 3), bits(header, 4, 15)
            if size == 0 or begin + 8 * size > len(words.data):
                raise words.broken(f"an argument of {size} words")
            name = self.string(bits(header, 16, 31), words)
            if kind == 0:
                self.reserved(header, 32)
                value = None
            elif kind == 1:
                value = bits(header, 32, 63)
                value -= (value >> 31) << 32
            elif kind == 2:
                value = bits(header, 32, 63)
            elif kind in (3, 4, 7, 8):
                self.reserved(header, 32)
                value = words.word()
                if kind == 3:
                    value -= (value >> 63) << 64
                if kind == 4 and value < 1 << 32:
                    raise words.broken(f"{name} has 64 bits for a value of 32")
            elif kind == 5:
                self.reserved(header, 32)
                (value,) = struct.unpack("<d", struct.pack("<Q", words.word()))
            elif kind == 6:
                self.reserved(header, 48)
                value = self.string(bits(header, 32, 47), words)
            elif kind == 9:
                self.reserved(header, 33)
                value = bool(bits(header, 32, 32))
            elif kind == 10:
                value = words.stream(bits(header, 32, 63))
            else:
                raise words.broken(f"an argument of type {kind}")
            if words.at != begin + 8 * size:
                raise words.broken(f"argument {name!r} has {size} words, and needs {(words.at - begin) // 8}")
            if name in found:
                raise words.broken(f"two arguments {name!r}")
            found[name] = value
        return found

    def event(self, header, words, size):
        self.begun(words)
        kind, count = bits(header, 16, 19), bits(header, 20, 23)
        time = words.word()
        process, thread = self.thread_of(bits(header, 24, 31), words)
        category = self.string(bits(header, 32, 47), words)
        name = self.string(bits(header, 48, 63), words)
        arguments = self.arguments(count, words)
        if category == "heap" and name in ("began", "forked"):
            # The first event of a process comes before its description.
            self.segment.processes.add(process)
        if process not in self.segment.processes:
            raise words.broken(f"process {process:#x} was not described in this segment")
        last = self.segment.last_time.get(thread, 0)
        if time < last:
            raise words.broken(f"time goes back from {last} to {time} in thread {thread:#x}")
        self.segment.last_time[thread] = time
        if kind == 1:
            self.counter(words, time, process, category, name, arguments)
            return
        if kind != 0:
            raise words.broken(f"an event of type {kind}: heaptrace writes instants and counters")
        key = category if category != "heap" else name
        self.events[key] = self.events.get(key, 0) + 1
        self.event_bytes += 8 * size
        seconds = time / self.segment.ticks
        first, last = self.span or (seconds, seconds)
        self.span = (min(first, seconds), max(last, seconds))
        self.longest_event = max(self.longest_event, 8 * size)
        self.heap_event(words, process, thread, category, name, arguments)
        if self.show:
            print(json.dumps({"time": seconds, "process": process, "thread": thread, "category": category, "name": name, **arguments}))

    def counter(self, words, time, process, category, name, arguments):
        identity = words.word()
        if (category, name, list(arguments)) != ("heap", "live bytes", ["bytes"]):
            raise words.broken(f"a counter {category}/{name} with {list(arguments)}")
        if identity != process >> 32:
            raise words.broken(f"counter {identity} of process {process:#x}")
        self.counters += 1
        last = self.last_counter.get((self.segments, process))
        if last is not None and (time - last) * 1000 < self.segment.ticks:
            raise words.broken("two counters of a process in one millisecond")
        self.last_counter[self.segments, process] = time
        if self.segments == 1 and not self.segment.session.get("segment") and arguments["bytes"] != self.live.get(process, 0):
            self.wrong_counters += 1

    def stack(self, words, process, arguments, needed=True):
        stack, call = arguments.get("stack"), arguments.get("call")
        if stack is None or call is None:
            if needed:
                raise words.broken("an event without its stack or its call")
            return
        if stack != 0 and stack not in self.segment.stacks.get(self.segment.images.get(process), ()):
            raise words.broken(f"stack {stack} was not described in this segment")
        if call & 0xFFFF not in self.segment.functions:
            raise words.broken(f"function {call & 0xFFFF} was not described in this segment")
        if call >> 27:
            raise words.broken(f"call {call:#x} has bits that mean nothing")

    def heap_event(self, words, process, thread, category, name, arguments):
        heap = self.heaps.setdefault(process, Heap())

        def take(address):
            size = heap.blocks.pop(address, None)
            self.live[process] = self.live.get(process, 0) - (size or 0)
            return size

        def give(address, size):
            if address in heap.blocks:
                take(address)
            heap.blocks[address] = size
            self.live[process] = self.live.get(process, 0) + size

        if category == "alloc":
            self.stack(words, process, arguments)
            give(arguments["addr"], arguments["size"])
        elif category == "free":
            self.stack(words, process, arguments)
            take(arguments["addr"])
        elif category == "realloc_begin":
            self.stack(words, process, arguments)
            # The counter goes on counting the block.
            heap.pending[thread, arguments["old"]] = heap.blocks.pop(arguments["old"], None)
        elif category == "realloc":
            self.stack(words, process, arguments, needed=False)
            old, new, size = arguments["old"], arguments["new"], arguments["size"]
            key = (thread, old)
            before = heap.pending.pop(key) if key in heap.pending else heap.blocks.pop(old, None)
            if new == 0 and size != 0:
                if before is not None:
                    heap.blocks[old] = before
            else:
                self.live[process] = self.live.get(process, 0) - (before or 0)
                if new != 0:
                    give(new, size)
        elif category == "realloc_abandoned":
            before = heap.pending.pop((thread, arguments["old"]), None)
            if before is not None:
                heap.blocks[arguments["old"]] = before
        elif category in ("alloc_unseen", "failed"):
            self.stack(words, process, arguments)
        elif category == "heap":
            if name in ("began", "forked", "exec"):
                self.segment.images[process] = arguments["image"]
            if name == "forked":
                of_parent = self.segment.stacks.get(arguments["parent_image"], ())
                self.segment.stacks.setdefault(arguments["image"], set()).update(of_parent)
                self.forked(process, arguments)
            elif name == "exec":
                self.heaps[process], self.live[process] = Heap(), 0
        else:
            raise words.broken(f"an event of category {category!r}")

    def forked(self, process, arguments):
        parent = arguments["parent_process"]
        if parent in self.heaps:
            self.heaps[process] = self.heaps[parent].copy()
            self.live[process] = self.live.get(parent, 0)

    def blob(self, header, words, size):
        self.reserved(header, 47, 47)
        self.reserved(header, 56)
        if bits(header, 48, 55) != 1:
            raise words.broken(f"a blob of type {bits(header, 48, 55)}")
        name = self.string(bits(header, 16, 31), words)
        payload = words.stream(bits(header, 32, 46))
        self.begun(words, session=name.rstrip("+") != "heaptrace.session")
        whole = name.removesuffix("+")
        self.blobs[whole] = self.blobs.get(whole, 0) + 1
        self.segment.open_blobs[whole] = self.segment.open_blobs.get(whole, b"") + payload
        if name == whole:
            payload = self.segment.open_blobs.pop(whole)
            kind = whole.removeprefix("heaptrace.")
            if kind == whole:
                raise words.broken(f"blob {whole!r}")
            if kind == "stacks":
                self.stack_nodes(payload, words)
            else:
                try:
                    contents = json.loads(payload)
                except ValueError as error:
                    raise words.broken(f"{whole} is no JSON: {error}") from None
                getattr(self, f"blob_{kind}", lambda contents, words: None)(contents, words)

    def blob_session(self, contents, words):
        if contents["format"] != 1:
            raise words.broken(f"format {contents['format']}")
        if len(contents["session"]) != 16:
            raise words.broken(f"session {contents['session']!r}")
        self.segment.session = contents

    def blob_functions(self, contents, words):
        for function in contents:
            self.segment.functions[function["id"]] = function["name"]

    def blob_process(self, contents, words):
        self.segment.processes.add(contents["koid"])
        self.segment.images[contents["koid"]] = contents["image"]

    def blob_module(self, contents, words):
        self.segment.modules.add(contents["id"])

    def blob_end(self, contents, words):
        self.ended.add(json.dumps(contents.get("koid", contents.get("process"))))

    def blob_names(self, contents, words):
        self.names = True

    def stack_nodes(self, payload, words):
        if len(payload) < 8:
            raise words.broken("stacks without a head")
        image, count = struct.unpack_from("<II", payload)
        if len(payload) != 8 + STACK_NODE.size * count:
            raise words.broken(f"{len(payload)} bytes for {count} nodes of stacks")
        known = self.segment.stacks.setdefault(image, set())
        for index in range(count):
            node, parent, _, module, zero = STACK_NODE.unpack_from(payload, 8 + STACK_NODE.size * index)
            if zero:
                raise words.broken(f"node {node} of the stacks: its last field is not zero")
            if parent != 0 and parent not in known:
                raise words.broken(f"node {node} of the stacks comes before its parent {parent}")
            if module != NO_MODULE and module not in self.segment.modules:
                raise words.broken(f"node {node} of the stacks is in module {module}, which was not described")
            known.add(node)

    def summary(self, packed):
        events = sum(self.events.values())
        return {
            "segments": self.segments,
            "bytes": len(self.data),
            "packed_bytes": packed,
            "records": self.records,
            "events": self.events,
            "blobs": self.blobs,
            "counters": self.counters,
            "wrong_counters": self.wrong_counters,
            "bytes_per_event": round(len(self.data) / events, 3) if events else None,
            "packed_bytes_per_event": round(packed / events, 3) if events else None,
            "longest_event_bytes": self.longest_event,
            "event_bytes_per_event": round(self.event_bytes / events, 3) if events else None,
            "processes": {
                str(koid): {
                    "live_blocks": len(heap.blocks) + sum(size is not None for size in heap.pending.values()),
                    "live_bytes": heap.bytes(),
                }
                for koid, heap in sorted(self.heaps.items())
            },
            "seconds": self.span,
            "ended": len(self.ended),
            "names": self.names,
            "torn_at": self.tear,
            "session": self.segment.session,
        }


def load(path, torn):
    with open(path, "rb") as file:
        data = file.read()
    if data[:4] != ZSTD_MAGIC:
        return data, len(data)
    import zstandard

    packed, out = len(data), []
    while data:
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        try:
            # In pieces: of a torn frame, what can be unpacked counts.
            for at in range(0, len(data), 1 << 16):
                out.append(unpacker.decompress(data[at : at + (1 << 16)]))
                if unpacker.eof:
                    data = unpacker.unused_data + data[at + (1 << 16) :]
                    break
            else:
                if not torn:
                    raise Broken(packed, "the last zstd frame is not whole")
                data = b""
        except zstandard.ZstdError as error:
            raise Broken(packed - len(data), f"zstd: {error}") from None
    return b"".join(out), packed


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("trace")
    arguments.add_argument("--torn", action="store_true", help="the trace may end in the middle of a record")
    arguments.add_argument("--events", action="store_true", help="print each event")
    arguments = arguments.parse_args()
    try:
        data, packed = load(arguments.trace, arguments.torn)
        decoder = Decoder(data, arguments.torn, arguments.events)
        decoder.run()
    except Broken as error:
        print(f"{arguments.trace}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(decoder.summary(packed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
