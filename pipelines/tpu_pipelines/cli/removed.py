"""Commands and flags that earlier commits had, and what replaces each."""

from collections.abc import Mapping

# A command, or a command and its flag, to the sentence that says what replaces it.
REMOVED: Mapping[str, str] = {
    "smoke": "smoke was removed. Use `tpu-pipelines submit smoke --target vertex --wait`.",
}


def removed_flags(command: str) -> dict[str, str]:
    """Return the removed flags of a command, each with the sentence that says what replaces it."""
    start = f"{command} --"
    return {name.removeprefix(f"{command} "): said for name, said in REMOVED.items() if name.startswith(start)}
