// The openai package.

import assert from 'node:assert/strict';
import OpenAI, { toFile } from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { Attempts, chatModel, collect, fault, key, png, raised, suite, url, wav } from './harness.mjs';

const model = chatModel;
const messages = [{ role: 'user', content: 'Name three rivers.' }];
const weather = 'What is the weather in Paris?';

const options = { baseURL: url + '/v1', apiKey: key };
const client = new OpenAI(options);
const once = new OpenAI({ ...options, maxRetries: 0 });

const parameters = {
  type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer' } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather at a place.', parameters, strict: true } }];
const River = z.object({ name: z.string(), length_km: z.number().int(), countries: z.array(z.string()) });

// read follows a stream and returns what came and what was thrown.
async function read(stream) {
  const seen = [];
  const error = await raised(Error, async () => {
    for await (const chunk of stream) seen.push(chunk);
  });
  return [error.constructor.name, seen];
}

const statuses = {
  400: OpenAI.BadRequestError,
  403: OpenAI.PermissionDeniedError,
  404: OpenAI.NotFoundError,
  409: OpenAI.ConflictError,
  413: OpenAI.APIError,
  422: OpenAI.UnprocessableEntityError,
  429: OpenAI.RateLimitError,
  500: OpenAI.InternalServerError,
  503: OpenAI.InternalServerError,
};

await suite({
  // --- chat ---

  chat: () => client.chat.completions.create({ model, messages }),

  chat_with_every_common_field: () =>
    client.chat.completions.create({
      model,
      messages: [
        { role: 'developer', content: 'Answer briefly.' },
        { role: 'user', content: 'Grüße, 你好, 👋\u2028 and "quotes"', name: 'anna' },
        ...messages,
      ],
      max_completion_tokens: 24,
      temperature: 0.25,
      n: 2,
      stop: ['never'],
      seed: 7,
      metadata: { team: 'rivers' },
      a_field_nobody_knows: { kept: [1, 2.5, null] },
    }),

  chat_stream: async () => collect(await client.chat.completions.create({ model, messages, stream: true })),

  chat_stream_with_usage: async () => {
    const chunks = await collect(
      await client.chat.completions.create({ model, messages, stream: true, stream_options: { include_usage: true } }),
    );
    assert.ok(chunks.at(-1).usage.completion_tokens > 0);
    return chunks;
  },

  chat_stream_shows_no_usage_that_nobody_asked_for: async () => {
    const chunks = await collect(await client.chat.completions.create({ model, messages, stream: true }));
    assert.ok(chunks.every((chunk) => !chunk.usage && chunk.choices.length > 0));
    return chunks.length;
  },

  chat_stream_helper: async () => {
    const events = [];
    const runner = client.chat.completions.stream({ model, messages });
    runner.on('content', (delta) => events.push(delta));
    return [await runner.finalChatCompletion(), events];
  },

  chat_raw_response: async () => {
    const answer = await client.chat.completions.create({ model, messages }).withResponse();
    assert.ok(answer.request_id, 'no request id');
    return [answer.response.status, answer.response.headers.get('content-type'), answer.data];
  },

  tools_round_trip: async () => {
    const first = await client.chat.completions.create({
      model, tools, tool_choice: 'required', messages: [{ role: 'user', content: weather }],
    });
    const results = first.choices[0].message.tool_calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: '{"celsius": 21}' }));
    const second = await client.chat.completions.create({
      model, tools, messages: [{ role: 'user', content: weather }, first.choices[0].message, ...results],
    });
    return [first, second];
  },

  tools_run_by_the_sdk: async () => {
    const runner = client.chat.completions.runTools({
      model,
      messages: [{ role: 'user', content: weather }],
      tools: [{ type: 'function', function: { name: 'get_weather', parameters, parse: JSON.parse, function: () => ({ celsius: 21 }) } }],
    });
    const said = await runner.finalContent();
    return [said, runner.messages];
  },

  tools_stream: async () =>
    collect(await client.chat.completions.create({
      model, tools, tool_choice: 'required', stream: true, messages: [{ role: 'user', content: weather }],
    })),

  structured_output: async () => {
    const parsed = await client.chat.completions.parse({ model, messages, response_format: zodResponseFormat(River, 'river') });
    assert.ok(River.safeParse(parsed.choices[0].message.parsed).success);
    return parsed;
  },

  cached_input_and_reasoning: async () => {
    const plain = await client.chat.completions.create({ model, messages }, { headers: fault('cached=2,reasoning=8') });
    assert.equal(plain.usage.prompt_tokens_details.cached_tokens, 2);
    return plain;
  },

  picture_in_the_input: () => {
    const image_url = { url: 'data:image/png;base64,' + png, detail: 'low' };
    const content = [{ type: 'text', text: 'What is this?' }, { type: 'image_url', image_url }];
    return client.chat.completions.create({ model, messages: [{ role: 'user', content }] });
  },

  twenty_at_once: () =>
    Promise.all(Array.from({ length: 20 }, (_, i) =>
      client.chat.completions.create({ model, max_tokens: 8, messages: [{ role: 'user', content: `Name ${i} rivers.` }] }))),

  // --- responses ---

  responses: () => client.responses.create({ model, input: 'Name three rivers.', instructions: 'Answer briefly.' }),

  responses_stream: async () => collect(await client.responses.create({ model, input: messages, stream: true })),

  responses_stream_helper: async () => {
    const stream = client.responses.stream({ model, input: 'Name three rivers.' });
    return stream.finalResponse();
  },

  responses_tools_round_trip: async () => {
    const tool = { type: 'function', ...tools[0].function };
    const first = await client.responses.create({ model, input: weather, tools: [tool], tool_choice: 'required' });
    const calls = first.output.filter((item) => item.type === 'function_call');
    assert.ok(calls.length, 'no tool was called');
    const input = [{ role: 'user', content: weather }];
    for (const { call_id, name, arguments: args } of calls) {
      input.push({ type: 'function_call', call_id, name, arguments: args });
      input.push({ type: 'function_call_output', call_id, output: '{"celsius": 21}' });
    }
    return [first, await client.responses.create({ model, input, tools: [tool] })];
  },

  responses_structured_output: async () => {
    const parsed = await client.responses.parse({ model, input: 'Describe a river.', text: { format: zodTextFormat(River, 'river') } });
    assert.ok(River.safeParse(parsed.output_parsed).success);
    return parsed;
  },

  // --- the other endpoints ---

  completions: async () => {
    const ask = { model, prompt: 'The longest river is', max_tokens: 16 };
    return [await client.completions.create(ask), await collect(await client.completions.create({ ...ask, stream: true }))];
  },

  embeddings: async () => [
    await client.embeddings.create({ model: 'fake-embed', input: 'river' }),
    await client.embeddings.create({ model: 'fake-embed', input: ['river', 'lake'], encoding_format: 'float', dimensions: 8 }),
  ],

  images: () => client.images.generate({ model: 'fake-image', prompt: 'a river', n: 2, size: '256x256' }),

  transcription: async () => client.audio.transcriptions.create({ model: 'fake-audio', file: await toFile(wav(2), 'rivers.wav') }),

  speech: async () => {
    const answer = await client.audio.speech.create({ model: 'fake-audio', voice: 'alloy', input: 'Three rivers.' });
    return [answer.headers.get('content-type'), new Uint8Array(await answer.arrayBuffer())];
  },

  the_model_is_listed: async () => {
    const ids = (await collect(client.models.list())).map(({ id }) => id);
    assert.ok(ids.includes(model), ids);
    return (await client.models.retrieve(model)).id;
  },

  // --- what goes wrong ---

  errors_of_the_server: async () => {
    const seen = {};
    for (const [status, kind] of Object.entries(statuses)) {
      seen[status] = await raised(kind, () => once.chat.completions.create({ model, messages }, { headers: fault(status) }));
    }
    return [seen, await client.chat.completions.create({ model, messages })];
  },

  errors_before_a_stream: async () => [
    await raised(OpenAI.RateLimitError, () => once.chat.completions.create({ model, messages, stream: true }, { headers: fault('429') })),
    await client.chat.completions.create({ model, messages }),
  ],

  an_unknown_model: async () => {
    const error = await raised(OpenAI.NotFoundError, () => client.chat.completions.create({ model: 'no-such-model', messages }));
    assert.equal(error.code, 'model_not_found');
    return error.constructor.name;
  },

  a_bad_key: async () => {
    const stranger = new OpenAI({ ...options, apiKey: 'tgk_nobody' });
    const error = await raised(OpenAI.AuthenticationError, () => stranger.chat.completions.create({ model, messages }));
    return error.constructor.name;
  },

  retries: async () => {
    const seen = {};
    for (const status of [429, 500, 503]) {
      const attempts = new Attempts();
      const retrying = new OpenAI({ ...options, fetch: attempts.fetch });
      seen[status] = await retrying.chat.completions.create({ model, messages }, { headers: fault(String(status)) });
      assert.deepEqual(attempts.statuses, [status, 200]);
    }
    return seen;
  },

  a_timeout_of_the_client: async () => {
    const hanging = () => once.chat.completions.create({ model, messages }, { timeout: 400, headers: fault('hang-before-header') });
    return (await raised(OpenAI.APIConnectionTimeoutError, hanging)).constructor.name;
  },

  an_error_within_a_stream: async () =>
    read(await once.chat.completions.create({ model, messages, stream: true }, { headers: fault('error-event=3') })),

  a_stream_that_breaks_off: async () =>
    // Tollgate says in an error event what happened; alone, the connection breaks.
    (await read(await once.chat.completions.create({ model, messages, stream: true }, { headers: fault('cut-after=4') })))[1],

  abort: async () => {
    const stream = await client.chat.completions.create({ model, messages, stream: true }, { headers: fault('slow=50') });
    const seen = [];
    for await (const chunk of stream) {
      seen.push(chunk);
      if (seen.length === 3) break; // which aborts the request
    }
    return seen;
  },

  abort_before_an_answer: async () => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 300);
    const hanging = () =>
      once.chat.completions.create({ model, messages }, { signal: controller.signal, headers: fault('hang-before-header') });
    return (await raised(OpenAI.APIUserAbortError, hanging)).constructor.name;
  },
});
