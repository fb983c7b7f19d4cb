// Reads a .firefox.json by the rules of the Firefox Profiler's types (src/types/profile.ts), fails where one is broken,
// and prints what the profiler's four ways to sum up native allocations (src/profile-logic/profile-data.js) give for
// each track and each innermost function, as JSON. node read_firefox.mjs FILE
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

const bytes = readFileSync(process.argv[2]);
const profile = JSON.parse(bytes[0] === 0x1f ? gunzipSync(bytes) : bytes);

function check(holds, what) {
  if (!holds) throw new Error(what);
}

const isIndex = (value, length) => Number.isInteger(value) && value >= 0 && value < length;

// All columns have as many entries as the table says.
function columns(table, names, where) {
  for (const name of names) check(Array.isArray(table[name]) && table[name].length === table.length, `${where}.${name} has not ${table.length} entries`);
}

function indices(column, length, where, none) {
  column.forEach((value, at) => check(value === none || isIndex(value, length), `${where}[${at}] is ${value}, of ${length}`));
}

const { meta, libs, threads, counters } = profile;
check(meta.preprocessedProfileVersion === 55, 'another version');
check(meta.categories.some(category => category.color === 'grey' && category.subcategories.length > 0), 'no default category');
check(meta.symbolicated === true && Number.isFinite(meta.startTime) && Number.isFinite(meta.interval), 'meta');
indices(meta.initialVisibleThreads, threads.length, 'initialVisibleThreads');
indices(meta.initialSelectedThreads, threads.length, 'initialSelectedThreads');
check(new Set(threads.map(thread => thread.tid)).size === threads.length, 'tids are not unique');
check(threads.filter(thread => thread.isMainThread).length === 1 && threads[0].isMainThread, 'the first thread is not the main one');
for (const lib of libs) check(/^[0-9A-F]{32}0$/.test(lib.breakpadId) && lib.path && lib.debugName, `lib ${lib.name}`);
const schemas = new Set(meta.markerSchema.map(schema => schema.name));

function tables(thread, number) {
  const where = name => `threads[${number}].${name}`;
  const { frameTable, funcTable, stackTable, resourceTable, nativeSymbols, stringArray, markers, samples, nativeAllocations } = thread;
  columns(frameTable, ['address', 'inlineDepth', 'category', 'subcategory', 'func', 'nativeSymbol', 'innerWindowID', 'line', 'column'], where('frameTable'));
  columns(funcTable, ['name', 'isJS', 'relevantForJS', 'resource', 'fileName', 'lineNumber', 'columnNumber'], where('funcTable'));
  columns(stackTable, ['prefix', 'frame'], where('stackTable'));
  columns(resourceTable, ['lib', 'name', 'host', 'type'], where('resourceTable'));
  columns(nativeSymbols, ['address', 'functionSize', 'libIndex', 'name'], where('nativeSymbols'));
  columns(markers, ['category', 'data', 'name', 'phase', 'startTime', 'endTime'], where('markers'));
  columns(samples, ['stack', 'timeDeltas'], where('samples'));
  columns(nativeAllocations, ['time', 'weight', 'stack', 'memoryAddress', 'threadId'], where('nativeAllocations'));
  check(stringArray.every(text => typeof text === 'string'), where('stringArray'));
  indices(frameTable.func, funcTable.length, where('frameTable.func'));
  indices(frameTable.category, meta.categories.length, where('frameTable.category'));
  frameTable.subcategory.forEach((value, at) => check(isIndex(value, meta.categories[frameTable.category[at]].subcategories.length), where('frameTable.subcategory')));
  indices(frameTable.nativeSymbol, nativeSymbols.length, where('frameTable.nativeSymbol'), null);
  check(frameTable.address.every(value => value === -1 || Number.isSafeInteger(value) && value >= 0), where('frameTable.address'));
  check(frameTable.line.every(value => value === null || value > 0), where('frameTable.line'));
  indices(funcTable.name, stringArray.length, where('funcTable.name'));
  indices(funcTable.fileName, stringArray.length, where('funcTable.fileName'), null);
  indices(funcTable.resource, resourceTable.length, where('funcTable.resource'), -1);
  indices(resourceTable.lib, libs.length, where('resourceTable.lib'));
  indices(resourceTable.name, stringArray.length, where('resourceTable.name'));
  indices(stackTable.frame, frameTable.length, where('stackTable.frame'));
  // a caller comes before what it calls
  stackTable.prefix.forEach((prefix, at) => check(prefix === null || isIndex(prefix, at), where(`stackTable.prefix[${at}]`)));
  indices(nativeAllocations.stack, stackTable.length, where('nativeAllocations.stack'), null);
  check(nativeAllocations.weightType === 'bytes', where('nativeAllocations.weightType'));
  const { time, weight, memoryAddress } = nativeAllocations;
  check(time.every((value, at) => at === 0 || value >= time[at - 1]), where('nativeAllocations.time'));
  check(weight.every(value => Number.isSafeInteger(value) && value !== 0), where('nativeAllocations.weight'));
  check(memoryAddress.every(Number.isSafeInteger), where('nativeAllocations.memoryAddress'));
  markers.data.forEach((data, at) => {
    check(schemas.has(data.type) && isIndex(markers.name[at], stringArray.length), where(`markers[${at}]`));
    check(markers.phase[at] === 0 && markers.endTime[at] === null && markers.startTime[at] >= 0, where(`markers[${at}]`));
  });
}
threads.forEach(tables);

for (const counter of counters) {
  columns(counter.samples, ['timeDeltas', 'count', 'number'], 'counters');
  indices([counter.mainThreadIndex], threads.length, 'counters');
  check(counter.samples.timeDeltas.every(delta => delta >= 0) && counter.pid === threads[counter.mainThreadIndex].pid, 'counters');
}

// Sums by innermost function of [stack, bytes].
function byFunction(thread, list) {
  const sums = {};
  for (const [stack, bytes] of list) {
    if (stack === null) continue;
    const { stackTable, frameTable, funcTable, stringArray } = thread;
    const name = stringArray[funcTable.name[frameTable.func[stackTable.frame[stack]]]];
    sums[name] = (sums[name] ?? 0) + bytes;
  }
  return sums;
}

// What is allocated up to a time, and not freed by then.
function retained(table, until) {
  const live = new Map();
  for (let at = 0; at < table.length && table.time[at] <= until; at++) {
    if (table.weight[at] > 0) live.set(table.memoryAddress[at], [table.stack[at], table.weight[at]]);
    else live.delete(table.memoryAddress[at]);
  }
  return [...live.values()];
}

function strategies(thread) {
  const table = thread.nativeAllocations;
  const events = table.weight.map((bytes, at) => [table.stack[at], bytes, table.memoryAddress[at]]);
  const allocatedAt = new Map(events.filter(([, bytes]) => bytes > 0).map(([stack, , address]) => [address, stack]));
  const frees = events.filter(([, bytes]) => bytes < 0);
  const peak = thread.markers.data.findIndex(data => data.type === 'Peak');
  return {
    retained: byFunction(thread, retained(table, Infinity)),
    allocated: byFunction(thread, events.filter(([, bytes]) => bytes > 0)),
    freed: byFunction(thread, frees.map(([, bytes, address]) => [allocatedAt.get(address) ?? null, -bytes])),
    freedAt: byFunction(thread, frees.map(([stack, bytes]) => [stack, -bytes])),
    upToPeak: peak < 0 ? null : byFunction(thread, retained(table, thread.markers.startTime[peak])),
  };
}

// Each function with file, library and the lines of its frames.
function functions(thread) {
  const { frameTable, funcTable, resourceTable, stringArray } = thread;
  return funcTable.name.map((name, at) => ({
    name: stringArray[name],
    file: funcTable.fileName[at] === null ? null : stringArray[funcTable.fileName[at]],
    lib: funcTable.resource[at] < 0 ? null : libs[resourceTable.lib[funcTable.resource[at]]].path,
    lines: frameTable.line.filter((line, frame) => frameTable.func[frame] === at),
  }));
}

const sumUp = counter => {
  let [time, bytes] = [0, 0];
  return counter.samples.count.map((count, at) => [(time += counter.samples.timeDeltas[at]), (bytes += count)]);
};
console.log(JSON.stringify({
  tracks: threads.map(thread => ({ name: thread.name, pid: thread.pid, process: thread.processName, ...strategies(thread) })),
  functions: functions(threads[0]),
  markers: threads[0].markers.name.map((name, at) => [threads[0].stringArray[name], threads[0].markers.startTime[at], threads[0].markers.data[at]]),
  counters: Object.fromEntries(counters.map(counter => [counter.name, sumUp(counter)])),
  allocations: counters[0].samples.number.reduce((sum, number) => sum + number, 0),
  arguments: meta.arguments,
  libs,
}));
