"""Real sockets on the loopback, and a server in this process: what stock uvicorn and h11 do with raw requests."""

import asyncio
import contextlib
import resource
import socket

import numpy as np
import pytest

from tests.components.serving.test_application import Model
from tpu_components.core.examples.interface import ImageInput
from tpu_components.serving import server as serving_server
from tpu_components.serving.application import Application
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.params import ServeParams
from tpu_components.serving.server import allow_many_connections, close_silent_connections, listen, make_server

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"instances": [[[7]]]}'
POST = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def in_chunks(body, size=1):
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.fixture
def little_patience(monkeypatch):
    monkeypatch.setattr(serving_server, "SILENCE_SECONDS", 0.2)


def make_application(model=None):
    application = Application(ServeParams())
    return application, application.ready(model or Model().exported)


@contextlib.asynccontextmanager
async def serving(model=None):
    """The port of a server, and uvicorn's object."""
    application, ready = make_application(model)
    with listen("127.0.0.1", 0) as listener:
        server = make_server(application)
        async with ready:
            tasks = [
                asyncio.create_task(server.serve(sockets=[listener])),
                asyncio.create_task(close_silent_connections(server)),
            ]
            try:
                yield listener.getsockname()[1], server
            finally:
                server.force_exit = server.should_exit = True
                await tasks[0]
                tasks[1].cancel()


@contextlib.asynccontextmanager
async def connected(port, sent=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        yield reader, writer
    finally:
        writer.close()


async def status_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
    return int(head.split()[1])


async def end_of(reader):
    """What still comes before the server closes."""
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""


async def until(is_so):
    """Wait until a condition holds; `run` limits how long."""
    while not is_so():
        await asyncio.sleep(0.01)


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.mark.usefixtures("little_patience")
def test_a_head_that_does_not_arrive_is_not_waited_for():
    async def scenario():
        async with serving() as (port, server), contextlib.AsyncExitStack() as stack:
            for sent in (b"", b"GET / HT", GET[:-2], GET + b"GET /", GET + GET + b"G"):
                reader, _ = await stack.enter_async_context(connected(port, sent))
                answers = (await end_of(reader)).count(b"HTTP/1.1 200")
                assert answers == sent.count(b"\r\n\r\n")
            assert not server.server_state.connections

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_a_head_may_not_come_byte_by_byte_for_longer():
    async def scenario():
        async with serving() as (port, _), connected(port) as (reader, writer):
            ended = asyncio.create_task(end_of(reader))
            for byte in GET * 10:
                if ended.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
            else:
                pytest.fail("All of it was waited for.")
            assert await ended == b""

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_an_idle_connection_stays_and_may_ask_again():
    async def scenario():
        async with serving() as (port, _), connected(port) as (reader, writer):
            for _ in range(2):
                writer.write(GET)
                assert await status_of(reader) == 200
                await asyncio.sleep(0.6)

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_a_connection_with_request_after_request_stays():
    async def scenario():
        async with serving() as (port, _), connected(port) as (reader, writer):
            for _ in range(40):
                writer.write(POST)
                await asyncio.sleep(0.02)
                writer.write(BODY)
                assert await status_of(reader) == 200

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_the_rest_of_a_body_that_nobody_reads_is_not_waited_for():
    async def scenario():
        async with serving() as (port, server), connected(port, POST.replace(b"predict", b"x")) as (reader, _):
            assert await status_of(reader) == 404
            assert await end_of(reader) == b""
            assert not server.server_state.connections

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_a_client_that_does_not_take_its_answer_is_left():
    def predict(images):
        return np.full((len(images), len(names)), 1 / len(names), np.float32)

    names = tuple(str(number) * 400 for number in range(20_000))  # 32 MB are more than the system's buffers take.
    large = ExportedModel("pets", names, ImageInput((1, 1, 1), "raw"), predict, ImageInput((1, 1, 1), "raw"))

    async def scenario():
        async with serving(large) as (port, server):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(POST + BODY)
                await until(lambda: len(server.server_state.connections) == 1)
                await until(lambda: not server.server_state.connections)

    run(scenario())


async def answer_of(port, *parts):
    """All that the server answers to parts that are sent one by one, until it closes."""
    async with connected(port) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return await end_of(reader)


REFUSED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "two lengths": POST[:-2] + b"Content-Length: 5\r\n\r\n",
    "a length that is no number": POST.replace(b"22", b"+22"),
    "a length with an underscore": POST.replace(b"22", b"2_2"),
    "a space before the colon": GET.replace(b"Host: x", b"Host: x\r\nContent-Length : 4"),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a control character in a header": GET.replace(b"Host: x", b"Host: x\0"),
    "a chunk size with a sign": CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n",
    "a chunk size with a prefix": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk that ends in a line feed": CHUNKED + b"2\r\n{}\n\n0\r\n\r\n",
    "a chunk that is longer than its size": CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_request_whose_end_is_ambiguous_is_refused_and_nothing_behind_it_is_answered(fault):
    """Also behind a request that is well-formed, in the same packet or in the next one."""

    async def scenario():
        async with serving() as (port, _):
            for before in (b"", GET, POST + BODY):
                for parts in ([before + REFUSED[fault] + GET], [before, REFUSED[fault] + GET]):
                    answer = await answer_of(port, *parts)
                    statuses = [int(line.split()[0]) for line in answer.split(b"HTTP/1.1 ")[1:]]
                    assert statuses == [*([200] if before else []), 400], (parts, answer)
                    assert b"connection: close" in answer.lower()

    run(scenario())


LENIENT = [
    GET.replace(b"\r\n", b"\n"),
    b"GET /health HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", LENIENT)
def test_what_h11_reads_leniently_is_one_request_and_the_next_one_is_answered_as_itself(request_bytes):
    """https://www.rfc-editor.org/rfc/rfc9112#section-2.2 allows a single line feed, section 5.2 a folded header."""
    last = GET.replace(b"x\r\n", b"x\r\nConnection: close\r\n", 1)

    async def scenario():
        async with serving() as (port, _):
            answer = await answer_of(port, request_bytes + last)
            assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"HTTP/1.1") == 2
            assert answer.endswith(b'{"status":"ready"}')

    run(scenario())


CHUNKS = {
    "a byte each": in_chunks(BODY),
    "larger ones": in_chunks(BODY, 7),
    "a name in capitals": in_chunks(BODY).replace(b"chunked", b"CHUNKED"),
    "a chunk extension": CHUNKED + b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a trailer": in_chunks(BODY)[:-2] + b"A: b\r\n\r\n",
    "a folded header": in_chunks(BODY).replace(b": chunked", b":\r\n chunked"),
    "a header behind a line feed": in_chunks(BODY).replace(b"Host: x\r\n", b"Host: x\n"),
    "a trailer that ends in a line feed": in_chunks(BODY)[:-2] + b"A: b\n\r\n",
    "a folded trailer": in_chunks(BODY)[:-2] + b"A: b\r\n c\r\n\r\n",
}


@pytest.mark.parametrize("kind", CHUNKS)
def test_a_body_in_chunks_is_answered_and_what_follows_it_is_the_next_request(kind):
    async def scenario():
        async with serving() as (port, _):
            last = GET.replace(b"x\r\n", b"x\r\nConnection: close\r\n", 1)
            answer = await answer_of(port, CHUNKS[kind] + last)
            statuses = [int(line.split()[0]) for line in answer.split(b"HTTP/1.1 ")[1:]]
            assert statuses == [200, 200], answer
            assert answer.endswith(b'{"status":"ready"}')

    run(scenario())


AMBIGUOUS = {
    "a length and chunks": POST[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": CHUNKED[:-2] + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "a length, and chunks behind a line feed": POST[:-2] + b"A: b\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length, and chunks in a folded header": POST[:-2] + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_a_body_whose_end_is_ambiguous_is_refused_and_nothing_behind_it_is_answered(kind):
    async def scenario():
        async with serving() as (port, _):
            for before in (b"", GET, POST + BODY):
                answer = await answer_of(port, before + AMBIGUOUS[kind] + GET)
                statuses = [int(line.split()[0]) for line in answer.split(b"HTTP/1.1 ")[1:]]
                assert statuses == [*([200] if before else []), 400], answer

    run(scenario())


def test_few_bodies_arrive_in_chunks_at_a_time_and_others_are_not_held_up():
    async def scenario():
        async with serving() as (port, _), contextlib.AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(connected(port, CHUNKED + b"1\r\n{\r\n")) for _ in range(4)]
            await asyncio.sleep(0.2)
            async with connected(port, CHUNKED) as (reader, _):
                assert await status_of(reader) == 503
            async with connected(port, POST + BODY) as (reader, _):
                assert await status_of(reader) == 200
            for reader, writer in slow:
                writer.write(in_chunks(BODY[1:])[len(CHUNKED) :])
                assert await status_of(reader) == 200
            async with connected(port, in_chunks(BODY)) as (reader, _):
                assert await status_of(reader) == 200

    run(scenario())


def test_other_transfer_encodings_are_refused():
    async def scenario():
        async with serving() as (port, _):
            for coding in (b"gzip", b"chunked, gzip", b"xchunked", b"\x0bchunked"):
                answer = await answer_of(port, CHUNKED.replace(b"chunked", coding) + GET)
                assert answer.startswith(b"HTTP/1.1 400 "), (coding, answer)
                assert answer.count(b"HTTP/1.1") == 1

    run(scenario())


def test_a_refused_request_leaves_no_stack_trace_in_the_log(capfd):
    async def scenario():
        async with serving() as (port, _):
            answer = await answer_of(port, CHUNKED + b"zz\r\n")
            assert answer.startswith(b"HTTP/1.1 400 ")

    run(scenario())
    assert "Traceback" not in capfd.readouterr().err


def test_a_head_of_more_than_64_kb_is_refused():
    async def scenario():
        async with serving() as (port, _):
            answer = await answer_of(port, GET[:-2] + b"A: " + b"x" * 100_000)
            assert answer.startswith(b"HTTP/1.1 400 ") or not answer

    run(scenario())


def test_as_many_connections_are_open_as_the_system_allows():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
