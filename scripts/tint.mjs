#!/usr/bin/env node
// Asks Tint, the WGSL compiler of Chromium, about every shader. naga, wgpu's own, accepts what browsers reject: barriers
// in control flow that is not uniform, constants that overflow, infinities. Needs no GPU and no driver.
//
// usage: scripts/tint.mjs FILE.wgsl|FOLDER...
//
// Each shader's compute entry points become pipelines on a device with WebGPU's default limits, so what passes runs on
// the smallest device that WebGPU allows. Two comments in a shader are read here:
//
//   // constants: ROWS=4 WIDTH=64     values of its overrides; one pipeline for each such line
//   // beyond default limits          chosen only where the device has more: the text is checked, no pipeline is made
//
// A shader that enables an extension of wgpu's own (`enable wgpu_...;`) is not WebGPU: counted as skipped.
// Exit code: 0 all accepted, 1 some rejected, 2 nothing could be checked.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const VERSION = '0.6.2';
const FEATURES = ['shader-f16', 'subgroups'];

function stop(message) {
  console.error(`tint: ${message}`);
  process.exit(2);
}

async function dawn() {
  const cache = process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache');
  const folder = path.join(cache, 'farpast', 'validators', `webgpu-${VERSION}`);
  try {
    return await import(pathToFileURL(createRequire(path.join(folder, 'package.json')).resolve('webgpu')));
  } catch (error) {
    stop(`the npm package webgpu ${VERSION} cannot be loaded; install it with scripts/validators.sh\n  ${error.message}`);
  }
}

function shaders(args) {
  const files = args.flatMap(arg =>
    fs.statSync(arg).isDirectory()
      ? fs.readdirSync(arg, { recursive: true }).filter(name => name.endsWith('.wgsl')).sort().map(name => path.join(arg, name))
      : [arg]);
  if (files.length === 0) stop(`no .wgsl file in ${args.join(' ') || 'no argument'}`);
  return files;
}

// The values of each line `// constants: NAME=NUMBER ...`; one empty set if there is none.
function constants(code) {
  const lines = [...code.matchAll(/^\/\/\s*constants:(.*)$/gm)].map(([, text]) =>
    Object.fromEntries(text.trim().split(/[\s,]+/).filter(Boolean).map(pair => {
      const [name, value] = pair.split('=');
      const number = { true: 1, false: 0 }[value] ?? Number.parseFloat(value);
      if (!Number.isFinite(number)) throw new Error(`constants: ${pair} is not NAME=NUMBER`);
      return [name, number];
    })));
  return lines.length > 0 ? lines : [{}];
}

// What Tint says against a shader: { severity, line, column, message } each.
async function check(device, code) {
  const found = [];
  // Browsers demand this line and naga does not know it.
  const plain = code.replace(/\/\/.*$/gm, line => ' '.repeat(line.length));
  const uses = /\b(subgroup[A-Z_]\w*|quad(Broadcast|Swap[XYD]\w*)|num_subgroups)\b/.test(plain);
  const prefix = uses && !/\benable\s[^;]*\bsubgroups\b/.test(plain) ? 'enable subgroups; ' : '';

  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code: prefix + code });
  const { messages } = await module.getCompilationInfo();
  await device.popErrorScope();
  for (const { type, lineNum, linePos, message } of messages) {
    found.push({ severity: type, line: lineNum, column: linePos - (lineNum === 1 ? prefix.length : 0), message });
  }
  if (hasError(found)) return found;

  const entryPoints = [...plain.matchAll(/@compute\b[^{;]*?\bfn\s+(\w+)/g)];
  if (entryPoints.length === 0) found.push({ severity: 'error', line: 1, column: 1, message: 'no compute entry point' });
  if (/^\/\/\s*beyond default limits\b/m.test(code)) return found;
  for (const { 0: text, 1: entryPoint, index } of entryPoints) {
    const line = plain.slice(0, index + text.length).split('\n').length;
    for (const values of constants(code)) {
      try {
        await device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint, constants: values } });
      } catch (error) {
        const reason = error.message.trim().split('\n')[0];
        const message = `pipeline ${entryPoint} with ${JSON.stringify(values)}: ${reason}`;
        found.push({ severity: 'error', line, column: 1, message });
      }
    }
  }
  return found;
}

function hasError(found) {
  return found.some(({ severity }) => severity === 'error');
}

// A check that never fails proves nothing: one shader must pass and each of these must not.
async function checkItself(device) {
  const shader = (body, size = 64) => `
    @group(0) @binding(0) var<storage, read_write> y: array<f32>;
    var<workgroup> part: array<f32, ${size}>;
    @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) { ${body} y[i] = part[63u - i]; }`;
  const rejected = async code => hasError(await check(device, code));
  if (await rejected(shader('part[i] = y[i]; workgroupBarrier();'))) stop('self-check failed: a correct shader is rejected');
  const wrong = {
    'a barrier in non-uniform control flow': shader('if (i < 4u) { part[i] = y[i]; workgroupBarrier(); }'),
    'a barrier after a non-uniform return': shader('if (y[i] > 0.0) { return; } workgroupBarrier();'),
    'more workgroup memory than every device has': shader('part[i] = y[i]; workgroupBarrier();', 4097),
    'an unknown name': shader('part[i] = z[i];'),
  };
  for (const [what, code] of Object.entries(wrong)) {
    if (!(await rejected(code))) stop(`self-check failed: ${what} is accepted`);
  }
}

const files = shaders(process.argv.slice(2));
const { create, globals } = await dawn();
Object.assign(globalThis, globals);
const gpu = (globalThis.gpu = create(['backend=null'])); // Dawn goes when it is collected, and the process with it
const adapter = await gpu.requestAdapter();
if (!adapter) stop('Dawn has no null adapter');
const requiredFeatures = FEATURES.filter(feature => adapter.features.has(feature));
const device = await adapter.requestDevice({ requiredFeatures });
await checkItself(device);

let rejected = 0, skipped = 0;
for (const file of files) {
  const code = fs.readFileSync(file, 'utf8');
  if (/^\s*enable\s[^;]*\bwgpu_/m.test(code)) {
    skipped++;
    continue;
  }
  let found;
  try {
    found = await check(device, code);
  } catch (error) {
    found = [{ severity: 'error', line: 1, column: 1, message: error.message }];
  }
  for (const { severity, line, column, message } of found) {
    console.log(`${file}:${line}:${column}: ${severity}: ${message}\n    ${code.split('\n')[line - 1] ?? ''}`);
  }
  if (hasError(found)) rejected++;
}
console.log(`tint: ${files.length - rejected - skipped} accepted, ${rejected} rejected, ${skipped} skipped`);
device.destroy();
process.exit(rejected > 0 ? 1 : files.length === skipped ? 2 : 0);
