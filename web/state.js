// What is shown, and its form in the address: whoever opens the address sees the same.

// The state at first. What is like this is not in the address.
export function firstState(column) {
  return {
    view: 'flame', col: column, unit: 'bytes', mode: 'icicle', fn: '', zoom: 0, q: '', hide: '', merge: false,
    by: 'function', sort: 'self', down: true, from: -1, to: -1,
  };
}

// The choices of what is no free text or number.
const CHOICES = {
  view: ['flame', 'table', 'findings', 'tests', 'sizes', 'about'],
  unit: ['bytes', 'blocks'],
  mode: ['icicle', 'flame', 'callers', 'callees'],
  by: ['function', 'file', 'module', 'thread', 'type', 'site'],
};

// The state as a fragment, without the `#`.
export function fragmentOf(state, first) {
  const parts = [];
  for (const [key, value] of Object.entries(state)) {
    if (value !== first[key]) parts.push(`${key}=${encodeURIComponent(typeof value === 'boolean' ? Number(value) : value)}`);
  }
  return parts.join('&');
}

// The state that a fragment tells; what makes no sense in it is as at first.
export function stateOf(fragment, first, columns) {
  const state = { ...first };
  for (const part of fragment.replace(/^#/, '').split('&')) {
    const at = part.indexOf('=');
    const key = part.slice(0, at);
    if (at < 0 || !Object.hasOwn(first, key)) continue;
    let value;
    try {
      value = decodeURIComponent(part.slice(at + 1));
    } catch {
      continue;
    }
    const choices = key === 'col' ? columns : CHOICES[key];
    if (choices && !choices.includes(value)) continue;
    if (typeof first[key] === 'number') {
      const number = Number(value);
      if (Number.isFinite(number)) state[key] = number;
    } else if (typeof first[key] === 'boolean') state[key] = value === '1';
    else state[key] = value;
  }
  return state;
}
