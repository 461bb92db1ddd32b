"""Published step times: each row names a program that exists, or the rule that leaves it out."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evidence.benchmarks import (
    published_compile,
    published_layers,
    published_networks,
    published_programs,
    whole_steps,
)

_PUBLISHED = json.loads(published_compile.PUBLISHED.read_text(encoding="utf-8"))
_ROWS, _PROGRAMS = _PUBLISHED["rows"], _PUBLISHED["programs"]


def _build(name, batch=2):
    return published_compile.build_step(_PROGRAMS[name], batch)


def _compile_quickly(function):
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def _count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def test_every_row_has_a_source_and_a_program_or_a_rule_that_leaves_it_out():
    for row in _ROWS:
        assert row["source"].startswith("https://"), row
        if row["excluded"]:
            assert row["excluded"] in _PUBLISHED["exclusion"], row
        else:
            assert row["program"] in _PROGRAMS, row
            assert row["step_ms"] > 0, row
            assert row["generation"] in published_compile.TOPOLOGIES, row
    assert {row["excluded"] for row in _ROWS} - {""} == set(_PUBLISHED["exclusion"])
    assert {row["program"] for row in _ROWS} - {""} == set(_PROGRAMS)


def test_a_publication_is_one_row():
    numbers = [row["number"] for row in _ROWS if row["number"] is not None]
    assert sorted(numbers) == sorted(set(numbers))


def test_the_rows_cover_every_generation_and_more_than_one_kind_of_program():
    compared = [row for row in _ROWS if not row["excluded"]]
    assert {published_compile.device_of(row) for row in compared} == set(published_compile.TOPOLOGIES)
    assert len({row["program"] for row in compared}) >= 60
    assert sum(row["whole"] for row in compared) >= 40


@pytest.mark.parametrize("name", [name for name, program in _PROGRAMS.items() if program["build"].endswith("decoder")])
def test_decoders_are_built_from_their_dimensions(name):
    step = _build(name)
    assert 1 <= step.depth <= step.real_depth


# Of the source, or of the paper that describes the network; where a head is tied or a bias is left out, within 1%.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("marin-llama-130m", 154_147_328),
        ("marin-llama-1.2b", 1_431_373_824),
        ("marin-moe-32x4", 905_104_128),
        ("vit-s16", 22.05e6),
        ("vit-l16", 304.3e6),
        ("vit-h14", 632e6),
        ("mixer-b16", 59.9e6),
        ("bert-large-512", 336e6),
        ("transformer-big", 210e6),
        ("resnet50", 25_557_032),
        ("resnet-rs-50-160", 35.7e6),
    ],
)
def test_networks_have_as_many_weights_as_published(name, expected):
    weights = _build(name).arguments[0]
    weights = weights[0] if isinstance(weights, list) else weights
    assert _count(weights) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma4-31b-8192", 30.7e9),
        ("gemma4-26b-4096", 25.2e9),
        ("deepseek2-16b-2048", 15.7e9),
        ("deepseek3-671b-4096", 671e9),
        ("maxtext-22b-v4", 21.94e9),
        ("maxtext-1b-v4", 1.074e9),
        ("maxtext-0.9b-v4", 0.8725e9),
        ("maxtext-16b-v5e-naive", 16.51e9),
        ("maxtext-32b-v5e-naive", 32.48e9),
        ("llama4-scout-8192", 107.8e9),
        ("brahmai-4b-4096", 4.07e9),
        ("mesh-transformer-10b", 10.07e9 / 8),
        ("gemma3-1b-128", 0.738e9),
    ],
)
def test_networks_that_are_compiled_in_part_have_as_many_weights_as_published(name, expected):
    program = _PROGRAMS[name]
    whole = program | {"arguments": program["arguments"] | {"depth": 0}}
    assert _count(published_compile.build_step(whole, 1).arguments[0]) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    "name", ["marin-llama-75m-1024", "vit-s16", "mixer-b16", "gnmt", "ssd-resnet34", "product-128"]
)
def test_steps_trace_on_abstract_shapes_and_return_what_they_replace(name):
    step = _build(name, batch=1)
    found = jax.eval_shape(step.function, *step.arguments)
    if step.donated:
        shapes = [leaf.shape for leaf in jax.tree.leaves(found)]
        kept = [leaf.shape for leaf in jax.tree.leaves(step.arguments[0])]
        assert all(shape in shapes for shape in kept)


_SMALL = {"batch": 2, "tokens": 8, "layers": 2, "vocabulary": 50, "width": 16, "heads": 2, "head_dim": 8, "ffn": 32}


@pytest.mark.parametrize(
    "change",
    [
        {"gated": False, "rms": False, "bias": True, "rotary": False, "learned_positions": True},
        {"one_hot": True, "loss_chunks": 2, "tied": True, "saved": ["query", "key"]},
        {"kv_heads": 1, "qk_norm": True, "post_norm": True, "dropout": 0.1, "saved": None, "gate": True},
        {"attention": "flash", "tokens": 128, "head_dim": 128},
        {"attention": "blocks", "tokens": 1024, "kv_heads": 1, "product_loss": True},
        {"parallel": True, "qk_norm": True, "v_norm": True, "relative": 32},
        {"layers": 4, "window": 4, "period": 2, "last": {"head_dim": 16, "kv_heads": 1, "key_values": True}},
        {"layers": 3, "first": 1, "first_ffn": 64, "latent": 8, "query_latent": 8, "rotated": 4},
        {"experts": 4, "active": 2, "sorts_back": True, "width": 128, "ffn": 128, "tokens": 256},
        {"gated": False, "relu": True, "hidden_dropout": 0.1, "dropout": 0.1, "late_division": True},
    ],
)
def test_decoders_of_every_kind_trace(change):
    step = published_programs.decoder(**{"attention": "naive"} | _SMALL | change)
    state, loss = jax.eval_shape(step.function, *step.arguments)
    assert loss.shape == ()
    assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, step.arguments[0])


def test_one_group_of_layers_cannot_stand_for_several():
    with pytest.raises(ValueError, match="At least two of 2 groups of layers must be compiled, got one"):
        published_programs.decoder(**_SMALL | {"layers": 8, "period": 4, "depth": 4, "window": 4})


def test_a_decoder_of_zeros_finds_all_words_equally_likely():
    small = _SMALL | {"layers": 1, "tokens": 4}
    step = published_programs.decoder(**small, experts=4, active=2, capacity=1.25, attention="naive")
    state, ids = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), step.arguments)
    _, loss = _compile_quickly(step.function)(state, ids)
    assert loss == pytest.approx(math.log(50), rel=1e-2)


def test_scores_have_the_bias_of_their_distance():
    """Without queries and keys, attention to the values of an identity is the softmax of the biases."""
    block = published_layers.Block(width=300, heads=1, head_dim=300, ffn=1, relative=32)
    nothing = jnp.zeros((1, 300, 1, 300))
    attended = published_layers.naive(
        block, nothing, nothing, jnp.eye(300)[None, :, None], False, jnp.arange(32.0)[None] / 10
    )
    of_the_last = attended[0, -1, 0]
    biases = 10 * np.log(of_the_last / of_the_last[-1])
    # From the formula of T5 with 32 buckets up to a distance of 128: 16 + int(16 * log(d / 16) / log(8)).
    expected = {0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 64: 26, 127: 31, 299: 31}
    assert {distance: round(float(biases[299 - distance])) for distance in expected} == expected


def test_chips_that_divide_products_see_a_part_of_each():
    whole = published_programs.decoder(**_SMALL, shards=4).arguments[0]
    part = published_programs.decoder(**_SMALL, shards=4, tensor=2).arguments[0]
    assert part["layers"][0]["ffn/up"].shape == (2, 16, 16)
    assert _count(part) < 0.6 * _count(whole)


def _judge_gradients(network, steps, *arguments):
    """Compare what a network gives, and its gradients, with those of its steps, which JAX differentiates by itself."""

    def sine(network, *arguments):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(network(*arguments)))

    found, expected = (
        _compile_quickly(jax.value_and_grad(functools.partial(sine, each), range(len(arguments))))(*arguments)
        for each in (network, steps)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_gradient_of_an_lstm_is_that_of_its_steps():
    """Judged by JAX's own differentiation of the steps written one after the other."""
    draw = np.random.default_rng(0).normal
    inside = draw(size=(3, 2, 16)).astype("float32")
    recurrent = draw(size=(4, 16)).astype("float32")

    def steps(inside, recurrent):
        hidden, cell, given = jnp.zeros((2, 4)), jnp.zeros((2, 4)), []
        for step in inside:
            i, f, g, o = jnp.split(step + hidden @ recurrent, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            given.append(hidden)
        return jnp.stack(given)

    _judge_gradients(published_networks.lstm, steps, inside, recurrent)


def test_the_gradient_of_a_writing_layer_is_that_of_its_steps():
    draw = np.random.default_rng(0).normal
    inside, into, recurrent = (draw(size=shape).astype("float32") for shape in ((3, 2, 16), (4, 16), (4, 16)))
    memory, keys, query, energy = (draw(size=size).astype("float32") for size in ((5, 2, 4), (5, 2, 4), (4, 4), 4))

    def steps(inside, into, recurrent, memory, keys, query, energy):
        hidden = cell = context = jnp.zeros((2, 4))
        given = []
        for step in inside:
            i, f, g, o = jnp.split(step + context @ into + hidden @ recurrent, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            shares = jax.nn.softmax(jnp.tanh(keys + hidden @ query) @ energy, 0)
            context = jnp.sum(shares[..., None] * memory, 0)
            given.append((hidden, context))
        return tuple(jnp.stack(each) for each in zip(*given, strict=True))

    _judge_gradients(published_networks.write, steps, inside, into, recurrent, memory, keys, query, energy)


def test_the_gradient_of_attention_in_blocks_is_that_of_attention(monkeypatch):
    monkeypatch.setattr(published_layers, "_SIDE", 4)
    draw = np.random.default_rng(0).normal
    q, k, v = (draw(size=size).astype("float32") for size in ((2, 2, 3, 12, 8), (2, 2, 12, 8), (2, 2, 12, 8)))

    def whole(q, k, v):
        scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k)
        scores = jnp.where(jnp.tril(jnp.ones((12, 12), bool)), scores, -1e10)
        return jnp.einsum("bkgqs,bksd->bkgqd", jax.nn.softmax(scores, -1), v)

    _judge_gradients(published_layers.in_blocks, whole, q, k, v)


def test_the_gradient_of_reordered_rows_is_that_of_their_order():
    order = jnp.array([2, 0, 3, 1])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    _judge_gradients(lambda x: published_layers.reorder(x, order, jnp.argsort(order)), lambda x: x[order], x)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_the_hardest_losses_are_the_greatest(is_sorted):
    losses = np.array([[0.5, 3.0, 0.0, 1.5], [2.0, 0.25, 0.125, 4.0]], "float32")
    found = published_networks._hardest(losses, np.array([[2], [1]]), is_sorted)  # noqa: SLF001
    assert found.tolist() == [[False, True, False, True], [False, False, False, True]]


def test_attention_that_is_divided_late_is_attention():
    block = published_layers.Block(16, 2, 8, 32)
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 5, 2, 8)).astype("float32")
    late = dataclasses.replace(block, late_division=True)
    expected, found = (
        _compile_quickly(functools.partial(published_layers.naive, each, causal=True))(q, k, v)
        for each in (block, late)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("how", [{"is_product": True}, {"smoothing": 1e-9}])
def test_ways_to_write_a_loss_agree(how):
    logits = np.random.default_rng(0).normal(size=(3, 7)).astype("float32")
    targets = np.array([2, 0, 6])
    expected, found = (
        float(_compile_quickly(functools.partial(published_layers.cross_entropy, **each))(logits, targets))
        for each in ({}, how)
    )
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_smoothed_loss_is_that_of_the_smoothed_target():
    logits = np.random.default_rng(0).normal(size=(1, 5)).astype("float32")
    target = np.full(5, 0.025)
    target[3] = 0.9
    expected = -np.sum(target * np.asarray(jax.nn.log_softmax(logits[0])))
    found = float(
        _compile_quickly(functools.partial(published_layers.cross_entropy, smoothing=0.1))(logits, np.array([3]))
    )
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_core_has_half_of_its_chip():
    generations = whole_steps.load_generations()
    core, chip = generations["v4-core"], generations["v4"]
    row = {"program": "gnmt", "generation": "v4", "batch_per_device": 64, "per_core": True}
    assert published_compile.key_of(row) == "gnmt/v4-core/64"
    assert 2 * core.device_peak_flops == chip.device_peak_flops
    assert 2 * core.device_bytes_per_second == chip.device_bytes_per_second


def test_costs_are_those_of_the_programs_that_are_written_down():
    kept = json.loads(whole_steps.COMPILED.read_text(encoding="utf-8"))["steps"]
    assert {key: step["program"] for key, step in kept.items()} == {
        key: whole_steps.digest_of(_PROGRAMS[key.split("/")[0]]) for key in kept
    }
