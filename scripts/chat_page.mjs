#!/usr/bin/env node
// The page of `farpast serve` in a headless Chromium that a program drives: keys, clicks, a small screen, a dark one.
//
// usage: scripts/chat_page.mjs FARPAST BROWSER          called by scripts/chat_page.sh
//
// The browser is spoken to in the DevTools protocol over two pipes. Any error on its console ends the test, but for those of a
// server that was taken away.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import assert from 'node:assert/strict';

const [farpast, browser] = process.argv.slice(2);
const PATIENCE = 120_000;
const sleep = ms => new Promise(done => setTimeout(done, ms));

// What `look` finds once it finds something.
async function until(what, look, patience = PATIENCE) {
  for (const end = Date.now() + patience; Date.now() < end; await sleep(30)) {
    const found = await look();
    if (found) return found;
  }
  throw new Error(`waited in vain for ${what}`);
}

async function serve() {
  const args = ['serve', '-m', 'smollm2', '--port', '0', '-c', '1024', '--no-tune', '--alias', 'smol'];
  const server = spawn(farpast, args, { stdio: ['ignore', 'inherit', 'pipe'] });
  let text = '';
  server.stderr.setEncoding('utf8').on('data', more => text += more);
  const address = await until('the server', () => {
    assert.equal(server.exitCode, null, text);
    return text.match(/^serving (\S+)$/m)?.[1];
  });
  return { server, address };
}

// A tab of a new browser with a profile of its own.
class Tab {
  static async open() {
    const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'farpast-chat-page-'));
    const flags = ['--headless', '--no-sandbox', '--no-first-run', '--disable-gpu', '--disable-background-networking',
      '--disable-component-update', '--disable-sync', '--disable-quic', `--user-data-dir=${profile}`, '--remote-debugging-pipe'];
    const child = spawn(browser, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'], detached: true });
    const tab = Object.assign(new Tab(), { child, profile, id: 0, waiting: new Map(), errors: [], bodies: [], session: undefined });
    let rest = '';
    child.stdio[4].setEncoding('utf8').on('data', more => {
      const messages = (rest + more).split('\0');
      rest = messages.pop();
      messages.forEach(message => tab.receive(JSON.parse(message)));
    });
    child.on('exit', () => tab.waiting.forEach(({ reject }) => reject(new Error('the browser has ended'))));
    const { targetId } = await tab.send('Target.createTarget', { url: 'about:blank' });
    tab.session = (await tab.send('Target.attachToTarget', { targetId, flatten: true })).sessionId;
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await tab.send(`${domain}.enable`);
    return tab;
  }

  send(method, params = {}) {
    const id = ++this.id;
    this.child.stdio[3].write(JSON.stringify({ id, method, params, sessionId: this.session }) + '\0');
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${method} is not answered`)), 30_000);
      this.waiting.set(id, { resolve: result => resolve(result, clearTimeout(late)), reject, method });
    });
  }

  receive({ id, result, error, method, params }) {
    const asked = this.waiting.get(id);
    this.waiting.delete(id);
    if (error) asked.reject(new Error(`${asked.method}: ${error.message}`));
    else asked?.resolve(result);
    if (method === 'Runtime.exceptionThrown') this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === 'Runtime.consoleAPICalled' && ['error', 'warning', 'assert'].includes(params.type)) this.errors.push(JSON.stringify(params.args));
    if (method === 'Log.entryAdded' && ['error', 'warning'].includes(params.entry.level)) this.errors.push(`${params.entry.text} ${params.entry.url ?? ''}`);
    if (method === 'Network.requestWillBeSent' && params.request.postData) this.bodies.push(JSON.parse(params.request.postData));
  }

  // The value of an expression in the page.
  async value(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  async key(key, modifiers = 0) {
    const code = { Enter: 13, Escape: 27, Tab: 9 }[key];
    const text = key === 'Enter' ? '\r' : undefined;
    const event = { key, code: key, windowsVirtualKeyCode: code, modifiers };
    await this.send('Input.dispatchKeyEvent', { type: 'keyDown', text, ...event });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...event });
  }

  type(text) {
    return this.send('Input.insertText', { text });
  }

  async click(selector) {
    const at = await this.value(`(() => {
      const element = document.querySelector(${JSON.stringify(selector)});
      element.scrollIntoView({ block: "nearest" });
      const { x, y, width, height } = element.getBoundingClientRect();
      return { x: x + width / 2, y: y + height / 2 };
    })()`);
    for (const type of ['mousePressed', 'mouseReleased']) {
      await this.send('Input.dispatchMouseEvent', { type, button: 'left', clickCount: 1, ...at });
    }
  }

  texts(kind) {
    return this.value(`[...document.querySelectorAll(".${kind}")].map(element => element.textContent)`);
  }

  idle() {
    return this.value('!document.getElementById("send").hidden && document.getElementById("stop").hidden');
  }

  async close() {
    // With all of its processes.
    process.kill(-this.child.pid, 'SIGKILL');
    await until('the end of the browser', () => this.child.exitCode !== null || this.child.signalCode);
    fs.rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

// Contrast of all words with what is behind them, by the formula of WCAG 2; the least.
const CONTRAST = `(() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => channels(colour).slice(0, 3).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
    const canvas = document.createElement("div");
    canvas.style.color = "Canvas";
    document.body.append(canvas);
    const colour = getComputedStyle(canvas).color;
    canvas.remove();
    return colour;
  };
  const ratio = element => {
    const [a, b] = [getComputedStyle(element).color, behind(element)].map(light).sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  };
  const elements = [...document.querySelectorAll(".message, .note, h1, #model, textarea")];
  return { least: Math.min(...elements.map(ratio)), ground: light(behind(document.body)) };
})()`;

async function use(tab, { server, address }) {
  await tab.send('Page.navigate', { url: address + '/' });
  await until('the page', () => tab.value('document.readyState === "complete" && document.title === "farpast"'));
  // With the first frame.
  await until('a place to type', () => tab.value('document.activeElement.id === "text"'), 10_000);

  // A question by keyboard, whose answer comes in pieces.
  await tab.value('localStorage.clear(); temperature.value = 0; limit.value = 40');
  await tab.type('What is the capital of France?');
  await tab.key('Enter');
  await until('the stop button', async () => !(await tab.idle()));
  const lengths = new Set();
  await until('an answer', async () => {
    lengths.add((await tab.texts('assistant'))[0]?.length ?? 0);
    return tab.idle();
  });
  const [first] = await tab.texts('assistant');
  assert.match(first, /Paris/);
  assert.ok(lengths.size > 3, `the answer came in ${lengths.size} pieces`);
  assert.match((await tab.texts('note'))[0], /^\d+ \+ \d+ tokens, [\d.]+ tokens\/s/);
  assert.equal(await tab.value('document.getElementById("model").textContent'), 'smol');

  // A second turn by mouse, with a line break, which sends what was said before.
  await tab.type('Answer in one word:');
  await tab.key('Enter', 8);
  await tab.type('and of Italy?');
  assert.equal((await tab.texts('user')).length, 1, 'Shift+Enter does not send');
  await tab.click('#send');
  await until('a second answer', async () => (await tab.idle()) && (await tab.texts('assistant')).length === 2);
  assert.deepEqual(tab.bodies.at(-1).messages, [
    { role: 'user', content: 'What is the capital of France?' },
    { role: 'assistant', content: first },
    { role: 'user', content: 'Answer in one word:\nand of Italy?' },
  ]);

  // An answer is stopped by button and by key; what has come stays, and the server computes no more of it.
  for (const stop of [() => tab.click('#stop'), () => tab.key('Escape')]) {
    await tab.value('limit.value = ""');
    const before = (await tab.texts('assistant')).length;
    await tab.type('Tell me a very long story about a ship, with every detail.');
    await tab.key('Enter');
    await until('the beginning of a story', async () => (await tab.texts('assistant'))[before]?.length > 20);
    await stop();
    await until('the send button', () => tab.idle(), 5_000);
    const stopped = (await tab.texts('assistant')).at(-1);
    await until('the server to rest', async () => /num_requests_running\S* 0$/m.test(await (await fetch(address + '/metrics')).text()), 10_000);
    assert.equal((await tab.texts('assistant')).at(-1), stopped, 'nothing comes behind the stop');
  }
  assert.deepEqual(await tab.texts('error'), []);

  // A refusal is shown in the server's words, and what was asked can be asked again.
  assert.deepEqual(tab.errors, []);
  await tab.value('temperature.value = 9');
  await tab.type('Hello');
  await tab.key('Enter');
  await until('a refusal', async () => (await tab.texts('error'))[0]?.includes('temperature'));
  await until('the question', async () => (await tab.value('text.value')) === 'Hello');
  assert.match(tab.errors.splice(0).join(), /^Failed to load resource: the server responded with a status of 400/);

  // Code is set apart, and HTML is text.
  await tab.value('temperature.value = 0; render(show("message assistant", ""), "See:\\n```html\\n<b>x</b>\\n```\\n<i>done</i>")');
  const rendered = await tab.value('document.querySelector(".assistant:last-child").innerHTML');
  assert.equal(rendered, 'See:\n<pre>&lt;b&gt;x&lt;/b&gt;</pre>&lt;i&gt;done&lt;/i&gt;');

  // By day, by night, and on a telephone.
  for (const scheme of ['light', 'dark']) {
    await tab.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
    const { least, ground } = await tab.value(CONTRAST);
    assert.ok(least >= 4.5, `${scheme}: a contrast of ${least}`);
    assert.ok(scheme === 'dark' ? ground < 0.1 : ground > 0.8, `${scheme}: the ground is of ${ground}`);
  }
  await tab.send('Emulation.setDeviceMetricsOverride', { width: 360, height: 640, deviceScaleFactor: 2, mobile: true });
  const outside = await tab.value(`[...document.querySelectorAll("body *")].filter(element => !element.closest("pre") &&
    element.getBoundingClientRect().right > innerWidth + 0.5).map(element => element.outerHTML)`);
  assert.deepEqual(outside, [], 'nothing is wider than a telephone');
  assert.equal(await tab.value('document.scrollingElement.scrollWidth'), 360);
  const send = await tab.value('(() => { const r = document.getElementById("send").getBoundingClientRect(); return [r.top, r.bottom]; })()');
  assert.ok(send[0] >= 0 && send[1] <= 640, `the button is in sight: ${send}`);
  await tab.send('Emulation.clearDeviceMetricsOverride');

  // A new chat begins with nothing, also while an answer comes.
  await tab.value('text.value = ""; text.focus()');
  await tab.type('Tell me a long story.');
  await tab.key('Enter');
  const before = (await tab.texts('assistant')).length;
  await until('a story', async () => (await tab.texts('assistant')).length > before);
  await tab.click('#clear');
  assert.deepEqual(await tab.texts('message'), []);
  await tab.value('limit.value = 4; system.value = "Be brief."');
  await tab.type('Hi');
  await tab.key('Enter');
  await until('a short answer', async () => (await tab.texts('note'))[0]?.endsWith(', cut off'));
  assert.deepEqual(tab.bodies.at(-1).messages, [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'Hi' }]);
  assert.deepEqual(tab.errors, []);

  // The server goes away in the middle of an answer, and is gone for the next.
  await tab.value('limit.value = ""');
  await tab.type('Tell me a long story.');
  await tab.key('Enter');
  await until('a story', async () => (await tab.texts('assistant'))[1]?.length > 10);
  server.kill('SIGKILL');
  await until('an error', async () => (await tab.texts('error')).length === 1, 10_000);
  await tab.type('Are you there?');
  await tab.key('Enter');
  await until('another error', async () => (await tab.texts('error')).length === 2, 10_000);
  for (const text of await tab.texts('error')) assert.match(text, /^The server cannot be reached: ./);
  assert.equal(await tab.value('text.value'), 'Are you there?');
  assert.ok(await tab.idle());
  assert.ok(tab.errors.length > 0 && tab.errors.every(text => /net::ERR_/.test(text)), tab.errors.join('\n'));
}

const began = Date.now();
const served = await serve();
let tab;
try {
  tab = await Tab.open();
  await use(tab, served);
  console.log(`the chat page in ${(await tab.send('Browser.getVersion')).product}: ok, ${((Date.now() - began) / 1000).toFixed(1)} s`);
} catch (error) {
  console.error(error, tab?.errors);
  process.exitCode = 1;
} finally {
  await tab?.close();
  served.server.kill('SIGKILL');
}
