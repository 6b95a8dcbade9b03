// What the Node suites share: a suite is a list of cases, and a case returns what
// the SDK gave it. The runner prints one JSON object, case by case, so that two
// runs can be compared: one against the model server, one through Tollgate.
//
//   GATEWAY_URL    the server's root, without /v1
//   GATEWAY_KEY    the API key
//   TOLLGATE_SUITE  a word in the models' names, so that suites that run at once
//                   do not share what a gateway knows of a model
//
// Nothing here knows which of the two it talks to.

import { createHash } from 'node:crypto';
import assert from 'node:assert/strict';

export const url = process.env.GATEWAY_URL;
export const key = process.env.GATEWAY_KEY;
export const chatModel = 'fake-chat-' + process.env.TOLLGATE_SUITE;
export const claudeModel = 'fake-claude-' + process.env.TOLLGATE_SUITE;

// suite runs the cases named as arguments, or all, and prints what they gave.
// Cases that mostly wait may run at once.
export async function suite(cases, { atOnce = false } = {}) {
  const results = {};
  const chosen = Object.keys(cases).filter((name) => process.argv.length < 3 || process.argv.includes(name, 2));
  const one = async (name) => {
    try {
      results[name] = shown(await cases[name]());
    } catch (error) {
      // The other cases may still tell something.
      console.error(`case ${name}:`, error);
      process.exitCode = 1;
    }
  };
  if (atOnce) await Promise.all(chosen.map(one));
  else for (const name of chosen) await one(name);
  process.stdout.write(JSON.stringify(results, null, 1));
}

// shown is a value as JSON. Classes are named, and their own fields kept.
function shown(value) {
  if (value === undefined) return { undefined: true };
  if (value === null || typeof value !== 'object') return value;
  if (value instanceof Uint8Array) {
    return { bytes: value.length, sha256: createHash('sha256').update(value).digest('hex') };
  }
  if (value instanceof Error) {
    const seen = { error: value.constructor.name };
    for (const name of ['status', 'code', 'param', 'type', 'statusCode', 'isRetryable']) {
      if (value[name] !== undefined) seen[name] = shown(value[name]);
    }
    if (value.error !== undefined) seen.body = shown(value.error);
    return seen;
  }
  if (Array.isArray(value)) return value.map(shown);
  const fields = Object.entries(value).filter(([name, v]) => !name.startsWith('_') && typeof v !== 'function' && v !== undefined);
  return Object.fromEntries(fields.map(([name, v]) => [name, shown(v)]));
}

// collect gathers what a stream yields.
export async function collect(stream) {
  const all = [];
  for await (const item of stream) all.push(item);
  return all;
}

// raised is the error that a call throws, which must be of the given class.
export async function raised(kind, call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof kind, `want ${kind.name}, got ${error?.stack}`);
    return error;
  }
  assert.fail('nothing was thrown');
}

// fault is a header that makes the model server misbehave; see
// internal/fakeprovider.
export const fault = (orders) => ({ 'X-Fake-Fault': orders });

// Attempts notes when an SDK sends a request and what the answer's status is. A
// fault that is asked for meets the first attempt alone.
export class Attempts {
  sent = [];
  statuses = [];
  told = 0; // the last Retry-After, in seconds
  onAnswer = () => {};

  fetch = async (input, init) => {
    const headers = new Headers(init?.headers);
    if (this.sent.length) headers.delete('X-Fake-Fault');
    this.sent.push(performance.now());
    const answer = await fetch(input, { ...init, headers });
    this.statuses.push(answer.status);
    this.told = Number(answer.headers.get('retry-after') ?? this.told);
    await this.onAnswer(answer.status);
    return answer;
  };

  // The seconds between one attempt and the next.
  waits = () => this.sent.slice(1).map((at, i) => (at - this.sent[i]) / 1000);
}

// png is a picture of 64 × 32 pixels in one colour, in base64.
export const png =
  'iVBORw0KGgoAAAANSUhEUgAAAEAAAAAgCAIAAAAt/+nTAAAAN0lEQVR42u3PQQkAAAgEsItkJCMZ' +
  '2Qw+hcEKLNXzWgQEBAQEBAQEBAQEBAQEBAQEBAQEBAQErhZ0vQCIFE6HPQAAAABJRU5ErkJggg==';

// wav is silence: 8,000 samples a second, 8 bits, one channel.
export function wav(seconds) {
  const data = Buffer.alloc(8000 * seconds, 0x80);
  const head = Buffer.alloc(44);
  head.write('RIFF', 0);
  head.writeUInt32LE(36 + data.length, 4);
  head.write('WAVEfmt ', 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22);
  head.writeUInt32LE(8000, 24);
  head.writeUInt32LE(8000, 28);
  head.writeUInt16LE(1, 32);
  head.writeUInt16LE(8, 34);
  head.write('data', 36);
  head.writeUInt32LE(data.length, 40);
  return Buffer.concat([head, data]);
}
