"""The command `receipts`: adds receipts of training runs, and shows the step-time intervals derived from them."""

import argparse

from tpu_components.core.base.errors import DONE, InputError
from tpu_components.preflight_training.receipts.overview import Overview
from tpu_components.preflight_training.receipts.store import ReceiptStore, find_receipts
from tpu_pipelines.cli.output import show, tell_hint


def receipts(arguments: argparse.Namespace) -> int:
    """List the receipts that preflight uses, or add some. Return the exit code.

    All receipts are read before the first one is added.
    """
    store = ReceiptStore.of_workspace(arguments.workspace)
    if arguments.action == "add":
        if not arguments.places:
            raise InputError(
                "Nothing to add: expected receipts. Name a receipt.json, a folder such as runs, or a bucket."
            )
        added = store.add([receipt for place in arguments.places for receipt in find_receipts(place)])
        tell_hint(
            f"runs in {store.uri}: {added.new} added, {added.completed} completed with a prediction, {added.known} "
            "unchanged"
        )
    elif arguments.places:
        raise InputError(
            f"Cannot list {arguments.places[0]!r}: only `receipts add` accepts files and folders. Remove this argument."
        )
    overview = Overview(store.load())
    show(overview.as_dict(), str(overview), arguments.json)
    return DONE
