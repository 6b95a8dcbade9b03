// The Vercel AI SDK, over its OpenAI and Anthropic providers.

import assert from 'node:assert/strict';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { APICallError, RetryError, embedMany, generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { Attempts, chatModel, claudeModel, collect, fault, key, raised, suite, url } from './harness.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;

const openai = createOpenAI({ baseURL: url + '/v1', apiKey: key });
const anthropic = createAnthropic({ baseURL: url + '/v1', apiKey: key });
const models = {
  chat: openai.chat(chatModel),
  responses: openai.responses(chatModel),
  messages: anthropic(claudeModel),
};

const prompt = 'Name three rivers.';
const River = z.object({ name: z.string(), length_km: z.number().int(), countries: z.array(z.string()) });
const tools = {
  get_weather: tool({
    description: 'The weather at a place.',
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async () => ({ celsius: 21 }),
  }),
};

// said is what a result holds of the answer. Ids of the model's are kept; those
// that the SDK made up itself are not.
const said = (result) => ({ text: result.text, finishReason: result.finishReason, usage: result.usage });

const cases = {};
for (const [name, model] of Object.entries(models)) {
  cases[name + '_generate'] = async () => {
    const result = await generateText({ model, prompt, maxOutputTokens: 64 });
    assert.ok(result.usage.outputTokens > 0);
    return { ...said(result), body: result.response.body };
  };

  cases[name + '_stream'] = async () => {
    const result = streamText({ model, prompt, maxOutputTokens: 64, onError: () => {} });
    const texts = await collect(result.textStream);
    const usage = await result.usage;
    assert.ok(usage.outputTokens > 0, 'the SDK was given no usage');
    return { texts, usage, finishReason: await result.finishReason };
  };

  cases[name + '_object'] = async () => {
    const result = await generateObject({ model, prompt: 'Describe a river.', schema: River });
    return { object: result.object, usage: result.usage };
  };

  cases[name + '_tools'] = async () => {
    const result = await generateText({
      model, tools, stopWhen: stepCountIs(3), prompt: 'What is the weather in Paris? Use the tool.',
    });
    assert.ok(result.steps.length > 1, 'the tool was not called');
    return result.steps.map((step) => ({ ...said(step), calls: step.toolCalls.map(({ toolName, input }) => ({ toolName, input })) }));
  };

  cases[name + '_error'] = async () => {
    const error = await raised(APICallError, () => generateText({ model, prompt, maxRetries: 0, headers: fault('400') }));
    return [error.constructor.name, error.statusCode, error.message];
  };
}

cases.embeddings = () => embedMany({ model: openai.embedding('fake-embed'), values: ['river', 'lake'] }).then(({ embeddings, usage }) => ({ embeddings, usage }));

cases.retries = async () => {
  const attempts = new Attempts();
  const model = createOpenAI({ baseURL: url + '/v1', apiKey: key, fetch: attempts.fetch }).chat(chatModel);
  const result = await generateText({ model, prompt, maxRetries: 1, headers: fault('503') });
  assert.deepEqual(attempts.statuses, [503, 200]);
  return said(result);
};

cases.retries_that_end = async () => {
  const error = await raised(RetryError, () => generateText({ model: models.messages, prompt, maxRetries: 1, headers: fault('529') }));
  return [error.reason, error.errors.map(({ statusCode }) => statusCode)];
};

cases.abort = async () => {
  const controller = new AbortController();
  const seen = [];
  const result = streamText({ model: models.chat, prompt, abortSignal: controller.signal, headers: fault('slow=50'), onError: () => {} });
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta') seen.push(part.text);
    if (seen.length === 3) controller.abort();
  }
  return seen.slice(0, 3);
};

await suite(cases);
