// The rows of the table: sums over the call tree by function, file or module, and the sites one by one. Pure.
import { baseName, shortName } from './text.js';

// Rows of what the nodes of a tree have in common. `key` gives each node's group (a whole number below `groups`), -1 for none. `own` has amounts that the nodes have by
// themselves, by name. Each row has `group`, for each name what its innermost calls have, and under `total` what stacks through it have of `main`: each stack counts once.
export function sumsBy(tree, groups, key, own, main) {
  const names = Object.keys(own);
  const sums = Object.fromEntries(names.map(name => [name, new Float64Array(groups)]));
  const total = new Float64Array(groups);
  const until = new Int32Array(groups);
  const whole = new Float64Array(tree.n);
  whole.set(own[main]);
  for (let i = tree.n - 1; i > 0; i--) whole[tree.parent[i]] += whole[i];
  for (let i = 1; i < tree.n; i++) {
    const group = key(i);
    if (group < 0) continue;
    for (const name of names) sums[name][group] += own[name][i];
    if (i >= until[group]) {
      until[group] = tree.end[i];
      total[group] += whole[i];
    }
  }
  const rows = [];
  for (let group = 0; group < groups; group++) {
    if (total[group] > 0 || sums[main][group] > 0) {
      const row = { group, total: total[group] };
      for (const name of names) row[name] = sums[name][group];
      rows.push(row);
    }
  }
  return rows;
}

// Adds what follows from the sums: the mean size of the blocks allocated, and the share of them that were temporary.
export function withShares(rows) {
  for (const row of rows) {
    row.mean = row.allocations > 0 ? row.allocatedBytes / row.allocations : NaN;
    row.temporary = row.allocations > 0 && row.temporaries !== undefined ? row.temporaries / row.allocations : NaN;
  }
  return rows;
}

// The rows in order of a column; what has no value comes last, equal ones by name.
export function sorted(rows, column, down) {
  const sign = down ? -1 : 1;
  const compare = (a, b) => {
    const [x, y] = [a[column], b[column]];
    if (typeof x === 'string') return sign * (x < y ? -1 : x > y ? 1 : 0);
    if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
    return sign * (x - y);
  };
  return rows.sort((a, b) => compare(a, b) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
}

// What a site is called: the function that tells whose allocation it is, and who calls that, as far as these are not the same.
export function siteName(tree, strings, node, telling) {
  let at = node;
  for (let up = 0; up < telling && tree.parent[at] > 0; up++) at = tree.parent[at];
  const names = [];
  for (; at > 0 && names.length < 4; at = tree.parent[at]) {
    const name = shortName(strings[tree.func[at]]);
    if (name !== names[names.length - 1]) names.push(name);
  }
  return names.join(' ← ');
}

// What a file is called in the table: its path; of what has none, the module in brackets.
export function fileName(strings, file, module) {
  if (file > 0) return strings[file];
  return module > 0 ? `[${baseName(strings[module])}]` : '[unknown]';
}

// Rows as CSV (RFC 4180). Texts that a spreadsheet would take for formulas get an apostrophe before them.
export function csv(columns, rows) {
  const cell = value => {
    if (typeof value === 'number') return Number.isNaN(value) ? '' : String(value);
    const text = /^[=+\-@\t]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map(column => cell(column.title))];
  for (const row of rows) lines.push(columns.map(column => cell(row[column.key])));
  return lines.map(line => line.join(',') + '\r\n').join('');
}
