"""What the Python suites share: a suite is a list of cases, and a case returns
what the SDK gave it. The runner prints one JSON object, case by case, so that
two runs can be compared: one against the model server, one through Tollgate.

    GATEWAY_URL    the server's root, without /v1
    GATEWAY_KEY    the API key
    TOLLGATE_SUITE  a word in the models' names, so that suites that run at once
                    do not share what a gateway knows of a model

Nothing here knows which of the two it talks to.
"""

import asyncio
import hashlib
import inspect
import json
import os
import struct
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pydantic

URL = os.environ["GATEWAY_URL"]
KEY = os.environ["GATEWAY_KEY"]
SUITE = os.environ["TOLLGATE_SUITE"]

_cases = []


def case(function):
    """Registers a function, plain or async, as a case of this suite."""
    _cases.append(function)
    return function


def run(at_once=False):
    """Runs the cases named as arguments, or all, and prints what they gave. Cases
    that mostly wait may run at once, each in a thread of its own."""
    chosen = [function for function in _cases if not sys.argv[1:] or function.__name__ in sys.argv[1:]]
    with ThreadPoolExecutor(max(len(chosen), 1) if at_once else 1) as pool:
        outcomes = list(pool.map(_outcome, chosen))
    for function, (_, trouble) in zip(chosen, outcomes):
        if trouble:
            print(f"case {function.__name__}:\n{trouble}", file=sys.stderr)
    results = {function.__name__: value for function, (value, trouble) in zip(chosen, outcomes) if not trouble}
    json.dump(results, sys.stdout, indent=1, sort_keys=True)
    sys.exit(0 if len(results) == len(chosen) else 1)


def _outcome(function):
    """What a case gave, and the traceback of one that failed: the others may still
    tell something."""
    try:
        value = function()
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
        return shown(value), None
    except Exception:
        return None, traceback.format_exc()


async def _await(value):
    return await value


def shown(value):
    """A value as JSON, with the class of what the SDK made and only the fields
    that were really in the answer."""
    if isinstance(value, pydantic.BaseModel):
        fields = value.model_dump(mode="json", exclude_unset=True, warnings=False)
        return {"class": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(name): shown(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, BaseException):
        return _error(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"a case returned a {type(value)}")


def _error(error):
    seen = {"error": type(error).__name__}
    for name in ("status_code", "code", "param", "type", "body"):
        if hasattr(error, name):
            seen[name] = shown(getattr(error, name))
    return seen


def raised(kinds, call):
    """The exception that call raises, which must be of one of the kinds."""
    try:
        call()
    except kinds as error:
        return error
    raise AssertionError("no exception was raised")


async def raised_async(kinds, call):
    """raised, for a coroutine."""
    try:
        await call
    except kinds as error:
        return error
    raise AssertionError("no exception was raised")


def fault(orders):
    """A header that makes the model server misbehave; see internal/fakeprovider."""
    return {"X-Fake-Fault": orders}


class Attempts:
    """Notes when an SDK sends a request and what the answer's status is. A fault
    that is asked for meets the first attempt alone."""

    def __init__(self):
        self.sent, self.statuses, self.headers = [], [], []
        self.on_answer = lambda status: None

    def _request(self, request):
        if self.sent:
            request.headers.pop("X-Fake-Fault", None)
        self.sent.append(time.monotonic())

    def _response(self, response):
        self.statuses.append(response.status_code)
        self.headers.append(response.headers)
        self.on_answer(response.status_code)

    def client(self, default_client):
        """An HTTP client like the SDK's own one, with notes taken."""
        hooks = {"request": [self._request], "response": [self._response]}
        return default_client(event_hooks=hooks)

    def waits(self):
        """The seconds between one attempt and the next."""
        return [after - before for before, after in zip(self.sent, self.sent[1:])]


# A picture of 64 × 32 pixels in one colour.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAAAgCAIAAAAt/+nTAAAAN0lEQVR42u3PQQkAAAgEsItkJCMZ"
    "2Qw+hcEKLNXzWgQEBAQEBAQEBAQEBAQEBAQEBAQEBAQErhZ0vQCIFE6HPQAAAABJRU5ErkJggg=="
)


def wav(seconds):
    """Silence: 8,000 samples a second, 8 bits, one channel."""
    data = b"\x80" * (8000 * seconds)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", len(data))
    return head + data
