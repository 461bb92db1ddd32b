import signal
import sys

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.serving import __main__ as serving_main
from tpu_components.serving import server
from tpu_components.serving.params import REMOVED_FLAGS, ServeParams, key_to_verify, vertex_defaults
from tpu_pipelines import cli


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": -1}, "port must be from 0 to 65535. Received: port=-1"),
        ({"port": 65536}, "port must be from 0 to 65535. Received: port=65536"),
        ({"num_threads": -1}, "num_threads=-1"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms=nan"),
        ({"max_requests": 0}, "max_requests=0"),
        ({"max_instances": 0}, "max_instances=0"),
        ({"max_body_bytes": 0}, "max_body_bytes=0"),
        ({"max_image_pixels": 0}, "max_image_pixels=0"),
        ({"max_held_bytes": 0}, "max_held_bytes=0"),
        ({"health_route": "health"}, "health_route='health'"),
        ({"health_route": ""}, "health_route must be a path that starts with '/'. Received: health_route=''"),
        ({"predict_route": "/{model}"}, r"predict_route='/\{model\}'"),
        ({"predict_route": "/health"}, "health_route and predict_route must differ. Received: '/health' for both"),
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
    with pytest.raises(InputError, match=r"AIP_HTTP_PORT is 'http', expected a whole number"):
        vertex_defaults({"AIP_HTTP_PORT": "http"})


def test_a_key_that_did_not_arrive_is_refused():
    with pytest.raises(InputError, match=r"TPU_PIPELINES_VERIFY_KEY must be a public key\. Received: an empty value"):
        key_to_verify(None, {"TPU_PIPELINES_VERIFY_KEY": "\n"})
    with pytest.raises(InputError, match=r"^--verify must be a public key\. Received: an empty value"):
        key_to_verify("", {"TPU_PIPELINES_VERIFY_KEY": "signing.pub"})
    assert key_to_verify("other.pub", {"TPU_PIPELINES_VERIFY_KEY": "signing.pub"}) == "other.pub"


@pytest.mark.parametrize("command", ["tpu-pipelines serve", "python -m tpu_components.serving"])
def test_every_command_that_serves_heeds_the_flag_and_the_variable(command, tmp_path, monkeypatch, capsys):
    """Which key it takes is told by the error of a key that is missing."""
    (tmp_path / "export.json").write_text("{}")
    handler = signal.getsignal(signal.SIGTERM)

    def error_of(*words):
        words = (str(tmp_path), "--port", "0", *words)
        monkeypatch.setattr(sys, "argv", [command, *words])
        assert (cli.main(["serve", *words]) if command == "tpu-pipelines serve" else serving_main.main()) == 2
        assert signal.getsignal(signal.SIGTERM) == handler, "the process can be ended as before"
        return capsys.readouterr().err

    monkeypatch.setenv("TPU_PIPELINES_VERIFY_KEY", "signing.pub")
    assert "Cannot read 'signing.pub'" in error_of()
    assert "Cannot read 'other.pub'" in error_of("--verify", "other.pub")
    assert "--verify must be a public key" in error_of("--verify", "")
    monkeypatch.setenv("TPU_PIPELINES_VERIFY_KEY", "")
    assert "TPU_PIPELINES_VERIFY_KEY must be a public key" in error_of()
    monkeypatch.delenv("TPU_PIPELINES_VERIFY_KEY")
    assert "not the description of an export" in error_of(), "without a key the export is read at once"


@pytest.mark.parametrize("flag", REMOVED_FLAGS)
@pytest.mark.parametrize("value", [[], ["=1"]])
def test_a_removed_flag_is_refused_with_what_replaces_it(flag, value, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serving", "digits", "".join([flag, *value])])
    with pytest.raises(SystemExit) as stopped:
        serving_main.main()
    assert stopped.value.code == 2
    assert REMOVED_FLAGS[flag] in capsys.readouterr().err


def test_an_outage_while_the_model_is_fetched_is_said_without_a_stack_trace(monkeypatch, capsys):
    def serve(uri, params, version=""):
        raise PlatformError("Cloud Storage does not answer.")

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(sys, "argv", ["serving", "gs://bucket/export"])
    assert serving_main.main() == 1
    assert capsys.readouterr().err == "error: Cloud Storage does not answer.\n"
