"""KServe's protocols and Prometheus's page, on the application without a network."""

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.components.serving.test_application import call
from tpu_components import serving
from tpu_components.core.examples.interface import ImageInput
from tpu_components.serving.application import Application
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.metrics import Metrics
from tpu_components.serving.params import ServeParams

_SHAPE = ImageInput((2, 2, 1), "raw")


def _answer(images):
    """Surer of "cat" the brighter a picture is."""
    cat = images.reshape(len(images), -1).mean(1, dtype=np.float32) / 255
    return np.stack([cat, 1 - cat], 1)


MODEL = ExportedModel("pets", ("cat", "dog"), _SHAPE, _answer, _SHAPE)


def ask(method, path, body=None, ready=True, headers=(), **params):
    """Status and body of an answer."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()

    async def scenario():
        app = Application(ServeParams(max_instances=3, **params))
        async with app.ready(MODEL) if ready else contextlib.nullcontext():
            return await call(app, method, path, content, headers=headers)

    status, _, answer = asyncio.run(scenario())
    return status, answer


def tensor(data, shape=(2, 2, 2, 1), datatype="UINT8", **more):
    return {"inputs": [{"name": "image", "shape": list(shape), "datatype": datatype, "data": data}], **more}


def test_v1_lists_models_says_whether_one_is_ready_and_predicts():
    assert ask("GET", "/v1/models") == (200, {"models": ["pets"]})
    assert ask("GET", "/v1/models/pets") == (200, {"name": "pets", "ready": True, "live": True})
    assert ask("GET", "/v1/models/pets", ready=False)[0] == 503
    status, body = ask("POST", "/v1/models/pets:predict", {"instances": [[[255, 255], [255, 255]]]})
    assert (status, body["predictions"][0]["class"]) == (200, "cat")


def test_v2_says_that_it_lives_is_ready_and_what_it_is():
    assert ask("GET", "/v2/health/live", ready=False) == (200, {"live": True})
    assert ask("GET", "/v2/health/ready", ready=False)[0] == 503
    assert ask("GET", "/v2/health/ready")[0] == 200
    assert ask("GET", "/v2/models/pets/ready")[1]["ready"] is True
    status, server = ask("GET", "/v2")
    assert (status, set(server)) == (200, {"name", "version", "extensions"})
    status, model = ask("GET", "/v2/models/pets")
    assert (status, model["name"]) == (200, "pets")
    assert model["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 2, 2, 1]}]
    assert {"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]} in model["outputs"]


@pytest.mark.parametrize("nested", [False, True])
def test_v2_answers_a_tensor_flat_or_nested(nested):
    data = [0, 0, 0, 0, 255, 255, 255, 255]
    asked = tensor(np.reshape(data, (2, 2, 2, 1)).tolist() if nested else data, id="42")
    status, body = ask("POST", "/v2/models/pets/infer", asked)
    assert (status, body["model_name"], body["id"]) == (200, "pets", "42")
    probabilities, names = body["outputs"]
    assert probabilities == {"name": "probabilities", "datatype": "FP32", "shape": [2, 2], "data": [0, 1, 1, 0]}
    assert names == {"name": "class", "datatype": "BYTES", "shape": [2], "data": ["dog", "cat"]}


@pytest.mark.parametrize("is_column", [False, True])
def test_v2_takes_image_files_as_bytes_in_base64(is_column):
    Image.new("L", (9, 9), 255).save(buffer := io.BytesIO(), "PNG")
    file = base64.b64encode(buffer.getvalue()).decode()
    asked = tensor([[file]], (1, 1), "BYTES") if is_column else tensor([file], (1,), "BYTES")
    status, body = ask("POST", "/v2/models/pets/infer", asked)
    assert (status, body["outputs"][1]["data"]) == (200, ["cat"])
    assert "id" not in body


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (b"{", 400, "must be JSON"),
        ({"instances": []}, 400, "inputs"),
        ({"inputs": []}, 400, "a list of one tensor"),
        (tensor([0] * 7), 400, "expected 8 whole numbers"),
        (tensor([0] * 8, (2, 4, 1, 1)), 400, "the shape [2, 2, 2, 1]"),
        (tensor([0.5] * 8), 400, "whole numbers"),
        (tensor([[0], [0, 1]]), 400, "whole numbers"),
        (tensor([256] + [0] * 7), 400, "from 0 to 255"),
        (tensor([0] * 8, datatype="FP32"), 400, "UINT8 or BYTES"),
        (tensor(["x", "y"], (3,), "BYTES"), 400, 'expected 3 strings, according to "shape". Received: 2 strings'),
        (tensor(["x", ["y"]], (2,), "BYTES"), 400, 'expected 2 strings, according to "shape". Received: a list in'),
        (tensor([0] * 8, (-1,)), 400, "whole numbers"),
        (tensor([0] * 16, (4, 2, 2, 1)), 413, "--max-instances"),
        (tensor([0] * 8, id=3), 400, '"id" must be a string'),
        (tensor(["x"], (1,) * 9, "BYTES"), 400, "at most 8 numbers"),
        (tensor(["x"], (1, *[99] * 3000), "BYTES"), 400, "at most 8 numbers"),
        (tensor(["x"], (1, 10**4000, 10**4000), "BYTES"), 400, "none of them above 2,147,483,647"),
        (tensor([0] * 8, (2, 10**4000, 2, 1)), 400, "none of them above 2,147,483,647"),
        (tensor(["x"] * 5, (1, 5), "BYTES"), 413, "--max-instances"),
        (tensor([], (1, 0), "BYTES"), 400, "at least one instance"),
        (tensor([0] * 8, id="\ud800"), 400, "must be JSON"),
    ],
)
def test_v2_refuses_with_an_error_in_words(asked, status, words):
    received, body = ask("POST", "/v2/models/pets/infer", asked)
    assert received == status
    assert set(body) == {"error"}
    assert words in body["error"]


@pytest.mark.parametrize(
    ("asked", "headers", "received"),
    [
        (tensor([0] * 8), {"Inference-Header-Content-Length": "99"}, "the header Inference-Header-Content-Length"),
        (tensor([0] * 8, parameters={"binary_data_output": True}), {}, '"binary_data_output"'),
        (tensor([0] * 8, outputs=[{"name": "class", "parameters": {"binary_data": True}}]), {}, '"binary_data"'),
        (
            {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}}]},
            {},
            '"binary_data_size"',
        ),
    ],
)
def test_v2_refuses_binary_tensors_and_names_what_to_send_instead(asked, headers, received):
    status, body = ask("POST", "/v2/models/pets/infer", asked, headers=headers)
    assert status == 400
    assert body["error"].startswith(f"Binary tensors are not supported. Received: {received}. Send and request V2 JSON")


def test_v2_returns_the_outputs_that_are_asked_for():
    outputs = [{"name": "class", "parameters": {"binary_data": False}}, {"name": "class"}]
    status, body = ask("POST", "/v2/models/pets/infer", tensor([0] * 8, outputs=outputs))
    assert (status, [output["name"] for output in body["outputs"]]) == (200, ["class"])
    status, body = ask("POST", "/v2/models/pets/infer", tensor([0] * 8, outputs=[{"name": "logits"}]))
    assert (status, body["error"]) == (400, "\"outputs\" may contain only probabilities and class. Received: 'logits'.")


def test_kserves_client_asks_the_root_whether_the_server_lives_and_sends_the_models_name():
    assert ask("GET", "/", ready=False) == (200, {"status": "alive"})
    assert ask("POST", "/v2/models/pets/infer", tensor([0] * 8, model_name="pets", id=None))[0] == 200


def test_a_model_has_the_name_that_it_is_given():
    assert ask("GET", "/v2/models/zoo/ready", model_name="zoo")[0] == 200
    status, body = ask("POST", "/v1/models/pets:predict", {"instances": []}, model_name="zoo")
    assert (status, body) == (404, {"error": "There is no model 'pets'. Expected 'zoo', the value of --model-name."})


def test_metrics_are_as_prometheus_reads_them():
    metrics = Metrics({"held_bytes": lambda: 12})
    metrics.count("predict", 200, 0.004, 3)
    metrics.count("predict", 200, 99.0, 1)
    metrics.count("predict", 400, 0.004, 0)
    metrics.count("other", 404, 0.0, 0)
    text = metrics.render()[0].decode()
    lines = text.splitlines()
    assert 'tpu_pipelines_requests_total{route="predict",status="200"} 2.0' in lines
    assert 'tpu_pipelines_requests_total{route="other",status="404"} 1.0' in lines
    assert "tpu_pipelines_instances_total 4.0" in lines
    assert 'tpu_pipelines_predict_seconds_bucket{le="0.0025"} 0.0' in lines
    assert 'tpu_pipelines_predict_seconds_bucket{le="0.005"} 1.0' in lines
    assert 'tpu_pipelines_predict_seconds_bucket{le="+Inf"} 2.0' in lines
    assert "tpu_pipelines_predict_seconds_count 2.0" in lines
    assert "tpu_pipelines_held_bytes 12.0" in lines
    assert not [line for line in lines if "class" in line], "no model is loaded"
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
    assert text.endswith("\n")


def test_predictions_are_counted_by_class_and_confidence():
    def page(task="classification"):
        model = dataclasses.replace(MODEL, task=task)

        async def scenario():
            app = Application(ServeParams())
            async with app.ready(model):
                body = json.dumps({"instances": [np.full((2, 2), grey).tolist() for grey in (0, 64, 255)]})
                assert (await call(app, "POST", "/predict", body.encode()))[0] == 200
                assert (await call(app, "POST", "/predict", b'{"instances": [7]}'))[0] == 400
                return (await call(app, "GET", "/metrics"))[2].splitlines()

        return asyncio.run(scenario())

    lines = page()
    assert 'tpu_pipelines_predictions_total{class="cat"} 1.0' in lines
    assert 'tpu_pipelines_predictions_total{class="dog"} 2.0' in lines
    assert 'tpu_pipelines_confidence_bucket{le="0.7"} 0.0' in lines
    assert 'tpu_pipelines_confidence_bucket{le="0.8"} 1.0' in lines
    assert "tpu_pipelines_confidence_count 3.0" in lines
    for task in ("multi_label", "regression"):
        assert not [line for line in page(task) if "predictions" in line or "confidence" in line]


def test_the_alerts_of_the_readme_are_a_rule_file_about_metrics_that_exist():
    readme = (Path(serving.__path__[0]) / "README.md").read_text()
    (group,) = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[1])["groups"]
    page = ask("GET", "/metrics")[1]
    for rule in group["rules"]:
        assert rule.keys() == {"alert", "expr", "for"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        names = set(re.findall(r"tpu_pipelines_\w+", rule["expr"]))
        assert names
        assert not [name for name in names if not re.search(rf"^{name}[{{ ]", page, re.MULTILINE)]


def test_no_family_of_metrics_has_the_name_of_another():
    """In OpenMetrics a family is named without the suffixes of its samples, as `_total`; prometheus_client judges."""
    text = ask("GET", "/metrics")[1]
    named = [line.split()[2].removesuffix("_total") for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(named) == len(set(named)) == 8
    assert "tpu_pipelines_requests_in_flight 0.0" in text
    status, opened = ask("GET", "/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert (status, opened.endswith("\n# EOF\n")) == (200, True)
    assert "# TYPE tpu_pipelines_instances counter\n" in opened
    assert "\ntpu_pipelines_instances_total 0.0\n" in opened
    families = {family.name: family.type for family in text_string_to_metric_families(opened)}
    assert families["tpu_pipelines_requests"] == "counter"
    assert families["tpu_pipelines_predict_seconds"] == "histogram"
    assert families["tpu_pipelines_held_bytes"] == "gauge"


def test_the_server_counts_by_route_and_never_by_what_a_client_writes():
    status, text = ask("GET", "/metrics")
    assert status == 200
    assert "tpu_pipelines_is_ready 1.0" in text
    assert "tpu_pipelines_is_ready 0.0" in ask("GET", "/metrics", ready=False)[1]
    app = Application(ServeParams())

    async def scenario():
        for path in ("/secret/1", "/secret/2", "/health"):
            await call(app, "GET", path)
        return (await call(app, "GET", "/metrics"))[2]

    text = asyncio.run(scenario())
    assert 'requests_total{route="other",status="404"} 2.0' in text
    assert 'requests_total{route="health",status="503"} 1.0' in text
    assert "secret" not in text
