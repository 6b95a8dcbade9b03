"""The openai package, synchronous and asynchronous."""

import asyncio
import io

import openai
from pydantic import BaseModel

from harness import KEY, PNG, SUITE, URL, Attempts, case, fault, raised, raised_async, run, wav

MODEL = "fake-chat-" + SUITE
ASK = [{"role": "user", "content": "Name three rivers."}]

client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY)
once = client.with_options(max_retries=0)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class River(BaseModel):
    name: str
    length_km: int
    countries: list[str]


# --- chat ---------------------------------------------------------------------------


@case
def chat():
    return client.chat.completions.create(model=MODEL, messages=ASK)


@case
def chat_with_every_common_field():
    return client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Grüße, 你好, 👋\u2028 and \"quotes\"", "name": "anna"},
            {"role": "assistant", "content": "Hello."},
            *ASK,
        ],
        max_completion_tokens=24,
        temperature=0.25,
        top_p=0.5,
        n=2,
        stop=["never"],
        seed=7,
        user="user-1",
        metadata={"team": "rivers"},
        logit_bias={"42": -1},
        extra_body={"a_field_nobody_knows": {"kept": [1, 2.50, None]}},
        extra_query={"unknown": "kept"},
    )


@case
def chat_stream():
    return list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True))


@case
def chat_stream_with_usage():
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens > 0, "the last chunk has no usage"
    return chunks


@case
def chat_stream_shows_no_usage_that_nobody_asked_for():
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": False})
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks), "a chunk without choices is the usage's"
    return chunks


@case
def chat_stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=ASK) as stream:
        kinds = [event.type for event in stream]
        return [kinds, stream.get_final_completion()]


@case
def chat_raw_response():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    assert raw.headers["x-request-id"], "no request id"
    return [raw.status_code, raw.headers["content-type"], raw.parse()]


@case
def tools_round_trip():
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], tool_choice="required")
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 21}'})
    return [first, client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])]


@case
def tools_stream():
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    return list(
        client.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER], tool_choice="required", stream=True
        )
    )


@case
def structured_output():
    parsed = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=River)
    assert isinstance(parsed.choices[0].message.parsed, River)
    return parsed


@case
def structured_output_stream():
    with client.chat.completions.stream(model=MODEL, messages=ASK, response_format=River) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, River)
    return final


@case
def cached_input_and_reasoning():
    orders = {"extra_headers": fault("cached=2,reasoning=8")}
    plain = client.chat.completions.create(model=MODEL, messages=ASK, **orders)
    assert plain.usage.prompt_tokens_details.cached_tokens == 2
    assert plain.usage.completion_tokens_details.reasoning_tokens == 8
    response = client.responses.create(model=MODEL, input=ASK, **orders)
    return [plain, response, list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True, **orders))]


@case
def picture_in_the_input():
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PNG, "detail": "low"}},
    ]
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])


@case
async def chat_async():
    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY) as aclient:
        plain, stream = await asyncio.gather(
            aclient.chat.completions.create(model=MODEL, messages=ASK),
            aclient.chat.completions.create(model=MODEL, messages=ASK, stream=True),
        )
        return [plain, [chunk async for chunk in stream]]


@case
async def twenty_at_once():
    async def ask(i):
        message = {"role": "user", "content": f"Name {i} rivers."}
        return await aclient.chat.completions.create(model=MODEL, messages=[message], max_tokens=8)

    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY) as aclient:
        return await asyncio.gather(*(ask(i) for i in range(20)))


@case
def azure():
    """Azure's client names the model in the path, and the key in a header of its own."""
    with openai.AzureOpenAI(azure_endpoint=URL, api_key=KEY, api_version="2024-10-21") as aclient:
        plain = aclient.chat.completions.create(model=MODEL, messages=ASK)
        return [plain, list(aclient.chat.completions.create(model=MODEL, messages=ASK, stream=True))]


# --- responses ----------------------------------------------------------------------


@case
def responses():
    return client.responses.create(model=MODEL, input="Name three rivers.", instructions="Answer briefly.")


@case
def responses_stream():
    return list(client.responses.create(model=MODEL, input=ASK, stream=True))


@case
def responses_stream_helper():
    with client.responses.stream(model=MODEL, input="Name three rivers.") as stream:
        kinds = [event.type for event in stream]
        return [kinds, stream.get_final_response()]


@case
def responses_tools_round_trip():
    tool = {"type": "function", **WEATHER["function"]}
    first = client.responses.create(
        model=MODEL, input="What is the weather in Paris?", tools=[tool], tool_choice="required"
    )
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls, "no tool was called"
    history = [{"role": "user", "content": "What is the weather in Paris?"}]
    for call in calls:
        history.append({"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments})
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": '{"celsius": 21}'})
    return [first, client.responses.create(model=MODEL, input=history, tools=[tool])]


@case
def responses_structured_output():
    parsed = client.responses.parse(model=MODEL, input="Describe a river.", text_format=River)
    assert isinstance(parsed.output_parsed, River)
    return parsed


# --- the other endpoints ------------------------------------------------------------


@case
def completions():
    plain = client.completions.create(model=MODEL, prompt="The longest river is", max_tokens=16)
    stream = client.completions.create(model=MODEL, prompt="The longest river is", max_tokens=16, stream=True)
    return [plain, list(stream)]


@case
def embeddings():
    """base64 is what the SDK asks for by itself; floats are asked for here."""
    one = client.embeddings.create(model="fake-embed", input="river")
    many = client.embeddings.create(model="fake-embed", input=["river", "lake"], encoding_format="float", dimensions=8)
    return [one, many]


@case
def images():
    return client.images.generate(model="fake-image", prompt="a river", n=2, size="256x256")


@case
def transcription():
    return client.audio.transcriptions.create(model="fake-audio", file=("rivers.wav", io.BytesIO(wav(2))))


@case
def speech():
    answer = client.audio.speech.create(model="fake-audio", voice="alloy", input="Three rivers.")
    return [answer.response.headers["content-type"], answer.read()]


@case
def speech_streamed():
    with client.audio.speech.with_streaming_response.create(
        model="fake-audio", voice="alloy", input="Three rivers."
    ) as answer:
        return b"".join(answer.iter_bytes())


@case
def the_model_is_listed():
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids, ids
    return client.models.retrieve(MODEL).id


# --- what goes wrong ----------------------------------------------------------------

STATUSES = {
    400: openai.BadRequestError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    413: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}


@case
def errors_of_the_server():
    seen = {}
    for status, kind in STATUSES.items():
        error = raised(openai.APIError, lambda: once.chat.completions.create(
            model=MODEL, messages=ASK, extra_headers=fault(str(status))))
        assert type(error) is kind, f"{status}: {error!r}"
        seen[status] = error
    return [seen, client.chat.completions.create(model=MODEL, messages=ASK)]


@case
def errors_before_a_stream():
    error = raised(openai.RateLimitError, lambda: once.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, extra_headers=fault("429")))
    return [error, client.chat.completions.create(model=MODEL, messages=ASK)]


@case
def an_unknown_model():
    error = raised(openai.NotFoundError, lambda: client.chat.completions.create(model="no-such-model", messages=ASK))
    assert error.code == "model_not_found", error.body
    return type(error).__name__


@case
def a_bad_key():
    stranger = client.with_options(api_key="tgk_nobody")
    error = raised(openai.AuthenticationError, lambda: stranger.chat.completions.create(model=MODEL, messages=ASK))
    return type(error).__name__


@case
def retries():
    """A fault, then an answer: the SDK retries by itself."""
    seen = {}
    for status in (429, 500, 503):
        attempts = Attempts()
        with openai.OpenAI(
            base_url=URL + "/v1", api_key=KEY, http_client=attempts.client(openai.DefaultHttpxClient)
        ) as retrying:
            answer = retrying.chat.completions.create(
                model=MODEL, messages=ASK, extra_headers=fault(str(status)))
        assert attempts.statuses == [status, 200], attempts.statuses
        seen[status] = answer
    return seen


@case
def a_timeout_of_the_client():
    impatient = client.with_options(timeout=0.4, max_retries=0)
    return raised(openai.APITimeoutError, lambda: impatient.chat.completions.create(
        model=MODEL, messages=ASK, extra_headers=fault("hang-before-header")))


@case
def a_stream_that_hangs():
    impatient = client.with_options(timeout=0.6, max_retries=0)
    stream = impatient.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, extra_headers=fault("hang=4"))
    seen = []

    def read():
        for chunk in stream:
            seen.append(chunk)

    # A read time-out within a stream is the HTTP library's own.
    return [raised(Exception, read), seen]


@case
def a_stream_that_breaks_off():
    stream = once.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_headers=fault("cut-after=4"))
    seen = []

    def read():
        for chunk in stream:
            seen.append(chunk)

    # Tollgate says in an error event what happened; alone, the connection breaks.
    raised(Exception, read)
    return seen


@case
def abort():
    stream = client.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_headers=fault("slow=50"))
    seen = [next(stream), next(stream), next(stream)]
    stream.close()
    return seen


@case
async def abort_async():
    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY) as aclient:
        stream = await aclient.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, extra_headers=fault("slow=50"))
        seen = []

        async def read():
            async for chunk in stream:
                seen.append(chunk)
                if len(seen) == 3:
                    reading.cancel()

        reading = asyncio.ensure_future(read())
        await raised_async(asyncio.CancelledError, reading)
        await stream.close()
        return seen[:3]


if __name__ == "__main__":
    run()
