"""A fake Kubernetes API server in this process, for the real client: read-only, except for JobSets, which it runs."""

import json
import re
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from tests.support.fakes import jobsets
from tests.support.fakes.local_server import LocalServer


class FakeKubernetes(LocalServer):
    """A cluster's server, for a `with` block.

    Attributes:
        nodes: Labels of each node.
        objects: Existing objects, for example `kubeflow/secrets/storage-key`.
        config_maps: Contents of ConfigMaps, by path.
        injects: Whether the cluster's namespaces inject Istio's proxy into pods.
        forbidden: Patterns of paths that the caller may not request.
        jobsets: JobSets by namespace and name, whose pods run here; None if the cluster does not support JobSets.
        logs: Folder for the logs of their pods.
        pods: Pods without a process, by name.
        log_queries: Queries of all requests for logs.
        rights: Rights of service accounts: account, verb and resource.
    """

    def __init__(self, logs: Path | None = None) -> None:
        self.logs, self.pods = logs, dict[str, dict[str, Any]]()
        self.jobsets: dict[tuple[str, str], jobsets.JobSet] | None = {} if logs else None
        self.nodes: list[dict[str, str]] = []
        self.objects: set[str] = set()
        self.config_maps: dict[str, dict[str, str]] = {}
        self.injects = False
        self.forbidden: list[str] = []
        self.log_queries: list[dict[str, str]] = []
        self.rights: set[tuple[str, str, str]] = set()
        super().__init__(type("Handler", (_Handler,), {"cluster": self}))

    def write_kubeconfig(self, path: Path, context: str) -> None:
        """Write kubectl's configuration, with this cluster as a context."""
        named = {
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": "a token"}}],
            "contexts": [{"name": context, "context": {"cluster": "here", "user": "me"}}],
        }
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": context, **named}))

    def __exit__(self, *error: object) -> None:
        for jobset in (self.jobsets or {}).values():
            jobset.delete()
        super().__exit__(*error)

    def answer(self, verb: str, target: str, content: bytes = b"") -> tuple[int, Any]:
        """Return the status of a response, and its JSON or text."""
        path, _, query = target.partition("?")
        if any(re.search(pattern, f"{verb} {path}") for pattern in self.forbidden):
            return 403, {"kind": "Status", "reason": "Forbidden", "code": 403}
        if self.jobsets is not None and (match := jobsets.PATH.fullmatch(path)):
            return self._answer_for_jobset(verb, (match[1], match[2]), content)
        if match := _PODS.fullmatch(path):
            return self._answer_for_pods(match[1], match[2], bool(match[3]), query)
        if match := _REVIEWS.fullmatch(path):
            return 201, self._review(match[1], json.loads(content))
        if path == "/api/v1/nodes":
            asked = dict(self._selected(query))
            found = [labels for labels in self.nodes if asked.items() <= labels.items()]
            return 200, {"kind": "NodeList", "items": [{"metadata": {"labels": labels}} for labels in found]}
        place = re.sub("^/(api|apis/kueue.x-k8s.io)/v1(beta1)?/namespaces/", "", path)
        if place in self.objects or place in self.config_maps:
            return 200, {"metadata": {"name": path.rpartition("/")[2]}, "data": self.config_maps.get(place, {})}
        return 404, {"kind": "Status", "reason": "NotFound", "code": 404}

    def _review(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a review of whether an account may do something."""
        # Rule: a user who may create reviews can ask for the rights of another in a namespace; a service account is the
        # user system:serviceaccount:NAMESPACE:NAME
        # (https://kubernetes.io/docs/reference/access-authn-authz/authorization/,
        # https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin)
        spec, asked = body["spec"], body["spec"]["resourceAttributes"]
        assert asked["namespace"] == namespace
        resource = ".".join(filter(None, (asked["resource"], asked.get("group", ""))))
        resource += f"/{asked['subresource']}" if asked.get("subresource") else ""
        return {**body, "status": {"allowed": (spec["user"], asked["verb"], resource) in self.rights}}

    def _answer_for_jobset(self, verb: str, key: tuple[str, str], content: bytes) -> tuple[int, Any]:
        assert self.jobsets is not None
        if verb == "POST":
            assert self.logs
            body = json.loads(content)
            key = (key[0], body["metadata"]["name"])
            # Rule: a name is unique within a namespace; creating a second object with it returns 409 AlreadyExists
            # (https://kubernetes.io/docs/concepts/overview/working-with-objects/names)
            if key in self.jobsets:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "code": 409}
            try:
                jobsets.check(body)
            except jobsets.RefusedError as error:
                return error.status, {"kind": "Status", "message": str(error), "code": error.status}
            self.jobsets[key] = jobsets.JobSet(body, self.logs, self.injects)
            return 201, body
        if key[1] is None:
            return 200, {"items": [item.body for there, item in self.jobsets.items() if there[0] == key[0]]}
        if key not in self.jobsets:
            return 404, {"kind": "Status", "reason": "NotFound", "code": 404}
        if verb == "DELETE":
            self.jobsets.pop(key).delete()
            return 200, {"kind": "Status", "status": "Success"}
        return 200, self.jobsets[key].body

    def _answer_for_pods(self, namespace: str, name: str | None, is_log: bool, query: str) -> tuple[int, Any]:
        there = [item for key, item in (self.jobsets or {}).items() if key[0] == namespace]
        pods = {pod.name: pod for jobset in there for pod in jobset.pods.values()}
        if name is None:
            asked = dict(self._selected(query))
            found = [pod.as_json() for pod in pods.values()]
            items = [pod for pod in found if asked.items() <= pod["metadata"]["labels"].items()]
            return 200, {"kind": "PodList", "items": items}
        if name in self.pods:
            return 200, self.pods[name]
        if name not in pods:
            return 404, {"kind": "Status", "reason": "NotFound", "code": 404}
        if is_log:
            asked = dict(urllib.parse.parse_qsl(query))
            self.log_queries.append(asked)
            return 200, pods[name].log(
                tail_lines=int(asked.get("tailLines", 0)),
                since_seconds=int(asked.get("sinceSeconds", 0)),
                timestamps=asked.get("timestamps", "").lower() == "true",
            )
        return 200, pods[name].as_json()

    @staticmethod
    def _selected(query: str) -> Iterator[tuple[str, str]]:
        for selector in urllib.parse.parse_qs(query).get("labelSelector", ()):
            for pair in selector.split(","):
                key, _, value = pair.partition("=")
                yield key, value


_REVIEWS = re.compile(r"/apis/authorization\.k8s\.io/v1/namespaces/([^/]+)/localsubjectaccessreviews")
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)(/log)?)?")


class _Handler(BaseHTTPRequestHandler):
    cluster: FakeKubernetes

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        status, content = self.cluster.answer(self.command, self.path, self.rfile.read(length))
        is_text = isinstance(content, str)
        body = content.encode() if is_text else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if is_text else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""
