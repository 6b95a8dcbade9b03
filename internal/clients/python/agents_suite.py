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


def model(kind):
    return kind(model="fake-chat-" + SUITE, openai_client=AsyncOpenAI(base_url=URL + "/v1", api_key=KEY))


def result(run_result):
    usage = run_result.context_wrapper.usage
    assert usage.requests > 0 and usage.total_tokens > 0, usage
    return {
        "output": run_result.final_output,
        "items": [item.raw_item if isinstance(item.raw_item, dict) else item.raw_item for item in run_result.new_items],
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens],
    }


def agent(kind, **options):
    return Agent(name="geographer", instructions="Answer briefly.", model=model(kind), **options)


def register(kind, name):
    @case
    async def with_a_tool():
        ran = await Runner.run(agent(kind, tools=[get_weather]), ASK)
        assert any(item.type == "tool_call_output_item" for item in ran.new_items), "the tool was not called"
        return result(ran)

    @case
    async def streamed():
        ran = Runner.run_streamed(agent(kind, tools=[get_weather], model_settings=ModelSettings(include_usage=True)), ASK)
        kinds = [event.type async for event in ran.stream_events()]
        return {"events": kinds, **result(ran)}

    @case
    async def structured():
        ran = await Runner.run(agent(kind, output_type=River), "Describe a river.")
        assert isinstance(ran.final_output, River)
        return result(ran)

    for function in (with_a_tool, streamed, structured):
        function.__name__ = f"{name}_{function.__name__}"


register(OpenAIChatCompletionsModel, "chat_completions")
register(OpenAIResponsesModel, "responses")

if __name__ == "__main__":
    run()
