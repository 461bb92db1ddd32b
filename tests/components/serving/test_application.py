"""The application without a network, so that the moment of everything is the test's to choose."""

import asyncio
import contextlib
import gzip
import json
import threading
import tracemalloc

import numpy as np
import pytest

from tpu_components.core.examples.interface import ImageInput
from tpu_components.serving import bodies
from tpu_components.serving.application import Application
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.params import ServeParams

BODY = b'{"instances": [[[7]]]}'
_ONE_PIXEL = ImageInput((1, 1, 1), "raw")


class Model:
    """Is sure of "cat". Answers while `open` is set."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.num_calls = 0
        self.exported = ExportedModel("pets", ("cat", "dog"), _ONE_PIXEL, self, _ONE_PIXEL)

    def __call__(self, images):
        self.num_calls += 1
        assert self.open.wait(10)
        return np.tile(np.array([1, 0], np.float32), (len(images), 1))


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def app():
    return Application(ServeParams(max_requests=3, max_instances=2, max_body_bytes=1000))


LEAVES, STAYS_SILENT = {"type": "http.disconnect"}, None


async def call(app, method, path, *chunks, headers=()):
    """Status, headers, and body: a value if it is JSON, else text. The last chunk may be LEAVES or STAYS_SILENT."""
    events = [
        chunk if chunk in (LEAVES, STAYS_SILENT) else {"type": "http.request", "body": chunk, "more_body": True}
        for chunk in chunks
    ]
    events.append({"type": "http.request", "body": b"", "more_body": False})
    sent = []

    async def receive():
        event = events.pop(0) if events else STAYS_SILENT
        if event is STAYS_SILENT:
            await asyncio.sleep(3600)
        return event

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b""}
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in dict(headers).items()]
    # A server prints the stack trace of what an application raises; the answer has been sent by then.
    with contextlib.suppress(MemoryError, ValueError):
        await app(scope, receive, send)
    received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    is_json = received["content-type"] == "application/json"
    return sent[0]["status"], received, json.loads(body) if is_json else body


async def holds_nothing(app):
    """Whether the server's metrics say that no request holds bytes."""
    return "\ntpu_pipelines_held_bytes 0.0\n" in (await call(app, "GET", "/metrics"))[2]


async def get_health(app):
    status, _, body = await call(app, "GET", "/health")
    return status, body["status"]


async def predict(app, *chunks):
    status, headers, body = await call(app, "POST", "/predict", *(chunks or [BODY]))
    return status, body.get("error") or [one["class"] for one in body["predictions"]], headers


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def test_health_follows_the_model(app, model):
    async def scenario():
        assert await get_health(app) == (503, "loading")
        status, message, headers = await predict(app)
        assert (status, message, headers["retry-after"]) == (503, "The server is loading. Try again later.", "1")
        async with app.ready(model.exported):
            assert await get_health(app) == (200, "ready")
            assert (await predict(app))[:2] == (200, ["cat"])

    run(scenario())


def test_one_request_too_many_gets_503_and_when_to_retry(app, model):
    async def scenario():
        model.open.clear()
        async with app.ready(model.exported):
            tasks = [asyncio.create_task(predict(app)) for _ in range(3)]
            while not model.num_calls:
                await asyncio.sleep(0.001)
            status, message, headers = await predict(app)
            assert (status, headers["retry-after"]) == (503, "1")
            assert "busy: it is processing 3 requests" in message
            assert await get_health(app) == (200, "ready")
            model.open.set()
            assert [(await task)[0] for task in tasks] == [200] * 3
            assert (await predict(app))[0] == 200

    run(scenario())


def test_body_without_a_stated_length_is_cut_off_at_the_limit(app, model):
    async def scenario():
        async with app.ready(model.exported):
            status, message, _ = await predict(app, b"x" * 600, b"x" * 600, LEAVES)
            assert status == 413
            assert "may have at most 1,000 bytes (--max-body-bytes). Received: 1,200 bytes or more" in message

    run(scenario())


def test_body_that_does_not_arrive_gets_408(app, model, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_SECONDS", 0.01)

    async def scenario():
        async with app.ready(model.exported):
            status, message, _ = await predict(app, BODY[:5], STAYS_SILENT)
            assert (status, message) == (408, "The body did not arrive within 0 s. Send the request again.")

    run(scenario())


def test_bodies_that_do_not_end_hold_no_request_slot_and_no_more_bytes_than_allowed(model):
    app = Application(ServeParams(max_requests=3, max_body_bytes=1000, max_held_bytes=2500))

    async def scenario():
        async with app.ready(model.exported):
            withheld = [asyncio.create_task(predict(app, b"x" * 600, STAYS_SILENT)) for _ in range(8)]
            await asyncio.sleep(0.05)
            assert [task.done() for task in withheld] == [False] * 4 + [True] * 4
            status, message, headers = await withheld[-1]
            assert (status, headers["retry-after"]) == (503, "1")
            assert "busy: its requests take 2,400 bytes" in message
            for _ in range(5):
                assert (await predict(app))[0] == 200
            for task in withheld:
                task.cancel()
            await asyncio.gather(*withheld, return_exceptions=True)
            assert await holds_nothing(app)

    run(scenario())


def test_instances_that_can_never_be_held_get_413_and_those_that_cannot_be_held_now_503(model):
    large = ExportedModel("pets", ("cat", "dog"), _ONE_PIXEL, model, ImageInput((10, 11, 1), "raw"))
    body = json.dumps({"instances": [[[0] * 11] * 10]}).encode()  # 350 bytes, and 110 of pixels.

    async def scenario():
        app = Application(ServeParams(max_held_bytes=len(body) + 109))
        async with app.ready(large):
            status, message, _ = await predict(app, body)
            assert (status, "--max-held-bytes" in message) == (413, True)
            assert await holds_nothing(app)
        app = Application(ServeParams(max_held_bytes=len(body) + 110))
        async with app.ready(large):
            assert (await predict(app, body))[0] == 200
            other = asyncio.create_task(predict(app, b"x", STAYS_SILENT))
            await asyncio.sleep(0.01)
            status, message, _ = await predict(app, body)
            assert (status, "The server is busy: its requests take" in message) == (503, True)
            other.cancel()

    run(scenario())


def test_client_that_leaves_does_no_harm(app, model, capsys):
    async def scenario():
        async with app.ready(model.exported):
            await predict(app, BODY[:5], LEAVES)
            for _ in range(5):  # It holds no place.
                assert (await predict(app))[0] == 200

    run(scenario())
    assert json.loads(capsys.readouterr().err.splitlines()[0])["status"] == 499


@pytest.mark.parametrize("answer", [np.full((1, 2), np.nan, np.float32), MemoryError("4711")])
def test_failure_of_the_model_gets_500_without_details(app, answer, capsys):
    def predict_nothing(images):
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario():
        async with app.ready(ExportedModel("pets", ("cat", "dog"), _ONE_PIXEL, predict_nothing, _ONE_PIXEL)):
            assert (await predict(app))[:2] == (500, "The server failed. See its log for the reason.")

    run(scenario())
    line = json.loads(capsys.readouterr().err)
    assert (line["status"], line["severity"]) == (500, "ERROR")


def test_log_has_a_line_per_request_and_no_content(app, model, capsys):
    async def scenario():
        async with app.ready(model.exported):
            await call(app, "POST", "/predict", b'{"instances": [[[201]], [[202]]]}')
            await call(app, "POST", "/predict", b'{"instances": ["secret"]}')
            await call(app, "GET", '/"x"\n{"status": 200}')

    run(scenario())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["status"], line["instances"]) for line in lines] == [(200, 2), (400, 0), (404, 0)]
    assert lines[2]["path"] == '/"x"\n{"status": 200}'
    assert all(
        line.keys() == {"severity", "method", "path", "status", "ms", "instances"} and line["ms"] >= 0 for line in lines
    )
    assert "secret" not in str(lines)


async def send_encoded(app, content, encoding, num_chunks=1):
    size = -(-len(content) // num_chunks) or 1
    chunks = [content[start : start + size] for start in range(0, len(content), size)] or [b""]
    headers = {"Content-Encoding": encoding, "Content-Length": str(len(content))}
    status, received, body = await call(app, "POST", "/predict", *chunks, headers=headers)
    return status, body.get("error") or [one["class"] for one in body["predictions"]], received


@pytest.mark.parametrize("encoding", ["gzip", "GZip", "x-gzip"])
@pytest.mark.parametrize("num_chunks", [1, 7])
def test_a_body_in_gzip_is_answered(app, model, encoding, num_chunks):
    async def scenario():
        async with app.ready(model.exported):
            assert (await send_encoded(app, gzip.compress(BODY), encoding, num_chunks))[:2] == (200, ["cat"])
            assert (await send_encoded(app, BODY, "identity"))[:2] == (200, ["cat"])

    run(scenario())


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "compress", "*"])
def test_another_encoding_is_named(app, model, encoding):
    async def scenario():
        async with app.ready(model.exported):
            status, message, headers = await send_encoded(app, BODY, encoding)
            assert (status, headers["accept-encoding"]) == (415, "gzip")
            assert message.startswith(f"Cannot read a body with Content-Encoding '{encoding}'. Expected gzip")
            assert await holds_nothing(app)

    run(scenario())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BODY, r"The body is not compressed with gzip, although its Content-Encoding is gzip: "),
        (gzip.compress(BODY)[:-9], r"The body ends before its gzip data are complete"),
        (b"", r"The body ends before its gzip data are complete"),
        (gzip.compress(BODY) + b"more", r"The body continues after the end of its gzip data"),
        (gzip.compress(BODY) * 2, r"The body continues after the end of its gzip data"),
    ],
    ids=["plain", "cut off", "empty", "more bytes", "two members"],
)
@pytest.mark.parametrize("num_chunks", [1, 5])
def test_damaged_gzip_is_refused(app, model, content, message, num_chunks):
    async def scenario():
        async with app.ready(model.exported):
            status, received, _ = await send_encoded(app, content, "gzip", num_chunks)
            assert (status, received.startswith(message)) == (400, True), received
            assert await holds_nothing(app)

    run(scenario())


def test_a_bomb_is_stopped_at_the_limit_of_the_body(model):
    limit = 1 << 18
    held = []
    app = Application(ServeParams(max_body_bytes=limit, max_held_bytes=1 << 22))
    bomb = gzip.compress(bytes(1 << 26))  # 64 MiB.

    async def scenario():
        async with app.ready(model.exported):
            status, message, _ = await send_encoded(app, bomb, "gzip")
            held.append(tracemalloc.get_traced_memory()[1])
            assert (status, "--max-body-bytes" in message) == (413, True)
            assert await holds_nothing(app)

    tracemalloc.start()
    try:
        run(scenario())
    finally:
        tracemalloc.stop()
    assert held[0] < len(bomb) + 8 * limit
