"""The anthropic package, synchronous and asynchronous."""

import asyncio

import anthropic
from pydantic import BaseModel

from harness import KEY, PNG, SUITE, URL, Attempts, case, fault, raised, raised_async, run

MODEL = "fake-claude-" + SUITE
ASK = [{"role": "user", "content": "Name three rivers."}]

client = anthropic.Anthropic(base_url=URL, api_key=KEY)
once = client.with_options(max_retries=0)

WEATHER = {
    "name": "get_weather",
    "description": "The weather at a place.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


class River(BaseModel):
    name: str
    length_km: int
    countries: list[str]


@case
def message():
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=ASK)
    assert answer.usage.output_tokens > 0
    return answer


@case
def message_with_every_common_field():
    return client.messages.create(
        model=MODEL,
        max_tokens=24,
        system=[{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "Grüße, 你好, 👋\u2028 and \"quotes\""},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
            *ASK,
        ],
        stop_sequences=["never"],
        metadata={"user_id": "user-1"},
        service_tier="auto",
        extra_body={"temperature": 0.25, "top_k": 5, "a_field_nobody_knows": {"kept": [1, 2.50, None]}},
    )


@case
def message_with_system_text():
    return client.messages.create(model=MODEL, max_tokens=64, system="You are a geographer.", messages=ASK)


@case
def raw_events():
    return list(client.messages.create(model=MODEL, max_tokens=64, messages=ASK, stream=True))


@case
def stream_helper():
    with client.messages.stream(model=MODEL, max_tokens=64, messages=ASK) as stream:
        text = list(stream.text_stream)
        assert "".join(text) == stream.get_final_text()
        return [text, stream.get_final_message()]


@case
def raw_response():
    raw = client.messages.with_raw_response.create(model=MODEL, max_tokens=64, messages=ASK)
    assert raw.headers["request-id"], "no request id, which the SDK shows in its errors"
    return [raw.status_code, raw.headers["content-type"], raw.parse()]


@case
def tools_round_trip():
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"model": MODEL, "max_tokens": 64, "tools": [WEATHER]}
    first = client.messages.create(**options, messages=messages, tool_choice={"type": "any"})
    assert first.stop_reason == "tool_use", first.stop_reason
    messages.append({"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in first.content]})
    messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": block.id, "content": '{"celsius": 21}'}
        for block in first.content if block.type == "tool_use"
    ]})
    return [first, client.messages.create(**options, messages=messages)]


@case
def tools_stream():
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    with client.messages.stream(
        model=MODEL, max_tokens=64, messages=messages, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"}
    ) as stream:
        kinds = [event.type for event in stream]
        return [kinds, stream.get_final_message()]


@case
def structured_output():
    parsed = client.messages.parse(model=MODEL, max_tokens=256, messages=ASK, output_format=River)
    assert isinstance(parsed.parsed_output, River)
    return parsed


@case
def thinking():
    with client.messages.stream(
        model=MODEL, max_tokens=2048, messages=ASK, thinking={"type": "enabled", "budget_tokens": 1024}
    ) as stream:
        kinds = [event.type for event in stream]
        return [kinds, stream.get_final_message()]


@case
def cached_input():
    orders = {"extra_headers": fault("cached=2")}
    plain = client.messages.create(model=MODEL, max_tokens=64, messages=ASK, **orders)
    assert plain.usage.cache_read_input_tokens == 2
    return [plain, list(client.messages.create(model=MODEL, max_tokens=64, messages=ASK, stream=True, **orders))]


@case
def picture_in_the_input():
    picture = {"type": "base64", "media_type": "image/png", "data": PNG}
    content = [{"type": "image", "source": picture}, {"type": "text", "text": "What is this?"}]
    return client.messages.create(model=MODEL, max_tokens=64, messages=[{"role": "user", "content": content}])


@case
def count_tokens():
    return client.messages.count_tokens(model=MODEL, system="You are a geographer.", messages=ASK, tools=[WEATHER])


@case
def the_model_is_listed():
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids, ids
    return client.models.retrieve(MODEL).id


@case
def a_bearer_token_is_a_credential_too():
    return anthropic.Anthropic(base_url=URL, auth_token=KEY).messages.create(model=MODEL, max_tokens=8, messages=ASK)


@case
def an_api_key_header_is_a_credential_too():
    other = anthropic.Anthropic(base_url=URL, api_key=KEY, default_headers={"Authorization": anthropic.Omit(), "X-Api-Key": KEY})
    return other.messages.create(model=MODEL, max_tokens=8, messages=ASK)


@case
async def message_async():
    async def streamed():
        async with aclient.messages.stream(model=MODEL, max_tokens=64, messages=ASK) as stream:
            return await stream.get_final_message()

    async with anthropic.AsyncAnthropic(base_url=URL, api_key=KEY) as aclient:
        return await asyncio.gather(aclient.messages.create(model=MODEL, max_tokens=64, messages=ASK), streamed())


@case
async def twenty_at_once():
    async def ask(i):
        message = {"role": "user", "content": f"Name {i} rivers."}
        return await aclient.messages.create(model=MODEL, max_tokens=8, messages=[message])

    async with anthropic.AsyncAnthropic(base_url=URL, api_key=KEY) as aclient:
        return await asyncio.gather(*(ask(i) for i in range(20)))


# --- what goes wrong ----------------------------------------------------------------

STATUSES = {
    400: anthropic.BadRequestError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    409: anthropic.ConflictError,
    429: anthropic.RateLimitError,
    500: anthropic.InternalServerError,
    503: anthropic.InternalServerError,
    529: anthropic.InternalServerError,
}


@case
def errors_of_the_server():
    seen = {}
    for status, kind in STATUSES.items():
        error = raised(anthropic.APIError, lambda: once.messages.create(
            model=MODEL, max_tokens=8, messages=ASK, extra_headers=fault(str(status))))
        assert isinstance(error, kind), f"{status}: {error!r}"
        # The request id is of the server that was asked; that there is one is enough.
        assert error.request_id, f"{status}: no request id"
        body = {**error.body, "request_id": bool(error.body.get("request_id"))}
        seen[status] = [type(error).__name__, error.type, error.api_message, body]
    return [seen, client.messages.create(model=MODEL, max_tokens=8, messages=ASK)]


@case
def errors_before_a_stream():
    error = raised(anthropic.RateLimitError, lambda: once.messages.create(
        model=MODEL, max_tokens=8, messages=ASK, stream=True, extra_headers=fault("429")))
    return [error.type, error.api_message, client.messages.create(model=MODEL, max_tokens=8, messages=ASK)]


@case
def an_unknown_model():
    error = raised(anthropic.NotFoundError, lambda: client.messages.create(
        model="no-such-model", max_tokens=8, messages=ASK))
    return [type(error).__name__, error.type]


@case
def a_bad_key():
    stranger = anthropic.Anthropic(base_url=URL, api_key="tgk_nobody")
    error = raised(anthropic.AuthenticationError, lambda: stranger.messages.create(
        model=MODEL, max_tokens=8, messages=ASK))
    return [type(error).__name__, error.type]


@case
def retries():
    """A fault, then an answer: the SDK retries by itself."""
    seen = {}
    for status in (429, 500, 503, 529):
        attempts = Attempts()
        with anthropic.Anthropic(
            base_url=URL, api_key=KEY, http_client=attempts.client(anthropic.DefaultHttpxClient)
        ) as retrying:
            answer = retrying.messages.create(
                model=MODEL, max_tokens=8, messages=ASK, extra_headers=fault(str(status)))
        assert attempts.statuses == [status, 200], attempts.statuses
        seen[status] = answer
    return seen


@case
def a_timeout_of_the_client():
    impatient = client.with_options(timeout=0.4, max_retries=0)
    error = raised(anthropic.APITimeoutError, lambda: impatient.messages.create(
        model=MODEL, max_tokens=8, messages=ASK, extra_headers=fault("hang-before-header")))
    return type(error).__name__


@case
def an_error_within_a_stream():
    stream = once.messages.create(model=MODEL, max_tokens=64, messages=ASK, stream=True, extra_headers=fault("error-event=3"))
    seen = []

    def read():
        for event in stream:
            seen.append(event)

    error = raised(anthropic.APIStatusError, read)
    return [type(error).__name__, error.type, error.api_message, seen]


@case
def a_stream_that_hangs():
    impatient = client.with_options(timeout=0.6, max_retries=0)
    stream = impatient.messages.create(model=MODEL, max_tokens=64, messages=ASK, stream=True, extra_headers=fault("hang=4"))
    seen = []

    def read():
        for event in stream:
            seen.append(event)

    return [type(raised(Exception, read)).__name__, seen]


@case
def a_stream_that_breaks_off():
    stream = once.messages.create(model=MODEL, max_tokens=64, messages=ASK, stream=True, extra_headers=fault("cut-after=4"))
    seen = []

    def read():
        for event in stream:
            seen.append(event)

    # Tollgate says in an error event what happened; alone, the connection breaks.
    raised(Exception, read)
    return seen


@case
def abort():
    stream = client.messages.create(model=MODEL, max_tokens=64, messages=ASK, stream=True, extra_headers=fault("slow=50"))
    seen = [next(stream) for _ in range(4)]
    stream.close()
    return seen


@case
async def abort_async():
    async with anthropic.AsyncAnthropic(base_url=URL, api_key=KEY) as aclient:
        seen = []

        async def read():
            async with aclient.messages.stream(
                model=MODEL, max_tokens=64, messages=ASK, extra_headers=fault("slow=50")
            ) as stream:
                async for text in stream.text_stream:
                    seen.append(text)
                    if len(seen) == 3:
                        reading.cancel()

        reading = asyncio.ensure_future(read())
        await raised_async(asyncio.CancelledError, reading)
        return seen[:3]


if __name__ == "__main__":
    run()
