"""Commands and flags of earlier versions, and what replaces each of them."""

from collections.abc import Mapping

from tpu_components.serving.params import REMOVED_FLAGS

# A command, or a command and its flag, to the sentence that says what replaces it.
REMOVED: Mapping[str, str] = {
    "monitor": (
        "monitor was removed. Use Prometheus: the server's /metrics contains predictions by class, confidences "
        "and times, and components/tpu_components/serving/README.md shows the alerts."
    ),
    **{f"serve {flag}": sentence for flag, sentence in REMOVED_FLAGS.items()},
    "smoke": "smoke was removed. Use `tpu-pipelines submit smoke --target vertex --wait`.",
}


def removed_flags(command: str) -> dict[str, str]:
    """Return the removed flags of a command, each with the sentence that says what replaces it."""
    start = f"{command} --"
    return {name.removeprefix(f"{command} "): said for name, said in REMOVED.items() if name.startswith(start)}
