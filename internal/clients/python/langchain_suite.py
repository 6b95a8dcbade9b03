"""LangChain's chat models and embeddings, over the openai and anthropic packages."""

from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from harness import KEY, SUITE, URL, case, fault, raised, run

ASK = [SystemMessage("Answer briefly."), HumanMessage("Name three rivers.")]


def openai(**options):
    return ChatOpenAI(model="fake-chat-" + SUITE, base_url=URL + "/v1", api_key=KEY, **options)


def anthropic(**options):
    return ChatAnthropic(model="fake-claude-" + SUITE, base_url=URL, api_key=KEY, max_tokens=256, **options)


@tool
def get_weather(city: str, days: int) -> str:
    """The weather at a place."""
    return f"{city}: 21 degrees for {days} days"


class River(BaseModel):
    """A river."""

    name: str
    length_km: int
    kind: Literal["stream", "river"]


def without_run_id(message):
    """LangChain gives a message that has no id of its own a random one."""
    if (message.id or "").startswith(("lc_run-", "run-")):
        message.id = "a run's"
    return message


def calls_a_tool(model):
    messages = [HumanMessage("What is the weather in Paris? Use the tool.")]
    first = model.bind_tools([get_weather], tool_choice="get_weather").invoke(messages)
    assert first.tool_calls, "no tool was called"
    messages.append(first)
    for call in first.tool_calls:
        messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    second = model.bind_tools([get_weather]).invoke(messages)
    return [without_run_id(first), without_run_id(second)]


def streams(model):
    whole, texts = None, []
    for chunk in model.stream(ASK):
        texts.append(str(chunk.content))
        whole = chunk if whole is None else whole + chunk
    assert whole.usage_metadata["output_tokens"] > 0, "LangChain was given no usage"
    return [texts, without_run_id(whole)]


@case
def openai_invoke():
    return without_run_id(openai().invoke(ASK))


@case
def openai_stream():
    return streams(openai(stream_usage=True))


@case
def openai_tools():
    return calls_a_tool(openai())


@case
def openai_structured():
    found = openai().with_structured_output(River).invoke("Describe a river.")
    assert isinstance(found, River)
    return found


@case
def openai_structured_by_tool():
    found = openai().with_structured_output(River, method="function_calling").invoke("Describe a river.")
    assert isinstance(found, River)
    return found


@case
def openai_responses():
    return without_run_id(openai(use_responses_api=True, output_version="responses/v1").invoke(ASK))


@case
async def openai_async():
    return [without_run_id(message) for message in await openai().abatch(["one", "two", "three"])]


@case
def openai_embeddings():
    model = OpenAIEmbeddings(
        model="fake-embed", base_url=URL + "/v1", api_key=KEY, check_embedding_ctx_length=False, dimensions=8
    )
    return model.embed_documents(["river", "lake"])


@case
def openai_error():
    model = openai(max_retries=0, default_headers=fault("429"))
    return type(raised(Exception, lambda: model.invoke(ASK))).__name__


@case
def anthropic_invoke():
    return without_run_id(anthropic().invoke(ASK))


@case
def anthropic_stream():
    return streams(anthropic())


@case
def anthropic_tools():
    return calls_a_tool(anthropic())


@case
def anthropic_structured():
    found = anthropic().with_structured_output(River).invoke("Describe a river.")
    assert isinstance(found, River)
    return found


@case
async def anthropic_async():
    return [without_run_id(message) for message in await anthropic().abatch(["one", "two", "three"])]


@case
def anthropic_error():
    model = anthropic(max_retries=0, default_headers=fault("429"))
    return type(raised(Exception, lambda: model.invoke(ASK))).__name__


if __name__ == "__main__":
    run()
