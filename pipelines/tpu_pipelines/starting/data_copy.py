"""Plans the command that copies local data to a bucket, where the steps on a platform can read the data."""

import dataclasses
import os
import shlex
from pathlib import Path
from typing import NamedTuple

from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.sources.source_ref import SourceRef

PLACEHOLDER = "gs://your-bucket"  # Stands for a bucket that is not known.


class DataCopy(NamedTuple):
    """A copy of local data in a bucket.

    Attributes:
        words: Program and arguments of the command that makes the copy. Repeating the command changes nothing.
        source: Value of `data.source` for the copy.
    """

    words: tuple[str, ...]
    source: str

    @property
    def command(self) -> str:
        """The command as text for a shell."""
        return shlex.join(self.words)


def plan_copy(source: str, bucket: str = "") -> DataCopy:
    """Return the command that copies a local source to a bucket, and the source of the copy.

    Args:
        source: A local source, for example `images:/data/flowers`.
        bucket: `gs://…` or `s3://…`. If empty, a placeholder is used.

    Example:
        >>> plan_copy("images:/data/flowers", "gs://my-bucket").command
        'gcloud storage rsync --recursive /data/flowers gs://my-bucket/data/flowers'
    """
    ref = SourceRef.parse(source)
    copy = Location(bucket or PLACEHOLDER).child(f"data/{os.path.basename(os.path.abspath(ref.place))}")
    return DataCopy(copy_words(ref.place, copy), str(dataclasses.replace(ref, place=copy)))


def copy_words(local: str, uri: Location) -> tuple[str, ...]:
    """Return the program and arguments of the command that copies a file or folder to `gs://…` or `s3://…`.

    Example:
        >>> copy_words("/data/flowers", Location("s3://my-bucket/data/flowers"))
        ('aws', 's3', 'sync', '/data/flowers', 's3://my-bucket/data/flowers')
    """
    is_folder = not Path(local).is_file()
    if uri.scheme is Scheme.S3:
        words = ["aws", "s3", "sync" if is_folder else "cp"]
    else:
        words = ["gcloud", "storage", *(("rsync", "--recursive") if is_folder else ("cp",))]
    return (*words, local, uri)
