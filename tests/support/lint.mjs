// Looks at modules of the page for what `node --check` says nothing of. A small scanner, no parser: it knows names and
// where they stand, not their scopes.

// What browsers give, as far as the page may use it.
const GLOBALS = new Set(`Array Blob BigInt DecompressionStream Error Event Float32Array Float64Array HTMLInputElement Infinity Int32Array JSON Map Math MessageChannel MouseEvent NaN Number Object Promise
RegExp Response Set String Symbol TextDecoder URL Uint16Array Uint32Array Uint8Array addEventListener arguments atob clearTimeout decodeURIComponent document encodeURIComponent getComputedStyle
globalThis history innerHeight innerWidth isFinite location matchMedia navigator parseInt performance requestAnimationFrame setTimeout undefined window`.split(/\s+/));

const KEYWORDS = new Set(`as async await break case catch class const continue default delete do else export extends false finally for function get if import in instanceof let new null of return set
static super switch this throw true try typeof var void while yield`.split(/\s+/));

// What makes markup or code out of text, or is left over from looking for a fault.
const REFUSED = new Set(['eval', 'Function', 'innerHTML', 'outerHTML', 'insertAdjacentHTML', 'console', 'debugger', 'alert', 'var', 'with']);

// After these an operand follows: a slash begins an expression then.
const BEFORE_OPERAND = new Set([...'({[,;=!&|?:+-*%~^<>', '=>', '...', 'return', 'typeof', 'case', 'in', 'of', 'yield', 'await', '']);

// The tokens of a text: `kind` is name, text, template, expression, number or mark; `line` counts from 1.
export function tokensOf(text) {
  const tokens = [];
  let at = 0;
  let line = 1;
  // For each open brace whether a template goes on behind it.
  const braces = [];
  const add = (kind, value) => {
    tokens.push({ kind, value, line });
    line += value.split('\n').length - 1;
    at += value.length;
  };
  const matching = pattern => {
    pattern.lastIndex = at;
    return pattern.exec(text)?.[0];
  };
  while (at < text.length) {
    const space = matching(/(\s+|\/\/[^\n]*|\/\*[^]*?\*\/)/y);
    if (space !== undefined) {
      line += space.split('\n').length - 1;
      at += space.length;
      continue;
    }
    const last = tokens[tokens.length - 1]?.value ?? '';
    const begins = text[at] === '`' || (text[at] === '}' && braces[braces.length - 1] === true);
    if (begins) {
      if (text[at] === '}') braces.pop();
      const value = matching(/[`}](\\[^]|\$(?!\{)|[^\\`$])*(`|\$\{)/y);
      if (value === undefined) throw new Error(`line ${line}: a template does not end`);
      if (value.endsWith('${')) braces.push(true);
      add('template', value);
      continue;
    }
    const name = matching(/[\p{ID_Start}$_#][\p{ID_Continue}$]*/uy);
    if (name !== undefined) {
      add('name', name);
      continue;
    }
    const number = matching(/\d[\w.]*/y);
    if (number !== undefined) {
      add('number', number);
      continue;
    }
    const quoted = matching(/'(\\[^]|[^\\'\n])*'|"(\\[^]|[^\\"\n])*"/y);
    if (quoted !== undefined) {
      add('text', quoted);
      continue;
    }
    const expression = BEFORE_OPERAND.has(last) ? matching(/\/(\\.|\[(\\.|[^\]\\\n])*\]|[^/\\[\n])+\/\w*/y) : undefined;
    if (expression !== undefined) {
      add('expression', expression);
      continue;
    }
    const mark = matching(/>>>=?|\*\*=?|===|!==|==|!=|=>|\.\.\.|\?\?=?|\?\.|&&=?|\|\|=?|\+\+|--|[-+*/%&|^<>]=|<<|>>|[^]/y);
    if (mark === '{') braces.push(false);
    if (mark === '}') braces.pop();
    add('mark', mark);
  }
  return tokens;
}

// What a module has: what it imports, exports and declares, what it names, and what is wrong in it by itself.
export function moduleOf(file, text) {
  const tokens = tokensOf(text);
  const module = { file, imports: [], exports: new Set(), top: new Set(), declared: new Map(), named: new Map(), problems: [] };
  const say = (token, problem) => module.problems.push(`${file}:${token.line}: ${problem}`);
  const declare = token => module.declared.set(token.value, token);
  let depth = 0;
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i];
    const [before, after] = [tokens[i - 1]?.value ?? '', tokens[i + 1]?.value ?? ''];
    const isMember = before === '.' || before === '?.';
    if (token.kind === 'mark' && '([{'.includes(token.value)) depth += 1;
    if (token.kind === 'mark' && ')]}'.includes(token.value)) depth -= 1;
    if (token.kind === 'template') depth += token.value.endsWith('${') - token.value.startsWith('}');
    if (token.value === '==' || token.value === '!=') say(token, `${token.value} in place of ${token.value}=`);
    if (token.kind !== 'name') continue;
    if (REFUSED.has(token.value)) say(token, `${token.value} is not used here`);
    if (token.value === 'import' && depth === 0) {
      const end = tokens.findIndex((other, k) => k > i && other.kind === 'text');
      const names = tokens.slice(i + 1, end).filter(({ kind, value }) => kind === 'name' && value !== 'from');
      const from = tokens[end].value.slice(1, -1);
      for (const name of names) {
        module.imports.push({ name: name.value, from, token: name });
        declare(name);
      }
      i = end;
      continue;
    }
    if (!isMember && ['const', 'let', 'function', 'class'].includes(token.value)) {
      const names = namesDeclared(tokens, i + 1);
      names.forEach(declare);
      if (depth === 0) {
        names.forEach(name => module.top.add(name.value));
        if (before === 'export' || (before === 'async' && tokens[i - 2]?.value === 'export')) names.forEach(name => module.exports.add(name.value));
      }
      continue;
    }
    if (KEYWORDS.has(token.value) || isMember || token.value.startsWith('#')) continue;
    const isKey = after === ':' && ['{', ','].includes(before);
    const isMethod = after === '(' && ['{', '}', ';', '*', 'static', 'async', 'get', 'set'].includes(before) && tokens[matchingEnd(tokens, i + 1) + 1]?.value === '{';
    if (!isKey && !isMethod) module.named.set(token.value, [...(module.named.get(token.value) ?? []), token]);
  }
  for (const token of parametersOf(tokens)) declare(token);
  for (const [name, uses] of module.named) {
    if (!module.declared.has(name) && !GLOBALS.has(name)) say(uses[0], `${name} is not declared`);
  }
  for (const [name, token] of module.declared) {
    const uses = (module.named.get(name) ?? []).filter(use => use !== token);
    if (uses.length === 0 && !module.exports.has(name)) say(token, `${name} is not used`);
  }
  return module;
}

// The index of the bracket that closes the one at `open`.
function matchingEnd(tokens, open) {
  let depth = 0;
  for (let i = open; i < tokens.length; i++) {
    const { kind, value } = tokens[i];
    if (kind === 'template') depth += value.endsWith('${') - value.startsWith('}');
    if (kind !== 'mark') continue;
    if ('([{'.includes(value)) depth += 1;
    if (')]}'.includes(value)) depth -= 1;
    if (depth === 0) return i;
  }
  return tokens.length;
}

// The names in a pattern from `from` to before `to`: not the keys that are renamed, not what stands for values that are
// missing.
function namesIn(tokens, from, to) {
  const names = [];
  for (let i = from; i < to; i++) {
    const { kind, value } = tokens[i];
    if (kind === 'mark' && value === '=') {
      for (let depth = 0; i + 1 < to; i++) {
        const next = tokens[i + 1].value;
        if (depth === 0 && [',', '}', ']', ')'].includes(next)) break;
        if ('([{'.includes(next)) depth += 1;
        if (')]}'.includes(next)) depth -= 1;
      }
    } else if (kind === 'name' && !KEYWORDS.has(value) && tokens[i + 1]?.value !== ':') names.push(tokens[i]);
  }
  return names;
}

// The names that a declaration makes whose first token is at `from`.
function namesDeclared(tokens, from) {
  const first = tokens[from].value === '*' ? from + 1 : from;
  const { value } = tokens[first];
  if (value === '(') return [];
  const end = value === '{' || value === '[' ? matchingEnd(tokens, first) + 1 : first + 1;
  const names = namesIn(tokens, first, end);
  // Up to the end of the statement more may follow, each behind a comma.
  for (let i = end, depth = 0; tokens[end]?.value === '=' && i < tokens.length; i++) {
    const next = tokens[i];
    if (next.kind === 'template') depth += next.value.endsWith('${') - next.value.startsWith('}');
    if (next.kind !== 'mark') continue;
    if ('([{'.includes(next.value)) depth += 1;
    if (')]}'.includes(next.value)) depth -= 1;
    if (depth < 0 || (depth === 0 && next.value === ';')) break;
    if (depth === 0 && next.value === ',') return [...names, ...namesDeclared(tokens, i + 1)];
  }
  return names;
}

// The names of parameters: of functions, methods and arrows, and what `catch` takes.
function parametersOf(tokens) {
  const names = [];
  tokens.forEach(({ value }, i) => {
    if (value === '=>' && tokens[i - 1].value !== ')') names.push(tokens[i - 1]);
    if (value !== '(') return;
    const end = matchingEnd(tokens, i);
    const after = tokens[end + 1]?.value;
    const before = tokens[i - 1]?.value ?? '';
    const isFunction = after === '=>' || (after === '{' && !['if', 'for', 'while', 'switch'].includes(before));
    if (isFunction) names.push(...namesIn(tokens, i + 1, end));
  });
  return names;
}

// What is wrong in modules as a whole: `modules` in the order in which they are joined, `others` besides use their
// names.
export function problemsOf(modules, others) {
  const problems = modules.flatMap(module => module.problems);
  const owners = new Map();
  const wanted = new Set([...modules, ...others].flatMap(module => module.imports.map(({ name, from }) => `${from.replace(/^.*\//, '')} ${name}`)));
  modules.forEach((module, at) => {
    for (const name of module.top) {
      if (owners.has(name)) problems.push(`${module.file}: ${name} is declared in ${owners.get(name)}, too`);
      owners.set(name, module.file);
    }
    for (const { name, from, token } of module.imports) {
      const source = modules.findIndex(other => `./${other.file}` === from);
      if (source < 0 || source >= at) problems.push(`${module.file}:${token.line}: ${from} does not come before it`);
      else if (!modules[source].exports.has(name)) problems.push(`${module.file}:${token.line}: ${from} has no ${name}`);
    }
    for (const name of module.exports) {
      if (!wanted.has(`${module.file} ${name}`)) problems.push(`${module.file}: nobody imports ${name}`);
    }
  });
  return problems;
}
