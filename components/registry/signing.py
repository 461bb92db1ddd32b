"""Signatures of versions, in the form of OpenSSF Model Signing, whose own command makes and verifies them too.

    model_signing verify key VERSION --signature VERSION/model.sig --public_key FILE

https://github.com/sigstore/model-transparency
"""

import base64
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components import storage
from components.errors import InputError
from components.registry.reference import EXPORT_DIR, SIGNATURE_FILE
from components.registry.versions import VERSION_FILE, fetch_folder

PASSWORD_VARIABLE = "TPU_PIPELINES_SIGNING_PASSWORD"
_PEM_START = "-----BEGIN"
_MOST_KEY_BYTES = 16_384  # Of PEM: a key of P-521 has 400, and a pipe holds this much without a reader.
_MOST_CHARACTERS = 400  # Of the library's words, which may list every file.
_WANTED = "key in PEM of the curve P-256, P-384 or P-521"


def sign_version(directory: Path, signing_key: str) -> None:
    """Sign a version's export, which is all that a server gets, and then the version with that signature in it.

    Args:
        directory: The version's folder, which nobody else sees yet.
        signing_key: File of the private key, here or in a bucket. Its password is in TPU_PIPELINES_SIGNING_PASSWORD.

    Raises:
        InputError: If it cannot be read, or is no such key.
    """
    for folder in (directory / EXPORT_DIR, directory):
        _sign(folder, signing_key)


def verify_version(directory: Path, verify_key: str, uri: str = "") -> None:
    """Check both signatures of a version; the arguments as in `verify_folder`."""
    verify_folder(directory, verify_key, uri)
    verify_folder(directory / EXPORT_DIR, verify_key, uri and f"{uri}/{EXPORT_DIR}")


def verify_folder(folder: Path, verify_key: str, uri: str = "") -> None:
    """Check that a folder holds what was signed: every file, unchanged and under its name, and nothing else.

    Args:
        folder: A version's folder, or its export.
        verify_key: File of the public key, here or in a bucket; or the key itself, in PEM.
        uri: Place that it was fetched from, for messages; itself if not given.

    Raises:
        InputError: If it does not, is not signed, or was signed with another key; or the key cannot be read.
    """
    from model_signing import verifying

    folder = folder.resolve()
    signature = folder / SIGNATURE_FILE
    config = verifying.Config().set_hashing_config(_hashing())
    with _as_file(_read_public(verify_key)) as path, _naming_mistakes(f"verify with {_name(verify_key)}", "public"):
        config.use_elliptic_key_verifier(public_key=path)
    refused = f"Refused {uri or folder}: expected a signature that {_name(verify_key)} verifies, received"
    if not signature.is_file():
        raise InputError(f"{refused} no {SIGNATURE_FILE} in it. Sign it, or take a version that is signed.")
    try:
        config.verify(folder, signature)
        if unsigned := _files(folder) - _signed_files(signature):
            raise ValueError(f"what its signature leaves out: {', '.join(sorted(unsigned))}")
    except Exception as error:  # Whatever a forged signature makes the library stumble over, it is a refusal.
        raise InputError(
            f"{refused} something else ({_words(error)}). Restore it from a backup, or take another version."
        ) from error


def fetch_verified(uri: str, verify_key: str, scratch: Path) -> Path:
    """Return a copy of a folder, here or on gs://, whose signature holds: nobody changes it behind the check.

    Args:
        uri: The folder.
        verify_key: See `verify_folder`.
        scratch: A private folder, which gets the copy.

    Raises:
        InputError: If there is no such folder, it is damaged, or its signature does not hold.
    """
    folder = fetch_folder(uri, scratch)
    if not storage.is_remote(uri):
        try:
            folder = shutil.copytree(folder, scratch / "verified", symlinks=True)
        except OSError as error:
            raise InputError(f"Cannot copy {uri}, to verify what is loaded: {_words(error)}.") from error
    verify_folder(folder, verify_key, uri)
    return folder


def verify_export(uri: str, verify_key: str) -> str:
    """Check the signature of an export, here or on gs://, and that of the version that holds it, if one does.

    Returns:
        The folder that was checked: the version's, or the export's.

    Raises:
        InputError: If there is no such folder, or a signature does not hold.
    """
    place = uri.rstrip("/").rpartition("/")[0]
    is_version = uri.rstrip("/").endswith(f"/{EXPORT_DIR}") and storage.exists(f"{place}/{VERSION_FILE}")
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        checked = place if is_version else uri
        folder = storage.localize(checked, Path(scratch))
        (verify_version if is_version else verify_folder)(folder, verify_key, checked)
    return checked


def try_keys(signing_key: str, verify_key: str) -> None:
    """Check, before any long work, that a key signs, and that the other one, where there is one, verifies that.

    Raises:
        InputError: If one of them cannot be read, or they are no pair.
    """
    with tempfile.TemporaryDirectory(prefix="keys-") as folder:
        if signing_key:
            _sign(Path(folder), signing_key)
        if signing_key and verify_key:
            verify_folder(Path(folder), verify_key)


def public_key_text(verify_key: str) -> str:
    """Return a public key as PEM, to be handed to a server; empty for none.

    Raises:
        InputError: If it cannot be read, or is none.
    """
    return _read_public(verify_key).decode() if verify_key else ""


def is_key_itself(key: str) -> bool:
    """Return whether a text is a key, and not the place of one."""
    return key.lstrip().startswith(_PEM_START)


def _sign(folder: Path, signing_key: str) -> None:
    from model_signing import signing

    config = signing.Config().set_hashing_config(_hashing())
    password: Any = os.environ.get(PASSWORD_VARIABLE, "").encode() or None  # The library hands it on, and says str.
    what = f"sign with {_name(signing_key)}, its password being that of {PASSWORD_VARIABLE}, if any"
    with _as_file(storage.read_bytes(signing_key)) as path, _naming_mistakes(what, "private"):
        config.use_elliptic_key_signer(private_key=path, password=password)
    signature = folder / SIGNATURE_FILE
    signature.unlink(missing_ok=True)
    config.sign(folder, signature)
    signature.chmod(0o444)


def _hashing() -> Any:
    """Return what is signed: the SHA-256 of every file but the signature; a link is an error."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)


def _files(folder: Path) -> set[str]:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return files - {SIGNATURE_FILE}


def _signed_files(signature: Path) -> set[str]:
    """Return the files that a signature names. It may also name some to be passed over, which the library does."""
    statement = json.loads(base64.b64decode(json.loads(signature.read_bytes())["dsseEnvelope"]["payload"]))
    return {file["name"] for file in statement["predicate"]["resources"]}


def _read_public(verify_key: str) -> bytes:
    """Return the public key of a file, and nothing else of it: beside it may stand the private one."""
    content = verify_key.encode() if is_key_itself(verify_key) else storage.read_bytes(verify_key)
    key = re.search(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", content, re.DOTALL)
    if key is None:
        raise InputError(f"Cannot verify with {_name(verify_key)}: expected a public {_WANTED}, received another file.")
    return key[0] + b"\n"


def _name(key: str) -> str:
    return "the public key" if is_key_itself(key) else key


@contextlib.contextmanager
def _as_file(key: bytes) -> Iterator[Path]:
    """Give a key as the file that the library wants, without one: it is written to no disk."""
    if len(key) > _MOST_KEY_BYTES:
        raise InputError(f"Cannot use a key of {len(key):,} bytes: expected a {_WANTED}. Check the path.")
    reading, writing = os.pipe()
    try:
        with open(writing, "wb") as file:
            file.write(key)
        yield Path(f"/dev/fd/{reading}")
    finally:
        os.close(reading)


@contextlib.contextmanager
def _naming_mistakes(what: str, kind: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Another kind of key has no curve, an encrypted one no password, text is no key.
        raise InputError(
            f"Cannot {what}: expected a {kind} {_WANTED}, received something else ({_words(error)}). Check the path."
        ) from error


def _words(error: Exception) -> str:
    """Return what the library says in one line, without digests and the copy's name."""
    words = " ".join(str(error).replace("\\'", "'").split()) or type(error).__name__
    words = re.sub(r" in model '[^']*'", "", words)
    words = re.sub(r"""(Hash mismatch for '[^']*'): Expected .*?(?=["'], ["']Hash|["']\]$)""", r"\1", words)
    return words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]}…"
