"""Steps that are not Keras's, compiled by the TPU compiler."""

import json
import re

import pytest

from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training.jax_steps.lowering import LoweredStep
from tpu_components.preflight_training.jax_steps.step_program import StepProgram
from tpu_components.preflight_training.jax_steps.step_report import StepReport

_RUN = """
import runpy
runpy.run_module("tests.components.preflight_training.jax_steps.programs", run_name="__main__")
"""
WIDTH, HIDDEN, BATCH = 256, 512, 512  # As in `programs`, which only a process with JAX imports.


@pytest.fixture(scope="module")
def outcomes(run_with_jax, tmp_path_factory):
    """The outcome of every step, by its name."""
    return json.loads(run_with_jax(_RUN, tmp_path_factory.mktemp("steps"), "quick").splitlines()[-1])


@pytest.fixture
def report_of(outcomes):
    """The report of a step."""

    def find(name: str) -> StepReport:
        assert "report" in outcomes[name], outcomes[name]
        return StepReport.parse(outcomes[name]["report"])

    return find


def test_a_step_that_fits_has_memory_time_and_price(report_of):
    report = report_of("plain")
    assert report.fits
    # Parameters and batch in bfloat16, once; what is computed comes on top.
    assert report.memory.peak_bytes >= 2 * (2 * WIDTH * HIDDEN + BATCH * WIDTH)
    low, high = report.interval
    assert 0 < low < report.step_seconds < high
    assert report.dollars_per_hour == load_catalogue().find("v5e-1").price().usd_per_hour
    assert report.name == "train_step"


def test_receipts_of_trainings_move_the_time_of_other_steps(report_of, outcomes):
    before, after = report_of("plain").step, report_of("receipts").step
    assert after.compiler_ms == before.compiler_ms == before.total_ms
    assert after.basis == "no runs of this program, 2 of others"
    assert before.total_ms < after.total_ms < 1.4 * before.total_ms
    assert "times the compiler's estimate, from no runs of this program, 2 of others" in outcomes["receipts"]["text"]


def test_no_step_is_faster_than_the_chip(report_of):
    generation = load_catalogue().find("v5e-1").generation
    report = report_of("plain")
    products = 2.0 * BATCH * WIDTH * HIDDEN * 5  # Two forward, three backward: the batch has no gradient.
    assert report.step.flops == products
    assert report.step_seconds >= products / generation.device_peak_flops


def test_a_kernel_of_the_compiler_is_no_faster_than_the_chip(report_of):
    report = report_of("attention")
    assert report.step.flops == 2 * 2.0 * 2 * 2048**2 * 128
    assert report.step_seconds > report.step.flops / load_catalogue().find("v5e-1").generation.device_peak_flops


def test_a_kernel_counts_what_its_mask_shows(report_of):
    assert report_of("splash attention").step.flops == 2 * 2.0 * 2 * 1024**2 * 128


def test_no_step_is_faster_than_its_memory_traffic(report_of):
    """Also if the compiler fetches all weights in advance: each step has to read them."""
    generation = load_catalogue().find("v5e-1").generation
    report = report_of("few rows")
    assert report.step_seconds >= 2 * 4096 * 4096 / generation.device_bytes_per_second
    assert [layer.name for layer in report.layers] == ["waiting for copies from main memory", "dot_general"]
    assert sum(layer.ms for layer in report.layers) == pytest.approx(report.step.compute_ms)


def test_memory_of_the_host_is_not_that_of_the_device(report_of):
    """The device has the batch, the result, and the weights once."""
    report = report_of("weights on the host")
    assert 3 * 2 * 512 * 512 <= report.memory.peak_bytes < 4 * 2 * 512 * 512
    assert report.notes == (
        "The step moves 512 KiB between the device and the memory of its host, which takes unknown time and is left "
        "out.",
    )


def test_layers_are_the_scopes_of_the_program(report_of):
    assert {"net/up", "net/down"} <= {layer.name for layer in report_of("plain").layers}
    assert {"net"} == {layer.name for layer in report_of("levels").layers}


def test_shardings_of_gspmd_are_followed(report_of):
    """As torch_xla writes them."""
    before, now = report_of("GSPMD"), report_of("mesh")
    assert before.memory.peak_bytes == pytest.approx(now.memory.peak_bytes, rel=0.1)
    assert before.step.flops == now.step.flops


@pytest.mark.parametrize("other", ["jitted", "abstract mesh"])
def test_a_layout_gives_the_same_figures_however_it_is_handed_over(report_of, other):
    assert report_of(other).step == report_of("mesh").step
    assert report_of(other).memory == report_of("mesh").memory


def test_a_layout_is_compiled_for_all_its_devices(report_of):
    one, eight = report_of("plain"), report_of("mesh")
    assert (eight.devices, eight.used_devices) == (8, 8)
    assert eight.step.flops == one.step.flops / 8
    assert eight.step.communication_ms > 0
    assert eight.memory.peak_bytes < one.memory.peak_bytes


def test_a_step_may_use_some_devices_of_a_slice(report_of, outcomes):
    report = report_of("half of the slice")
    assert (report.devices, report.used_devices) == (8, 4)
    assert "8 devices, of which the step uses 4" in outcomes["half of the slice"]["text"]


def test_slices_communicate_over_the_data_centre_network(report_of):
    """Each device sends its part of 4 · 1024² bytes, an eighth, through 3.125 GB/s."""
    report = report_of("two slices")
    assert (report.devices, report.used_devices) == (16, 16)
    assert report.dollars_per_hour == 2 * report_of("mesh").dollars_per_hour
    between_ms = 1e3 * 4 * 1024**2 / 8 / 3.125e9
    assert between_ms < report.step.communication_ms < 1.5 * between_ms
    assert not any("calls the host" in note for note in report.notes)
    assert report.notes[-1] == (
        "Communication between the slices takes 168 µs, if each chip reaches its 3.12 GB/s of the data-centre network. "
        "It may take longer, or overlap with the computation."
    )


def test_the_speed_between_slices_is_unknown_for_v4(report_of):
    report = report_of("two slices of v4")
    assert report.step.communication_ms is None
    assert report.notes == ("The speed of the data-centre network between the slices is unknown.",)


def test_a_step_that_does_not_fit_says_what_it_needs(report_of):
    report = report_of("too large")
    assert (report.verdict, report.step, report.layers) == ("does_not_fit", None, ())
    assert report.memory.share > 1
    assert "Ran out of memory" in report.reason


def test_options_of_the_compiler_reach_it(report_of):
    """Also although the same program without them is cached."""
    report = report_of("unknown option of the compiler")
    assert (report.verdict, report.reason) == ("does_not_compile", "No such compile option: 'xla_no_such_option'")


@pytest.mark.parametrize("variable", ["LIBTPU_INIT_ARGS", "XLA_FLAGS"])
def test_another_flag_of_the_compiler_is_another_program(variable, monkeypatch):
    program = StepProgram(LoweredStep(b"", "digest", 1, (0,)), load_catalogue().find("v5e-1"))
    before = program.key()
    monkeypatch.setenv(variable, "--xla_tpu_scoped_vmem_limit_kib=98304")
    assert program.key() != before


def test_the_default_backend_is_a_tpu_while_a_step_is_traced(report_of):
    assert [layer.name for layer in report_of("asking").layers] == ["mul"]
    assert "jax.default_backend() in programs.py:" in report_of("asking").notes[0]
    assert "sort" in {layer.name for layer in report_of("asking as cpu").layers}


def test_a_kernel_over_groups_that_the_compiler_writes_counts_all_rows(report_of):
    report = report_of("experts")
    assert report.step.flops >= 2.0 * 8192 * 1024 * 512
    assert report.step_seconds > 2.0 * 8192 * 1024 * 512 / load_catalogue().find("v5e-1").generation.device_peak_flops


def test_an_operation_without_an_estimate_is_told_however_short_it_seems(report_of):
    report = report_of("best")
    assert report.step.guessed_share < 0.1
    assert any(note.startswith("The compiler has no estimate for some operations (TopK). ") for note in report.notes)


def test_a_kernel_whose_blocks_are_too_large_says_so(report_of):
    assert re.search(
        r"a kernel needs \d+ MiB of vector memory \(VMEM\), more than the limit", report_of("large blocks").reason
    )


def test_scopes_in_a_loop_are_layers(report_of):
    layers = {layer.name: layer.share for layer in report_of("scanned scopes").layers}
    assert layers["block/up"] + layers["block/down"] > 0.5


def test_a_kernel_that_depends_on_the_tpu_is_traced_for_it(report_of):
    assert report_of("pipelined").step.flops == 2.0 * BATCH * WIDTH * HIDDEN


def test_what_a_step_prints_is_left_out_and_said_to_be(report_of):
    assert [layer.name for layer in report_of("printing").layers] == ["mul"]
    assert "jax.debug.print and jax.debug.callback in programs.py:" in report_of("printing").notes[0]


def test_a_jitted_function_of_another_library_is_unwrapped(report_of):
    assert report_of("wrapped").step == report_of("plain").step


def test_meshes_of_one_machine_have_the_same_devices(report_of):
    assert report_of("meshes of one machine").used_devices == 8


def test_products_of_few_bits_are_said_to_be_timed_like_bfloat16(report_of):
    assert "Products of 8 and 4 bits" in report_of("narrow").notes[0]
    assert report_of("plain").notes == ()


def test_static_arguments_and_loops_are_counted(report_of):
    product = 2.0 * BATCH * WIDTH * WIDTH
    assert report_of("static").step.flops == 3 * product
    assert report_of("partial").step.flops == 2 * product
    assert report_of("scanned").step.flops == 4 * product


@pytest.mark.parametrize("name", ["named.mlir", "exported.bc", "portable.mlirbc", "text.mlir"])
def test_a_file_of_stablehlo_is_a_step(report_of, name):
    assert report_of(name).step.flops == report_of("plain").step.flops
    assert report_of(name).memory == report_of("plain").memory


def test_names_in_a_file_are_kept(report_of):
    assert report_of("named.mlir").layers == report_of("plain").layers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mesh larger than the slice", "is written for 8 devices, but the machine has 4. Use a larger machine"),
        ("too large a mesh", r"expected axes with at most 4 devices in all, received data=2, model=4"),
        ("shapes", r"train_step at programs.py:\d+: dot_general requires .* Its inputs are: .* bfloat16\[512,257\]"),
        ("number of inputs", "missing 1 required positional argument: 'batch'"),
        ("branching", r"branching at programs.py:\d+: a shape or a branch depends on the data.* jnp.where"),
        ("operation", "the operation 'eig' is not implemented on TPU. Replace the operation"),
        ("calling", "it calls Python on the host, which cannot be compiled without a TPU. Leave out io_callback"),
        ("text", "its argument mode is a str. Pass arrays or jax.ShapeDtypeStruct.*static_argnames"),
        ("result", "Return arrays only."),
        ("own mistake", r"failing at programs.py:\d+: KeyError: 'factor'. Call the step on arrays first"),
        ("leaving", "Cannot trace the step leaving at .*bye"),
        ("slices without a mesh", "must use all 16 devices, but is written for 1. Shard its inputs over tp.mesh"),
        ("gpu", "received a machine with GPUs. Compiling without the device is possible only for TPUs. Give the name"),
        ("no step", "expected a function that `jax.jit` takes, or a StableHLO file"),
        ("options of a jitted step", "Cannot use donate_argnums with train_step, which is already jitted"),
        ("inputs and largest", "`largest` returns the inputs for a size"),
        ("no slices", "expected slices=1 or more"),
        ("static argument that is missing", "Cannot trace the step scanned: .* static_argnums"),
        ("generator", "Cannot trace the step yielding: Expected a function, got a generator function"),
        ("numpy", r"at programs.py:\d+: the step passes an array to NumPy, which needs its values.* Use jax.numpy"),
        ("pmap", "jax.pmap needs real devices, and preflight runs without them. Use jax.shard_map"),
        ("own mesh", "it builds a mesh from this computer's devices, which are too few. Use tp.mesh"),
        ("printing by another name", "Call jax.debug.print and jax.debug.callback by these full names"),
        ("number as machine", "Cannot compile for 8: expected the name of a TPU slice"),
        ("largest of all sizes", r"`largest` returns the same inputs for the sizes 128 and \d+. Let the shapes"),
        (
            "largest that fails",
            "Cannot get inputs of size 128 from the function passed as `largest`: ZeroDivisionError",
        ),
        ("largest of no tuple", "expected a tuple with one value for each parameter of the step, received Shape"),
        ("largest that is not divisible", r"dimension size (is )?129\b.*multiply the size by the number of devices"),
        ("empty.mlir", "expected a StableHLO module"),
        ("other.mlir", "expected a StableHLO module"),
        ("missing.mlir", "No such file or directory. Give the path of a StableHLO file"),
    ],
)
def test_a_mistake_gives_one_paragraph_that_says_what_to_change(outcomes, name, message):
    error = outcomes[name]["error"]
    assert re.search(message, error), error
    assert "\n" not in error


@pytest.mark.heavy  # Compiles some 20 sizes: 20 s.
def test_the_largest_size_that_fits_is_found(run_with_jax, tmp_path):
    (outcome,) = json.loads(run_with_jax(_RUN, tmp_path, "costly").splitlines()[-1]).values()
    report = StepReport.parse(outcome["report"])
    assert report.fits
    assert report.largest.is_exact
    assert report.memory.share > 0.9
    assert f"{report.largest.size:,} fits" in outcome["text"]
