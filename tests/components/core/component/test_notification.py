"""What is said of a run that did not succeed, and to whom."""

import json
from http.server import BaseHTTPRequestHandler

import pytest

from tests.support.fakes.local_server import LocalServer
from tpu_components.core.base.errors import InputError, chain_of
from tpu_components.core.base.retries import Backoff, PlatformError
from tpu_components.core.component.notification import message, post

JOB = "projects/my-project/locations/us-west1/pipelineJobs/digits-1"
AT_ONCE = Backoff(sleep=lambda _: None)
IMPATIENT = Backoff(sleep=lambda _: None, patience_seconds=0.05)


@pytest.fixture
def chat():
    """A chat that keeps what it is sent, and answers with the statuses that a test gives it; then with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            server.got.append(
                (self.headers["Content-Type"], json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )
            answer = server.answers.pop(0) if server.answers else 200
            if isinstance(answer, bytes):
                self.wfile.write(answer)
                return
            self.send_response(answer)
            if 300 <= answer < 400:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self):
            server.got.append("GET")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with LocalServer(Handler) as server:
        server.got, server.answers = [], []
        yield server


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE"])
def test_of_a_run_that_succeeded_nothing_is_said(state):
    assert message("digits", state, "", JOB, "") == ""


def test_a_failure_names_run_state_reason_and_page():
    assert message("digits", "FAILED", "train_model: no TPU", JOB, "unused") == (
        "digits failed: train_model: no TPU\n"
        "https://console.cloud.google.com/vertex-ai/locations/us-west1/pipelines/runs/digits-1?project=my-project"
    )
    assert message("digits", "RUNNING", "", "run-7", "https://kf/#/runs/details/7") == (
        "digits has ended, but Kubeflow does not report how\nhttps://kf/#/runs/details/7"
    )
    assert message("digits", "CANCELLED", "", "run-7", "https://kf/#/runs/details/7") == (
        "digits cancelled\nhttps://kf/#/runs/details/7"
    )


def test_a_message_waits_out_an_outage_and_is_sent_once(chat):
    chat.answers = [503, 429]
    post(f"{chat.url}/hook", "digits failed", AT_ONCE)
    assert chat.got == [("application/json", {"text": "digits failed"})] * 3


def test_a_webhook_that_does_not_respond_is_an_error():
    with pytest.raises(PlatformError, match=r"The webhook at 127\.0\.0\.1 does not respond: .*refused"):
        post("http://127.0.0.1:9/hook", "digits failed", IMPATIENT)


def test_the_address_may_be_in_a_bucket(chat, bucket):
    bucket.blob("hook.txt").upload_from_string(f"{chat.url}/secret\n")
    post(f"gs://{bucket.name}/hook.txt", "digits failed", AT_ONCE)
    assert len(chat.got) == 1


def test_a_refusal_says_so_and_keeps_the_address_secret(chat):
    chat.answers = [404]
    with pytest.raises(InputError, match=r"The webhook at 127\.0\.0\.1 rejected the message: 404") as caught:
        post(f"{chat.url}/services/secret", "digits failed", AT_ONCE)
    assert "secret" not in str(caught.value)
    chat.answers = [500] * 10_000
    with pytest.raises(PlatformError, match="failed: 500 ") as caught:
        post(f"{chat.url}/services/secret", "digits failed", IMPATIENT)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_not_followed_without_the_message(chat, status):
    chat.answers = [status]
    with pytest.raises(InputError, match=rf"redirects to another address \({status} .*was not sent") as caught:
        post(f"{chat.url}/services/secret", "digits failed", AT_ONCE)
    assert len(chat.got) == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 secret\r\n\r\n"])
def test_a_server_that_does_not_speak_http_is_named_without_a_stack_trace(chat, answer):
    chat.answers = [answer]
    with pytest.raises(InputError, match=r"The webhook at 127\.0\.0\.1 did not send a valid HTTP response") as caught:
        post(f"{chat.url}/services/secret", "digits failed", AT_ONCE)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"hooks.slack.com/services/T0/SECRET", "does not begin with https://"),
        (b"https://127.0.0.1/T0/SECRET\n# of the team", "several lines"),
        (b"https://127.0.0.1/T0/SECRET of the team", "spaces"),
        (b"file:///etc/SECRET", "does not begin with https://"),
        (b"ftp://127.0.0.1/SECRET", "does not begin with https://"),
        (b"data:,SECRET", "does not begin with https://"),
        (b"https:///SECRET", "has no host"),
        (b"https://me:SECRET@127.0.0.1/x", "user name"),
        (b"https://127.0.0.1:SECRET/x", "host or port is malformed"),
        (b"https://[SECRET/x", "host or port is malformed"),
        (b"https://127.0.0.1/\xffSECRET", "not allowed in a URL"),
        (b"", "does not begin with https://"),
    ],
)
def test_a_malformed_secret_is_refused_and_not_shown(bucket, content, fault):
    bucket.blob("hook.txt").upload_from_string(content)
    with pytest.raises(InputError, match=rf"gs://{bucket.name}/hook\.txt must contain only .*{fault}") as caught:
        post(f"gs://{bucket.name}/hook.txt", "digits failed", AT_ONCE)
    assert not [error for error in chain_of(caught.value) if "SECRET" in str(error)]


def test_a_byte_order_mark_before_the_address_is_left_out(chat, bucket):
    bucket.blob("hook.txt").upload_from_string(b"\xef\xbb\xbf" + f"{chat.url}/secret\r\n".encode())
    post(f"gs://{bucket.name}/hook.txt", "digits failed", AT_ONCE)
    assert len(chat.got) == 1
