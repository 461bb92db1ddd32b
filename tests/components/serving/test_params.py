import ast
import dataclasses
import re
from pathlib import Path

import pytest

from components.errors import InputError
from components.serving import params
from components.serving.params import ServeParams, vertex_defaults


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": -1}, "port must be at least 0. Received: port=-1"),
        ({"port": 65536}, "port must be at most 65535. Received: port=65536"),
        ({"num_threads": -1}, "num_threads=-1"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms=nan"),
        ({"max_connections": 0}, "max_connections=0"),
        ({"max_requests": 0}, "max_requests=0"),
        ({"max_instances": 0}, "max_instances=0"),
        ({"max_body_bytes": 0}, "max_body_bytes=0"),
        ({"max_image_pixels": 0}, "max_image_pixels=0"),
        ({"health_route": "health"}, "health_route='health'"),
        ({"predict_route": "/{model}"}, r"predict_route='/\{model\}'"),
        ({"predict_route": "/health"}, "health_route=predict_route='/health'"),
    ],
)
def test_params_refuse_a_value_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        ServeParams(**changes)


def test_vertex_says_where_to_listen():
    given = {"AIP_HTTP_PORT": "7080", "AIP_HEALTH_ROUTE": "/h", "AIP_PREDICT_ROUTE": "/p:predict", "OTHER": "1"}
    expected = {"host": "0.0.0.0", "port": 7080, "health_route": "/h", "predict_route": "/p:predict"}
    assert vertex_defaults(given) == expected
    assert vertex_defaults({"AIP_HTTP_PORT": ""}) == {"host": "0.0.0.0"}


def test_port_that_is_no_number_is_refused():
    with pytest.raises(InputError, match=r"AIP_HTTP_PORT must be a number\. Received: 'http'"):
        vertex_defaults({"AIP_HTTP_PORT": "http"})


def test_a_key_that_did_not_arrive_is_refused():
    assert vertex_defaults({"TPU_PIPELINES_VERIFY_KEY": "-----BEGIN"}) == {"host": "0.0.0.0", "verify": "-----BEGIN"}
    with pytest.raises(InputError, match=r"TPU_PIPELINES_VERIFY_KEY must be a public key\. Received: an empty one"):
        vertex_defaults({"TPU_PIPELINES_VERIFY_KEY": "\n"})


def test_readme_lists_every_parameter_with_its_default():
    readme = (Path(params.__file__).parent / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", readme, re.MULTILINE))
    assert {name: ast.literal_eval(default) for name, default in rows.items()} == dataclasses.asdict(ServeParams())
