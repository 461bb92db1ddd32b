"""`Location`: the path or URI of a file or folder, and its parts."""

import enum
import functools
import re
from pathlib import Path, PurePosixPath

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.resource_names import GOOGLE_BUCKET, S3_BUCKET


class Scheme(enum.StrEnum):
    """URI schemes of the object stores."""

    GOOGLE = "gs://"
    S3 = "s3://"
    HUGGING_FACE = "hf://"


_BUCKET_FORMS = {Scheme.GOOGLE: GOOGLE_BUCKET, Scheme.S3: S3_BUCKET, Scheme.HUGGING_FACE: "[a-z]+"}
# One letter would be a drive of Windows.
_URI = re.compile(r"([a-z][a-z0-9+.-]+://)([^/]*)/?(.*)", re.IGNORECASE | re.DOTALL)


class Location(str):
    """The path of a file or folder on this machine, or a URI such as `gs://BUCKET/KEY`, with its parts.

    A location is equal to the text that the user wrote. It is stored, hashed and sent to a step as this text.

    Example:
        >>> place = Location("gs://bucket/data/list.csv")
        >>> place.scheme, place.bucket, place.key, place.name, place.parent
        (<Scheme.GOOGLE: 'gs://'>, 'bucket', 'data/list.csv', 'list.csv', 'gs://bucket/data')
        >>> Location("~/data/list.csv").is_path
        True
    """

    @functools.cached_property
    def _parts(self) -> tuple[str, str, str]:
        """Scheme, bucket and key, as the user wrote them. All three are empty for a path."""
        match = _URI.match(self) if "://" in self else None
        return (match[1], match[2], match[3]) if match else ("", "", "")

    @property
    def scheme(self) -> Scheme | None:
        """Scheme of the object store, or None for a path and for any other URI.

        Case is ignored: https://www.rfc-editor.org/rfc/rfc3986#section-3.1.
        """
        scheme = self._parts[0].lower()
        return Scheme(scheme) if scheme in _BUCKET_FORMS else None

    @property
    def is_remote(self) -> bool:
        """Whether the location is in an object store that this project can read."""
        return self.scheme is not None

    @property
    def is_path(self) -> bool:
        """Whether the location is a path on this machine. A URI such as `file:///data` is not."""
        return not self._parts[0]

    @property
    def bucket(self) -> str:
        """Name of the bucket.

        Raises:
            InputError: If there is no bucket, or the object store does not allow its name.
        """
        scheme, bucket, _ = self._parts
        if not bucket:
            raise InputError(f"Cannot use {self!r}: expected {scheme}BUCKET/PATH, received no bucket name.")
        if self.scheme and not re.fullmatch(_BUCKET_FORMS[self.scheme], bucket):
            raise InputError(
                f"Cannot use {self!r}: expected the name of a bucket, with letters and digits, and '-', '_' and "
                f"'.' between them. Received: {bucket!r}."
            )
        return bucket

    @property
    def key(self) -> str:
        """Name of the object or folder in the bucket, without a leading slash. It is empty for a bucket or a path."""
        return self._parts[2]

    @property
    def folder(self) -> "Location":
        """The location without trailing slashes.

        Other slashes are not changed, because `a//b` and `a/b` are two different objects in an object store.
        """
        return Location(self.rstrip("/") or self[:1])

    @property
    def name(self) -> str:
        """Last part of the path or key, or an empty string for a bucket."""
        return (self if self.is_path else self.key).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "Location":
        """The folder that contains this file or folder.

        It is `.` for a name without a folder. The parent of a bucket or root is the bucket or root itself.
        """
        if not self.is_path and not self.name:
            return self.folder
        folder, slash, _ = self.folder.rpartition("/")
        return Location((folder or "/") if slash else ".")

    def child(self, name: str) -> "Location":
        """Return the location of a relative path below this folder.

        Raises:
            InputError: If `name` is absolute, has a part `..`, or contains a NUL. Symbolic links are accepted, because
                anyone who can create a link in the folder can also write the file.
        """
        if "\0" in name:
            raise InputError(
                f"Cannot use the path {name!r}: expected a file name, received one with a NUL byte. Remove this byte."
            )
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            what = "an absolute path" if path.is_absolute() else "a path that leads out of that folder"
            raise InputError(
                f"Cannot use the path {name!r}: expected a path below {self!r}, received {what}. Write paths relative "
                "to that folder, without '..'."
            )
        return Location(f"{self.rstrip('/')}/{name}")

    def as_path(self) -> Path:
        """Return the location as a local path.

        Raises:
            InputError: If the location is a URI. Used as a path, it would name a folder such as `gs:`.
        """
        if not self.is_path:
            raise InputError(
                f"Cannot use {self!r}: expected a path on this machine, received a URI. Use a local path, and copy "
                "the files from or to the bucket with another program."
            )
        return Path(self)
