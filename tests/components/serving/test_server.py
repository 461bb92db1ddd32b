"""A real server over HTTP."""

import ast
import base64
import contextlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.cli import COMPONENTS, REPOSITORY, assert_user_error, tpu_pipelines_here
from tpu_components import serving
from tpu_components.serving.exported import load_model
from tpu_components.serving.server import SHUTDOWN_SECONDS, listen


def png(image, size=None):
    buffer = io.BytesIO()
    picture = Image.fromarray(image[:, :, 0])
    (picture.resize(size, Image.Resampling.BICUBIC) if size else picture).save(buffer, "PNG")
    return {"b64": base64.b64encode(buffer.getvalue()).decode()}


def probabilities(answer):
    """float64[N, 10] of an answer, whose classes come likeliest first."""
    assert answer.status == 200, answer.body
    return np.array([[one["probabilities"][str(i)] for i in range(10)] for one in answer.body["predictions"]])


def test_server_answers_as_the_model_does(server, export_dir, digits):
    expected = load_model(export_dir).predict(digits[:20])
    for instances in (digits[:20].tolist(), [png(image) for image in digits[:20]]):
        answer = server.predict({"instances": instances})
        assert np.array_equal(probabilities(answer), expected.astype(float))
        for one, of_image in zip(answer.body["predictions"], expected, strict=True):
            assert one["class"] == str(of_image.argmax()) == next(iter(one["probabilities"]))
            assert one["confidence"] == of_image.max()


def test_server_agrees_with_the_command_line(server, export_dir, digits, tmp_path):
    """Also on pictures of another size, which both resize."""
    content = png(digits[0], size=(31, 20))
    (tmp_path / "digit.png").write_bytes(base64.b64decode(content["b64"]))
    done = tpu_pipelines_here("predict", str(export_dir), str(tmp_path / "digit.png"), "--json", "--top", "4")
    (prediction,) = server.predict({"instances": [content], "parameters": {"top": 4}}).body["predictions"]
    assert prediction["probabilities"] == json.loads(done.stdout)["classes"]


def test_an_image_may_be_the_body_itself(server, digits):
    instance = png(digits[0], size=(31, 20))
    content = base64.b64decode(instance["b64"])
    wrapped = server.predict({"instances": [instance], "parameters": {"top": 2}})
    answer = server.request("POST", "/predict?top=2", content, {"Content-Type": "image/png"})
    assert (answer.status, answer.body) == (200, wrapped.body)
    as_curl = server.request("POST", "/predict?top=2", content, {"Content-Type": "application/x-www-form-urlencoded"})
    assert (as_curl.status, as_curl.body) == (200, wrapped.body)
    answer = server.request("POST", "/predict", b"no image", {"Content-Type": "image/jpeg"})
    assert (answer.status, "Received: not an image" in answer.body["error"]) == (400, True)


def test_small_requests_do_not_wait_for_large_ones(server, digits):
    """Each of four 4096² pixels, a few kilobytes, which take seconds in all."""
    image = png(np.zeros((1, 1, 1), np.uint8), size=(4096, 4096))
    small, large = {"instances": digits[:1].tolist()}, {"instances": [image] * 4}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.predict, large) for _ in range(4)]
        time.sleep(0.2)
        assert server.predict(small).status == 200
        assert not all(one.done() for one in asked)
        assert {one.result().status for one in asked} == {200}
        too_many = server.predict({"instances": [image] * 5})
    assert (too_many.status, "67,108,864 pixels" in too_many.body["error"]) == (413, True)


def test_fifty_at_a_time_get_what_each_gets_alone(server, digits):
    bodies = [{"instances": digits[i : i + 1 + i % 3].tolist()} for i in range(50)]
    alone = [server.predict(body).body for body in bodies]
    with ThreadPoolExecutor(50) as pool:
        together = [answer.body for answer in pool.map(server.predict, bodies * 4)]
    assert together == alone * 4


def test_good_and_bad_requests_do_not_disturb_each_other(server, export_dir, digits):
    """A thousand at 32 at a time: every good one right, every bad one a 4xx with a message."""
    classes = load_model(export_dir).predict(digits).argmax(1)
    bad = [b"{", b"\xff\xfe", {"instances": []}, {"instances": [[[1]]]}, {"instances": [{"b64": "AAAA"}]}, {}]

    def ask(number):
        if number % 3 == 0:
            return server.predict(bad[number // 3 % len(bad)])
        image = digits[number % len(digits)]
        return server.predict({"instances": [png(image) if number % 2 else image.tolist()]})

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(1000)))
    for number, answer in enumerate(answers):
        if number % 3 == 0:
            assert (answer.status, answer.body.keys()) == (400, {"error"})
        else:
            assert answer.body["predictions"][0]["class"] == str(classes[number % len(digits)])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/x", None, 404, "There is no GET /x. Expected GET /health or POST /predict."),
        ("POST", "/predict/", {}, 404, "There is no POST /predict/"),
        ("GET", "/predict", None, 405, "There is no GET /predict"),
        ("POST", "/health", {}, 405, "There is no POST /health"),
        ("POST", "/predict", b"", 400, "must be JSON"),
        ("POST", "/predict", {"instances": [[[0] * 8] * 7]}, 400, r"instances\[0\]: expected pixels \[8\]\[8\]\[1\]"),
        (
            "POST",
            "/predict",
            {"instances": [[[0] * 8] * 8] * 129},
            413,
            r"may contain at most 128 instances \(--max-instances\). Received: 129",
        ),
        (
            "POST",
            "/predict",
            b" " * 5_000_000,
            413,
            r"may have at most 1,572,864 bytes \(--max-body-bytes\). Received: 5,000,000",
        ),
    ],
)
def test_mistakes_are_answered_in_json(server, method, path, body, status, message):
    answer = server.request(method, path, body)
    assert answer.status == status
    assert re.search(message, answer.body["error"])
    assert answer.headers["Content-Type"] == "application/json"
    assert ("Allow" in answer.headers) == (status == 405)


def test_connection_serves_many_requests(server, digits):
    body = json.dumps({"instances": digits[:1].tolist()})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        for content in [body, "{", body] * 10:
            connection.request("POST", "/predict", content)
            response = connection.getresponse()
            assert response.status == (400 if content == "{" else 200)
            response.read()


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged():
    """Which takes 40 ms, however idle the machine: a connection inherits from its listener that it does not wait."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_printed_example_works(server, digits, tmp_path):
    (tmp_path / "IMAGE").write_bytes(base64.b64decode(png(digits[0])["b64"]))
    command = server.line.partition(" Try: ")[2]
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert len(json.loads(done.stdout)["predictions"]) == 1, done.stderr


def test_server_imports_no_training_code(server):
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "litert" in maps
    assert not re.search("tensorflow|jax|keras|sklearn|grpc", maps)


def test_server_modules_are_those_of_its_image():
    """It runs where only the packages of its own lock are installed, and no step's code is."""
    code = "import sys, tpu_components.serving.server, tpu_components.serving.__main__; print(*sys.modules)"
    before, after = (
        set(subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True).stdout.split())
        for c in ("import sys; print(*sys.modules)", code)
    )
    loaded = after - before
    assert not {name for name in loaded if name.split(".")[0] in ("tensorflow", "keras", "kfp", "jax", "google.cloud")}
    assert "model_signing" not in loaded, "whoever verifies nothing does not wait for it"
    copied = re.findall(r"^COPY components/(\S+)", (REPOSITORY / "docker" / "serving.Dockerfile").read_text(), re.M)
    names = {place.replace("/", ".") for place in copied}
    ours = {name for name in loaded if name.startswith("tpu_components.") and name != "tpu_components.core"}
    assert {name for name in ours if not any(f"{name}.".startswith(f"{room}.") for room in names)} == set()


def test_flags_set_the_limits_the_route_and_the_format(start_server, export_dir, digits):
    flags = ("--int8", "--max-instances", "20", "--max-body-bytes", "9000", "--predict-route", "/v1/digits:predict")
    with start_server(*flags) as server:

        def predict(body):
            return server.request("POST", "/v1/digits:predict", body)

        received = probabilities(predict({"instances": digits[:20].tolist()}))
        assert "may contain at most 20 instances (--max-instances)" in predict({"instances": [0] * 21}).body["error"]
        assert predict(b" " * 9001).status == 413
    assert np.array_equal(received, load_model(export_dir, use_int8=True).predict(digits[:20]).astype(float))


def test_vertex_variables_are_honoured(start_container, export_dir, digits):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with start_container(
        AIP_STORAGE_URI=str(export_dir),
        AIP_HTTP_PORT=str(port),
        AIP_HEALTH_ROUTE="/v1/endpoints/1/deployedModels/2",
        AIP_PREDICT_ROUTE="/v1/endpoints/1/deployedModels/2:predict",
    ) as server:
        assert server.port == port
        assert server.request("GET", "/v1/endpoints/1/deployedModels/2").body == {"status": "ready"}
        answer = server.request("POST", "/v1/endpoints/1/deployedModels/2:predict", {"instances": digits[:2].tolist()})
        assert len(answer.body["predictions"]) == 2
        assert server.request("GET", "/health").status == 404


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_request_in_flight_outlives_the_signal_and_new_ones_are_refused(start_server, digits, with_signal):
    body = json.dumps({"instances": digits[:1].tolist()}).encode()
    with start_server() as server, socket.create_connection(("127.0.0.1", server.port)) as in_flight:
        in_flight.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:9]))
        time.sleep(0.2)
        server.process.send_signal(with_signal)
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionRefusedError:
                break
            time.sleep(0.02)
        else:
            pytest.fail("New connections were accepted.")
        in_flight.sendall(body[9:])
        answer = http.client.HTTPResponse(in_flight)
        answer.begin()
        assert answer.status == 200
        assert len(json.loads(answer.read())["predictions"]) == 1
        assert in_flight.recv(1) == b""
        answer.close()
        assert server.process.wait(10) == 0
        assert "Traceback" not in server.log.read_text()


def test_idle_server_ends_at_once(start_server):
    with start_server() as server, contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as idle:
        idle.request("GET", "/health")
        idle.getresponse().read()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(SHUTDOWN_SECONDS - 5) == 0  # Which it gives to an answer that is not whole yet.
        assert "Traceback" not in server.log.read_text()


def test_server_ends_while_it_still_loads():
    """From a bucket, whose server never answers."""
    with socket.create_server(("127.0.0.1", 0)) as bucket, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{bucket.getsockname()[1]}"}
        words = [sys.executable, "-m", "tpu_pipelines.cli", "serve", "gs://bucket/export", "--port", str(port)]
        with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
            with contextlib.closing(_connect(port)) as connection:
                connection.request("GET", "/health")
                response = connection.getresponse()
                assert (response.status, json.loads(response.read())) == (503, {"status": "loading"})
            process.terminate()
            assert process.wait(10) == 0


def _connect(port):
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.connect()
        except ConnectionRefusedError:
            connection.close()
            time.sleep(0.05)
        else:
            return connection
    raise TimeoutError


def test_port_in_use_is_a_user_error(server, export_dir):
    done = tpu_pipelines_here("serve", str(export_dir), "--port", str(server.port))
    assert_user_error(
        done, f"Cannot listen on 127.0.0.1:{server.port}: Address already in use", "Choose another --port"
    )


def test_what_cannot_be_served_is_a_user_error(export_dir, tmp_path):
    done = tpu_pipelines_here("serve", str(tmp_path), "--port", "0")
    assert_user_error(done, "a folder without export.json", "expected an export, the path of a run's folder")
    assert_user_error(tpu_pipelines_here("serve", str(export_dir), "--port", "70000"), "port must be from 0 to 65535")
    assert_user_error(
        tpu_pipelines_here("serve", str(export_dir), "--host", "no.such.host.invalid"), "Cannot listen on"
    )


def test_container_without_a_model_says_so():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIP_")}
    done = subprocess.run(
        [sys.executable, "-m", "tpu_components.serving"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert "pass EXPORT_DIR, or set AIP_STORAGE_URI" in done.stderr


def test_serving_code_uses_no_step():
    steps = {path.parent.name for path in COMPONENTS.glob("*/component.py")}
    for path in Path(serving.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not {f"tpu_components.{step}" for step in steps} & {
                    node.module,
                    ".".join(node.module.split(".")[:2]),
                }


def test_an_export_has_the_name_of_its_registered_model(export_dir, start_container, tmp_path):
    place = tmp_path / "registry/shoes/versions/0001/export"
    shutil.copytree(export_dir, place)
    with start_container(AIP_STORAGE_URI=str(place), AIP_HTTP_PORT="0") as server:
        assert server.request("GET", "/v1/models").body == {"models": ["shoes"]}
        assert server.request("GET", "/v2/models/shoes/ready").status == 200
