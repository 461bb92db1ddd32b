import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from tests.support.html_page import Page
from tpu_components.core.base.terminal import visible
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE, PREFLIGHT_REPORT_FILE
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.estimate import INTERVALS, Accuracy, EpochTime, LayerTime, StepTime, accuracy_at
from tpu_components.preflight_training.findings import Cost, MachineReport, PreflightReport
from tpu_components.preflight_training.largest_batch import LargestBatch
from tpu_components.preflight_training.report import as_text, write_report

_HOSTILE = "<script>alert(1)</script>\"' onerror=alert(2) {{ 7 * 7 }}\x1b[2J\u202e"
_KIND = "Vertex AI's price, on demand: 1.15 × Compute Engine's"
_PRICING = "https://cloud.google.com/tpu/pricing"
_COST = Cost(
    11.04, 0.00074, 0.0074, 0.0074, 0.0081, "us-central1", _KIND, _PRICING, "2026-08-22", "vertex", 1.15, 44.16
)


def _layer(name, ms, padding_ms=0.0, mxu_utilization=None, notes=()):
    return LayerTime(name, ms, ms / 0.8, mxu_utilization, padding_ms, tuple(notes))


_MACHINE = MachineReport(
    machine="v5e-8",
    region="",
    spot=False,
    machine_type="ct5lp-hightpu-8t",
    chips=8,
    devices=8,
    hosts=1,
    verdict="fits",
    reason="",
    layer="",
    source="",
    compile_seconds=15.04,
    cached=False,
    batch_size_per_replica=128,
    global_batch=1024,
    parameters=1_676_912,
    peak_bytes=3 << 30,
    capacity_bytes=12 << 30,
    largest_batch=LargestBatch(34_225, is_exact=False, is_upper_bound=True),
    step=StepTime(0.8, 0.2, 0.08, 0.113, 1.9e10, 0.75, 1.3),
    epoch=EpochTime(49, 0.049, 0.2788, 1_024_000.0, 0.824, low_seconds=0.2788, high_seconds=0.3),
    epochs=10,
    cost=_COST,
    layers=(
        _layer("conv2d", 0.5, 0.25, 0.3, ["3 input features fill 2% of 128-wide tiles"]),
        _layer("max_pooling2d", 0.3),
    ),
    host_calls=(),
    unknown_loops=0,
    broken=(),
    accuracy=Accuracy(1.1, 0.88, 1.32, 24, 4),
    advice=("The device waits for data.", "At most 34,225 examples per replica fit."),
)


def _other(machine, usd_per_run, seconds=0.5, **changes):
    cost = usd_per_run and dataclasses.replace(_COST, usd_per_run=usd_per_run)
    epoch = dataclasses.replace(_MACHINE.epoch, seconds=seconds)
    advice = (f"Advice about {machine}.",)
    return dataclasses.replace(
        _MACHINE, **{"machine": machine, "cost": cost, "epoch": epoch, "advice": advice} | changes
    )


def _failed(machine="v2-8", verdict="does_not_compile", **changes):
    failure = {
        "verdict": verdict,
        "reason": "the operation 'eigh_jacobi' is not implemented on TPU",
        "layer": "spectral_pooling",
        "source": "my_model.py:41",
        "peak_bytes": 0,
        "largest_batch": None,
        "step": None,
        "epoch": None,
        "layers": (),
    }
    return _other(machine, None, **failure | {"epoch": None, **changes})


def _report(*machines, **changes):
    report = PreflightReport(
        model="cifar10_cnn",
        model_parameters={"width": 32},
        backend="jax",
        precision="mixed_bfloat16",
        compiler={"libtpu": "0.0.42.1", "jax": "0.10.2"},
        data=DataFacts(
            Interface(ImageInput((32, 32, 3), "raw"), 10), 50_000, 153_600_000, HostRate(25_000.0, 180_000.0, True, 2)
        ),
        machines=machines or (_MACHINE,),
        advice=("Cheapest: v5e-1.",) if len(machines) > 1 else (),
    )
    return dataclasses.replace(report, **changes)


_SEVERAL = _report(
    _MACHINE,
    _other("v5e-1", 0.0012, seconds=0.9),
    _other("v6e-8", 0.0002, broken=("a run costs $12, max_price_usd=5",)),
    _failed(),
    _failed("v3-8", "does_not_fit", reason="Used 21.13G of 15.75G hbm.", largest_batch=LargestBatch(96, is_exact=True)),
)


@pytest.fixture
def write(tmp_path):
    """Writes a report; returns the JSON file's content and the page's text."""

    def write_both(report):
        write_report(report, tmp_path)
        raw = json.loads((tmp_path / PREFLIGHT_FILE).read_text())
        return raw, (tmp_path / PREFLIGHT_REPORT_FILE).read_text()

    return write_both


@pytest.fixture
def words(write):
    """The words that the page of a report shows, on one line."""
    return lambda report: _squeeze(" ".join(Page(write(report)[1]).words))


def _squeeze(text):
    return " ".join(text.split())


def _line(text, name):
    """What stands behind a name at the start of a line."""
    return _squeeze(re.search(rf"^{name}  +(.*)$", text, re.MULTILINE)[1])


def test_the_title_tells_a_report_from_others_of_the_model(write):
    text = write(_report(run="flowers", created="2026-11-22 09:30 UTC", learning_rate=0.002))[1]
    facts = "2026-11-22 09:30 UTC, learning rate 0.002, batch 128 per replica"
    assert f"<title>flowers: Preflight: cifar10_cnn on v5e-8: {facts}</title>" in text
    assert facts in Page(text).words
    assert "batch 128 per replica" in Page(write(_report())[1]).words, "of an older version"


def test_the_stage_that_was_compiled_is_said(words):
    machine = dataclasses.replace(_MACHINE, stage="2 of 2")
    said = "2 of 2, the stage with the most trainable parameters; the other stages are assumed to take as long"
    assert said in _squeeze(as_text(_report(machine)))
    assert said in words(_report(machine))
    assert "the stage with the most" not in words(_report())


@pytest.mark.parametrize("report", [_report(), _report(_failed()), _SEVERAL])
def test_json_holds_every_field_and_what_became_of_each_machine(write, report):
    raw, _ = write(report)
    expected = json.loads(json.dumps(dataclasses.asdict(report)))
    for machine, one in zip(expected["machines"], report.machines, strict=True):
        machine |= {"passed": one.passed, "reasons": list(one.reasons), "summary": one.summary}
    assert raw == expected


def test_figures_that_are_not_finite_are_refused(write):
    with pytest.raises(ValueError, match="nan"):
        write(_report(dataclasses.replace(_MACHINE, step=StepTime(math.nan, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))))


def test_text_of_one_machine_gives_every_figure():
    text = as_text(_report())
    assert text.startswith("cifar10_cnn on v5e-8 (jax, mixed_bfloat16): fits\n")
    assert _line(text, "memory") == "3.00 GiB of 12.0 GiB per device (25%)"
    assert _line(text, "batch") == "128 per replica, 1,024 in total; at most 34,225 per replica fit"
    assert _line(text, "step") == "1.00 ms (0.750–1.30) = 800 µs compute + 200 µs communication"
    assert _line(text, "matrix units") == "11% used while the device computes"
    assert _line(text, "epoch") == "49 steps, 49.0 ms on the device, 279 ms (279–300) with waiting"
    assert _line(text, "data").endswith("needed, fed 180,000 here (2 CPUs, 90,000 each, from memory): 82% waiting")
    assert (
        "price $0.0074 (0.0074–0.0081) expected per run, plus start-up, at most $44.16, at Vertex AI's price; "
        "$11.04 per hour in us-central1 (2026-08-22), $0.00074 per epoch, 10 epochs"
    ) in _squeeze(text)
    assert _line(text, "compilation") == "15.0 s"
    assert _line(text, "conv2d") == "0.500 62% 30% 0.250 3 input features fill 2% of 128-wide tiles"
    assert _line(text, "max_pooling2d") == "0.300 37% – –"
    assert "\n- The device waits for data.\n- At most 34,225 examples per replica fit.\n" in text


def test_text_ends_with_what_the_figures_rest_on():
    text = as_text(_report())
    assert _line(text, "compiler") == "libtpu 0.0.42.1, jax 0.10.2"
    assert f"prices {_KIND} (2026-08-22); https://cloud.google.com" in _squeeze(text)
    assert "Nothing was run on a TPU" in _squeeze(text)
    assert (
        "nine of ten steps should take 0.80 to 1.20 times the estimate, judging by 24 published times of 4 programs "
        "with similar use of the matrix units"
    ) in _squeeze(text)
    assert INTERVALS in _squeeze(text)
    assert "TensorFlow" not in text
    assert "TensorFlow jobs use an older compiler than this one" in _squeeze(as_text(_report(backend="tensorflow")))


def test_text_says_that_a_compilation_is_not_of_today():
    assert "15.0 s, cached" in as_text(_report(dataclasses.replace(_MACHINE, cached=True)))


def test_text_shows_the_longest_layers_and_how_much_the_others_take():
    layers = tuple(_layer(f"layer{i}", 0.1) for i in range(10))
    text = as_text(_report(dataclasses.replace(_MACHINE, layers=layers)))
    assert "layer7" in text
    assert "layer8" not in text
    assert "and 2 more, 25% of the computation" in text


def test_text_of_a_machine_that_failed_says_why_and_where():
    text = as_text(_report(_failed(largest_batch=LargestBatch(96, is_exact=True))))
    assert text.startswith("cifar10_cnn on v2-8 (jax, mixed_bfloat16): does not compile\n\nthe operation 'eigh_jacobi'")
    assert _line(text, "layer") == "spectral_pooling"
    assert _line(text, "source") == "my_model.py:41"
    assert _line(text, "memory") == "12.0 GiB per device"
    assert _line(text, "batch").endswith("largest that fits: 96 per replica")
    assert "- Advice about v2-8." in text
    assert "\nstep " not in text
    assert "price " not in text


def test_text_of_a_broken_budget_gives_the_reason_and_the_figures():
    text = as_text(_report(dataclasses.replace(_MACHINE, broken=("a step takes 1 ms, max_step_ms=0.5",))))
    assert "v5e-8 (jax, mixed_bfloat16): refused\n\n- a step takes 1 ms, max_step_ms=0.5\n" in text
    assert _line(text, "step").startswith("1.00 ms")


def test_text_compares_machines_row_by_row():
    text = as_text(_SEVERAL)
    assert text.startswith("cifar10_cnn (jax, mixed_bfloat16, 128 examples per replica): 2 of 5 machines pass\n")
    assert _line(text, "v5e-8") == "fits 3.00/12.00 ≤34,225 1.00 0.200 11% 0.279 82% 11.04 0.0074 44.16"
    assert _line(text, "v6e-8").startswith("refused 3.00/12.00")
    assert "should take 0.80 to 1.20 times the estimate" in _squeeze(text)
    assert _line(text, "v2-8") == "does not compile ?/12.00 ?" + 8 * " –"
    assert _line(text, "v3-8") == "does not fit ?/12.00 96" + 8 * " –"


def test_text_explains_failures_below_the_table_and_advises_about_the_cheapest_that_passed():
    text = _squeeze(as_text(_SEVERAL))
    reasons = [
        "- a run costs $12, max_price_usd=5",
        "not implemented on TPU (layer 'spectral_pooling', my_model.py:41)",
        "- the training step does not fit on v3-8: Used 21.13G of 15.75G hbm.",
    ]
    places = [text.index(words) for words in [*reasons, "- Cheapest: v5e-1.", "On v5e-1: - Advice about v5e-1."]]
    assert places == sorted(places)
    assert "Advice about v6e-8" not in text
    assert "Advice about v2-8" not in text


def test_a_machine_that_was_not_compiled_keeps_its_price_and_nothing_is_recommended_beside_it(words):
    hourly = dataclasses.replace(_COST, usd_per_run=None, most_usd_per_run=None)
    missing = _failed("v6e-8", "timed_out", reason="not compiled after 900 s", layer="", source="", cost=hourly)
    report = _report(_MACHINE, missing)
    text = as_text(report)
    assert text.splitlines()[0].endswith("1 of 2 machines passes, 1 was not compiled")
    (row,) = re.findall(r"^v6e-8 .*", text, re.M)
    assert row.split()[-3:] == ["11.04", "–", "–"]
    assert "take v5e-8" not in words(report)
    assert "take v5e-8" in words(_report(_MACHINE, _other("v5e-1", 0.1)))


def test_text_advises_about_all_machines_when_none_passed():
    text = as_text(_report(_failed("v2-8"), _failed("v3-8"), advice=()))
    assert ": none of 2 machines passes\n" in text
    assert "- Advice about v2-8.\n- Advice about v3-8.\n" in text


def test_the_fastest_is_recommended_where_no_price_is_known():
    text = as_text(_report(_other("v5e-4", None, seconds=2.0), _other("v5e-16", None, seconds=1.0)))
    assert "On v5e-16:\n- Advice about v5e-16." in text


_LONG = "my_company.models." + "very_long_name_" * 20
_WIDEST = _other(
    "v5e-256",
    123_456.0,
    seconds=98_765.0,
    peak_bytes=int(94.7 * 2**30),
    capacity_bytes=int(94.75 * 2**30),
    step=StepTime(12_345.0, 0.00012, 0.0, 0.999, 1e12, 9_123.0, 15_678.0),
    cost=dataclasses.replace(_COST, usd_per_hour=844.8, usd_per_run=123_456.0, most_usd_per_run=654_321.0),
    largest_batch=LargestBatch(131_072, is_exact=False, is_upper_bound=True),
)


@pytest.mark.parametrize(
    "report",
    [
        _SEVERAL,
        _report(_WIDEST, _failed()),
        _report(model=_LONG, model_parameters={_LONG: _LONG}),
        _report(_failed(reason=_LONG, layer=_LONG, source=_LONG), backend="tensorflow"),
        _report(dataclasses.replace(_MACHINE, layers=(_layer(_LONG, 12_345.6, 1.0, 0.5, [_LONG]),), advice=(_LONG,))),
    ],
)
def test_text_fits_110_columns(report):
    assert max(map(len, as_text(report).splitlines())) <= 110


def test_a_machine_in_several_regions_is_told_apart_and_keeps_its_price():
    places = [("us-west1", False), ("southamerica-west1", True)]
    machines = [dataclasses.replace(_MACHINE, region=region, spot=spot, has_namesakes=True) for region, spot in places]
    table = as_text(_report(*machines)).split("\n\n")[1].splitlines()
    assert [line.split(" fits")[0].strip() for line in table[1:]] == [
        f"{_MACHINE.machine} us-west1",
        f"{_MACHINE.machine} southamerica-west1 spot",
    ]
    assert table[0].endswith("at most")
    assert not any("…" in line for line in table)
    assert max(map(len, table)) <= 110


def test_the_widest_comparison_loses_no_column():
    assert _line(as_text(_report(_WIDEST, _failed())), "v5e-256").endswith("844.80 123,456 654,321")


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (1234.5, "$1,234 expected per run"),
        (12.345, "$12.35 expected per run"),
        (0.5, "$0.50 expected per run"),
        (0.0123, "$0.012 expected per run"),
        (0.00012, "$0.00012 expected per run"),
        (0.00002, "<$0.0001 expected per run"),
        (0.0, "$0.00 expected per run"),
    ],
)
def test_prices_show_what_matters_of_them(usd, text):
    cost = dataclasses.replace(_COST, usd_per_run=usd, low_usd_per_run=usd, high_usd_per_run=usd)
    assert f"price {text}" in _squeeze(as_text(_report(_other("v5e-1", 1.0, cost=cost))))


def test_every_price_says_whose_it_is_what_is_expected_and_what_it_may_come_to():
    """A training of milliseconds may hold its machine until it is stopped."""
    assert _MACHINE.summary.endswith(
        "; $0.0074 (0.0074–0.0081) expected per run, plus start-up, at most $44.16, at Vertex AI's price"
    )
    left_out = "both exclude the other steps, disks, storage and network"
    assert left_out in _squeeze(as_text(_report()))
    assert left_out in _squeeze(as_text(_SEVERAL))
    older = dataclasses.replace(_COST, target="", factor=1.0, most_usd_per_run=None)
    summary = dataclasses.replace(_MACHINE, cost=older).summary
    assert summary.endswith("expected per run, plus start-up, at Compute Engine's list price")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (42e-6, "42.0 µs"), (0.25, "250 ms"), (27.94, "27.9 s"), (754, "12.6 min"), (7e6, "1,944 h")],
)
def test_times_have_a_unit_that_suits_them(seconds, text):
    epoch = dataclasses.replace(_MACHINE.epoch, seconds=seconds, low_seconds=seconds, high_seconds=seconds)
    assert f", {text} with waiting" in as_text(_report(_other("v5e-1", 1.0, epoch=epoch)))


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (0.0001, "<1%"), (0.5, "50%"), (0.9999, ">99%"), (1.0, "100%")]
)
def test_shares_read_0_or_100_percent_only_if_nothing_is_missing(share, text):
    epoch = dataclasses.replace(_MACHINE.epoch, host_wait=share)
    assert f": {text} waiting" in as_text(_report(dataclasses.replace(_MACHINE, epoch=epoch)))


_UNKNOWN = dataclasses.replace(
    _MACHINE, cost=None, step=dataclasses.replace(_MACHINE.step, communication_ms=None), largest_batch=None
)


def test_text_shows_what_is_unknown_as_such():
    text = as_text(_report(_UNKNOWN))
    assert _line(text, "step") == "800 µs (750–1,300) = 800 µs compute + ? communication"
    assert _line(text, "price") == "?"
    assert _line(text, "prices") == "? no trustworthy price is known"
    assert "the largest batch that fits is unknown" in text
    assert "? communication is left out" in text
    assert _line(as_text(_report(_UNKNOWN, _failed())), "v5e-8") == "fits 3.00/12.00 ? 0.800 ? 11% 0.279 82% ? ? ?"


def test_page_shows_what_is_unknown_as_such(words):
    text = words(_report(_UNKNOWN, _failed()))
    assert "Step 800 µs (750–1,300) 800 µs compute + ? communication" in text
    assert "Price of a run ? no trustworthy price is known" in text
    assert "v5e-8 fits 3.00/12.00 ? 0.800 ? 11% 0.279 82% ? ? ?" in text
    assert "communication, at most ? ?" in text


def test_page_of_one_machine_opens_with_verdict_and_figures(words):
    text = words(_report())
    assert "Preflight: cifar10_cnn on v5e-8 batch 128 per replica ✓ Fits" in text
    assert "Step 1.00 ms (0.750–1.30) 800 µs compute + 200 µs communication" in text
    assert "Epoch 279 ms (279–300) 49 steps, 49.0 ms on the device" in text
    price = "Price of a run $0.0074 (0.0074–0.0081) 10 epochs expected, plus start-up, at most $44.16 Vertex AI's price"
    assert price in text
    assert "Memory 25% 3.00 GiB of 12.0 GiB per device" in text
    assert "Device waits 82%" in text
    assert "model cifar10_cnn, width 32 trainable values 1,676,912 backend, precision jax, mixed_bfloat16" in text
    assert text.index("Device waits") < text.index("part of a step") < text.index("The device waits for data.")


def test_page_divides_the_step_into_its_parts(words):
    text = words(_report())
    assert "layers with matrix products 250 µs 25% padding of their tiles 250 µs 25%" in text
    assert "everything else 300 µs 30% communication, at most 200 µs 20%" in text
    assert "conv2d 0.500 62% 30% 0.250 3 input features fill 2% of 128-wide tiles" in text


def test_page_names_data_versions_and_sources(words):
    text = words(_report(backend="tensorflow"))
    assert "shape 32 × 32 × 3" in text
    assert "read from the files 25,000 examples/s" in text
    assert "fed to training, from memory 180,000 examples/s" in text
    assert "1,024,000 examples/s needed, fed 180,000 here" in text
    assert "libtpu 0.0.42.1, jax 0.10.2" in text
    assert f"{_KIND} (2026-08-22); https://cloud.google.com/tpu/pricing" in text
    assert (
        "guessed 8% of the computation time is derived from the bytes that are moved, because the compiler has no"
        in text
    )
    assert "TensorFlow jobs use an older compiler" in text


def test_page_of_a_machine_that_failed_says_why_and_where(words):
    text = words(_report(_failed()))
    assert "✗ Does not compile the training step does not compile on v2-8: the operation 'eigh_jacobi'" in text
    assert "layer spectral_pooling source my_model.py:41" in text
    assert "part of a step" not in text


def test_page_warns_where_a_tpu_is_hardly_worth_it(words):
    assert "hardly worth" not in words(_report())
    assert "A TPU is hardly worth its price" in words(_report(dataclasses.replace(_MACHINE, worth_it=False)))


def test_page_compares_machines_and_shows_every_verdict(words):
    text = words(_SEVERAL)
    assert "✓ 2 of 5 machines pass: take v5e-1 Cheapest: v5e-1." in text
    assert "v5e-8 fits 3.00/12.00 ≤34,225 1.00 0.200 11% 0.279 82% 11.04 0.0074 44.16" in text
    assert "v6e-8 refused 3.00/12.00 ≤34,225 1.00" in text
    assert "v2-8 does not compile ?/12.00 ? – –" in text
    assert "v3-8 does not fit ?/12.00 96 – –" in text
    assert "max_price_usd=5" in text
    assert "(layer 'spectral_pooling', my_model.py:41)" in text


def test_page_marks_the_best_of_the_machines_that_passed(write):
    page = Page(write(_SEVERAL)[1])
    cells = [(attributes["data-label"], attributes["class"]) for tag, attributes in page.tags if tag == "td"]
    epochs, prices = ([look for label, look in cells if label == column] for column in ("epoch", "$/run"))
    assert ["best" in look for look in epochs] == [True, False, False, False, False], "v5e-8 is the fastest"
    assert ["best" in look for look in prices] == [False, True, False, False, False], "v6e-8 is cheaper, but refused"


def test_page_opens_with_the_reasons_when_no_machine_passed(words):
    text = words(_report(_failed(), _failed("v3-8"), advice=()))
    assert "✗ None of 2 machines passes the training step does not compile on v2-8" in text
    assert text.count("does not compile on v3-8") == 1
    assert "Advice about v2-8. Advice about v3-8. Machines" in text


def test_page_shows_hostile_names_as_text_and_never_as_markup(write):
    layers = (_layer(_HOSTILE, 0.8, 0.1, 0.5, [_HOSTILE]),)
    good = dataclasses.replace(_MACHINE, layers=layers, advice=(_HOSTILE,), host_calls=(_HOSTILE,))
    bad = _failed(reason=_HOSTILE, layer=_HOSTILE, source=_HOSTILE)
    hostile = {"model": _HOSTILE, "model_parameters": {_HOSTILE: _HOSTILE}, "compiler": {_HOSTILE: _HOSTILE}}
    for report in (_report(good, **hostile), _report(bad, **hostile), _report(good, bad, **hostile)):
        text = write(report)[1]
        page = Page(text)
        assert "<script" not in text.lower()
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        assert f"Preflight: {visible(_HOSTILE)} on " in "".join(page.words)


def test_page_loads_nothing_and_forbids_itself_to(write):
    text = write(_SEVERAL)[1]
    page = Page(text)
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "srcset", "action", "data"}
    assert not re.search(r"@import|url\(", text)
    policies = [attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_the_readme_shows_what_preflight_prints():
    """Of the report that is kept, made by the command in the README: its table and its advice, as they are laid out."""
    repository = Path(__file__).parents[3]
    report = PreflightReport.load(repository / "tests/golden/preflight")
    for machine in report.machines:
        today = accuracy_at(machine.step.mxu_utilization)
        assert machine.accuracy == today, "Make it anew: python -m tests.evidence.generated --preflight"
    headline, table, _, advice, *_ = as_text(report).split("\n\n")
    readme = (repository / "README.md").read_text(encoding="utf-8")
    command = "$ tpu-pipelines preflight digits --compare v5e-1,v6e-1 --target vertex,kubeflow"
    assert "\n\n".join([f"{command}\n{headline}", table, advice]) in readme
    assert f"  preflight: {dataclasses.replace(report.machines[0], target='').summary}\n" in readme, "as a run ends"


@pytest.mark.parametrize(("share", "told"), [(0.09, False), (0.11, True), (1.0, True)])
def test_a_large_guess_is_told_beside_the_step(share, told):
    step = dataclasses.replace(_MACHINE.step, guessed_share=share)
    text = as_text(_report(dataclasses.replace(_MACHINE, step=step)))
    assert (f"800 µs compute, {share:.0%} guessed + 200 µs communication" in " ".join(text.split())) == told
