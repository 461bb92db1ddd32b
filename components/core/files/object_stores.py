"""Object stores: what Cloud Storage and those that speak S3 are asked, in one set of words."""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError

_TRANSFER_THREADS = 16
_LISTED_LEVELS = 2  # Of folders, as SPLIT/CLASS, that are opened one by one.


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """An object: its whole name in the bucket, its size in bytes, and a version that changes with its content."""

    name: str
    num_bytes: int
    version: str


class ObjectStore(Protocol):
    """Buckets of one kind. Within `errors`, what a user can put right is an InputError, an outage a PlatformError."""

    scheme: str

    def errors(self, uri: str) -> contextlib.AbstractContextManager[None]:
        """Say of the store's errors what they mean for whoever named `uri`."""

    def objects(self, uri: str) -> Iterator[StoredObject]:
        """Yield all objects whose place begins with `uri`, but those that only stand for folders."""

    def read(self, uri: str) -> bytes:
        """Return the content of an object."""

    def read_range(self, uri: str, offset: int, length: int) -> bytes:
        """Return bytes of an object, as many as there are of `length`, which is positive."""

    def size(self, uri: str) -> int:
        """Return the size of an object in bytes."""

    def exists(self, uri: str) -> bool:
        """Return whether there is an object."""

    def download(self, bucket: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy objects of a bucket to local paths, many at once; `pairs` are names and paths."""

    def write(self, uri: str, content: bytes) -> None:
        """Write an object, which appears whole or not at all."""

    def upload(self, bucket: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy local files to a bucket, many at once; `pairs` are paths and names."""


def store_of(uri: str) -> ObjectStore | None:
    """Return the store that a URI names by its scheme; None for a local path.

    Example:
        >>> store_of("s3://bucket/data").scheme, store_of("/data")
        ('s3://', None)
    """
    if "://" not in str(uri):  # As nearly always, and of millions.
        return None
    return next((store for store in STORES if str(uri).startswith(store.scheme)), None)


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


Level = tuple[list[StoredObject], list[str]]


def list_by_prefix(list_below: Callable[[str, bool], Level], prefix: str) -> Iterator[StoredObject]:
    """Yield all objects below a prefix, folders at the same time: a service lists some thousands of a folder a second.

    Args:
        list_below: Function that lists the objects of one level, and the prefixes of the folders in it; or all objects.
        prefix: Prefix that the names begin with. One that names no folder is listed as it is.
    """
    from concurrent.futures import ThreadPoolExecutor  # Imported here for the sake of `--help`.

    is_folder = not prefix or prefix.endswith("/")
    with ThreadPoolExecutor(_TRANSFER_THREADS) as pool:
        folders = [prefix]
        for depth in range(_LISTED_LEVELS + 1):
            # Levels are opened until there are folders enough for all threads: each costs a request.
            is_level = is_folder and depth < _LISTED_LEVELS and len(folders) < _TRANSFER_THREADS
            levels = list(pool.map(list_below, folders, itertools.repeat(is_level)))
            for objects, _ in levels:
                yield from (stored for stored in objects if not stored.name.endswith("/"))
            folders = [folder for _, prefixes in levels for folder in prefixes]
            if not is_level or not folders:
                return


class GoogleStorage:
    """Cloud Storage, signed in as the environment says."""

    scheme = "gs://"

    @contextlib.contextmanager
    def errors(self, uri: str) -> Iterator[None]:
        """Turn what a user can put right (a name, a role, a login) into an InputError in the service's own words."""
        import requests
        from google.api_core.exceptions import BadRequest, Forbidden, NotFound, RetryError, ServerError, Unauthorized
        from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

        try:
            yield
        except NotFound as error:
            raise InputError(
                f"Cannot use {uri!r}: there is no such file, folder or bucket ({error.message}). Check the path."
            ) from error
        except (Forbidden, Unauthorized) as error:
            raise InputError(
                f"Cannot use {uri!r}: Cloud Storage refused access ({error.message}). Give this account "
                "a role on the bucket."
            ) from error
        except BadRequest as error:
            raise InputError(f"Cannot use {uri!r}: Cloud Storage says {error.message}. Check the path.") from error
        except (ServerError, RetryError, TransportError, requests.RequestException) as error:
            raise PlatformError(f"Cloud Storage does not answer for {uri!r}: {error}. Try again later.") from error
        except RefreshError as error:
            raise InputError(
                f"Cannot use {uri!r}: the sign-in to Google Cloud is no longer valid ({error}). Run `gcloud auth "
                "application-default login`."
            ) from error
        except DefaultCredentialsError as error:
            raise InputError(
                f"Cannot use {uri!r}: found no Google Cloud credentials. Run `gcloud auth application-default login`."
            ) from error

    def bucket(self, name: str) -> Any:
        """Return a bucket of the client that this process has."""
        try:
            return google_client(os.environ.get("STORAGE_EMULATOR_HOST", "")).bucket(name)
        except ValueError as error:
            raise InputError(f"{name!r} is no name of a bucket ({error}). Check it.") from error

    def objects(self, uri: str) -> Iterator[StoredObject]:
        """Yield all objects whose place begins with `uri`, but those that only stand for folders."""
        name, prefix = split(uri)
        bucket = self.bucket(name)

        def list_below(prefix: str, is_level: bool) -> Level:
            delimiter = "/" if is_level else None
            blobs = bucket.client.list_blobs(bucket, prefix=prefix, delimiter=delimiter)
            objects = [StoredObject(blob.name, blob.size or 0, blob.crc32c or str(blob.generation)) for blob in blobs]
            return objects, sorted(blobs.prefixes)

        return list_by_prefix(list_below, prefix)

    def read(self, uri: str) -> bytes:
        """Return the content of an object."""
        bucket, name = split(uri)
        content: bytes = self.bucket(bucket).blob(name).download_as_bytes()
        return content

    def read_range(self, uri: str, offset: int, length: int) -> bytes:
        """Return bytes of an object, as many as there are of `length`, which is positive."""
        bucket, name = split(uri)
        blob = self.bucket(bucket).blob(name)
        content: bytes = blob.download_as_bytes(start=offset, end=offset + length - 1)  # The last byte, included.
        return content

    def size(self, uri: str) -> int:
        """Return the size of an object in bytes."""
        bucket, name = split(uri)
        blob = self.bucket(bucket).blob(name)
        blob.reload()
        return int(blob.size)

    def exists(self, uri: str) -> bool:
        """Return whether there is an object."""
        bucket, name = split(uri)
        return bool(self.bucket(bucket).blob(name).exists())

    def download(self, bucket: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy objects of a bucket to local paths, many at once; `pairs` are names and paths."""
        there = self.bucket(bucket)
        _transfer("download_many", [(there.blob(name), path) for name, path in pairs])

    def write(self, uri: str, content: bytes) -> None:
        """Write an object, which appears whole or not at all."""
        bucket, name = split(uri)
        self.bucket(bucket).blob(name).upload_from_string(content, "application/octet-stream")

    def upload(self, bucket: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy local files to a bucket, many at once; `pairs` are paths and names."""
        there = self.bucket(bucket)
        _transfer("upload_many", [(path, there.blob(name)) for path, name in pairs])


@functools.cache
def google_client(emulator_host: str) -> Any:
    """Return the process's client: one per file would look up credentials and connect every time."""
    import google.cloud.storage as gcs

    if emulator_host:
        from google.auth.credentials import AnonymousCredentials

        return gcs.Client(project="local", credentials=AnonymousCredentials())
    return gcs.Client()


def _transfer(method: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Move many files at once, in threads: worker processes would each sign in and connect again."""
    from google.cloud.storage import transfer_manager

    move = getattr(transfer_manager, method)
    move(pairs, worker_type=transfer_manager.THREAD, max_workers=_TRANSFER_THREADS, raise_exception=True)


class S3:
    """S3, and what speaks it, as MinIO: AWS_ENDPOINT_URL_S3 names its address, and AWS_… variables sign in."""

    scheme = "s3://"

    @contextlib.contextmanager
    def errors(self, uri: str) -> Iterator[None]:
        """Turn what a user can put right into an InputError with the store's own message."""
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
            yield
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status == 404:
                raise InputError(f"Cannot use {uri!r}: there is no such file or bucket ({error}). Check it.") from error
            if status >= 500 or status == 429:
                raise PlatformError(
                    f"The object store does not answer for {uri!r}: {error}. Try again later."
                ) from error
            raise InputError(
                f"Cannot use {uri!r}: the object store refused ({error}). Check the path, AWS_ENDPOINT_URL_S3 and the "
                "access key's rights."
            ) from error
        except NoCredentialsError as error:
            raise InputError(
                f"Cannot use {uri!r}: found no credentials for S3. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "AWS_SHARED_CREDENTIALS_FILE."
            ) from error
        except ParamValidationError as error:
            raise InputError(f"Cannot use {uri!r}: {split(uri)[0]!r} is no name of a bucket. Check it.") from error
        except (ConnectionError, HTTPClientError, Boto3Error) as error:
            raise PlatformError(f"The object store does not answer for {uri!r}: {error}. Try again later.") from error
        except BotoCoreError as error:
            raise InputError(f"Cannot use {uri!r}: {error}. Check the path and the AWS_… variables.") from error

    def objects(self, uri: str) -> Iterator[StoredObject]:
        """Yield all objects whose place begins with `uri`, but those that only stand for folders."""
        bucket, prefix = split(uri)
        pages = s3_client().get_paginator("list_objects_v2")

        def list_below(prefix: str, is_level: bool) -> Level:
            objects, prefixes = [], []
            for page in pages.paginate(Bucket=bucket, Prefix=prefix, **({"Delimiter": "/"} if is_level else {})):
                # The ETag is the content's MD5, or for what came in parts a digest that follows from it.
                objects += [
                    StoredObject(entry["Key"], entry["Size"], entry["ETag"].strip('"'))
                    for entry in page.get("Contents", ())
                ]
                prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            return objects, prefixes

        return list_by_prefix(list_below, prefix)

    def read(self, uri: str) -> bytes:
        """Return the content of an object."""
        bucket, name = split(uri)
        content: bytes = s3_client().get_object(Bucket=bucket, Key=name)["Body"].read()
        return content

    def read_range(self, uri: str, offset: int, length: int) -> bytes:
        """Return bytes of an object, as many as there are of `length`, which is positive."""
        bucket, name = split(uri)
        wanted = f"bytes={offset}-{offset + length - 1}"
        content: bytes = s3_client().get_object(Bucket=bucket, Key=name, Range=wanted)["Body"].read()
        return content

    def size(self, uri: str) -> int:
        """Return the size of an object in bytes."""
        bucket, name = split(uri)
        return int(s3_client().head_object(Bucket=bucket, Key=name)["ContentLength"])

    def exists(self, uri: str) -> bool:
        """Return whether there is an object."""
        from botocore.exceptions import ClientError

        bucket, name = split(uri)
        try:
            s3_client().head_object(Bucket=bucket, Key=name)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            return False
        return True

    def download(self, bucket: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy objects of a bucket to local paths, many at once; `pairs` are names and paths."""
        client = s3_client()
        _at_once(lambda pair: client.download_file(bucket, *pair), pairs)

    def write(self, uri: str, content: bytes) -> None:
        """Write an object, which appears whole or not at all."""
        bucket, name = split(uri)
        s3_client().put_object(Bucket=bucket, Key=name, Body=content)

    def upload(self, bucket: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy local files to a bucket, many at once; `pairs` are paths and names."""
        client = s3_client()
        _at_once(lambda pair: client.upload_file(pair[0], bucket, pair[1]), pairs)


def _at_once(copy: Callable[[tuple[str, str]], None], pairs: Sequence[tuple[str, str]]) -> None:
    """Copy every pair, many at once."""
    from concurrent.futures import ThreadPoolExecutor  # Imported here for the sake of `--help`.

    with ThreadPoolExecutor(_TRANSFER_THREADS) as pool:
        list(pool.map(copy, pairs))


@functools.cache
def s3_client() -> Any:
    """Return the process's client, which all threads share."""
    import boto3

    return boto3.client("s3")


STORES: tuple[ObjectStore, ...] = (GoogleStorage(), S3())
