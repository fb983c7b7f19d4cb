// Small helpers for the page.

// An element with attributes, listeners (`onclick`) and children. Texts are put in as texts, never as markup.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

// A group of buttons of which one is on. `choices` are [value, title, key]; `tell` is called with what was chosen.
export function choice(element, choices, chosen, tell) {
  const buttons = choices.map(([value, title, key]) => make('button', {
    type: 'button', 'data-value': value, 'aria-pressed': String(value === chosen), 'aria-keyshortcuts': key, title: key ? `Key ${key}` : null, onclick: () => tell(value),
  }, title));
  element.replaceChildren(...buttons);
}

// Gives an attribute its value, if it has another one.
export function tell(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

// Marks the chosen one of such buttons.
export function choose(element, chosen) {
  for (const button of element.children) tell(button, 'aria-pressed', button.dataset.value === chosen);
}

// Colours that were asked for. Light and dark have their own.
const themeColors = new Map();

// A colour that the style sheet has under this name.
export function themeColor(name) {
  let color = themeColors.get(name);
  if (color === undefined) {
    color = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    themeColors.set(name, color);
  }
  return color;
}

// To be called when light turns to dark.
export function forgetColors() {
  themeColors.clear();
}

// A colour as the number that a picture's data has for it on the machines there are (little-endian: alpha, blue, green,
// red), mixed with `share` of another one.
export function pixelOf(color, share = 0, other = color) {
  const [own, mixed] = [channels(color), channels(other)];
  const byte = i => Math.round(own[i] + (mixed[i] - own[i]) * share);
  return (0xff000000 | byte(2) << 16 | byte(1) << 8 | byte(0)) >>> 0;
}

function channels(color) {
  const context = document.createElement('canvas').getContext('2d');
  context.fillStyle = color;
  const value = parseInt(context.fillStyle.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

// Makes a canvas as sharp as the screen for its size in the page; returns its context, in CSS pixels, and the size.
export function sharpen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Gives a text to the clipboard, also where a page from a disk may not ask for it.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make('textarea', { class: 'away', readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

// Lets the browser save a file.
export function saveFile(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make('a', { href: address, download: name });
  link.click();
  URL.revokeObjectURL(address);
}

// The box that follows the pointer.
export class Tip {
  constructor(element) {
    this.element = element;
  }

  show(x, y, ...children) {
    const { element } = this;
    element.replaceChildren(...children);
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? Math.max(4, x - width - 10) : x + 14;
    const top = y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18;
    element.style.left = `${left}px`;
    element.style.top = `${top}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}
