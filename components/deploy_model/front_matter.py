"""Front matter of a model card: YAML by which Hugging Face's hub finds, shows and compares models.

https://github.com/huggingface/hub-docs/blob/main/modelcard.md
"""

import math
from collections.abc import Mapping
from typing import Any

import yaml

from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    IMAGE,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    TEXT,
)
from tpu_components.core.pages.markdown import plain

# From https://huggingface.co/docs/hub/repositories-licenses (August 2026); the hub calls any other licence `other`.
_HUB_LICENCES = """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0
    grok2-community h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2
    llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail
    openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
"""
_PIPELINES = {
    (IMAGE, CLASSIFICATION): "image-classification",
    (IMAGE, MULTI_LABEL): "image-classification",
    (TEXT, CLASSIFICATION): "text-classification",
    (TEXT, MULTI_LABEL): "text-classification",
    (CORPUS, LANGUAGE_MODEL): "text-generation",
}
# Our metrics with another name in https://huggingface.co/metrics.
_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "macro_precision": "precision",
    "macro_recall": "recall",
    "macro_roc_auc": "roc_auc",
    "mean_absolute_error": "mae",
    "r2": "r_squared",
}


def front_matter(
    *,
    name: str,
    licence: str,
    kind: str,
    task: str,
    formats: Mapping[str, Any],
    source: str,
    fingerprint: str,
    split: str,
    figures: Mapping[str, tuple[str, float]],
) -> str:
    """Return the YAML, without the lines of dashes around it.

    There is no `datasets` key: it may only name data sets of the hub.

    Args:
        name: Name of the model.
        licence: Identifier of the licence; empty if none was stated.
        kind: Kind of example, for example `image`.
        task: Task of the model.
        formats: Formats of the export, by name.
        source: Source of the examples.
        fingerprint: Fingerprint of the data set.
        split: Split that was evaluated.
        figures: Label and value of every metric, by our name.
    """
    pipeline = _PIPELINES.get((kind, task), "")
    task_type = pipeline or f"{kind}-{task}"
    metrics = [
        # Six digits are enough.
        {"type": _METRICS.get(figure, figure), "value": float(f"{value:.6g}"), "name": label}
        for figure, (label, value) in figures.items()
        if math.isfinite(value)
    ]
    tags = ["tpu-pipelines", kind, {MULTI_LABEL: "multi-label", REGRESSION: REGRESSION}.get(task, "")]
    tags += ["tflite"] if {"float", "int8"} & formats.keys() else []
    content = {
        **_licence_fields(licence),
        "library_name": "keras",
        **({"pipeline_tag": pipeline} if pipeline else {}),
        "tags": [tag for tag in tags if tag],
        **({"metrics": list(dict.fromkeys(metric["type"] for metric in metrics))} if metrics else {}),
    }
    if metrics:
        dataset = {"type": "custom", "name": plain(source), "split": split, "revision": fingerprint}
        results = {"task": {"type": task_type}, "dataset": dataset, "metrics": metrics}
        content["model-index"] = [{"name": name, "results": [results]}]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1 << 16)


def _licence_fields(licence: str) -> dict[str, str]:
    identifier = licence.lower()  # SPDX ignores case; the hub uses lower case.
    if not licence or identifier in _HUB_LICENCES.split():
        return {"license": identifier} if licence else {}
    return {"license": "other", "license_name": identifier}
