"""An image in a registry that is not Google's, which is asked without a sign-in."""

import json
from http.server import BaseHTTPRequestHandler

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.support.fakes.local_server import LocalServer
from tpu_components.core.base.retries import MissingError
from tpu_pipelines.platforms.findings import CannotAskError
from tpu_pipelines.platforms.google_apis import GoogleApis
from tpu_pipelines.platforms.images import find_image

_INDEX = {
    "manifests": [
        {"platform": {"os": "linux", "architecture": "arm64"}},
        {"platform": {"os": "linux", "architecture": "amd64"}},
        {"platform": {"os": "unknown", "architecture": "unknown"}},
    ]
}
# The sign-in that a closed repository asks for. At port 1 nothing listens: an attempt would be another error.
_CHALLENGES = {
    "basic": 'Basic realm="https://127.0.0.1:1/token"',
    "token": 'Bearer realm="https://127.0.0.1:1/token",service="x"',
}


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self):
        images = {"/v2/me/steps/manifests/1": _INDEX, "/v2/me/steps/manifests/latest": {"schemaVersion": 1}}
        images |= {"/v2/me/lists/manifests/1": ["x"], "/v2/me/bad/manifests/1": {"config": None}}
        challenge = _CHALLENGES.get(self.path.split("/")[2])
        body = json.dumps(images.get(self.path, {})).encode()
        if self.path == "/v2/me/page/manifests/1":  # As a proxy's page of a sign-in.
            images[self.path] = {}
            body = b"<html>"
        self.send_response(401 if challenge else 200 if self.path in images else 404)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
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


def test_what_is_not_there_and_what_is_strange_differ(registry):
    apis = GoogleApis()
    with pytest.raises(MissingError, match=r"has no image with this name"):
        find_image(f"{registry}/me/other:1", apis)
    with pytest.raises(CannotAskError, match=r"a manifest of unknown type: none"):
        find_image(f"{registry}/me/steps", apis)


@pytest.mark.parametrize("closed", _CHALLENGES)
def test_an_image_behind_a_sign_in_is_unknown_and_the_command_that_tells_is_named(registry, closed):
    with pytest.raises(CannotAskError, match=r"does not allow anonymous access: 401") as unknown:
        find_image(f"{registry}/{closed}/steps:1", GoogleApis())
    assert unknown.value.remedy == f"docker manifest inspect {registry}/{closed}/steps:1"


@pytest.mark.parametrize("name", ["page", "lists", "bad"])
def test_what_answers_in_place_of_a_registry_is_named(registry, name):
    with pytest.raises(CannotAskError, match=rf"{registry} does not respond like a registry"):
        find_image(f"{registry}/me/{name}:1", GoogleApis())


def test_what_answers_in_place_of_google_is_named(registry):
    apis = GoogleApis(f"http://{registry}", AnonymousCredentials())
    with pytest.raises(CannotAskError, match=r"compute\.googleapis\.com did not respond with JSON"):
        apis.get("compute.googleapis.com", "v2/me/page/manifests/1")
