"""NVIDIA's own client of KServe's V2 protocol, with its defaults: tensors as bytes after the JSON, both ways."""

import numpy as np
import pytest

from tests.components.serving.test_kserve import tensor

triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")


@pytest.fixture(scope="module")
def name(server):
    return server.request("GET", "/v1/models").body["models"][0]


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def _pixels(images):
    asked = triton.InferInput("image", images.shape, "UINT8")
    asked.set_data_from_numpy(images)
    return [asked]


def test_the_client_reads_what_the_server_and_its_model_are(client, name):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(name)
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata, config = client.get_model_metadata(name), client.get_model_config(name)
    assert metadata["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 8, 8, 1]}]
    assert config["input"] == [{"name": "image", "data_type": "TYPE_UINT8", "dims": [-1, 8, 8, 1]}]
    assert [output["data_type"] for output in config["output"]] == ["TYPE_FP32", "TYPE_STRING"]


def test_pixels_get_the_same_answers_binary_and_as_json(client, name, server, digits):
    images = digits[:5]
    answer = client.infer(name, _pixels(images), request_id="42")
    assert answer.get_response()["id"] == "42"
    assert answer.get_output("probabilities")["parameters"] == {"binary_data_size": 5 * 10 * 4}
    plain = server.request("POST", f"/v2/models/{name}/infer", tensor(images.ravel().tolist(), images.shape)).body
    np.testing.assert_array_equal(answer.as_numpy("probabilities").ravel(), np.float32(plain["outputs"][0]["data"]))
    assert [name.decode() for name in answer.as_numpy("class")] == plain["outputs"][1]["data"]


def test_image_files_are_sent_as_they_are(client, name, encode):
    files = np.array([encode(seed, (9, 9), "L", "PNG") for seed in range(3)], dtype=object)
    asked = triton.InferInput("image", files.shape, "BYTES")
    asked.set_data_from_numpy(files)
    assert client.infer(name, [asked]).as_numpy("probabilities").shape == (3, 10)


def test_outputs_are_chosen_and_each_in_its_form(client, name, digits):
    outputs = [triton.InferRequestedOutput("class", binary_data=False)]
    answer = client.infer(name, _pixels(digits[:2]), outputs=outputs)
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["class"]
    assert len(answer.get_output("class")["data"]) == 2
    mixed = [triton.InferRequestedOutput("probabilities"), *outputs]
    answer = client.infer(name, _pixels(digits[:2]), outputs=mixed)
    assert answer.as_numpy("probabilities").shape == (2, 10)
    assert "data" in answer.get_output("class")


def test_what_the_server_cannot_do_reaches_the_client_in_words(client, name, digits):
    with pytest.raises(triton.InferenceServerException, match="The outputs are probabilities and class"):
        client.infer(name, _pixels(digits[:1]), outputs=[triton.InferRequestedOutput("logits")])
    with pytest.raises(triton.InferenceServerException, match="Received: 'classification'"):
        client.infer(name, _pixels(digits[:1]), outputs=[triton.InferRequestedOutput("class", class_count=3)])
    with pytest.raises(triton.InferenceServerException, match=r"the shape \[1, 8, 8, 1\]"):
        client.infer(name, _pixels(digits[:1, :4]))
    with pytest.raises(triton.InferenceServerException, match="There is no model 'other'"):
        client.get_model_config("other")
