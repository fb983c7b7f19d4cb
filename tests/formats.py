"""Reads what heaptrace has written with the published message definitions, and prints figures as JSON.

usage: python formats.py pftrace|otlp FILE

The answer is {"functions": {NAME: {FIGURE: NUMBER}}, ...}: sums by innermost function.
"""

import collections
import json
import sys

from google.protobuf import unknown_fields


def assert_known(message):
    """Fails if the message has a field that its definition lacks, at any depth."""
    assert not len(unknown_fields.UnknownFieldSet(message)), message.DESCRIPTOR.full_name
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                assert_known(inner)


def names_of(trace):
    """The name of the heap in each sequence."""
    packets = [packet for packet in trace.packet if packet.HasField("profile_packet")]
    return {
        packet.trusted_packet_sequence_id: dump.heap_name
        for packet in packets
        for dump in packet.profile_packet.process_dumps
    }


def pftrace(path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket

    trace = Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    functions = collections.defaultdict(collections.Counter)
    tables = collections.defaultdict(lambda: collections.defaultdict(dict))
    begun, indices, heaps, tracks, counters = set(), {}, {}, {}, collections.defaultdict(list)
    clocks, mappings, sources, open_dumps = {}, {}, {}, set()
    ids, given, sums = {}, set(), {}

    for packet in trace.packet:
        assert_known(packet)
        sequence = packet.trusted_packet_sequence_id
        assert sequence != 0
        if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            assert sequence not in begun
            begun.add(sequence)
        assert sequence in begun, "state that was never begun"
        table = tables[sequence]
        for kind, messages in (
            ("function", packet.interned_data.function_names),
            ("path", packet.interned_data.mapping_paths),
            ("build", packet.interned_data.build_ids),
            ("source", packet.interned_data.source_paths),
            ("mapping", packet.interned_data.mappings),
            ("frame", packet.interned_data.frames),
            ("stack", packet.interned_data.callstacks),
        ):
            for message in messages:
                assert message.iid > 0 and message.iid not in table[kind], (kind, message.iid)
                table[kind][message.iid] = message
        if packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.type == event.TYPE_COUNTER and event.HasField("counter_value")
            name = tracks[event.track_uuid].name
            assert tracks[event.track_uuid].counter.unit == 3
            assert tracks[tracks[event.track_uuid].parent_uuid].HasField("process")
            counters[name].append([packet.timestamp, event.counter_value])
        if packet.HasField("profile_packet"):
            profile = packet.profile_packet
            assert profile.index == indices.get(sequence, -1) + 1
            indices[sequence] = profile.index
            for dump in profile.process_dumps:
                assert 4 in clocks, "no clock to place the dump by"
                assert dump.orig_sampling_interval_bytes == dump.sampling_interval_bytes
                heap = heaps.setdefault(dump.heap_name, {"pid": dump.pid, "dumps": {}})
                heap["timestamp"] = dump.timestamp
                heap["from_startup"], heap["interval"] = dump.from_startup, dump.sampling_interval_bytes
                heap["packets"] = heap.get("packets", 0) + 1
                for sample in dump.samples:
                    # what Perfetto's importer makes of it: a stack with a frame that has no mapping is dropped, equal ones are one,
                    # figures must not fall within a sequence
                    frames = [table["frame"][iid] for iid in table["stack"][sample.callstack_id].frame_ids]
                    stack = []
                    for frame in frames:
                        mapping = table["mapping"][frame.mapping_id]
                        path = "".join("/" + table["path"][iid].str.decode() for iid in mapping.path_string_ids)
                        name = table["function"][frame.function_name_id].str.decode()
                        stack.append((path, frame.rel_pc, name))
                        if path != "/[no module]":
                            build_id = table["build"][mapping.build_id].str.hex() if mapping.build_id else None
                            mappings[path] = build_id
                            assert mapping.start < mapping.end and frame.rel_pc
                        if frame.source_path_iid:
                            sources[name] = table["source"][frame.source_path_iid].str.decode()
                    stack = tuple(stack)
                    assert ids.setdefault((sequence, stack), sample.callstack_id) == sample.callstack_id
                    assert (sequence, dump.timestamp, stack) not in given, "a stack twice in a dump"
                    given.add((sequence, dump.timestamp, stack))
                    if sample.HasField("self_max"):
                        figures = (sample.self_max, sample.self_max_count, 0, 0)
                    else:
                        figures = (sample.self_allocated, sample.alloc_count, sample.self_freed, sample.free_count)
                    before = sums.get((sequence, stack), (0, 0, 0, 0))
                    assert all(now >= then for now, then in zip(figures, before)), (stack, before, figures)
                    sums[sequence, stack] = figures
                if not profile.continued:
                    live = collections.Counter()
                    for (owner, stack), (allocated, _, freed, _) in sums.items():
                        if owner == sequence:
                            # the outermost comes first
                            live[stack[-1][2]] += allocated - freed
                    heap["dumps"][dump.timestamp] = live
            (open_dumps.add if profile.continued else open_dumps.discard)(sequence)
    peaks = {sequence for sequence, name in names_of(trace).items() if name.endswith("at its peak")}
    for (sequence, stack), (allocated, allocations, freed, frees) in sums.items():
        leaf = functions[stack[-1][2]]
        if sequence in peaks:
            leaf["peak_bytes"] += allocated
            leaf["peak_objects"] += allocations
        else:
            leaf["allocated_bytes"] += allocated
            leaf["allocated_objects"] += allocations
            leaf["live_bytes"] += allocated - freed
            leaf["live_objects"] += allocations - frees
    assert not open_dumps, "a dump without an end"
    process = next(track.process for track in tracks.values() if track.HasField("process"))
    return {
        "functions": functions,
        "heaps": heaps,
        "counters": counters,
        "mappings": mappings,
        "sources": sources,
        "process": {"pid": process.pid, "name": process.process_name, "command": list(process.cmdline)},
    }


def otlp(path):
    from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

    data = ProfilesData()
    with open(path, "rb") as file:
        data.ParseFromString(file.read())
    assert_known(data)
    tables = data.dictionary
    for field in tables.DESCRIPTOR.fields:
        table = getattr(tables, field.name)
        empty = table[0] if field.name == "string_table" else table[0].SerializeToString()
        assert not empty, f"{field.name} must begin with an empty entry"
        entries = [entry if isinstance(entry, str) else entry.SerializeToString() for entry in table]
        assert len(entries) == len(set(entries)), f"{field.name} has the same entry twice"
    strings = tables.string_table

    def value_of(value):
        kind = value.WhichOneof("value")
        return [value_of(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    def attributes(message):
        entries = [tables.attribute_table[index] for index in message.attribute_indices]
        assert len({entry.key_strindex for entry in entries}) == len(entries), "a key twice"
        return {strings[entry.key_strindex]: value_of(entry.value) for entry in entries}

    def unpacked(location):
        assert location.lines and all(0 < line.function_index for line in location.lines)
        return [strings[tables.function_table[line.function_index].name_strindex] for line in location.lines]

    names = {"alloc": "allocated", "inuse": "live", "peak": "peak", "space": "bytes", "objects": "objects"}
    functions, threads, order = collections.defaultdict(collections.Counter), set(), []
    (resource,) = data.resource_profiles
    (scope,) = resource.scope_profiles
    ids = set()
    for profile in scope.profiles:
        kind, unit = strings[profile.sample_type.type_strindex], strings[profile.sample_type.unit_strindex]
        assert unit == {"space": "bytes", "objects": "count"}[kind.split("_")[1]]
        order.append(kind)
        assert strings[profile.period_type.type_strindex] == "space" and profile.period == 1
        assert len(profile.profile_id) == 16 and profile.profile_id not in ids
        ids.add(profile.profile_id)
        identities = set()
        for sample in profile.samples:
            identity = (sample.stack_index, tuple(sorted(sample.attribute_indices)))
            assert identity not in identities and sample.stack_index > 0
            identities.add(identity)
            threads.update(filter(None, [attributes(sample).get("thread.name")]))
            stack = tables.stack_table[sample.stack_index]
            leaf = unpacked(tables.location_table[stack.location_indices[0]])[0]
            (value,) = sample.values
            functions[leaf]["_".join(names[part] for part in kind.split("_"))] += value
    mappings = {
        strings[mapping.filename_strindex]: attributes(mapping).get("process.executable.build_id.gnu")
        for mapping in tables.mapping_table[1:]
    }
    return {
        "functions": functions,
        "order": order,
        "threads": sorted(threads),
        "mappings": mappings,
        "time": scope.profiles[0].time_unix_nano,
        "duration": scope.profiles[0].duration_nano,
        "comments": attributes(scope.profiles[0])["pprof.profile.comment"],
        "resource": {entry.key: value_of(entry.value) for entry in resource.resource.attributes},
    }


READERS = {"pftrace": pftrace, "otlp": otlp}

if __name__ == "__main__":
    json.dump(READERS[sys.argv[1]](sys.argv[2]), sys.stdout)
