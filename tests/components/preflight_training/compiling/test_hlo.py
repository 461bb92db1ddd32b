"""Programs written by hand in the compiler's own form, and real ones against JAX's own count."""

import dataclasses
import functools
import json

import pytest

from tpu_components.core.base import typed_values
from tpu_components.preflight_training.compiling.hlo import (
    OPTIMIZER,
    OTHER,
    Collective,
    Kind,
    MatrixProduct,
    OperationCost,
    ProgramCost,
    layer_of,
    read_cost,
)
from tpu_components.preflight_training.compiling.instructions import VMEM, Array, parse_hlo

_CYCLES = 'backend_config={"flag_configs":[],"window_config":{"estimated_cycles":"%d","iteration_bounds":["1"]}}'


def _metadata(op_name):
    return f'metadata={{op_name="{op_name}" stack_frame_id=7}}'


def _work(name, cycles, op_name="jit(train_step)/jvp(dense)/add", calls="fused"):
    """A fusion that the compiler has estimated."""
    return (
        f"  %{name} = f32[8,128]{{1,0:T(8,128)}} fusion(%p), kind=kLoop, calls=%{calls}, {_metadata(op_name)}, "
        + _CYCLES % cycles
    )


def _computation(name, *lines, entry=False):
    start = "ENTRY " if entry else ""
    parameter = "  %p = f32[8,128]{1,0:T(8,128)} parameter(0)"
    return "\n".join([f"{start}%{name} (p: f32[8,128]) -> f32[8,128] {{", parameter, *lines, "}", ""])


_FUSED = _computation("fused", "  ROOT %sum = f32[8,128]{1,0:T(8,128)} add(%p, %p)")


_STATE = "(s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}, /*index=5*/bf16[250,128]{1,0})"


def _body(name, *lines, change=1):
    """A loop's body, which adds to the counter."""
    counter = (
        f"  %{name}_counter = s32[] get-tuple-element(%p), index=0",
        f"  %{name}_change = s32[] constant({change})",
        f"  %{name}_next = s32[] add(%{name}_counter, %{name}_change)",
        f"  ROOT %{name}_state = {_STATE} tuple(%{name}_next, %p, /*index=5*/%p)",
    )
    return _computation(name, *lines, *counter)


def _loop(name, trips, body, direction="LT", start=0):
    """A loop's condition and the lines that run it."""
    condition = _computation(
        f"{name}_condition",
        f"  %{name}_end = s32[]{{:T(128)}} constant({trips})",
        f"  %{name}_counter = s32[]{{:T(128)}} get-tuple-element(%p), index=0",
        f"  ROOT %{name}_lt = pred[]{{:T(512)}} compare(%{name}_counter, %{name}_end), direction={direction}",
    )
    # Real ones have this comment in their shapes, with an equals sign in it.
    line = (
        f"  %{name}_start = s32[] constant({start})\n  %{name}_copy = s32[] copy(%{name}_start)\n"
        f"  %{name}_initial = {_STATE} tuple(%{name}_copy, %p, /*index=5*/%p)\n"
        f"  %{name} = {_STATE} while(%{name}_initial), condition=%{name}_condition, body=%{body}, "
        + _metadata("jit(train_step)/jvp(lstm)/while")
    )
    return condition, line


def _module(*computations):
    return "HloModule jit_train_step, is_scheduled=true\n\n" + "\n".join(computations)


def _cost(*entry_lines, computations=(), layers=("dense",)):
    entry = _computation("main", *entry_lines, entry=True)
    return read_cost(_module(_FUSED, *computations, entry), functools.partial(layer_of, layers=layers))


def test_fusion_takes_the_cycles_that_the_compiler_wrote():
    cost = _cost(_work("a", 1825), _work("b", 175))
    assert cost.cycles == 2000
    assert cost.layers["dense"].cycles == 2000
    assert not any(operation.is_guessed for operation in cost.operations)
    assert cost.unknown_loops == 0


def _moved(*lines, computations=()):
    """The bytes that operations move, each once."""
    return [operation.num_bytes for operation in _cost(*lines, computations=computations).operations]


@pytest.mark.parametrize("estimate", ["", ", " + _CYCLES % (2**63 - 1)])
def test_work_without_an_estimate_is_guessed_from_the_bytes_it_moves(estimate):
    cost = _cost("  %c = f32[8,128]{1,0:T(8,128)} copy(%p)" + estimate)
    assert cost.operations == [OperationCost(Kind.OTHER, num_bytes=2 * 8 * 128 * 4)]
    assert cost.operations[0].is_guessed


def test_equal_operations_are_counted_together():
    assert _cost(_work("a", 10), _work("b", 10)).operations == [OperationCost(Kind.OTHER, 10, num_bytes=8192, times=2)]


def test_memory_on_the_chip_has_no_traffic():
    copy = "  %c = f32[8,128]{1,0:T(8,128)S(1)} copy(%p)"
    assert _moved(copy, "  %d = f32[8,128]{1,0:T(8,128)S(1)} negate(%c)") == [4096, 0]


def test_copies_beside_the_computation_are_counted_with_their_loop():
    condition, line = _loop("loop", 3, "body")
    prefetch = "  %s = (f32[8,128]{1,0:S(1)}, f32[8,128]{1,0}, u32[]{:S(2)}) copy-start(%p)"
    part = "  %q = ((f32[8,128]{1,0}), f32[2,128]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:2], [0:128]}"
    host = "  %h = (f32[8,128]{1,0:S(5)}, f32[8,128]{1,0}, u32[]{:S(2)}) copy-start(%p)"
    cost = _cost(line, part, host, computations=[condition, _body("body", prefetch)])
    assert (cost.copied_bytes, cost.host_bytes) == (3 * 4096 + 1024 + 4096, 4096)
    assert cost.cycles == 0


def test_packed_numbers_of_four_bits_take_half_a_byte():
    assert _moved("  %c = s4[8,128]{1,0:T(64,128)(8,1)E(4)} negate(%p)") == [4096 + 512]


_SLICES = {
    "dynamic-slice": ("f32[1,128] dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,128}", 2 * 512),
    "slice": ("f32[2,128] slice(%a), slice={[0:2], [0:128]}", 2 * 1024),
    "dynamic-update-slice": ("f32[50000,128] dynamic-update-slice(%a, %p, %i, %i)", 2 * 4096),
}


@pytest.mark.parametrize(("line", "num_bytes"), _SLICES.values(), ids=_SLICES)
@pytest.mark.parametrize("before", ["", "bitcast", "copy", "fusion"])
def test_of_an_array_that_is_read_or_written_in_part_only_the_part_counts(line, num_bytes, before):
    """Inside a fusion as well, where another layout is written for the part alone; a KV cache is not copied."""
    array = "  %a = f32[50000,128]{1,0} parameter(1)"
    if not before:
        assert _moved(array, f"  %r = {line}") == [num_bytes]
        return
    laid_out = f"  %b = f32[50000,128]{{1,0:T(8,128)}} {before}(%a)" + ", calls=%copied" * (before == "fusion")
    inner = _computation("sliced", array, laid_out, f"  ROOT %r = {line}".replace("(%a", "(%b"))
    copied = _computation("copied", "  ROOT %c = f32[50000,128]{1,0:T(8,128)} copy(%p)")
    shape = line.partition(" ")[0]
    operands = "%p, %a" if "%p" in line else "%i, %a"
    fusion = f"  %f = {shape} fusion({operands}), kind=kLoop, calls=%sliced"
    assert _moved(array, fusion, computations=[copied, inner]) == [num_bytes]


def test_a_fusion_that_copies_a_whole_array_reads_all_of_it():
    copied = _computation("copied", "  ROOT %c = f32[8,128]{1,0:T(4,128)} copy(%p)")
    line = "  %f = f32[8,128]{1,0:T(4,128)} fusion(%p), kind=kLoop, calls=%copied"
    assert _moved(line, computations=[copied]) == [2 * 4096]


_SCATTER = "f32[9,128]{1,0} scatter(%a, %i, %u), update_window_dims={1}, inserted_window_dims={0}, index_vector_dim="


@pytest.mark.parametrize(
    ("indices", "vector", "rows"), [("s32[40]", 1, 40), ("s32[5,8]", 2, 40), ("s32[40,1]", 1, 40), ("s32[40,2]", 1, 40)]
)
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_scatter_counts_the_rows_that_it_adds(indices, vector, rows, is_fused):
    lines = [
        "  %a = f32[9,128]{1,0} parameter(1)",
        f"  %i = {indices} parameter(2)",
        "  %u = f32[40,128]{1,0} parameter(3)",
    ]
    scatter = f"{_SCATTER}{vector}, to_apply=%fused"
    if is_fused:
        inner = [_computation("added", *lines, f"  ROOT %s = {scatter}")]
        cost = _cost(*lines, "  %f = f32[9,128]{1,0} fusion(%p, %a, %i, %u), calls=%added", computations=inner)
    else:
        cost = _cost(*lines, f"  %s = {scatter}")
    (operation,) = cost.operations
    assert (operation.kind, operation.rows, operation.is_guessed) == (Kind.INDEXING, rows, True)


def test_a_scatter_with_an_estimate_or_on_the_chip_has_no_rows_of_its_own():
    scatter = _SCATTER.replace("%a", "%p").replace("%u", "%p")
    lines = ["  %i = s32[40] parameter(2)", f"  %s = {scatter}1, {_CYCLES % 9}"]
    assert [operation.rows for operation in _cost(*lines).operations] == [0]
    on_the_chip = f"  %s = {scatter}1".replace("{1,0}", "{1,0:T(8,128)S(1)}")
    assert [operation.rows for operation in _cost(lines[0], on_the_chip).operations] == [0]


@pytest.mark.parametrize(("thread", "rows"), [(', async_execution_thread="sparsecore"', 0), ("", 40)])
def test_a_scatter_on_sparse_cores_does_not_add_row_after_row(thread, rows):
    lines = ["  %i = s32[40] parameter(1)", "  %u = f32[40,128]{1,0} parameter(2)"]
    added = _computation("added", *lines, f"  ROOT %s = {_SCATTER.replace('%a', '%p')}1, to_apply=%fused")
    called = _computation("called", *lines, "  ROOT %f = f32[9,128]{1,0} fusion(%p, %i, %u), calls=%added")
    start = f"  %c = ((), f32[9,128]{{1,0}}, u32[]) call-start(%p, %i, %u){thread}, to_apply=%called"
    cost = _cost(*lines, start, "  %d = f32[9,128]{1,0} call-done(%c)", computations=[added, called])
    assert [(operation.kind, operation.rows) for operation in cost.operations] == [(Kind.INDEXING, rows)]


def test_a_scatter_into_the_common_memory_of_v4_adds_row_after_row():
    scatter = _SCATTER.replace("%a", "%p").replace("%u", "%p").replace("{1,0}", "{1,0:T(8,128)S(3)}")
    (operation,) = _cost("  %i = s32[40] parameter(2)", f"  %s = {scatter}1").operations
    assert operation.rows == 40


def test_a_custom_call_of_several_lines_is_one_operation():
    """The attributes of a Pallas kernel are JSON with line breaks."""
    line = """  %k = f32[8,128]{1,0} custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={a={
"xprof_metadata":"{}"
}}, metadata={op_name="jit(step)/jvp(dense)/call"}, backend_config={"custom_call_config":{"body":"bm90aGluZw=="}}"""
    cost = _cost(line, _work("after", 10))
    assert [operation.kind for operation in cost.layers["dense"].operations] == [Kind.KERNEL, Kind.OTHER]
    assert cost.layers["dense"].operations[0].is_guessed, "its program cannot be read"


@pytest.mark.parametrize(
    "line",
    [
        "  %a = (f32[8,128]{1,0}, f32[8,128]{1,0:S(1)}, u32[]{:S(2)}) copy-start(%p)",
        "  %b = f32[8,128]{1,0:S(1)} copy-done(%p)",
        "  %c = ((f32[8,128]{1,0}), f32[4,128]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:4], [0:128]}",
        "  %d = f32[8,128]{1,0} get-tuple-element(%p), index=0",
        "  %e = f32[1024]{0} bitcast(%p)",
        '  %f = f32[16,128]{1,0} custom-call(%p, %p), custom_call_target="ConcatBitcast"',
        '  %g = bf16[250,128,64]{2,1,0} custom-call(), custom_call_target="AllocateBuffer"',
        "  %h = (f32[8,128]{1,0}, s32[]) tuple(%p, %p)",
    ],
)
def test_names_for_values_and_transfers_beside_the_computation_take_no_time(line):
    assert _cost(line).cycles == 0


def test_loop_counts_its_body_by_trip():
    condition, line = _loop("loop", 250, "body")
    cost = _cost(line, _work("after", 10), computations=[condition, _body("body", _work("inside", 1000))])
    assert cost.cycles == 250 * 1000 + 10
    assert cost.unknown_loops == 0


def test_loops_in_loops_multiply():
    inner_condition, inner = _loop("inner", 7, "inner_body")
    outer_condition, outer = _loop("outer", 5, "outer_body")
    computations = [
        inner_condition,
        outer_condition,
        _body("inner_body", _work("w", 100)),
        _body("outer_body", inner, _work("v", 3)),
    ]
    assert _cost(outer, computations=computations).cycles == 5 * (7 * 100 + 3)


@pytest.mark.parametrize(
    ("start", "end", "change", "direction", "trips"),
    [
        (990, 1000, 1, "LT", 10),
        (0, 10, 1, "LE", 11),
        (0, 10, 3, "LT", 4),
        (10, 0, -1, "GT", 10),
        (10, 0, -1, "GE", 11),
        (0, 12, 3, "NE", 4),
        (10, 0, 1, "LT", 0),
    ],
)
def test_a_loop_has_the_iterations_from_its_start_to_its_end(start, end, change, direction, trips):
    condition, line = _loop("loop", end, "body", direction, start)
    cost = _cost(line, computations=[condition, _body("body", _work("inside", 1000), change=change)])
    assert (cost.cycles, cost.unknown_loops, cost.early_loops) == (trips * 1000, 0, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add(", "multiply("),  # A counter that doubles.
        ("constant(0)", "parameter(1)"),
        ("constant(250)", "parameter(1)"),
        ("direction=LT", "direction=EQ"),
        ("constant(1)", "constant(-1)"),
    ],
)
def test_loop_of_unknown_length_counts_once_and_is_told(old, new):
    condition, line = _loop("loop", 250, "body")
    body = _body("body", _work("inside", 1000))
    changed = [text.replace(old, new) for text in (line, condition, body)]
    cost = _cost(changed[0], computations=changed[1:])
    assert cost.cycles == 1000
    assert cost.unknown_loops == 1


def test_a_loop_that_may_end_early_counts_all_its_iterations_and_is_told():
    """As in a decoder that stops after its last token: `(i < 250) & ~done`."""
    condition, line = _loop("loop", 250, "body")
    both = "  %done = pred[] get-tuple-element(%p), index=1\n  ROOT %both = pred[] and(%loop_lt, %done)\n}"
    condition = condition.replace("ROOT %loop_lt", "%loop_lt").replace("}\n", both + "\n")
    assert "ROOT" in condition
    cost = _cost(line, computations=[condition, _body("body", _work("inside", 1000))])
    assert (cost.cycles, cost.unknown_loops, cost.early_loops) == (250 * 1000, 0, 1)


def test_a_limit_that_a_loop_around_it_holds_is_a_constant():
    """XLA moves constants out of loops."""
    inner_condition, inner = _loop("inner", 7, "inner_body")
    outer_condition, outer = _loop("outer", 5, "outer_body")
    held = inner.replace("constant(0)", "get-tuple-element(%p), index=1")
    outer = outer.replace("tuple(%outer_copy, %p", "tuple(%outer_copy, %outer_start")
    kept = "  %kept = s32[] get-tuple-element(%p), index=1"
    outer_body = _body("outer_body", kept, held).replace("_next, %p", "_next, %kept")
    computations = [inner_condition, outer_condition, _body("inner_body", _work("w", 100)), outer_body]
    assert _cost(outer, computations=computations).cycles == 5 * 7 * 100


def test_a_block_of_steps_costs_what_one_step_does():
    """Its loop has as many trips as the host says, which is no loop of unknown length; what is around it is once."""
    condition, line = _loop("loop", 250, "body", direction="NE")
    line = line.replace("jit(train_step)/jvp(lstm)/while", "jit(train_block)/while")
    inside = _work("inside", 1000, op_name="jit(train_block)/while/body/jvp(dense)/add")
    cost = _cost(_work("before", 70), line, computations=[condition, _computation("body", inside)])
    assert (cost.cycles, cost.unknown_loops) == (1000, 0)
    assert cost.layers["dense"].cycles == 1000


def test_rows_that_are_taken_from_an_array_cost_no_reading_of_all_of_it():
    array = "  %a = u8[50000,3072] parameter(1)"
    inner = _computation("fused_gather", array, "  ROOT %g = u8[128,3072] gather(%a, %p), offset_dims={1}")
    line = "  %f = u8[128,3072] fusion(%p, %a), kind=kCustom, calls=%fused_gather"
    (taking,) = _cost(array, line, computations=[inner]).operations
    assert (taking.kind, taking.num_bytes) == (Kind.INDEXING, (1 + 4) * 128 * 3072 + 4 * 8 * 128)


def test_trip_count_is_found_in_fusions():
    inside = "  %counter = s32[] parameter(0)\n  %end = s32[] parameter(1)\n  ROOT %lt = pred[] compare(%counter, %end)"
    compared = _computation("compared", inside + ", direction=LT").replace(
        "  %p = f32[8,128]{1,0:T(8,128)} parameter(0)", ""
    )
    increased = _computation(
        "increased",
        "  %two = s32[] constant(2)",
        "  %sum = s32[] add(%p, %two)",
        "  ROOT %t = (s32[], s32[]) tuple(%p, %sum)",
    )
    condition, line = _loop("loop", 12, "body")
    fused = "fusion(%loop_counter, %loop_end), kind=kLoop, calls=%compared"
    condition = condition.replace("compare(%loop_counter, %loop_end), direction=LT", fused)
    body = _body("body", _work("w", 10)).replace(
        "add(%body_counter, %body_change)", "get-tuple-element(%both), index=1"
    )
    both = "  %both = (s32[], s32[]) fusion(%body_counter), kind=kLoop, calls=%increased\n  %body_next"
    body = body.replace("  %body_next", both, 1)
    assert _cost(line, computations=[compared, increased, condition, body]).cycles == 6 * 10


@pytest.mark.parametrize(
    "attributes",
    ["branch_computations={%cheap, %dear}", "true_computation=%dear, false_computation=%cheap"],
)
def test_conditional_costs_its_dearest_branch(attributes):
    computations = [_computation("cheap", _work("a", 10)), _computation("dear", _work("b", 500))]
    cost = _cost(f"  %c = f32[8,128] conditional(%p, %p, %p), {attributes}", computations=computations)
    assert cost.cycles == 500


def test_a_branch_with_a_loop_is_as_dear_as_its_trips():
    condition, line = _loop("loop", 100, "body")
    computations = [
        condition,
        _body("body", _work("w", 10)),
        _computation("looping", line),
        _computation("straight", _work("b", 500)),
    ]
    line = "  %c = f32[8,128] conditional(%p, %p, %p), branch_computations={%straight, %looping}"
    cost = _cost(line, computations=computations)
    assert cost.cycles == 1000
    assert cost.layers["dense"].cycles == 1000


def test_collectives_are_listed_with_the_bytes_they_take_and_how_often():
    condition, line = _loop("loop", 4, "body")
    scatter = "  %r = f32[2,128] reduce-scatter(%p), channel_id=2, dimensions={0}, to_apply=%fused"
    reduce = (
        "  %s = (f32[8,128]{1,0}, /*index=5*/f32[8,128]{1,0}) all-reduce-start(%p, /*index=5*/%p), channel_id=1, "
        "replica_groups=mesh['axis_0'=8] {'axis_0'}, to_apply=%fused"
    )
    done = "  %d = f32[8,128]{1,0} all-reduce-done(%s)"
    cost = _cost(reduce, done, line, computations=[condition, _body("body", scatter)])
    assert cost.collectives == (Collective("all-reduce", 8192, 8), Collective("reduce-scatter", 4096, times=4))
    assert cost.cycles == 0


def test_collectives_that_other_cores_run_are_listed_too():
    """7x offloads its gradients' sum to its SparseCores: a call that starts and is waited for."""
    reduce = "  ROOT %r = f32[8,128]{1,0} all-reduce(%p), channel_id=8, to_apply=%fused"
    inner = _computation("offloaded", reduce)
    outer = _computation("called", "  ROOT %f = f32[8,128]{1,0} fusion(%p), kind=kCustom, calls=%offloaded")
    start = (
        "  %s = ((f32[8,128]{1,0}, token[]), f32[8,128]{1,0}) call-start(%p, %t), "
        'async_execution_thread="sparsecore", to_apply=%called'
    )
    done = "  %d = f32[8,128]{1,0} call-done(%s)"
    cost = _cost(start, done, computations=[inner, outer])
    assert cost.collectives == (Collective("all-reduce", 4096),)
    assert cost.cycles == 0


def test_a_gather_of_another_core_takes_time():
    """7x gathers rows by its SparseCores, which the computation waits for."""
    array = "  %a = f32[50000,128]{1,0} parameter(1)"
    inner = _computation("rows", array, "  ROOT %g = f32[8,128]{1,0} gather(%a, %p), offset_dims={1}")
    called = _computation("called", array, "  ROOT %f = f32[8,128]{1,0} fusion(%p, %a), kind=kCustom, calls=%rows")
    start = "  %s = ((f32[8,128]{1,0}, token[]), f32[8,128]{1,0}) call-start(%p, %a), to_apply=%called"
    cost = _cost(array, start, "  %d = f32[8,128]{1,0} call-done(%s)", computations=[inner, called])
    assert cost.operations == [OperationCost(Kind.INDEXING, num_bytes=3 * 4096)]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", 2),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
        ("replica_groups=mesh['data'=8,'model'=4] {'model'}", 4),
        ("replica_groups=mesh['data'=8,'model'=4] {'data','model'}", 32),
        ("replica_groups=mesh['data'=8,'model'=4] {'data':(1)2}", 2),
        ("replica_groups={}", 0),
    ],
)
def test_collectives_have_the_size_of_their_groups(groups, size):
    (collective,) = _cost(f"  %r = f32[8,128] all-reduce(%p), channel_id=8, {groups}, to_apply=%fused").collectives
    assert collective == Collective("all-reduce", 4096, size)


@pytest.mark.parametrize(
    ("kind", "target", "collective"),
    [
        ("ALL_REDUCE", '"{1,2,3,4}x{0:7}"', Collective("all-reduce", 4096, slices=4)),
        ("ALL_REDUCE", "{{100000,200000},{300000,400000},{100001,200001}}", Collective("all-reduce", 4096, slices=2)),
        ("REDUCE_SCATTER", '"{1,2}x{0:7}"', Collective("reduce-scatter", 4096, slices=2)),
        ("ALL_GATHER", '"{1,2,3,4}x{0:7}"', Collective("all-gather", 4 * 4096, slices=4)),
        ("ALL_TO_ALL", "{{100000,200000,300000},{100001,200001,300001}}", Collective("all-to-all", 4096, slices=3)),
        ("ONE_TO_ONE", "{{100000->200000},{200000->100000}}", Collective("collective-permute", 4096, slices=2)),
    ],
)
def test_a_transfer_between_slices_is_a_collective_and_no_call_of_the_host(kind, target, collective):
    attributes = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
        f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
    )
    cost = _cost(
        "  %a = f32[8,128]{1,0} all-reduce(%p), channel_id=2, replica_groups={{0,1,2,3}}, to_apply=%fused",
        "  %t = token[] after-all()",
        f"  %s = (f32[8,128]{{1,0}}, u32[]{{:S(2)}}, token[]) send(%p, %t), channel_id=2, {attributes}",
        f"  %r = (f32[8,128]{{1,0}}, u32[]{{:S(2)}}, token[]) recv(%t), channel_id=1, {attributes}",
        "  %d = token[] send-done(%s), channel_id=2, is_host_transfer=true",
        "  %e = (f32[8,128]{1,0}, token[]) recv-done(%r), channel_id=1, is_host_transfer=true",
    )
    assert cost.collectives == (Collective("all-reduce", 4096, 4), collective)
    assert cost.host_calls == ()


def test_an_all_gather_counts_what_it_returns():
    (gathered,) = _cost("  %r = f32[64,128] all-gather(%p), replica_groups=[1,8]<=[8], dimensions={0}").collectives
    assert gathered == Collective("all-gather", 8 * 4096, 8)
    several = "  %r = (f32[64,128], f32[64,128]) all-gather(%p, %p), replica_groups=[1,8]<=[8], dimensions={0}"
    assert _cost(several).collectives == (Collective("all-gather", 2 * 8 * 4096, 8),)


def test_a_collective_in_parts_beside_computation_counts_once():
    """The compiler repeats an all-gather in each fusion that does a part of it while it computes."""
    gather = "  ROOT %r = f32[64,128] all-gather(%p), channel_id={}, replica_groups=[1,8]<=[8], dimensions={{0}}"
    computations = [_computation(f"part{i}", gather.format(channel)) for i, channel in enumerate((8, 8, 8, 9))]
    cost = _cost(*(_work(f"f{i}", 700, calls=f"part{i}") for i in range(4)), computations=computations)
    assert cost.collectives == (Collective("all-gather", 8 * 4096, 8, times=2),)
    assert cost.cycles == 4 * 700


_REDUCE = "  %r = f32[8,128]{1,0} all-reduce(%p), channel_id=8, to_apply=%fused\n"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (_REDUCE + "  %b = f32[1024]{0} bitcast(%r)\n  ROOT %s = f32[128]{0} dynamic-slice(%b, %i)", "reduce-scatter"),
        ("  %u = f32[8,128] dynamic-update-slice(%z, %p, %i, %i)\n" + _REDUCE.replace("(%p)", "(%u)"), "all-gather"),
        (_REDUCE + "  ROOT %s = f32[128]{0} dynamic-slice(%p, %i, %i)", "all-reduce"),
    ],
)
def test_an_all_reduce_that_is_fused_with_its_slice_sends_only_slices(lines, kind):
    """So the compiler writes the sum of gradients that are sharded like the weights."""
    cost = _cost(_work("f", 0, calls="with_sum"), computations=[_computation("with_sum", lines)])
    assert cost.collectives == (Collective(kind, 4096),)


def test_a_fusion_may_hold_a_collective_beside_its_work():
    reduce = "  ROOT %r = f32[8,128]{1,0} all-reduce(%p), channel_id=8, to_apply=%fused"
    cost = _cost(_work("f", 700, calls="with_sum"), computations=[_computation("with_sum", reduce)])
    assert cost.collectives == (Collective("all-reduce", 4096),)
    assert cost.cycles == 700


def test_calls_of_the_host_are_listed_once():
    line = (
        f'  %%h%d = f32[8,128]{{1,0}} custom-call(%%p), custom_call_target="xla_ffi_python_tpu_callback", '
        f"{_metadata('jit(train_step)/jvp(host)/pure_callback')}"
    )
    cost = _cost(line % 1, line % 2, f"  %o = token[] outfeed(%p), {_metadata('jit(train_step)/debug')}")
    assert cost.host_calls == ("jit(train_step)/jvp(host)/pure_callback", "jit(train_step)/debug")


def test_shape_of_a_tuple_has_every_array():
    line = "  %t = (f32[3,4]{1,0:T(8,128)S(1)}, /*index=5*/bf16[10]{0}, pred[], s32[2,2]{1,0}) fusion(%p), calls=%fused"
    computations, entry = parse_hlo(_module(_FUSED, _computation("main", line, entry=True)))
    assert entry == "main"
    one = computations["main"]["t"]
    assert one.arrays == (Array("f32", (3, 4), VMEM), Array("bf16", (10,)), Array("pred", ()), Array("s32", (2, 2)))
    assert one.num_bytes == 48 + 20 + 1 + 16
    assert one.opcode == "fusion"
    assert one.operands == ["p"]
    assert one.called("calls") == ["fused"]


def _product(out, left, right, attributes, op_name="jit(train_step)/jvp(dense)/dot_general"):
    """The one product of a fusion that holds it."""
    body = _computation(
        "conv",
        f"  %l = bf16[{left}]{{1,0}} parameter(1)",
        f"  %r = bf16[{right}]{{1,0}} parameter(2)",
        f"  ROOT %c = bf16[{out}]{{1,0:T(8,128)(2,1)}} convolution(%l, %r), {attributes}, {_metadata(op_name)}",
    )
    cost = _cost(_work("f", 700, op_name="jit(train_step)/elsewhere", calls="conv"), computations=[body])
    (product,) = cost.layers["dense"].products
    kind = Kind.CONVOLUTION if "conv_general" in op_name else Kind.PRODUCT
    (operation,) = cost.layers["dense"].operations
    assert (operation.kind, operation.cycles, operation.flops) == (kind, 700, product.flops)
    return product


def test_a_product_without_cycles_is_a_kernel_of_the_compiler():
    line = "  %c = bf16[8,256]{1,0} convolution(%p, %r), dim_labels=bf_io->bf, "
    cost = _cost(
        "  %r = bf16[128,256]{1,0} parameter(1)",
        line + _metadata("jit(train_step)/jvp(dense)/online-softmax"),
    )
    (operation,) = cost.layers["dense"].operations
    assert (operation.kind, operation.flops) == (Kind.KERNEL, 2.0 * 8 * 128 * 256)


def test_matrix_product_of_a_dense_layer():
    product = _product("128,512", "128,3136", "3136,512", "dim_labels=bf_io->bf")
    assert product == MatrixProduct(128, 3136, 512, 2.0 * 128 * 3136 * 512, is_forward=True)


def test_convolution_counts_every_tap_that_meets_the_image():
    attributes = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    product = _product("128,32,32,64", "128,32,32,3", "3,3,3,64", attributes)
    assert product == MatrixProduct(128, 3, 64, 2.0 * 128 * 94 * 94 * 64 * 3, is_forward=True)  # 94 of 32 · 3


def test_gradient_of_a_convolutions_filters_sums_over_batch_and_places():
    """As many multiplications as the forward pass: it has one for every output, tap and input channel too."""
    attributes = "window={size=32x32 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf"
    backward = "jit(train_step)/transpose(jvp(dense))/conv_general_dilated"
    product = _product("3,3,3,64", "128,32,32,3", "128,32,32,64", attributes, backward)
    assert product == MatrixProduct(3, 128, 64, 2.0 * 128 * 94 * 94 * 64 * 3, is_forward=False)


def test_gradient_of_a_strided_convolutions_input_leaves_out_the_zeros_between():
    """Stride 2 forward: 16×16 outputs of 3×3 taps. Backward, the outputs' gradient is spread out with zeros."""
    attributes = "window={size=3x3 pad=1_2x1_2 lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f"
    backward = "jit(train_step)/transpose(jvp(dense))/conv_general_dilated"
    product = _product("128,32,32,3", "128,16,16,64", "3,3,3,64", attributes, backward)
    assert product.flops == 2.0 * 128 * 47 * 47 * 64 * 3  # 16 · 3, but for the tap beyond the edge.
    assert not product.is_forward


def test_depthwise_convolution_multiplies_one_channel_each():
    attributes = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=64"
    product = _product("128,32,32,64", "128,32,32,64", "3,3,1,64", attributes)
    assert product.flops == 2.0 * 128 * 94 * 94 * 64
    assert product.groups == 64


def test_a_pointwise_convolution_that_the_compiler_turned_into_a_window_is_counted_once():
    """A 1×1 convolution of 32×32 places, its operands exchanged: one tap of 1,024 meets a value."""
    attributes = "window={size=32x32 pad=31_31x31_31 rhs_reversal=1x1}, dim_labels=01fb_o01i->01bf"
    product = _product("32,32,64,256", "1,1,128,64", "256,32,32,128", attributes)
    assert product.flops == 2.0 * 256 * 32 * 32 * 64 * 128


def test_heads_of_attention_that_the_compiler_turned_into_a_window_are_counted_once():
    """128 features to 4 heads of 32: the kernel's heads, reversed, pass by one value of the input."""
    product = _product(
        "8,4,32", "8,1,128", "128,4,32", "window={size=4 pad=3_3 rhs_reversal=1}, dim_labels=b0f_i0o->b0f"
    )
    assert product.flops == 2.0 * 8 * 4 * 32 * 128


def test_padding_of_a_product_fills_both_sides_of_the_matrix_unit():
    assert MatrixProduct(128, 128, 256, 1000.0, True).padded_flops(128) == 1000
    assert MatrixProduct(4, 64, 10, 1000.0, True).padded_flops(128) == pytest.approx(1000 * 2 * 2 * 12.8)
    assert MatrixProduct(8, 128, 128, 1000.0, True).padded_flops(256) == 4000


def test_layers_of_one_name_in_two_blocks_have_a_row_each():
    lines = [_work(f"f{i}", 100 * i, op_name=f"jit(train_step)/jvp(block_{i})/query/dot_general") for i in (1, 2)]
    cost = _cost(*lines, layers=("block_1", "query", "block_2", "query"))
    assert {name: layer.cycles for name, layer in cost.layers.items()} == {"block_1/query": 100, "block_2/query": 200}


def test_product_in_a_loop_runs_as_often_as_the_loop():
    condition, line = _loop("loop", 250, "body")
    body = _body(
        "body",
        "  %r = bf16[128,256]{1,0} parameter(1)",
        "  %c = bf16[8,256]{1,0} convolution(%p, %r), dim_labels=bf_io->bf, "
        + _metadata("jit(train_step)/jvp(dense)/while/body/dot_general"),
    )
    (product,) = _cost(line, computations=[condition, body]).layers["dense"].products
    assert (product.flops, product.times) == (2.0 * 8 * 128 * 256, 250)


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("jit(train_step)/jvp(dense_1)/dot_general", "dense_1"),
        ("jit(train_step)/transpose(jvp(dense_1))/reduce_sum", "dense_1"),
        ("jit(train_step)/jvp(encoder)/dense/dot_general", "dense"),
        ("jit(train_step)/jvp(encoder)/reshape", "encoder"),
        ("jit(train_step)/transpose(jvp(encoder))/encoder/checkpoint/dense_1/mul", "dense_1"),
        ("jit(train_step)/jvp(batch_normalization)/jit(_var)/reduce_sum", "batch_normalization"),
        ("jit(train_step)/jvp(dense_2)/dot_general", OTHER),
        ("jit(train_step)/jvp(encoder)/dense", "encoder"),  # The operation, not the layer called so.
        ("jit(train_step)/adam/mul", OPTIMIZER),
        ("jit(train_step)/AdamW/mul", OPTIMIZER),
        ("jit(train_step)/jvp(compile_loss)/sparse_categorical_crossentropy/reduce_sum", OTHER),
        ("", OTHER),
        # TensorFlow numbers every use of a name.
        ("my_model_1/dense_1/MatMul", "dense"),
        ("gradient_tape/my_model_1/dense_1_2/MatMul/MatMul_1", "dense_1"),
        ("gradient_tape/my_model_1/dense/MatMul", "dense"),
        ("adam/Pow_1", OPTIMIZER),
    ],
)
def test_operations_belong_to_the_innermost_layer_of_their_path(op_name, layer):
    assert layer_of(op_name, {"dense", "dense_1", "encoder", "batch_normalization"}) == layer


def test_cost_survives_json():
    condition, line = _loop("loop", 4, "body")
    body = _body(
        "body",
        "  %r = bf16[128,256]{1,0} parameter(1)",
        "  %c = bf16[8,256]{1,0} convolution(%p, %r), dim_labels=bf_io->bf",
        "  %s = f32[8,128] all-reduce(%p), to_apply=%fused",
    )
    cost = _cost(line, _work("w", 5), computations=[condition, body])
    assert typed_values.read(json.loads(json.dumps(dataclasses.asdict(cost))), ProgramCost) == cost


_COUNT = """
import dataclasses, functools, json, math, os, sys
import keras
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.preflight_training import estimate
from tpu_components.preflight_training.compiling import compiler, stablehlo
from tpu_components.preflight_training.compiling.hlo import layer_of, read_cost
from tests.components.preflight_training.conftest import make_compilation
model, shape, machine = sys.argv[1], tuple(json.loads(sys.argv[2])), sys.argv[3]
keras.config.set_dtype_policy("mixed_bfloat16")
interface = Interface(ImageInput(shape, "raw"), 10)
compilation = make_compilation(model, {}, machine, 128)
compilation = dataclasses.replace(compilation, interface=interface, num_examples=50_000)
built, _ = compiler._without_values(lambda: compiler._build(compilation))
devices = stablehlo.devices_of(compilation.machine)
traced = compiler.trace_program(built, compilation, devices, "tpu")
compiled = traced.lower(lowering_platforms=("tpu",)).compile()
layers = [layer.name for layer in built._flatten_layers(include_self=False)]
cost = read_cost(compiled.as_text(), functools.partial(layer_of, layers=layers))
print(json.dumps({
    "flops": sum(one.flops * one.times for layer in cost.layers.values() for one in layer.products),
    "flops_of_jax": compiled.cost_analysis()["flops"],
    "summed_bytes": sum(one.num_bytes * one.times for one in cost.collectives),
    "parameters": sum(math.prod(variable.shape) for variable in built.trainable_variables),
    "guessed_share": estimate.time_step(cost, compilation.machine).guessed_share,
    "layers": sorted(cost.layers),
}))
"""


@pytest.mark.heavy  # A process that imports JAX and TensorFlow: 5 s.
def test_flops_of_a_real_step_are_near_those_that_jax_counts(run_with_jax):
    """JAX counts what is no product too."""
    found = json.loads(run_with_jax(_COUNT, "digits_cnn", "[8, 8, 1]", "v5e-1"))
    assert 0.95 * found["flops_of_jax"] < found["flops"] <= found["flops_of_jax"]
    assert found["summed_bytes"] == 0
    assert found["guessed_share"] < 0.05
    assert {"conv2d", "conv2d_1", "dense", "dense_1", OPTIMIZER} <= set(found["layers"])


@pytest.mark.slow  # Compiles for 10 to 25 s on two cores.
def test_a_real_step_of_eight_chips_sums_every_gradient(run_with_jax):
    found = json.loads(run_with_jax(_COUNT, "cifar10_cnn", "[32, 32, 3]", "v5e-8"))
    assert found["flops"] == pytest.approx(found["flops_of_jax"], rel=0.05)
    # In mixed precision the gradients of the weights are summed as bfloat16, the rest as float32.
    assert 2 * found["parameters"] <= found["summed_bytes"] < 2.1 * found["parameters"]
    assert found["guessed_share"] < 0.05
