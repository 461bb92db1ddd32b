"""Commands and flags of earlier versions, and what to use instead."""

from collections.abc import Mapping, Sequence

# By "COMMAND" or "COMMAND --flag": the end of the sentence "… was removed: ".
REMOVED: Mapping[str, str] = {
    "smoke": "use `tpu-pipelines submit smoke --target vertex --wait`.",
}


def removed_word(words: Sequence[str]) -> str:
    """Return an error message if a command line uses a removed command or flag; empty otherwise."""
    command, *rest = words or [""]
    for name in (command, *(f"{command} {word.partition('=')[0]}" for word in rest)):
        if name in REMOVED:
            return f"`tpu-pipelines {name}` was removed: {REMOVED[name]}"
    return ""
