"""Real sockets on the loopback, and a server in this process."""

import asyncio
import contextlib
import functools
import json
import resource
import socket

import pytest
import uvicorn

from tpu_components.serving import connections
from tpu_components.serving.connections import Connection, ConnectionSlots, connection_limit
from tpu_components.serving.server import Server, handle_error

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


@pytest.fixture
def little_patience(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)


async def echo(scope, receive, send):
    """Answers with the body; `/early` before it has read it, `/long` with 32 MiB."""
    body = b""
    while scope["path"] != "/early" and (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    else:
        if scope["path"] != "/early":
            return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(limit=100, app=echo):
    """The port of a server that holds `limit` connections, and its places."""
    places = ConnectionSlots(limit)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        http = functools.partial(Connection, places)
        config = uvicorn.Config(app, http=http, lifespan="off", ws="none", log_config=None, log_level="critical")
        server = Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1], places
        finally:
            server.force_exit = server.should_exit = True
            await task


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
        async with serving() as (port, places), contextlib.AsyncExitStack() as stack:
            for sent in (b"", b"GET / HT", GET[:-2], GET + b"GET /", GET + GET + b"G"):
                reader, _ = await stack.enter_async_context(connected(port, sent))
                answers = (await end_of(reader)).count(b"HTTP/1.1 200")
                assert answers == sent.count(b"\r\n\r\n")
            assert len(places) == 0

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
                await asyncio.sleep(0.4)

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_the_rest_of_a_body_that_nobody_reads_is_not_waited_for():
    async def scenario():
        early = POST.replace(b" / ", b" /early ")
        async with serving() as (port, places), connected(port, early) as (reader, _):
            assert await status_of(reader) == 200
            assert await end_of(reader) == b""
            assert len(places) == 0

    run(scenario())


@pytest.mark.usefixtures("little_patience")
def test_a_client_that_does_not_take_its_answer_is_left():
    async def long(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 << 20)})

    async def scenario():
        async with serving(app=long) as (port, places):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(GET)
                await until(lambda: len(places) == 1)
                await until(lambda: len(places) == 0)

    run(scenario())


def test_a_newcomer_gets_the_place_of_who_says_nothing_for_longest():
    async def scenario():
        async with serving(limit=4) as (port, places), contextlib.AsyncExitStack() as stack:
            said = [b"", b"GET", POST, GET] * 2
            silent = [await stack.enter_async_context(connected(port, sent)) for sent in said]
            await until(lambda: len(places) == 4)
            async with connected(port, GET) as (reader, _):
                assert await status_of(reader) == 200
                assert len(places) == 4
            for reader, _ in silent[:5]:
                await end_of(reader)

    run(scenario())


def test_a_newcomer_is_refused_where_all_are_being_answered():
    async def scenario():
        is_open, asked = asyncio.Event(), []

        async def slow(scope, receive, send):
            asked.append(await receive())
            await is_open.wait()
            await echo({"path": "/early"}, receive, send)

        async with serving(limit=2, app=slow) as (port, _), contextlib.AsyncExitStack() as stack:
            asking = [await stack.enter_async_context(connected(port, GET)) for _ in range(2)]
            await until(lambda: len(asked) == 2)
            async with connected(port, GET) as (reader, _):
                answer = await end_of(reader)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"retry-after: 1" in answer.lower()
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith(
                    "The server is busy: it answers"
                )
            is_open.set()
            assert [await status_of(reader) for reader, _ in asking] == [200, 200]

    run(scenario())


AMBIGUOUS = [
    GET.replace(b"\r\n", b"\n"),
    b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    POST[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST[:-2] + b"Content-Length: 5\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
]


def test_what_could_be_understood_in_two_ways_is_refused():
    """Also behind a request that is well-formed, in the same packet or in the next one."""
    before = [b"", GET, POST + b"body", POST.replace(b" / ", b" /early ") + b"body"]

    async def ask(port, parts):
        async with connected(port) as (reader, writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            return await end_of(reader)

    async def scenario():
        asked = [parts for one in before for bad in AMBIGUOUS for parts in ([one + bad], [one, bad])]
        async with serving() as (port, _):
            answers = await asyncio.gather(*(ask(port, parts) for parts in asked))
        for parts, answer in zip(asked, answers, strict=True):
            head, body = answer.rsplit(b"\r\n\r\n", 1)
            is_second = any(parts[0].startswith(one) for one in before[1:])
            assert answer.count(b"HTTP/1.1 200") == is_second, parts
            assert answer.count(b"HTTP/1.1 400") == 1, parts
            assert b"connection: close" in head.lower()
            assert json.loads(body)["error"].startswith("Cannot read the request: ")

    run(scenario())


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
FAULTY_ENDS = [
    b"0\r\n\n",
    b"0\r\nA: b\n\r\n",
    b"0\r\nA: b\n\n",
    b"0\r\nA: b\r\n c\r\n\r\n",
    b"0\r\nA: b\r\n\tc\r\n\r\n",
    b"0\r\nA: b\r\nC: d\n\r\n",
]


@pytest.mark.parametrize("chunks", [b"", b"4\r\nbody\r\n", b"4\r\nbody\r\n4;a=b\r\nbody\r\n"])
def test_trailers_that_could_be_understood_in_two_ways_are_refused(chunks):
    """Cut into two packets at every place; what stands behind them is not answered."""

    async def ask(port, sent, cut):
        async with connected(port, sent[:cut]) as (reader, writer):
            await asyncio.sleep(0.01)
            writer.write(sent[cut:])
            return await end_of(reader)

    async def scenario():
        async with serving() as (port, _):
            for end in FAULTY_ENDS:
                sent = CHUNKED + chunks + end + GET
                cuts = range(len(CHUNKED), len(sent) - len(GET) + 1)
                for answer in await asyncio.gather(*(ask(port, sent, cut) for cut in cuts)):
                    assert answer.count(b"HTTP/1.1") == 1, (end, answer)
                    assert answer.startswith(b"HTTP/1.1 400 "), (end, answer)
            sent = CHUNKED + chunks + b"0\r\nA: b\r\nC: d\r\n\r\n" + GET.replace(b"x", b"x\r\nConnection: close")
            for answer in await asyncio.gather(*(ask(port, sent, cut) for cut in range(len(CHUNKED), len(sent)))):
                assert answer.count(b"HTTP/1.1 200") == 2, answer

    run(scenario())


def test_a_body_may_come_in_small_chunks_but_not_in_very_many():
    def of_chunks(count, num_bytes):
        return CHUNKED + b"%x\r\n%s\r\n" % (num_bytes, b"x" * num_bytes) * count + b"0\r\n\r\n"

    async def scenario():
        async with serving() as (port, _):
            for count, num_bytes in ((100, 1), (2000, 1024), (100, 20_000)):
                for _ in range(2):  # Each request counts its own.
                    async with connected(port, of_chunks(count, num_bytes) * 2) as (reader, _):
                        for _ in range(2):
                            assert await status_of(reader) == 200
                            assert await reader.readexactly(count * num_bytes) == b"x" * count * num_bytes
            for count, num_bytes in ((101, 1), (110, 40)):
                async with connected(port, of_chunks(count, num_bytes) + GET) as (reader, _):
                    answer = await end_of(reader)
                    assert answer.startswith(b"HTTP/1.1 400 ")
                    assert f"in chunks of {num_bytes} bytes. Expected larger" in answer.decode()
                    assert answer.count(b"HTTP/1.1") == 1

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (POST + b"\n x\r", ""),
        (b"GET / HTTP/1.1\nHost: x\n\n", "line feed alone"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\ty\r\n\r\n", "goes on in the next line"),
        (POST[:-2] + b"transfer-encoding: chunked\r\n\r\n", "both Content-Length"),
    ],
)
def test_a_head_is_refused_with_its_fault_and_a_body_may_be_anything(sent, words):
    async def scenario():
        async with serving() as (port, _), connected(port, sent) as (reader, _):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 " if words else b"HTTP/1.1 200 ")
            if words:
                assert words in json.loads(await end_of(reader))["error"]

    run(scenario())


def test_the_limit_leaves_files_for_everything_else(monkeypatch):
    def limited(files):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
        return connection_limit(1000)

    assert [limited(files) for files in (100, 256, 1024, 20_000, -1)] == [50, 128, 896, 1000, 1000]


def test_an_error_of_accepting_is_told_once(capsys):
    for _ in range(1000):
        error = OSError(24, "Too many open files")
        handle_error(None, {"message": "socket.accept() out of system resource", "exception": error})
    (line,) = capsys.readouterr().err.splitlines()
    assert "Cannot accept connections: Too many open files" in json.loads(line)["message"]
