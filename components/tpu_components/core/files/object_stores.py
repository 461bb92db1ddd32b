"""Clients of object stores: Cloud Storage, S3 and compatible stores, and the Hugging Face hub."""

import collections
import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.terminal import hide_credentials
from tpu_components.core.files.location import Location, Scheme

_THREADS = 16
_LISTED_LEVELS = 2  # Levels of folders, such as SPLIT/CLASS, that are listed one by one.


class StoredFile(NamedTuple):
    """A file below a root folder: POSIX path relative to the root, size in bytes, and version of the content.

    The version changes when the content changes. It is the CRC32C on gs://, the ETag on s3://, the blob ID on hf://,
    and the modification time, change time and inode on a disk. In a listing of `ObjectStore.objects`, names are
    relative to the bucket.
    """

    name: str
    num_bytes: int
    version: str


def store_of(uri: str) -> "ObjectStore | None":
    """Return the store that a URI names by its scheme, or None for a local path.

    Raises:
        InputError: If the URI has another scheme. Used as a path, it would create a folder such as `file:`.
    """
    if "://" not in str(uri):  # A fast path: there may be millions of local paths.
        return None
    place = Location(uri)
    if place.scheme:
        return _STORES[place.scheme]
    if not place.is_path:
        raise InputError(
            f"Cannot use {uri!r}: expected a path on this machine, or a URI that begins with {', '.join(Scheme)}."
        )
    return None


def in_threads(function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of a function in order, like `map`, but make up to 16 calls at a time in threads.

    Threads save time because a request to a bucket consists mostly of waiting.
    """
    from concurrent.futures import ThreadPoolExecutor  # Imported here for the sake of `--help`.

    calls = zip(*arguments, strict=False)
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = collections.deque(pool.submit(function, *call) for call in itertools.islice(calls, _THREADS))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(function, *call) for call in itertools.islice(calls, 1))


Level = tuple[list[StoredFile], list[str]]


def list_by_prefix(list_below: Callable[[str, bool], Level], prefix: str) -> Iterator[StoredFile]:
    """Yield all objects below a prefix.

    Folders are listed in parallel, each at a few thousand objects per second.

    Args:
        list_below: Function that takes a prefix and a flag. If the flag is true, the function returns the objects and
            folder prefixes of one level, otherwise all objects below the prefix.
        prefix: Prefix of the names. If it does not end with a slash, all objects are listed by one call.
    """
    is_folder = not prefix or prefix.endswith("/")
    folders = [prefix]
    for depth in range(_LISTED_LEVELS + 1):
        # Levels are listed until there are enough folders for all threads: each folder costs a request.
        is_level = is_folder and depth < _LISTED_LEVELS and len(folders) < _THREADS
        levels = list(in_threads(list_below, folders, itertools.repeat(is_level)))
        for objects, _ in levels:
            yield from (stored for stored in objects if not stored.name.endswith("/"))
        folders = [folder for _, prefixes in levels for folder in prefixes]
        if not is_level or not folders:
            return


class GoogleStorage:
    """Cloud Storage, with the credentials of the environment."""

    @contextlib.contextmanager
    def reach(self, uri: str) -> Iterator[tuple[str, str]]:
        """Yield the bucket and the object name of a URI, and convert the client's exceptions in the `with` block.

        Raises:
            InputError: If the user can correct the error, for example a wrong name, a missing role or an expired
                sign-in. The message contains the service's message.
            PlatformError: If the service does not respond.
        """
        import requests
        from google.api_core.exceptions import BadRequest, Forbidden, NotFound, RetryError, ServerError, Unauthorized
        from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

        sign_in = "Run `gcloud auth application-default login`."
        no_access = "Cloud Storage denied access ({}). Give this account a role on the bucket."
        faults: dict[type[Exception], str] = {
            NotFound: "there is no such file, folder or bucket ({}). Check the path.",
            Forbidden: no_access,
            Unauthorized: no_access,
            BadRequest: "Cloud Storage rejected the request ({}). Check the path.",
            RefreshError: f"the sign-in to Google Cloud is no longer valid ({{}}). {sign_in}",
            DefaultCredentialsError: f"there are no Google Cloud credentials. {sign_in}",
        }
        try:
            place = Location(uri)
            yield place.bucket, place.key
        except tuple(faults) as error:
            fault = next(text for kind, text in faults.items() if isinstance(error, kind))
            raise InputError(f"Cannot use {uri!r}: {fault.format(getattr(error, 'message', error))}") from error
        except (ServerError, RetryError, TransportError, requests.RequestException) as error:
            raise PlatformError(
                f"Cloud Storage does not respond to requests for {uri!r}: {error}. Try again later."
            ) from error

    def bucket(self, name: str) -> Any:
        """Return the client's object for the bucket `name`."""
        return google_client().bucket(name)

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """Yield all objects whose names begin with `prefix`, except placeholders of folders."""
        held = self.bucket(bucket)

        def list_below(prefix: str, is_level: bool) -> Level:
            blobs = held.client.list_blobs(held, prefix=prefix, delimiter="/" if is_level else None)
            objects = [StoredFile(blob.name, blob.size or 0, blob.crc32c or str(blob.generation)) for blob in blobs]
            return objects, sorted(blobs.prefixes)

        return list_by_prefix(list_below, prefix)

    def read(self, bucket: str, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the content of an object, or its bytes [start, end).

        If the object ends before `end`, fewer bytes are returned.
        """
        last = None if end is None else end - 1  # The last byte is included.
        return self.bucket(bucket).blob(name).download_as_bytes(start=start, end=last)

    def size(self, bucket: str, name: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        blob = self.bucket(bucket).get_blob(name)
        return None if blob is None else int(blob.size)

    def download(self, bucket: str, name: str, path: str) -> None:
        """Copy an object to a local file."""
        self.bucket(bucket).blob(name).download_to_filename(path)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Write an object atomically."""
        self.bucket(bucket).blob(name).upload_from_string(content, "application/octet-stream")

    def upload(self, bucket: str, name: str, path: str) -> None:
        """Copy a local file to an object."""
        self.bucket(bucket).blob(name).upload_from_filename(path)


@functools.cache
def google_client() -> Any:
    """Return the Cloud Storage client that all code of this process shares.

    A separate client for every file would look up the credentials and connect every time.
    """
    import google.cloud.storage

    return google.cloud.storage.Client()


class S3:
    """S3 and compatible stores such as MinIO.

    The environment variable AWS_ENDPOINT_URL_S3 contains the address, and other AWS_… variables the credentials.

    The methods are the same as those of `GoogleStorage`.
    """

    @contextlib.contextmanager
    def reach(self, uri: str) -> Iterator[tuple[str, str]]:
        """Yield the bucket and the object name of a URI, and convert boto3's exceptions; see `GoogleStorage.reach`."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            NoCredentialsError,
        )

        try:
            place = Location(uri)
            yield place.bucket, place.key
        except (ConnectionError, HTTPClientError, Boto3Error) as error:
            raise PlatformError(
                f"The object store does not respond to requests for {uri!r}: {_reason(error)}. Try again later."
            ) from error
        except NoCredentialsError as error:
            raise InputError(
                f"Cannot use {uri!r}: there are no S3 credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "AWS_SHARED_CREDENTIALS_FILE."
            ) from error
        except BotoCoreError as error:
            raise InputError(
                f"Cannot use {uri!r}: {_reason(error)}. Check the path and the AWS_… variables."
            ) from error
        except ClientError as error:
            if (status := _status_of(error)) == 404:
                raise InputError(
                    f"Cannot use {uri!r}: there is no such file or bucket ({_reason(error)}). Check the path."
                ) from error
            if status >= 500 or status == 429:
                raise PlatformError(
                    f"The object store does not respond to requests for {uri!r}: {_reason(error)}. Try again later."
                ) from error
            raise InputError(
                f"Cannot use {uri!r}: the object store rejected the request ({_reason(error)}). Check the path, "
                "AWS_ENDPOINT_URL_S3 and the permissions of the access key."
            ) from error

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """Yield all objects whose names begin with `prefix`, except placeholders of folders."""
        pages = s3_client().get_paginator("list_objects_v2")

        def list_below(prefix: str, is_level: bool) -> Level:
            objects, prefixes = [], []
            for page in pages.paginate(Bucket=bucket, Prefix=prefix, **({"Delimiter": "/"} if is_level else {})):
                # The ETag is the MD5 of the content, or for a multipart upload a digest of the MD5s of the parts.
                objects += [
                    StoredFile(entry["Key"], entry["Size"], entry["ETag"].strip('"'))
                    for entry in page.get("Contents", ())
                ]
                prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            return objects, prefixes

        return list_by_prefix(list_below, prefix)

    def read(self, bucket: str, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the content of an object, or its bytes [start, end)."""
        part = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        response = s3_client().get_object(Bucket=bucket, Key=name, **part)
        _require_room(f"s3://{bucket}/{name}", int(response["ContentLength"]), _memory_bytes(), "this machine's memory")
        return response["Body"].read()

    def size(self, bucket: str, name: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        from botocore.exceptions import ClientError

        try:
            return int(s3_client().head_object(Bucket=bucket, Key=name)["ContentLength"])
        except ClientError as error:
            if _status_of(error) != 404:
                raise
            return None

    def download(self, bucket: str, name: str, path: str) -> None:
        """Copy an object to a local file."""
        s3_client().download_file(bucket, name, path)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Write an object atomically."""
        s3_client().put_object(Bucket=bucket, Key=name, Body=content)

    def upload(self, bucket: str, name: str, path: str) -> None:
        """Copy a local file to an object."""
        s3_client().upload_file(path, bucket, name)


def _require_room(uri: str, num_bytes: int, room_bytes: int, what: str) -> None:
    """Check, before an object is read, that it is not larger than the available space.

    Raises:
        InputError: If the object is larger.
    """
    if num_bytes > room_bytes:
        raise InputError(
            f"Cannot read {uri!r}: its size, {byte_size(num_bytes)}, is larger than {what} ({byte_size(room_bytes)}). "
            "Use a smaller file, or split it."
        )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _reason(error: Exception) -> str:
    """Return an error's message, without credentials that the store's address may contain."""
    return hide_credentials(str(error))


def _status_of(error: Any) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


@functools.cache
def s3_client() -> Any:
    """Return the S3 client that all threads of this process share."""
    import boto3

    return boto3.client("s3")


class HuggingFaceHub:
    """The Hugging Face hub, read-only: `hf://datasets/OWNER/NAME/PATH`, or `…/NAME@REVISION/PATH`.

    The environment variable HF_TOKEN contains the access token, and HF_ENDPOINT replaces the hub's address. The methods
    are the same as those of `GoogleStorage`. The bucket of a path is always `datasets`.
    """

    @contextlib.contextmanager
    def reach(self, uri: str) -> Iterator[tuple[str, str]]:
        """Yield the bucket and the path of a URI, and convert the hub's exceptions; see `GoogleStorage.reach`."""
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            place = Location(uri)
            yield place.bucket, place.key
        except InputError:  # It is a ValueError, which the next clause would convert.
            raise
        except (FileNotFoundError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"Cannot use {uri!r}: the Hugging Face hub has no such data set, revision or file ({_reason(error)}). "
                "Check the name, which must have the form hf://datasets/OWNER/NAME/PATH. For a private or gated data "
                "set, set HF_TOKEN."
            ) from error
        except (_http_error(), OfflineModeIsEnabled) as error:
            if _hub_is_out(error):
                raise PlatformError(
                    f"The Hugging Face hub does not respond to requests for {uri!r}: {_reason(error)}. Try again later."
                ) from error
            raise InputError(
                f"Cannot use {uri!r}: the Hugging Face hub rejected the request ({_reason(error)}). Check the name and "
                "HF_TOKEN."
            ) from error

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredFile]:
        """Yield all objects whose names begin with `prefix`."""
        for path, info in self._ask("find", bucket, prefix.rstrip("/"), detail=True).items():
            yield StoredFile(path.removeprefix(f"{bucket}/"), info["size"], info["blob_id"])

    def read(self, bucket: str, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the content of an object, or its bytes [start, end)."""
        if end is None:
            self._check_size(bucket, name, _memory_bytes(), "this machine's memory")
        return self._ask("cat_file", bucket, name, start=start, end=end)

    def size(self, bucket: str, name: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        return int(self._ask("info", bucket, name)["size"]) if self._ask("isfile", bucket, name) else None

    def download(self, bucket: str, name: str, path: str) -> None:
        """Copy an object to a local file."""
        self._check_size(bucket, name, shutil.disk_usage(os.path.dirname(path) or ".").free, "the free disk space")
        self._ask("get_file", bucket, name, lpath=path)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Raise InputError, because the hub is read-only."""
        raise InputError(
            f"Cannot write hf://{bucket}/{name}: writing to the Hugging Face hub is not supported. Use a local "
            "folder, gs:// or s3://."
        )

    def upload(self, bucket: str, name: str, path: str) -> None:
        """Raise InputError, because the hub is read-only."""
        self.write(bucket, name, b"")

    def _check_size(self, bucket: str, name: str, room_bytes: int, what: str) -> None:
        """Check that an object fits into the available space.

        HF_ENDPOINT may be an untrusted server whose response never ends.
        """
        _require_room(f"hf://{bucket}/{name}", int(self._ask("info", bucket, name)["size"] or 0), room_bytes, what)

    @staticmethod
    def _ask(method: str, bucket: str, name: str, **options: Any) -> Any:
        """Call a method of the hub's client, and retry transient errors.

        The client itself retries only some requests.
        """
        import tenacity
        from huggingface_hub import HfFileSystem  # It keeps one instance for each thread.

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_hub_is_out),
            wait=tenacity.wait_random_exponential(max=8),
            stop=tenacity.stop_after_delay(30),
            reraise=True,
        )(getattr(HfFileSystem(), method), f"{bucket}/{name}", **options)


def _hub_is_out(error: BaseException) -> bool:
    """Return whether an error of the hub is transient, so that the same request may succeed later."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in {408, 429} or error.response.status_code >= 500
    return isinstance(error, _http_error())  # No connection, or no response.


def _http_error() -> type[Exception]:
    """Return the exception class of huggingface_hub's HTTP client.

    The client has been httpx2 since huggingface_hub 2.3. Earlier versions use httpx.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


ObjectStore = GoogleStorage | S3 | HuggingFaceHub
_STORES: dict[Scheme, ObjectStore] = {
    Scheme.GOOGLE: GoogleStorage(),
    Scheme.S3: S3(),
    Scheme.HUGGING_FACE: HuggingFaceHub(),
}
