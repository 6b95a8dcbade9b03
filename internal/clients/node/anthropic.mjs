// The @anthropic-ai/sdk package.

import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { Attempts, claudeModel, collect, fault, key, png, raised, suite, url } from './harness.mjs';

const model = claudeModel;
const messages = [{ role: 'user', content: 'Name three rivers.' }];
const ask = { model, max_tokens: 64, messages };
const weather = { role: 'user', content: 'What is the weather in Paris?' };

const options = { baseURL: url, apiKey: key };
const client = new Anthropic(options);
const once = new Anthropic({ ...options, maxRetries: 0 });

const tools = [{
  name: 'get_weather',
  description: 'The weather at a place.',
  input_schema: {
    type: 'object',
    properties: { city: { type: 'string' }, days: { type: 'integer' } },
    required: ['city', 'days'],
  },
}];

async function read(stream) {
  const seen = [];
  const error = await raised(Error, async () => {
    for await (const event of stream) seen.push(event);
  });
  return [error.constructor.name, seen];
}

// withoutRequestId: the id is of the server that was asked; that there is one is
// enough.
function withoutRequestId(error) {
  assert.ok(error.requestID, 'no request id');
  return [error.constructor.name, error.status, error.error?.error];
}

const statuses = {
  400: Anthropic.BadRequestError,
  403: Anthropic.PermissionDeniedError,
  404: Anthropic.NotFoundError,
  409: Anthropic.ConflictError,
  429: Anthropic.RateLimitError,
  500: Anthropic.InternalServerError,
  503: Anthropic.InternalServerError,
  529: Anthropic.InternalServerError,
};

await suite({
  message: () => client.messages.create(ask),

  message_with_every_common_field: () =>
    client.messages.create({
      model,
      max_tokens: 24,
      system: [{ type: 'text', text: 'Answer briefly.', cache_control: { type: 'ephemeral' } }],
      messages: [
        { role: 'user', content: 'Grüße, 你好, 👋\u2028 and "quotes"' },
        { role: 'assistant', content: [{ type: 'text', text: 'Hello.' }] },
        ...messages,
      ],
      temperature: 0.25,
      stop_sequences: ['never'],
      metadata: { user_id: 'user-1' },
      a_field_nobody_knows: { kept: [1, 2.5, null] },
    }),

  raw_events: async () => collect(await client.messages.create({ ...ask, stream: true })),

  stream_helper: async () => {
    const texts = [];
    const stream = client.messages.stream(ask).on('text', (text) => texts.push(text));
    return [await stream.finalMessage(), texts];
  },

  raw_response: async () => {
    const answer = await client.messages.create(ask).withResponse();
    assert.ok(answer.request_id, 'no request id');
    return [answer.response.status, answer.response.headers.get('content-type'), answer.data];
  },

  tools_round_trip: async () => {
    const first = await client.messages.create({ ...ask, tools, messages: [weather], tool_choice: { type: 'any' } });
    assert.equal(first.stop_reason, 'tool_use');
    const content = first.content
      .filter(({ type }) => type === 'tool_use')
      .map(({ id }) => ({ type: 'tool_result', tool_use_id: id, content: '{"celsius": 21}' }));
    const second = await client.messages.create({
      ...ask, tools, messages: [weather, { role: 'assistant', content: first.content }, { role: 'user', content }],
    });
    return [first, second];
  },

  tools_stream: () =>
    client.messages.stream({ ...ask, tools, messages: [weather], tool_choice: { type: 'tool', name: 'get_weather' } }).finalMessage(),

  thinking: () =>
    client.messages.stream({ ...ask, max_tokens: 2048, thinking: { type: 'enabled', budget_tokens: 1024 } }).finalMessage(),

  cached_input: async () => {
    const plain = await client.messages.create(ask, { headers: fault('cached=2') });
    assert.equal(plain.usage.cache_read_input_tokens, 2);
    return plain;
  },

  picture_in_the_input: () => {
    const source = { type: 'base64', media_type: 'image/png', data: png };
    const content = [{ type: 'image', source }, { type: 'text', text: 'What is this?' }];
    return client.messages.create({ ...ask, messages: [{ role: 'user', content }] });
  },

  count_tokens: () => client.messages.countTokens({ model, messages, tools, system: 'You are a geographer.' }),

  the_model_is_listed: async () => {
    const ids = (await collect(client.models.list())).map(({ id }) => id);
    assert.ok(ids.includes(model), ids);
    return (await client.models.retrieve(model)).id;
  },

  a_bearer_token_is_a_credential_too: () => new Anthropic({ baseURL: url, apiKey: null, authToken: key }).messages.create(ask),

  twenty_at_once: () =>
    Promise.all(Array.from({ length: 20 }, (_, i) =>
      client.messages.create({ model, max_tokens: 8, messages: [{ role: 'user', content: `Name ${i} rivers.` }] }))),

  // --- what goes wrong ---

  errors_of_the_server: async () => {
    const seen = {};
    for (const [status, kind] of Object.entries(statuses)) {
      seen[status] = withoutRequestId(await raised(kind, () => once.messages.create(ask, { headers: fault(status) })));
    }
    return [seen, await client.messages.create(ask)];
  },

  errors_before_a_stream: async () => [
    withoutRequestId(await raised(Anthropic.RateLimitError, () => once.messages.create({ ...ask, stream: true }, { headers: fault('429') }))),
    await client.messages.create(ask),
  ],

  an_unknown_model: async () => {
    const error = await raised(Anthropic.NotFoundError, () => client.messages.create({ ...ask, model: 'no-such-model' }));
    return [error.constructor.name, error.error?.error?.type];
  },

  a_bad_key: async () => {
    const stranger = new Anthropic({ ...options, apiKey: 'tgk_nobody' });
    const error = await raised(Anthropic.AuthenticationError, () => stranger.messages.create(ask));
    return [error.constructor.name, error.error?.error?.type];
  },

  retries: async () => {
    const seen = {};
    for (const status of [429, 500, 503, 529]) {
      const attempts = new Attempts();
      const retrying = new Anthropic({ ...options, fetch: attempts.fetch });
      seen[status] = await retrying.messages.create(ask, { headers: fault(String(status)) });
      assert.deepEqual(attempts.statuses, [status, 200]);
    }
    return seen;
  },

  a_timeout_of_the_client: async () => {
    const hanging = () => once.messages.create(ask, { timeout: 400, headers: fault('hang-before-header') });
    return (await raised(Anthropic.APIConnectionTimeoutError, hanging)).constructor.name;
  },

  an_error_within_a_stream: async () =>
    read(await once.messages.create({ ...ask, stream: true }, { headers: fault('error-event=3') })),

  a_stream_that_breaks_off: async () =>
    // Tollgate says in an error event what happened; alone, the connection breaks.
    (await read(await once.messages.create({ ...ask, stream: true }, { headers: fault('cut-after=4') })))[1],

  abort: async () => {
    const stream = await client.messages.create({ ...ask, stream: true }, { headers: fault('slow=50') });
    const seen = [];
    for await (const event of stream) {
      seen.push(event);
      if (seen.length === 4) break; // which aborts the request
    }
    return seen;
  },
});
