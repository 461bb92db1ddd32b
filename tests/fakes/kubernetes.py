"""A Kubernetes API server that lives in this process, read-only, for the real client."""

import json
import re
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.local_server import LocalServer


class FakeKubernetes(LocalServer):
    """A cluster's server; use it in a `with` block.

    Attributes:
        nodes: The labels of each.
        objects: What there is, as `kubeflow/secrets/storage-key`.
        forbidden: Patterns of paths that whoever asks may not ask for.
    """

    def __init__(self) -> None:
        self.nodes: list[dict[str, str]] = []
        self.objects: set[str] = set()
        self.forbidden: list[str] = []
        super().__init__(type("Handler", (_Handler,), {"cluster": self}))

    def write_kubeconfig(self, path: Path, context: str) -> None:
        """Write kubectl's configuration, with this cluster as a context."""
        named = {
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": "a token"}}],
            "contexts": [{"name": context, "context": {"cluster": "here", "user": "me"}}],
        }
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": context, **named}))

    def answer(self, target: str) -> tuple[int, dict[str, Any]]:
        """The status and JSON of a GET."""
        path, _, query = target.partition("?")
        if any(re.search(pattern, path) for pattern in self.forbidden):
            return 403, {"kind": "Status", "reason": "Forbidden", "code": 403}
        if path == "/api/v1/nodes":
            asked = dict(self._selected(query))
            found = [labels for labels in self.nodes if asked.items() <= labels.items()]
            return 200, {"kind": "NodeList", "items": [{"metadata": {"labels": labels}} for labels in found]}
        if re.sub("^/(api|apis/kueue.x-k8s.io)/v1(beta1)?/namespaces/", "", path) in self.objects:
            return 200, {"metadata": {"name": path.rpartition("/")[2]}}
        return 404, {"kind": "Status", "reason": "NotFound", "code": 404}

    @staticmethod
    def _selected(query: str) -> Iterator[tuple[str, str]]:
        for selector in urllib.parse.parse_qs(query).get("labelSelector", ()):
            for pair in selector.split(","):
                key, _, value = pair.partition("=")
                yield key, value


class _Handler(BaseHTTPRequestHandler):
    cluster: FakeKubernetes

    def do_GET(self) -> None:
        status, content = self.cluster.answer(self.path)
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing on stderr."""
