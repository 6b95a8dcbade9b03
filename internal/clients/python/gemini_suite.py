"""The google-genai package, synchronous and asynchronous."""

from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from harness import KEY, SUITE, URL, case, fault, raised, run

MODEL = "fake-gemini-" + SUITE
ASK = "Name three rivers."


def open_client(**options):
    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL, **options))


client = open_client()

WEATHER = types.Tool(function_declarations=[
    types.FunctionDeclaration(
        name="get_weather",
        description="The weather at a place.",
        parameters_json_schema={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    )
])


class River(BaseModel):
    name: str
    length_km: int
    countries: list[str]


def seen(answer):
    """The headers are the server's that was asked."""
    answer.sdk_http_response = None
    return answer


@case
def generate():
    answer = client.models.generate_content(model=MODEL, contents=ASK)
    assert answer.usage_metadata.total_token_count > 0
    return seen(answer)


@case
def generate_with_every_common_field():
    config = types.GenerateContentConfig(
        system_instruction="Answer briefly.", max_output_tokens=24, temperature=0.25, top_k=5, stop_sequences=["never"], seed=7
    )
    history = [types.UserContent("Grüße, 你好, 👋\u2028 and \"quotes\""), types.ModelContent("Hello."), types.UserContent(ASK)]
    return seen(client.models.generate_content(model=MODEL, contents=history, config=config))


@case
def stream():
    return [seen(chunk) for chunk in client.models.generate_content_stream(model=MODEL, contents=ASK)]


@case
def chat():
    talk = client.chats.create(model=MODEL)
    return [seen(talk.send_message(ASK)), seen(talk.send_message("And three lakes."))]


@case
def tools_round_trip():
    config = types.GenerateContentConfig(
        tools=[WEATHER],
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY")),
    )
    question = types.UserContent("What is the weather in Paris?")
    first = client.models.generate_content(model=MODEL, contents=[question], config=config)
    assert first.function_calls, "no tool was called"
    results = [
        types.Part.from_function_response(name=call.name, response={"celsius": 21}) for call in first.function_calls
    ]
    history = [question, first.candidates[0].content, types.UserContent(results)]
    second = client.models.generate_content(
        model=MODEL, contents=history, config=types.GenerateContentConfig(tools=[WEATHER])
    )
    return [seen(first), seen(second)]


@case
def structured_output():
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=River)
    answer = client.models.generate_content(model=MODEL, contents="Describe a river.", config=config)
    assert isinstance(answer.parsed, River), answer.text
    return seen(answer)


@case
def count_tokens():
    return seen(client.models.count_tokens(model=MODEL, contents=ASK))


@case
async def generate_async():
    plain = await client.aio.models.generate_content(model=MODEL, contents=ASK)
    chunks = [chunk async for chunk in await client.aio.models.generate_content_stream(model=MODEL, contents=ASK)]
    return [seen(plain), [seen(chunk) for chunk in chunks]]


@case
def errors_of_the_server():
    result = {}
    for status in (400, 403, 404, 429, 500, 503):
        failing = open_client(headers=fault(str(status)))
        error = raised(errors.APIError, lambda: failing.models.generate_content(model=MODEL, contents=ASK))
        result[status] = [type(error).__name__, error.code, error.status, error.message]
    return [result, seen(client.models.generate_content(model=MODEL, contents=ASK))]


@case
def a_bad_key():
    stranger = genai.Client(api_key="tgk_nobody", http_options=types.HttpOptions(base_url=URL))
    error = raised(errors.ClientError, lambda: stranger.models.generate_content(model=MODEL, contents=ASK))
    return [error.code, error.status]


@case
def abort():
    failing = open_client(headers=fault("slow=50"))
    streaming = failing.models.generate_content_stream(model=MODEL, contents=ASK)
    chunks = [seen(next(streaming)) for _ in range(3)]
    streaming.close()
    return chunks


if __name__ == "__main__":
    run()
