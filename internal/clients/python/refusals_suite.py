"""What the openai and anthropic packages make of Tollgate's own refusals. Each
key has one limit; GATEWAY_KEYS holds them as JSON, by the limit and the package.
"""

import json
import os

import anthropic
import openai

from harness import SUITE, URL, Attempts, case, fault, raised, run

KEYS = json.loads(os.environ["GATEWAY_KEYS"])
ASK = [{"role": "user", "content": "Name three rivers."}]


class OpenAI:
    """The openai package. Each request may take 40 tokens of output."""

    name = "openai"
    errors = openai

    def client(self, limit, **options):
        attempts = Attempts()
        http = attempts.client(openai.DefaultHttpxClient)
        key = KEYS[f"{limit}-python-openai"]
        return openai.OpenAI(base_url=URL + "/v1", api_key=key, http_client=http, **options), attempts

    def ask(self, client, other="", **options):
        return client.chat.completions.create(model="fake-chat-" + SUITE + other, messages=ASK, max_tokens=40, **options)

    def code(self, error):
        return error.code


class Anthropic:
    """The anthropic package, likewise."""

    name = "anthropic"
    errors = anthropic

    def client(self, limit, **options):
        attempts = Attempts()
        http = attempts.client(anthropic.DefaultHttpxClient)
        key = KEYS[f"{limit}-python-anthropic"]
        return anthropic.Anthropic(base_url=URL, api_key=key, http_client=http, **options), attempts

    def ask(self, client, other="", **options):
        return client.messages.create(model="fake-claude-" + SUITE + other, messages=ASK, max_tokens=40, **options)

    def code(self, error):
        return error.error_code


def waits_as_told(attempts, status=429):
    """The SDK came back once, not before Retry-After had passed, and was let in."""
    assert attempts.statuses == [200, status, 200], attempts.statuses
    told = int(attempts.headers[1]["retry-after"])
    waited = attempts.waits()[1]
    assert 1 <= told <= waited, f"Retry-After {told}, waited {waited}"


def register(sdk):
    def named(function):
        function.__name__ = f"{sdk.name}_{function.__name__}"
        return case(function)

    @named
    def waits_for_the_rate():
        client, attempts = sdk.client("rate")
        sdk.ask(client)
        sdk.ask(client)
        waits_as_told(attempts)

    @named
    def waits_for_the_window():
        client, attempts = sdk.client("window")
        sdk.ask(client)
        sdk.ask(client)
        waits_as_told(attempts)

    @named
    def waits_for_a_place():
        """The place is given back while the SDK waits."""
        client, attempts = sdk.client("places")
        running = sdk.ask(client, stream=True, extra_headers=fault("slow=50"))
        next(iter(running))
        attempts.on_answer = lambda status: running.close() if status == 429 else None
        # A new request is made: the fault is for the first alone.
        sdk.ask(client)
        waits_as_told(attempts)

    @named
    def gives_up_on_a_spent_budget():
        client, attempts = sdk.client("budget")
        sdk.ask(client)
        error = raised(sdk.errors.APIStatusError, lambda: sdk.ask(client))
        assert attempts.statuses == [200, 402], attempts.statuses
        assert "retry-after" not in error.response.headers
        assert error.response.headers["x-should-retry"] == "false"
        assert error.response.headers["x-tollgate-error-source"] == "tollgate"
        return [type(error).__name__, error.status_code, sdk.code(error)]

    @named
    def gives_up_on_what_never_fits():
        client, attempts = sdk.client("small")
        error = raised(sdk.errors.RateLimitError, lambda: sdk.ask(client))
        assert attempts.statuses == [429], attempts.statuses
        assert error.response.headers["x-should-retry"] == "false"
        return [type(error).__name__, sdk.code(error)]

    @named
    def is_told_when_a_slot_may_be_free():
        client, attempts = sdk.client("slots", max_retries=0)
        running = sdk.ask(client, stream=True, extra_headers=fault("slow=50"))
        next(iter(running))
        error = raised(sdk.errors.InternalServerError, lambda: sdk.ask(client))
        running.close()
        assert attempts.statuses == [200, 503], attempts.statuses
        assert int(error.response.headers["retry-after"]) >= 1
        return [type(error).__name__, sdk.code(error)]

    @named
    def an_answered_idempotency_key_is_not_retried():
        client, attempts = sdk.client("free")
        key = {"Idempotency-Key": f"rivers-python-{sdk.name}"}
        sdk.ask(client, extra_headers=key)
        error = raised(sdk.errors.ConflictError, lambda: sdk.ask(client, extra_headers=key))
        assert attempts.statuses == [200, 409], attempts.statuses
        return [type(error).__name__, sdk.code(error)]

    @named
    def a_running_idempotency_key_is_waited_for():
        """The first request ends early while the SDK waits, so that the second is done."""
        client, attempts = sdk.client("free")
        ask = {"stream": True, "extra_headers": {"Idempotency-Key": f"seas-python-{sdk.name}"}}
        running = sdk.ask(client, **{**ask, "extra_headers": {**ask["extra_headers"], **fault("slow=50")}})
        next(iter(running))
        attempts.on_answer = lambda status: running.close() if status == 409 else None
        list(sdk.ask(client, **ask))
        waits_as_told(attempts, 409)

    @named
    def an_idempotency_key_that_failed_is_tried_again():
        """One reservation an attempt that reached the upstream."""
        client, attempts = sdk.client("free")
        sdk.ask(client, extra_headers={"Idempotency-Key": f"lakes-python-{sdk.name}", **fault("503")})
        assert attempts.statuses == [503, 200], attempts.statuses

    @named
    def the_upstreams_refusal_is_told_apart():
        """A model of its own: its upstream is left alone for as long as it says."""
        client, attempts = sdk.client("free", max_retries=0)
        error = raised(sdk.errors.RateLimitError, lambda: sdk.ask(client, "-other", extra_headers=fault("429=7")))
        assert error.response.headers["x-tollgate-error-source"] == "upstream"
        assert error.response.headers["retry-after"] == "7"

    @named
    def a_request_that_cannot_be_read():
        client, attempts = sdk.client("free")
        error = raised(sdk.errors.BadRequestError, lambda: sdk.ask(client, extra_body={"model": 7}))
        assert attempts.statuses == [400], attempts.statuses
        return type(error).__name__


for sdk in (OpenAI(), Anthropic()):
    register(sdk)

if __name__ == "__main__":
    run(at_once=True)
