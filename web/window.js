// What happened in a part of the time, for files that know heaps of moments on the way. Pure.

// The heaps that bound a window: those next to its ends. -1 stands for the beginning, before all. Null if there are
// none.
export function boundsOf(heaps, from, to) {
  if (heaps.length === 0 || from < 0) return null;
  const nearest = time => {
    let best = -1;
    let distance = time;
    heaps.forEach(({ t }, i) => {
      if (Math.abs(t - time) < distance) [best, distance] = [i, Math.abs(t - time)];
    });
    return best;
  };
  const begin = Math.min(nearest(from), heaps.length - 2);
  return { begin, end: Math.max(nearest(to), begin + 1) };
}

// What the nodes have by themselves of a column, in a window: `allocated` and `freed` are what came and went in it,
// `live` is what is live at its end, `peak` the one of its heaps with most live bytes. Null for what is not known of
// windows.
export function ownIn(heaps, nodes, { begin, end }, column, unit) {
  const sum = (of, first, last) => {
    const own = new Float64Array(nodes);
    for (let i = first; i <= last; i++) {
      const { node } = heaps[i];
      const changes = heaps[i][of][unit];
      for (let k = 0; k < node.length; k++) own[node[k]] += changes[k];
    }
    return own;
  };
  if (column === 'allocated') return sum('allocated', begin + 1, end);
  if (column === 'live') return sum('live', 0, end);
  if (column === 'freed') {
    const live = sum('live', begin + 1, end);
    return sum('allocated', begin + 1, end).map((allocated, i) => Math.max(0, allocated - live[i]));
  }
  if (column === 'peak') return sum('live', 0, largestIn(heaps, begin, end));
  return null;
}

// The heap of a window with most live bytes.
function largestIn(heaps, begin, end) {
  let [live, most, largest] = [0, -1, end];
  for (let i = 0; i <= end; i++) {
    for (const change of heaps[i].live.bytes) live += change;
    if (i >= begin && live > most) [most, largest] = [live, i];
  }
  return largest;
}
