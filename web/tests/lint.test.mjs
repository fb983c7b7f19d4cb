import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { moduleOf, problemsOf } from '../../tests/support/lint.mjs';

const read = path => readFileSync(new URL(path, import.meta.url), 'utf8');

test('the modules of the page use what they declare, and declare what they use', () => {
  const order = [...read('../../src/export/html.rs').matchAll(/web\/(\w+\.js)"/g)].map(([, file]) => file);
  assert.deepEqual([...order].sort(), readdirSync(new URL('..', import.meta.url)).filter(file => file.endsWith('.js')).sort());
  const modules = order.map(file => moduleOf(file, read(`../${file}`)));
  const tests = readdirSync(new URL('.', import.meta.url)).map(file => moduleOf(file, read(file)));
  assert.deepEqual(problemsOf(modules, tests), []);
});

test('what is wrong is told', () => {
  const problems = text => moduleOf('a.js', text).problems.map(problem => problem.replace('a.js:', ''));
  assert.deepEqual(problems('const a = 1;\nexport function f(x) {\n  return x == a ? 1 : b;\n}\n'), ['3: == in place of ===', '3: b is not declared']);
  assert.deepEqual(problems('import { x, y } from "./b.js";\nconst z = `${x} y z ${"}"}`;\n'), ['1: y is not used', '2: z is not used']);
  assert.deepEqual(problems('export const f = ({ a, b: c, ...d }, [e] = [], g = 5) => a + c + d + e;'), ['1: g is not used']);
  assert.deepEqual(problems('export const r = s => s.replace(/["/]b/g, "x").match(/y/) / 2;'), []);
  assert.deepEqual(problems('export function f(e) {\n  e.innerHTML = "";\n  var x = 1;\n}\n'), ['2: innerHTML is not used here', '3: var is not used here', '3: x is not declared']);
  assert.deepEqual(problems('export class A {\n  m(a) {\n    return this.n();\n  }\n\n  *n() {\n    for (const [k, v] of []) yield k;\n  }\n}\n'), ['7: v is not used', '2: a is not used']);
  const [one, two] = [moduleOf('one.js', 'const a = 1;\nexport const b = a;\n'), moduleOf('two.js', "import { c } from './one.js';\nconst a = c;\nexport const d = a;\n")];
  assert.deepEqual(problemsOf([one, two], []), ['one.js: nobody imports b', 'two.js: a is declared in one.js, too', 'two.js:1: ./one.js has no c', 'two.js: nobody imports d']);
  assert.ok(problemsOf([two, one], []).includes('two.js:1: ./one.js does not come before it'));
});
