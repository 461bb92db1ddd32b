"""Clients of object stores: Cloud Storage, S3 and what speaks its protocol, the Hugging Face hub."""

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError

_THREADS = 16
_LISTED_LEVELS = 2  # Of folders, as SPLIT/CLASS, that are opened one by one.


class StoredFile(NamedTuple):
    """One file below a root: its POSIX path relative to it, its size in bytes, and a version that changes with it.

    `version` is the object's CRC32C on gs://, its ETag on s3://, and the modification time in nanoseconds on a disk.
    Objects that a store lists are relative to the bucket.
    """

    name: str
    num_bytes: int
    version: str


def store_of(uri: str) -> "ObjectStore | None":
    """Return the store that a URI names by its scheme; None for a local path.

    Example:
        >>> store_of("s3://bucket/data").scheme, store_of("/data")
        ('s3://', None)
    """
    if "://" not in str(uri):  # As nearly always, and of millions.
        return None
    return next((store for store in _STORES if str(uri).startswith(store.scheme)), None)


def split(uri: str) -> tuple[str, str]:
    """Bucket and name of an object.

    Raises:
        InputError: If there is no bucket.

    Example:
        >>> split("gs://bucket/folder/file")
        ('bucket', 'folder/file')
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise InputError(f"Cannot use {uri!r}: expected {scheme}://BUCKET/PATH, received no bucket name.")
    return bucket, name


def in_threads(function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
    """Like `map`, but threads prefetch a limited number of results: a request to a bucket mostly waits."""
    from concurrent.futures import ThreadPoolExecutor  # Imported here for the sake of `--help`.

    calls = zip(*arguments, strict=False)
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = collections.deque(pool.submit(function, *call) for call in itertools.islice(calls, _THREADS))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(function, *call) for call in itertools.islice(calls, 1))


Level = tuple[list[StoredFile], list[str]]


def list_by_prefix(list_below: Callable[[str, bool], Level], prefix: str) -> Iterator[StoredFile]:
    """Yield all objects below a prefix, folders at the same time: a service lists some thousands of a folder a second.

    Args:
        list_below: Function that lists the objects of one level, and the prefixes of the folders in it; or all objects.
        prefix: Prefix that the names begin with. One that names no folder is listed as it is.
    """
    is_folder = not prefix or prefix.endswith("/")
    folders = [prefix]
    for depth in range(_LISTED_LEVELS + 1):
        # Levels are opened until there are folders enough for all threads: each costs a request.
        is_level = is_folder and depth < _LISTED_LEVELS and len(folders) < _THREADS
        levels = list(in_threads(list_below, folders, itertools.repeat(is_level)))
        for objects, _ in levels:
            yield from (stored for stored in objects if not stored.name.endswith("/"))
        folders = [folder for _, prefixes in levels for folder in prefixes]
        if not is_level or not folders:
            return


class GoogleStorage:
    """Cloud Storage, with the credentials of the environment."""

    scheme = "gs://"

    @contextlib.contextmanager
    def reach(self, uri: str) -> Iterator[tuple[str, str]]:
        """Give bucket and name of an object, and translate the errors of the calls that are made of it.

        Raises:
            InputError: If the user can correct something: a name, a role, the sign-in. Repeats the service's message.
            PlatformError: If the service does not answer.
        """
        import requests
        from google.api_core.exceptions import BadRequest, Forbidden, NotFound, RetryError, ServerError, Unauthorized
        from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

        sign_in = "Run `gcloud auth application-default login`."
        no_access = "Cloud Storage refused access ({}). Give this account a role on the bucket."
        faults: dict[type[Exception], str] = {
            NotFound: "there is no such file, folder or bucket ({}). Check the path.",
            Forbidden: no_access,
            Unauthorized: no_access,
            BadRequest: "Cloud Storage says {}. Check the path.",
            RefreshError: f"the sign-in to Google Cloud is no longer valid ({{}}). {sign_in}",
            DefaultCredentialsError: f"found no Google Cloud credentials. {sign_in}",
        }
        try:
            yield split(uri)
        except tuple(faults) as error:
            fault = next(text for kind, text in faults.items() if isinstance(error, kind))
            raise InputError(f"Cannot use {uri!r}: {fault.format(getattr(error, 'message', error))}") from error
        except (ServerError, RetryError, TransportError, requests.RequestException) as error:
            raise PlatformError(f"Cloud Storage does not answer for {uri!r}: {error}. Try again later.") from error

    def bucket(self, name: str) -> Any:
        """Return a bucket of the client that this process has."""
        try:
            return google_client().bucket(name)
        except ValueError as error:
            raise InputError(f"{name!r} is no name of a bucket ({error}). Check it.") from error

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """Yield all objects whose names begin with `prefix`, but those that only stand for folders."""
        held = self.bucket(bucket)

        def list_below(prefix: str, is_level: bool) -> Level:
            blobs = held.client.list_blobs(held, prefix=prefix, delimiter="/" if is_level else None)
            objects = [StoredFile(blob.name, blob.size or 0, blob.crc32c or str(blob.generation)) for blob in blobs]
            return objects, sorted(blobs.prefixes)

        return list_by_prefix(list_below, prefix)

    def read(self, bucket: str, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return an object, or its bytes from `start` up to `end`; fewer where the object ends before."""
        last = None if end is None else end - 1  # The last byte is included.
        return self.bucket(bucket).blob(name).download_as_bytes(start=start, end=last)

    def size(self, bucket: str, name: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        blob = self.bucket(bucket).get_blob(name)
        return None if blob is None else int(blob.size)

    def download(self, bucket: str, name: str, path: str) -> None:
        """Copy an object to a local file."""
        self.bucket(bucket).blob(name).download_to_filename(path)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Write an object, which appears whole or not at all."""
        self.bucket(bucket).blob(name).upload_from_string(content, "application/octet-stream")

    def upload(self, bucket: str, name: str, path: str) -> None:
        """Copy a local file to an object."""
        self.bucket(bucket).blob(name).upload_from_filename(path)


@functools.cache
def google_client() -> Any:
    """Return the process's client: one per file would look up credentials and connect every time."""
    import google.cloud.storage

    return google.cloud.storage.Client()


class S3:
    """S3, and what speaks its protocol, as MinIO: AWS_ENDPOINT_URL_S3 is the address, AWS_… variables sign in.

    The methods are those of `GoogleStorage`.
    """

    scheme = "s3://"

    @contextlib.contextmanager
    def reach(self, uri: str) -> Iterator[tuple[str, str]]:
        """See `GoogleStorage.reach`."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            NoCredentialsError,
            ParamValidationError,
        )

        try:
            yield split(uri)
        except (ConnectionError, HTTPClientError, Boto3Error) as error:
            raise PlatformError(f"The object store does not answer for {uri!r}: {error}. Try again later.") from error
        except NoCredentialsError as error:
            raise InputError(
                f"Cannot use {uri!r}: found no credentials for S3. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "AWS_SHARED_CREDENTIALS_FILE."
            ) from error
        except ParamValidationError as error:
            raise InputError(f"Cannot use {uri!r}: {split(uri)[0]!r} is no name of a bucket. Check it.") from error
        except BotoCoreError as error:
            raise InputError(f"Cannot use {uri!r}: {error}. Check the path and the AWS_… variables.") from error
        except ClientError as error:
            if (status := _status_of(error)) == 404:
                raise InputError(f"Cannot use {uri!r}: there is no such file or bucket ({error}). Check it.") from error
            if status >= 500 or status == 429:
                raise PlatformError(
                    f"The object store does not answer for {uri!r}: {error}. Try again later."
                ) from error
            raise InputError(
                f"Cannot use {uri!r}: the object store refused ({error}). Check the path, AWS_ENDPOINT_URL_S3 and the "
                "access key's rights."
            ) from error

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """See `GoogleStorage.objects`."""
        pages = s3_client().get_paginator("list_objects_v2")

        def list_below(prefix: str, is_level: bool) -> Level:
            objects, prefixes = [], []
            for page in pages.paginate(Bucket=bucket, Prefix=prefix, **({"Delimiter": "/"} if is_level else {})):
                # The ETag is the content's MD5, or for what came in parts a digest that follows from it.
                objects += [
                    StoredFile(entry["Key"], entry["Size"], entry["ETag"].strip('"'))
                    for entry in page.get("Contents", ())
                ]
                prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            return objects, prefixes

        return list_by_prefix(list_below, prefix)

    def read(self, bucket: str, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """See `GoogleStorage.read`."""
        part = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        return s3_client().get_object(Bucket=bucket, Key=name, **part)["Body"].read()

    def size(self, bucket: str, name: str) -> int | None:
        """See `GoogleStorage.size`."""
        from botocore.exceptions import ClientError

        try:
            return int(s3_client().head_object(Bucket=bucket, Key=name)["ContentLength"])
        except ClientError as error:
            if _status_of(error) != 404:
                raise
            return None

    def download(self, bucket: str, name: str, path: str) -> None:
        """See `GoogleStorage.download`."""
        s3_client().download_file(bucket, name, path)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """See `GoogleStorage.write`."""
        s3_client().put_object(Bucket=bucket, Key=name, Body=content)

    def upload(self, bucket: str, name: str, path: str) -> None:
        """See `GoogleStorage.upload`."""
        s3_client().upload_file(path, bucket, name)


def _status_of(error: Any) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


@functools.cache
def s3_client() -> Any:
    """Return the process's client, which all threads share."""
    import boto3

    return boto3.client("s3")


class HuggingFaceHub:
    """The Hugging Face hub, which is only read: `hf://datasets/OWNER/NAME/PATH`, or `…/NAME@REVISION/PATH`.

    HF_TOKEN signs in; HF_ENDPOINT replaces the hub's address. The methods are those of `GoogleStorage`; the bucket of
    a path is always `datasets`.
    """

    scheme = "hf://"

    @contextlib.contextmanager
    def reach(self, uri: str) -> Iterator[tuple[str, str]]:
        """See `GoogleStorage.reach`."""
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            yield split(uri)
        except (FileNotFoundError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"Cannot use {uri!r}: the Hugging Face hub has no such data set, revision or file ({error}). Check the "
                "name, hf://datasets/OWNER/NAME/PATH; one that is private or gated needs HF_TOKEN."
            ) from error
        except (_http_error(), OfflineModeIsEnabled) as error:
            if _hub_is_out(error):
                raise PlatformError(
                    f"The Hugging Face hub does not answer for {uri!r}: {error}. Try again later."
                ) from error
            raise InputError(
                f"Cannot use {uri!r}: the Hugging Face hub refused ({error}). Check the name, and HF_TOKEN."
            ) from error

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """See `GoogleStorage.objects`."""
        for path, info in self._ask("find", bucket, prefix.rstrip("/"), detail=True).items():
            yield StoredFile(path.removeprefix(f"{bucket}/"), info["size"], info["blob_id"])

    def read(self, bucket: str, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """See `GoogleStorage.read`."""
        return self._ask("cat_file", bucket, name, start=start, end=end)

    def size(self, bucket: str, name: str) -> int | None:
        """See `GoogleStorage.size`."""
        return int(self._ask("info", bucket, name)["size"]) if self._ask("isfile", bucket, name) else None

    def download(self, bucket: str, name: str, path: str) -> None:
        """See `GoogleStorage.download`."""
        self._ask("get_file", bucket, name, lpath=path)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Refuse: nothing is written to the hub."""
        raise InputError(f"Cannot write hf://{bucket}/{name}: the Hugging Face hub is only read. Name another place.")

    def upload(self, bucket: str, name: str, path: str) -> None:
        """Refuse: nothing is written to the hub."""
        self.write(bucket, name, b"")

    @staticmethod
    def _ask(method: str, bucket: str, name: str, **options: Any) -> Any:
        """Call the client, again after an outage: it repeats only some of its requests by itself."""
        import tenacity
        from huggingface_hub import HfFileSystem  # Keeps one for each thread.

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_hub_is_out),
            wait=tenacity.wait_random_exponential(max=8),
            stop=tenacity.stop_after_delay(30),
            reraise=True,
        )(getattr(HfFileSystem(), method), f"{bucket}/{name}", **options)


def _hub_is_out(error: BaseException) -> bool:
    """Return whether a request to the hub may succeed later."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in {408, 429} or error.response.status_code >= 500
    return isinstance(error, _http_error())  # No connection, or no answer.


def _http_error() -> type[Exception]:
    """Return the error of the HTTP client of huggingface_hub: httpx2 since huggingface_hub 2.3, httpx before."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


ObjectStore = GoogleStorage | S3 | HuggingFaceHub
_STORES: tuple[ObjectStore, ...] = (GoogleStorage(), S3(), HuggingFaceHub())
