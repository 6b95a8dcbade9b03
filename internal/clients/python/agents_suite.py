"""The OpenAI Agents SDK: an agent with a function tool, by both of OpenAI's APIs."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from harness import KEY, SUITE, URL, case, run

# Traces go to OpenAI, whatever the model's address is.
set_tracing_disabled(True)

ASK = "What is the weather in Paris? Use the tool."


@function_tool
def get_weather(city: str, days: int) -> str:
    """The weather at a place."""
    return f"{city}: 21 degrees for {days} days"


class River(BaseModel):
    name: str
    length_km: int


def openai():
    return AsyncOpenAI(base_url=URL + "/v1", api_key=KEY)


def result(run_result):
    usage = run_result.context_wrapper.usage
    assert usage.requests > 0 and usage.total_tokens > 0, usage
    return {
        "output": run_result.final_output,
        "items": [item.raw_item for item in run_result.new_items],
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens],
    }


def register(kind, name):
    def agent(client, **options):
        model = kind(model="fake-chat-" + SUITE, openai_client=client)
        return Agent(name="geographer", instructions="Answer briefly.", model=model, **options)

    @case
    async def with_a_tool():
        async with openai() as client:
            ran = await Runner.run(agent(client, tools=[get_weather]), ASK)
        assert any(item.type == "tool_call_output_item" for item in ran.new_items), "the tool was not called"
        return result(ran)

    @case
    async def streamed():
        async with openai() as client:
            streaming = agent(client, tools=[get_weather], model_settings=ModelSettings(include_usage=True))
            ran = Runner.run_streamed(streaming, ASK)
            kinds = [event.type async for event in ran.stream_events()]
        return {"events": kinds, **result(ran)}

    @case
    async def structured():
        async with openai() as client:
            ran = await Runner.run(agent(client, output_type=River), "Describe a river.")
        assert isinstance(ran.final_output, River)
        return result(ran)

    for function in (with_a_tool, streamed, structured):
        function.__name__ = f"{name}_{function.__name__}"


register(OpenAIChatCompletionsModel, "chat_completions")
register(OpenAIResponsesModel, "responses")

if __name__ == "__main__":
    run()
