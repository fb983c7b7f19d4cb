// Unpacks the data of the page. src/export/html/numbers.rs says how the numbers lie.
import { printable } from './text.js';

// The bytes of a block of Base64 that zlib has compressed.
export async function unpack(text) {
  const packed = Uint8Array.from(atob(text.trim()), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reads lists of varints.
export class Numbers {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  next() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    let scale = 128;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  }

  list(Kind) {
    const list = new Kind(this.next());
    for (let i = 0; i < list.length; i++) list[i] = this.next();
    return list;
  }
}

// All strings below a value, without characters that do something.
function cleaned(value) {
  if (typeof value === 'string') return printable(value);
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      if (typeof value[i] !== 'number') value[i] = cleaned(value[i]);
    }
  } else if (value !== null && typeof value === 'object') {
    for (const key of Object.keys(value)) value[key] = cleaned(value[key]);
  }
  return value;
}

// Numbers with signs, of 0, -1, 1, -2, … as 0, 1, 2, 3, …
function signed(list) {
  for (let i = 0; i < list.length; i++) list[i] = list[i] % 2 === 0 ? list[i] / 2 : -(list[i] + 1) / 2;
  return list;
}

// What the page shows: `words` (src/export/html.rs) and the lists of numbers.
export function decode(wordBytes, numberBytes) {
  const told = JSON.parse(new TextDecoder().decode(wordBytes));
  // These have lines, which they need.
  const suppressions = told.problems.map(({ suppression }) => suppression?.split('\n').map(printable).join('\n') ?? null);
  const words = cleaned(told);
  suppressions.forEach((suppression, i) => { words.problems[i].suppression = suppression; });
  const numbers = new Numbers(numberBytes);
  const { strings } = words;
  const frames = { name: numbers.list(Uint32Array), file: numbers.list(Uint32Array), module: numbers.list(Uint32Array), line: numbers.list(Uint32Array) };
  const depth = numbers.list(Uint32Array);
  const frame = numbers.list(Uint32Array);
  const steps = signed(numbers.list(Float64Array));
  const sites = { node: new Uint32Array(steps.length), telling: numbers.list(Uint32Array), quality: numbers.list(Uint8Array), type: numbers.list(Uint32Array) };
  let node = 0;
  for (let i = 0; i < steps.length; i++) {
    node += steps[i];
    sites.node[i] = node;
  }
  const columns = words.columns.map(({ name, title }) => ({ name, title, blocks: numbers.list(Float64Array), bytes: numbers.list(Float64Array) }));
  const lifetimes = words.lifetimes ? numbers.list(Float64Array) : null;
  const moments = numbers.at < numberBytes.length ? numbers.list(Float64Array) : new Float64Array(0);
  const heaps = [...moments].map(t => {
    const changed = numbers.list(Uint32Array);
    for (let i = 1; i < changed.length; i++) changed[i] += changed[i - 1];
    const [allocatedBlocks, allocatedBytes, liveBlocks, liveBytes] = [0, 1, 2, 3].map(() => signed(numbers.list(Float64Array)));
    return { t, node: changed, allocated: { blocks: allocatedBlocks, bytes: allocatedBytes }, live: { blocks: liveBlocks, bytes: liveBytes } };
  });
  return { words, report: words.report, strings, frames, nodes: { depth, frame }, sites, columns, lifetimes, heaps };
}
