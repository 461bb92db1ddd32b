"""An image in a registry that is not Google's, which gives anybody a token to read."""

import json
from http.server import BaseHTTPRequestHandler

import pytest

from tests.fakes.local_server import LocalServer
from tpu_components.core.base.retries import MissingError
from tpu_pipelines.doctor.findings import CannotAskError
from tpu_pipelines.doctor.google_apis import GoogleApis
from tpu_pipelines.doctor.images import _anonymous_token, find_image

_INDEX = {
    "manifests": [
        {"platform": {"os": "linux", "architecture": "arm64"}},
        {"platform": {"os": "linux", "architecture": "amd64"}},
        {"platform": {"os": "unknown", "architecture": "unknown"}},
    ]
}


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self):
        images = {"/v2/me/steps/manifests/1": _INDEX, "/v2/me/steps/manifests/latest": {"schemaVersion": 1}}
        closed = self.path.startswith("/v2/private/")
        body = json.dumps(images.get(self.path, {})).encode()
        self.send_response(401 if closed else 200 if self.path in images else 404)
        if closed:
            self.send_header("WWW-Authenticate", 'Basic realm="here"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def registry():
    with LocalServer(_Registry) as server:
        yield server.url.removeprefix("http://")


def test_a_list_of_manifests_has_the_platforms_and_the_digest_is_of_what_was_sent(registry):
    found = find_image(f"{registry}/me/steps:1", GoogleApis())
    assert found.platforms == ("linux/arm64", "linux/amd64")
    assert found.digest == "sha256:8008099c4d01e811779bc61b48bcc2710e16c63bac2198890886f7c267c99541"


def test_what_is_not_there_what_is_closed_and_what_is_strange_differ(registry):
    apis = GoogleApis()
    with pytest.raises(MissingError, match=r"has none of that name"):
        find_image(f"{registry}/me/other:1", apis)
    with pytest.raises(CannotAskError, match=r"does not say to everybody: 401"):
        find_image(f"{registry}/private/steps:1", apis)
    with pytest.raises(CannotAskError, match=r"a manifest of an unknown kind: none named"):
        find_image(f"{registry}/me/steps", apis)


def test_a_token_is_not_fetched_over_plain_http_nor_for_another_kind_of_sign_in():
    assert _anonymous_token('Bearer realm="http://127.0.0.1:1/token",service="x"') == ""
    assert _anonymous_token('Basic realm="https://127.0.0.1:1/token"') == ""
