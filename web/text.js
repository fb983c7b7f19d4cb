// How numbers and names are written for people, as heaptrace's summary writes them.

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

// `12.34 MiB`, in powers of 1024; below 1 KiB `123 B`.
export function bytesText(bytes) {
  if (bytes < 1024) return `${Math.round(bytes)} B`;
  let value = bytes / 1024;
  let unit = 0;
  // 1023.995 would be rounded to 1024.00
  while (value >= 1023.995 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(2)} ${UNITS[unit]}`;
}

// `1,234,567`
export function countText(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, ',');
}

// The amount in the unit that is shown.
export function amountText(amount, unit) {
  return unit === 'bytes' ? bytesText(amount) : countText(amount);
}

// `+12.34 MiB`, `−3`, `0`: a change of an amount in the unit that is shown.
export function changeText(change, unit) {
  return `${change > 0 ? '+' : change < 0 ? '−' : ''}${amountText(Math.abs(change), unit)}`;
}

// `12.3 %`; a dash where there is no whole.
export function percentText(part, whole) {
  if (!(whole > 0)) return '–';
  const share = part / whole * 100;
  return part > 0 && share < 0.05 ? '<0.1 %' : `${share.toFixed(1)} %`;
}

// `1.23 s`, `45.6 ms`, `2 h 03 min`
export function durationText(ns) {
  const seconds = ns / 1e9;
  if (ns === 0) return '0 s';
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 999_950) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 999_950_000) return `${(ns / 1e6).toFixed(1)} ms`;
  if (ns < 59_995_000_000) return `${seconds.toFixed(2)} s`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = number => String(number).padStart(2, '0');
  return hours > 0 ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(rest)} s`;
}

// `1 block`, `2 blocks`
export function plural(count, noun) {
  return `${countText(count)} ${noun}${count === 1 ? '' : 's'}`;
}

// Characters that do something instead of being seen: controls, marks of direction. They are shown as `?`.
const ACTIVE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]/g;

export function printable(text) {
  return text.replace(ACTIVE, '?');
}

const STD_STRING = 'std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >';

// A function's name without what makes it long: arguments, parameters of templates, the hash of Rust's older mangling.
export function shortName(name) {
  let short = shortNames.get(name);
  if (short === undefined) {
    short = shortened(name);
    shortNames.set(name, short);
  }
  return short;
}

// The names that were asked for before.
const shortNames = new Map();

function shortened(name) {
  const whole = name.replace(/::h[0-9a-f]{16}$/, '').replaceAll(STD_STRING, 'std::string');
  const bare = withoutBrackets(withoutBrackets(whole, '(', ')'), '<', '>').replace(/ const$/, '');
  return bare === '' ? whole : bare;
}

// Leaves out what stands in brackets, unless they begin the name or belong to that of an operator.
function withoutBrackets(name, open, close) {
  let kept = '';
  let depth = 0;
  for (let i = 0; i < name.length; i++) {
    const c = name[i];
    const isArrow = c === '>' && (name[i - 1] === '-' || name[i - 1] === '=');
    if (depth > 0) {
      if (c === open) depth += 1;
      else if (c === close && !isArrow) depth -= 1;
    } else if (c === open && kept !== '' && !/operator[<(]?$/.test(kept) && !(open === '(' && name.startsWith('(anonymous', i)) && closes(name, i, open, close)) {
      depth = 1;
    } else {
      kept += c;
    }
  }
  return kept;
}

// Whether a bracket has its closing one.
function closes(name, at, open, close) {
  let depth = 0;
  for (let i = at; i < name.length; i++) {
    const isArrow = name[i] === '>' && (name[i - 1] === '-' || name[i - 1] === '=');
    if (name[i] === open) depth += 1;
    else if (name[i] === close && !isArrow && --depth === 0) return true;
  }
  return false;
}

// The end of a path, which says most.
export function shortPath(path) {
  const parts = path.split('/');
  return parts.length > 4 ? `…/${parts.slice(-3).join('/')}` : path;
}

// The last part of a path.
export function baseName(path) {
  return path.slice(path.lastIndexOf('/') + 1);
}

// Makes a test of names out of what was typed: a part of the name, whatever its case, or `/regular expression/`. Null
// if nothing, or no expression, was typed.
export function matcher(typed) {
  const text = typed.trim();
  if (text === '') return null;
  const expression = /^\/(.*)\/(i?)$/.exec(text);
  if (expression) {
    try {
      const pattern = new RegExp(expression[1], expression[2]);
      return name => pattern.test(name);
    } catch {
      return null;
    }
  }
  const part = text.toLowerCase();
  return name => name.toLowerCase().includes(part);
}
