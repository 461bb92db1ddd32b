"""Commands and flags of earlier versions, and what to use instead."""

from collections.abc import Mapping, Sequence

from tpu_components.serving.params import REMOVED_FLAGS

# By "COMMAND" or "COMMAND --flag": the end of the sentence "… was removed: ".
REMOVED: Mapping[str, str] = {
    "monitor": "use Prometheus. The server's /metrics has predictions by class, confidences and times, and "
    "components/tpu_components/serving/README.md has the alerts.",
    **{f"serve {flag}": instead for flag, instead in REMOVED_FLAGS.items()},
}


def removed_word(words: Sequence[str]) -> str:
    """Return an error message if a command line uses a removed command or flag; empty otherwise."""
    command, *rest = words or [""]
    for name in (command, *(f"{command} {word.partition('=')[0]}" for word in rest)):
        if name in REMOVED:
            return f"`tpu-pipelines {name}` was removed: {REMOVED[name]}"
    return ""
