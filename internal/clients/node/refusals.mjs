// What the openai and @anthropic-ai/sdk packages make of Tollgate's own refusals.
// Each key has one limit; GATEWAY_KEYS holds them as JSON, by the limit and the
// package.

import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { Attempts, chatModel, claudeModel, collect, fault, raised, suite, url } from './harness.mjs';

const keys = JSON.parse(process.env.GATEWAY_KEYS);
const messages = [{ role: 'user', content: 'Name three rivers.' }];

// Each request may take 40 tokens of output.
const sdks = {
  openai: {
    errors: OpenAI,
    client: (options) => new OpenAI({ ...options, baseURL: url + '/v1' }),
    model: chatModel,
    ask: (client, more, options) => client.chat.completions.create({ model: chatModel, messages, max_tokens: 40, ...more }, options),
    code: (error) => error.code,
  },
  anthropic: {
    errors: Anthropic,
    client: (options) => new Anthropic({ ...options, baseURL: url }),
    model: claudeModel,
    ask: (client, more, options) => client.messages.create({ model: claudeModel, messages, max_tokens: 40, ...more }, options),
    code: (error) => error.error?.error?.details?.error_code,
  },
};

// waitsAsTold: the SDK came back once, not before Retry-After had passed, and was
// let in. Node's timers may be a millisecond early.
function waitsAsTold(attempts, status = 429) {
  assert.deepEqual(attempts.statuses, [200, status, 200]);
  assert.ok(attempts.told >= 1, `Retry-After ${attempts.told}`);
  assert.ok(attempts.waits()[1] > attempts.told - 0.01, `waited ${attempts.waits()[1]} of ${attempts.told}`);
}

const cases = {};
for (const [name, sdk] of Object.entries(sdks)) {
  const open = (limit, options) => {
    const attempts = new Attempts();
    const client = sdk.client({ apiKey: keys[`${limit}-node-${name}`], fetch: attempts.fetch, ...options });
    return [client, attempts];
  };

  for (const limit of ['rate', 'window']) {
    cases[`${name}_waits_for_the_${limit}`] = async () => {
      const [client, attempts] = open(limit);
      await sdk.ask(client);
      await sdk.ask(client);
      waitsAsTold(attempts);
    };
  }

  // The place is given back while the SDK waits.
  cases[`${name}_waits_for_a_place`] = async () => {
    const [client, attempts] = open('places');
    const running = await sdk.ask(client, { stream: true }, { headers: fault('slow=50') });
    await running[Symbol.asyncIterator]().next();
    attempts.onAnswer = (status) => status === 429 && running.controller.abort();
    await sdk.ask(client);
    waitsAsTold(attempts);
  };

  cases[`${name}_gives_up_on_a_spent_budget`] = async () => {
    const [client, attempts] = open('budget');
    await sdk.ask(client);
    const error = await raised(sdk.errors.APIError, () => sdk.ask(client));
    assert.deepEqual(attempts.statuses, [200, 402]);
    assert.equal(error.headers.get('retry-after'), null);
    assert.equal(error.headers.get('x-should-retry'), 'false');
    assert.equal(error.headers.get('x-tollgate-error-source'), 'tollgate');
    return [error.constructor.name, error.status, sdk.code(error)];
  };

  cases[`${name}_gives_up_on_what_never_fits`] = async () => {
    const [client, attempts] = open('small');
    const error = await raised(sdk.errors.RateLimitError, () => sdk.ask(client));
    assert.deepEqual(attempts.statuses, [429]);
    return [error.constructor.name, sdk.code(error)];
  };

  cases[`${name}_is_told_when_a_slot_may_be_free`] = async () => {
    const [client, attempts] = open('slots', { maxRetries: 0 });
    const running = await sdk.ask(client, { stream: true }, { headers: fault('slow=50') });
    await running[Symbol.asyncIterator]().next();
    const error = await raised(sdk.errors.InternalServerError, () => sdk.ask(client));
    running.controller.abort();
    assert.deepEqual(attempts.statuses, [200, 503]);
    assert.ok(Number(error.headers.get('retry-after')) >= 1);
    return [error.constructor.name, sdk.code(error)];
  };

  cases[`${name}_an_answered_idempotency_key_is_not_retried`] = async () => {
    const [client, attempts] = open('free');
    const headers = { 'Idempotency-Key': `rivers-node-${name}` };
    await sdk.ask(client, {}, { headers });
    const error = await raised(sdk.errors.ConflictError, () => sdk.ask(client, {}, { headers }));
    assert.deepEqual(attempts.statuses, [200, 409]);
    return [error.constructor.name, sdk.code(error)];
  };

  // The first request ends early while the SDK waits, so that the second is done.
  cases[`${name}_a_running_idempotency_key_is_waited_for`] = async () => {
    const [client, attempts] = open('free');
    const headers = { 'Idempotency-Key': `seas-node-${name}` };
    const running = await sdk.ask(client, { stream: true }, { headers: { ...headers, ...fault('slow=50') } });
    await running[Symbol.asyncIterator]().next();
    attempts.onAnswer = (status) => status === 409 && running.controller.abort();
    await collect(await sdk.ask(client, { stream: true }, { headers }));
    waitsAsTold(attempts, 409);
  };

  // One reservation an attempt that reached the upstream.
  cases[`${name}_an_idempotency_key_that_failed_is_tried_again`] = async () => {
    const [client, attempts] = open('free');
    await sdk.ask(client, {}, { headers: { 'Idempotency-Key': `lakes-node-${name}`, ...fault('503') } });
    assert.deepEqual(attempts.statuses, [503, 200]);
  };

  // A model of its own: its upstream is left alone for as long as it says.
  cases[`${name}_the_upstreams_refusal_is_told_apart`] = async () => {
    const [client] = open('free', { maxRetries: 0 });
    const other = { model: sdk.model + '-other' };
    const error = await raised(sdk.errors.RateLimitError, () => sdk.ask(client, other, { headers: fault('429=7') }));
    assert.equal(error.headers.get('x-tollgate-error-source'), 'upstream');
    assert.equal(error.headers.get('retry-after'), '7');
  };
}

await suite(cases, { atOnce: true });
