"""The evaluation of a language model as one HTML file: the same page, with samples and hard passages for classes."""

import dataclasses
from collections.abc import Mapping, Sequence

from tpu_components.core.pages.blocks import Figure
from tpu_components.core.results.evaluation_info import Baseline, Difference, Rule
from tpu_components.evaluate_model.language_model import LanguageMetrics, Passage, Sample
from tpu_components.evaluate_model.report import find_template, heading, headline_figures, training_curves

_BITS_OF_FULL_COLOUR = 10.0  # One chance in a thousand.


@dataclasses.dataclass(frozen=True)
class LanguageReportContent:
    """The content of the report, from top to bottom; see `ReportContent`.

    Attributes:
        title: Heading and page title.
        facts: Facts about the model, the data and the evaluation.
        metrics: The model's figures.
        champion: The figures of the model in service, on the same characters, if there is one.
        promote: The gate's decision.
        reasons: The rules that it follows from.
        history: One mapping per epoch, with `bits_per_character` and, where measured,
            `validation_bits_per_character`.
        samples: Texts that the model wrote.
        passages: Passages that it found hardest.
        baseline: Bits that the characters' frequencies alone reach.
        intervals: See `ReportContent`.
        differences: See `ReportContent`.
        subtitle: See `ReportContent`.
    """

    title: str
    facts: Mapping[str, str]
    metrics: LanguageMetrics
    champion: LanguageMetrics | None
    promote: bool
    reasons: Sequence[Rule]
    history: Sequence[Mapping[str, float | None]]
    samples: Sequence[Sample]
    passages: Sequence[Passage]
    baseline: Baseline
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    differences: Mapping[str, Difference] = dataclasses.field(default_factory=dict)
    subtitle: str = ""


def render_language_report(content: LanguageReportContent) -> str:
    """Return the report as one HTML document; the same content gives the same text, whatever characters it holds."""
    return find_template("language_report.html.jinja").render(
        content=content,
        **heading(content),
        figures=[
            *headline_figures(
                content.metrics, content.champion, content.baseline, content.intervals, content.differences
            ),
            Figure("Characters", f"{content.metrics.num_characters:,}"),
            Figure("Of them unknown", f"{content.metrics.num_unknown:,}"),
        ],
        curves=training_curves(content.history),
        slices=None,
        full_colour=_BITS_OF_FULL_COLOUR,
        picture_pixels=0,
    )
