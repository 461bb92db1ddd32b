"""Signatures of versions in the format of OpenSSF Model Signing.

The command-line tool of that project can also verify the signatures:

    model_signing verify key VERSION --signature VERSION/model.sig --public_key FILE

https://github.com/sigstore/model-transparency
"""

import ast
import base64
import contextlib
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import MODEL_FILE
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.registry.reference import EXPORT_DIR, MODEL_DIR, SIGNATURE_FILE, version_at, version_name
from tpu_components.core.registry.versions import VERSION_FILE, Version

PASSWORD_VARIABLE = "TPU_PIPELINES_SIGNING_PASSWORD"
_PEM_START = "-----BEGIN"
_MOST_KEY_BYTES = 16_384  # Bytes of PEM. A P-521 key has 400; a pipe buffers this size without a reader.
_MOST_CHARACTERS = 400  # Limit for the library's messages, which may list every file.
_DIFFERENCES = {  # The library's messages about differences, and their replacements.
    "^Extra files found in model '.*?': ": "added: ",
    "^Missing files in model '.*?': ": "missing: ",
    "^Hash mismatch for '(.*)': Expected .*$": r"changed: \1",
}
_WANTED = "key in PEM of the curve P-256, P-384 or P-521"
# Files next to an export in a version. One is enough to recognise a version from which others were removed.
_BESIDE = (VERSION_FILE, SIGNATURE_FILE, f"{MODEL_DIR}/{MODEL_FILE}")


def sign_version(directory: Path, signing_key: str) -> None:
    """Sign the export of a version, then the whole version, including the signature of the export.

    The export needs a separate signature because servers get only the export.

    Args:
        directory: Folder of the version, before it is published.
        signing_key: File of the private key, local or in a bucket. If the key has a password, the environment variable
            TPU_PIPELINES_SIGNING_PASSWORD contains the password.

    Raises:
        InputError: If the key cannot be read or has an unsupported type.
    """
    for folder in (directory / EXPORT_DIR, directory):
        _sign(folder, signing_key)


def verify_version(directory: Path, verify_key: str, uri: str = "", name: str = "") -> None:
    """Verify the signatures of a version and of its export, and check that the signed name is the expected name.

    Args:
        directory: Folder of the version.
        verify_key: Public key; see `verify_folder`.
        uri: Source of the folder, for messages; see `verify_folder`.
        name: Expected `Version.name`. If empty, the name is derived from the version's path in a registry. If the path
            is not in a registry either, the name is not checked. Old versions have no signed name, so their name is
            never checked.

    Raises:
        InputError: If a signature is invalid, or the name differs.
    """
    verify_folder(directory, verify_key, uri)
    verify_folder(directory / EXPORT_DIR, verify_key, uri and f"{uri}/{EXPORT_DIR}")
    place = uri or os.path.abspath(directory)
    if name := name or _name_at(place):
        signed = Version.load(directory).name
        if signed not in (name, ""):
            raise InputError(
                f"Rejected {place}: expected the version {name}, but the files in this folder were signed as {signed}, "
                "so they belong to another version. Restore the folder from a backup, or use another version."
            )


def verify_folder(folder: Path, verify_key: str, uri: str = "") -> None:
    """Verify that a folder contains exactly the signed files, unchanged.

    Args:
        folder: Folder of a version or an export.
        verify_key: Public key: PEM text, or the path of a PEM file, local or in a bucket.
        uri: Source of the folder, for messages. Empty means the folder itself.

    Raises:
        InputError: If files differ, the signature is missing or made with another key, or the key cannot be read.
    """
    folder = folder.resolve()
    signature = folder / SIGNATURE_FILE
    config = _verifier(verify_key)
    _require_ordinary(folder, uri or str(folder))
    refused = f"Rejected {uri or folder}: expected a signature that {_name(verify_key)} verifies, received"
    if not signature.is_file():
        raise InputError(f"{refused} no {SIGNATURE_FILE}. Sign the version, or use a signed version.")
    try:
        config.verify(folder, signature)
        if unsigned := _unsigned_files(folder, signature):
            raise InputError(f"unsigned files: {', '.join(unsigned)}")
    except Exception as error:  # A forged signature may raise anything in the library.
        raise InputError(
            f"{refused} {_fault(error)}. Restore the folder from a backup, or use another version."
        ) from error


def fetch_verified(uri: str, verify_key: str, scratch: Path, name: str = "") -> Path:
    """Copy an export to a private folder, verify the copy, and return the folder of the copied export.

    Nobody else can change the private copy after the check. If the export belongs to a version, the whole version is
    copied and verified.

    Args:
        uri: The export, local or on gs://.
        verify_key: Public key; see `verify_folder`.
        scratch: Private folder for the copy.
        name: Expected name of the version; see `verify_version`.

    Raises:
        InputError: If the folder is missing, or a signature is invalid.
    """
    version, name = _find_version(uri, name)
    copied = version or uri
    folder = storage.localize(copied, scratch)
    if not Location(copied).is_remote:
        _require_ordinary(folder, copied)
        try:
            folder = shutil.copytree(folder, scratch / "verified", symlinks=True)
        except OSError as error:
            reason = (error.strerror or "not every file can be read").lower()
            raise InputError(
                f"Cannot copy {copied} to verify it: {reason}. Check the permissions of its files."
            ) from error
    _verify(folder, verify_key, uri, version, name)
    return folder / EXPORT_DIR if version else folder


def verify_export(uri: str, verify_key: str, name: str = "") -> str:
    """Verify the signature of an export and, if the export belongs to a version, the version's signature.

    Args:
        uri: The export or the version, local or on gs://.
        verify_key: Public key; see `verify_folder`.
        name: Expected name of the version; see `verify_version`.

    Returns:
        The verified folder: the version, or the export if it does not belong to a version.

    Raises:
        InputError: If the folder is missing, or a signature is invalid.
    """
    version, name = _find_version(uri, name)
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        _verify(storage.localize(version or uri, Path(scratch)), verify_key, uri, version, name)
    return version or uri


def _verify(folder: Path, verify_key: str, uri: str, version: str, name: str) -> None:
    if version:
        verify_version(folder, verify_key, version, name)
    else:
        verify_folder(folder, verify_key, uri)


def _find_version(uri: str, name: str) -> tuple[str, str]:
    """Return the folder and the name of the version that an export belongs to.

    If it does not belong to a version, return two empty strings.

    An export belongs to a version if its path is a version's path in a registry, if `name` is not empty, or if a file
    of a version is next to it. One file is enough, because others could have been removed. In this case, the returned
    name is empty.
    """
    is_remote = Location(uri).is_remote
    texts = (Location(uri).folder,) if is_remote else (os.path.abspath(uri), os.path.realpath(uri))
    places = [Location(text) for text in texts]
    for place in places:
        if name_there := _name_at(place):
            return place.parent if place.name == EXPORT_DIR else place, name or name_there
    for place in places:
        if place.name == EXPORT_DIR and (name or any(storage.exists(f"{place.parent}/{file}") for file in _BESIDE)):
            return place.parent, name
    return "", ""


def _name_at(place: str) -> str:
    """Return the name of a version from its path in a registry, or an empty string for other paths."""
    model_name, number = version_at(place)
    return model_name and version_name(model_name, number)


def try_keys(signing_key: str, verify_key: str) -> None:
    """Check that the signing key works, and that the verify key matches it. Empty keys are not checked.

    Raises:
        InputError: If a key cannot be read, or the keys do not match.
    """
    with tempfile.TemporaryDirectory(prefix="keys-") as folder:
        if signing_key:
            _sign(Path(folder), signing_key)
        if signing_key and verify_key:
            _verifier(verify_key)
            try:
                verify_folder(Path(folder), verify_key)
            except InputError as error:
                raise InputError(
                    f"signing_key and verify_key do not match: {_name(verify_key)} does not verify signatures of "
                    f"{signing_key}. Write the public key again: openssl ec -in {signing_key} -pubout -out FILE."
                ) from error


def public_key_text(verify_key: str) -> str:
    """Return a public key as PEM, for a server, or an empty string if `verify_key` is empty.

    Raises:
        InputError: If the key cannot be read, or is not a public key.
    """
    return _read_public(verify_key).decode() if verify_key else ""


def is_key_itself(key: str) -> bool:
    """Return whether a text is a key in PEM rather than a path."""
    return key.lstrip().startswith(_PEM_START)


def _sign(folder: Path, signing_key: str) -> None:
    from model_signing import signing

    config = signing.Config().set_hashing_config(_hashing())
    password: Any = os.environ.get(PASSWORD_VARIABLE, "").encode() or None  # The library accepts bytes.
    what = f"sign with {_name(signing_key)} and the password in {PASSWORD_VARIABLE}, if any"
    with _key_file(storage.read_bytes(signing_key), what, "private") as path:
        config.use_elliptic_key_signer(private_key=path, password=password)
    signature = folder / SIGNATURE_FILE
    signature.unlink(missing_ok=True)
    config.sign(folder, signature)
    signature.chmod(0o444)


def _verifier(verify_key: str) -> Any:
    from model_signing import verifying

    config = verifying.Config().set_hashing_config(_hashing())
    with _key_file(_read_public(verify_key), f"verify with {_name(verify_key)}", "public") as path:
        config.use_elliptic_key_verifier(public_key=path)
    return config


def _hashing() -> Any:
    """Return the library's hashing configuration: SHA-256 of every file except the signature.

    Links are errors.
    """
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)


def _require_ordinary(folder: Path, uri: str) -> None:
    """Raise InputError for links, pipes, sockets and devices, which a signature does not cover."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            what = "a link" if path.is_symlink() else "a pipe, a socket or a device"
            raise InputError(
                f"Rejected {uri}: expected ordinary files, received {what}: {path.relative_to(folder)}. Restore the "
                "folder from a backup, or use another version."
            )


def _unsigned_files(folder: Path, signature: Path) -> list[str]:
    """Return the files that a signature does not cover.

    The library skips files that the signature marks as ignored.
    """
    envelope = typed_json.decode(signature.read_bytes())["dsseEnvelope"]
    statement = typed_json.decode(base64.b64decode(envelope["payload"]))
    signed = {SIGNATURE_FILE, *(file["name"] for file in statement["predicate"]["resources"])}
    return sorted({path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - signed)


def _read_public(verify_key: str) -> bytes:
    """Return the public key from a PEM text or file, without a private key that the file may also contain."""
    content = verify_key.encode() if is_key_itself(verify_key) else storage.read_bytes(verify_key)
    key = re.search(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", content, re.DOTALL)
    if key is None:
        raise InputError(
            f"Cannot verify with {_name(verify_key)}: expected a public {_WANTED}, received another file. Check "
            "verify_key."
        )
    return key[0] + b"\n"


def _name(key: str) -> str:
    return "the public key" if is_key_itself(key) else key


@contextlib.contextmanager
def _key_file(key: bytes, what: str, kind: str) -> Iterator[Path]:
    """Yield the path of a pipe from which the library reads a key, so that the key is not written to disk."""
    if len(key) > _MOST_KEY_BYTES:
        raise InputError(f"Cannot use a key of {len(key):,} bytes: expected a {_WANTED}. Check the path of the key.")
    reading, writing = os.pipe()
    try:
        with open(writing, "wb") as file:
            file.write(key)
        yield Path(f"/dev/fd/{reading}")
    except Exception as error:  # Other kinds of keys, encrypted keys and plain text raise different errors.
        reason = textwrap.shorten(str(error) or type(error).__name__, _MOST_CHARACTERS, placeholder=" …")
        raise InputError(
            f"Cannot {what}: expected a {kind} {_WANTED}, received something else ({reason}). Check the path of the "
            "key."
        ) from error
    finally:
        os.close(reading)


def _fault(error: Exception) -> str:
    """Return why a signature is invalid, as a phrase for messages, such as `a signature made with another key`."""
    from cryptography.exceptions import InvalidSignature

    kind, _, words = str(error).partition(": ")
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        return f"a file that cannot be read ({(error.strerror or str(error)).lower()})"
    if kind == "Key mismatch":
        return "a signature made with another key"
    if isinstance(error, InvalidSignature):
        return f"a {SIGNATURE_FILE} that was changed or made with another key"
    if kind != "Signature mismatch":
        return f"a {SIGNATURE_FILE} that is not a signature"
    differences = [str(difference) for difference in ast.literal_eval(words)]
    for library, ours in _DIFFERENCES.items():
        differences = [re.sub(library, ours, difference, flags=re.DOTALL) for difference in differences]
    faults = f"files that differ from the signed ones, {'; '.join(differences)}"
    return textwrap.shorten(faults, _MOST_CHARACTERS, placeholder=" …")
