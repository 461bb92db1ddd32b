"""Training steps that others have timed, of recurrent networks and of convolutions: see published_programs.py."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.evidence.benchmarks.published_layers import (
    Attention,
    Block,
    Optimizer,
    TrainingStep,
    Weights,
    convolve,
    cross_entropy,
    drop,
    naive,
    shape_of,
    splash,
    train,
)


def _gates(gates: jax.Array, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What an LSTM gives, and its new cell."""
    i, f, g, o = jnp.split(gates.astype(jnp.float32), 4, -1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(gates.dtype), cell


def _recur(inside: jax.Array, recurrent: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    start = jnp.zeros_like(inside[0, :, : recurrent.shape[0]])

    def body(state: tuple[jax.Array, jax.Array], inside: jax.Array) -> Any:
        gates = inside + state[0] @ recurrent
        after = _gates(gates, state[1])
        return after, (after[0], gates, *state)

    given, *kept = lax.scan(body, (start, start.astype(jnp.float32)), inside)[1]
    return given, (recurrent, *kept)


@jax.custom_vjp
def lstm(inside: jax.Array, recurrent: jax.Array) -> jax.Array:
    """An LSTM over the first axis, of which the products with the input are given.

    The gradient of its weight is one product after the loop, as the submissions compute it.
    """
    return _recur(inside, recurrent)[0]


def _lstm_backward(kept: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    recurrent, gates, hidden, cells = kept

    def body(state: tuple[jax.Array, jax.Array], step: tuple[jax.Array, ...]) -> Any:
        given, gates, cell = step
        off_gates, off_cell = jax.vjp(_gates, gates, cell)[1]((state[0] + given, state[1]))
        return (off_gates @ recurrent.T, off_cell), off_gates

    start = jnp.zeros_like(hidden[0]), jnp.zeros_like(cells[0])
    off_gates = lax.scan(body, start, (gradient, gates, cells), reverse=True)[1]
    return off_gates, jnp.einsum("sbh,sbg->hg", hidden, off_gates)


lstm.defvjp(_recur, _lstm_backward)


def _write(inside: jax.Array, into: jax.Array, recurrent: jax.Array, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    memory, keys, query, vector = rest

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("gates"))
    def body(carry: Any, inside: jax.Array) -> Any:
        (hidden, cell), context = carry
        gates = checkpoint_name(inside + context @ into + hidden @ recurrent, "gates")
        state = _gates(gates, cell)
        energy = jnp.tanh(keys + state[0] @ query) @ vector
        shares = jax.nn.softmax(energy.astype(jnp.float32), 0).astype(memory.dtype)
        context = jnp.einsum("sb,sbw->bw", shares, memory)
        return (state, context), (state[0], context)

    start = jnp.zeros_like(memory[0])
    return lax.scan(body, ((start, start.astype(jnp.float32)), start), inside)[1]


@jax.custom_vjp
def write(inside: jax.Array, into: jax.Array, recurrent: jax.Array, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first layer of the decoder, whose input at a step includes the attention context of the step before.

    The gradients of its two large weight matrices are computed as products after the loop, as in the submissions.

    Args:
        inside: Products with the words, (tokens, batch, 4 × width).
        into: Weights of the attention context, (width, 4 × width).
        recurrent: Weights of the layer's own output, (width, 4 × width).
        *rest: The encoder's output (tokens, batch, width); its keys; weights of the query; weights of the energy.

    Returns:
        The layer's output, and the attention context.
    """
    return _write(inside, into, recurrent, *rest)


def _write_forward(inside: jax.Array, into: jax.Array, recurrent: jax.Array, *rest: jax.Array) -> Any:
    given, pull = jax.vjp(lambda inside, *rest: _write(inside, into, recurrent, *rest), inside, *rest)
    return given, (pull, given)


def _write_backward(kept: Any, gradient: Any) -> tuple[jax.Array, ...]:
    pull, given = kept
    inside, *rest = pull(gradient)
    hidden, context = (jnp.einsum("tbh,tbg->hg", each[:-1], inside[1:]) for each in given)
    return inside, context, hidden, *rest


write.defvjp(_write_forward, _write_backward)


def gnmt(batch: int, tokens: int, width: int, layers: int, vocabulary: int, dropout: float) -> TrainingStep:
    """Google's recurrent translation: LSTMs that read (the first both ways), and LSTMs that write with attention."""
    first = [("forward", width, width), ("backward", width, width), ("reader/1", 2 * width, width)]
    readers = [(f"reader/{number}", width, width) for number in range(2, layers)]
    writers = [("writer/0", 2 * width, width)] + [(f"writer/{number}", 2 * width, width) for number in range(1, layers)]
    weights = {name: shape_of((into + out, 4 * out)) for name, into, out in (*first, *readers, *writers)}
    weights |= {f"{name}/bias": shape_of(leaf.shape[1:]) for name, leaf in weights.items()}
    weights |= {name: shape_of((width, width)) for name in ("query", "memory")}
    weights |= {"energy": shape_of((width,)), "unembedding": shape_of((width, vocabulary))}
    weights["embedding"] = shape_of((vocabulary, width))

    def recur(weights: Weights, name: str, x: jax.Array, reverse: bool = False) -> jax.Array:
        into, recurrent = weights[name][:-width], weights[name][-width:]
        x = drop(x, dropout)

        inside = x @ into + weights[f"{name}/bias"]
        return lstm(inside[::-1], recurrent)[::-1] if reverse else lstm(inside, recurrent)

    def attend(weights: Weights, x: jax.Array, memory: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        into, recurrent = weights["writer/0"][:-width], weights["writer/0"][-width:]
        inside = x @ into[:width] + weights["writer/0/bias"]
        return write(inside, into[width:], recurrent, memory, keys, weights["query"], weights["energy"])

    def loss(weights: Weights, source: jax.Array, target: jax.Array) -> jax.Array:
        x = weights["embedding"][source.T]
        both = [recur(weights, "forward", x), recur(weights, "backward", x, reverse=True)]
        x = recur(weights, "reader/1", jnp.concatenate(both, -1))
        for number in range(2, layers):
            x = x + recur(weights, f"reader/{number}", x)
        y, context = attend(weights, weights["embedding"][target.T], x, x @ weights["memory"])
        for number in range(1, layers):
            new = recur(weights, f"writer/{number}", jnp.concatenate([y, context], -1))
            y = new if number == 1 else y + new
        return cross_entropy(y @ weights["unembedding"], jnp.roll(target.T, -1, 0))

    texts = [shape_of((batch, tokens), jnp.int32)] * 2
    return train(loss, weights, texts, Optimizer.ADAM)


class _Convolutions:
    """A network of convolutions and batch normalisations, written once: it lists its weights, or applies them.

    Args:
        weights: By name; None while they are listed.
    """

    def __init__(self, weights: Mapping[str, jax.Array] | None = None) -> None:
        self._weights = weights
        self.listed: dict[str, jax.ShapeDtypeStruct] = {}
        self._number = 0

    def weight(self, *shape: int) -> jax.Array:
        """The next weight."""
        self._number += 1
        name = f"{self._number:03d}"
        self.listed[name] = shape_of(shape)
        return jnp.zeros(shape, jnp.bfloat16) if self._weights is None else self._weights[name]

    def convolve(self, x: jax.Array, features: int, size: int = 3, stride: int = 1, padding: Any = "SAME") -> jax.Array:
        """A convolution without bias."""
        return convolve(x, self.weight(size, size, x.shape[-1], features), stride, padding)

    def normalize(self, x: jax.Array, is_active: bool = True) -> jax.Array:
        """Batch normalisation of the replica's own batch, and ReLU."""
        wide = x.astype(jnp.float32)
        mean = jnp.mean(wide, (0, 1, 2))
        variance = jnp.mean(wide**2, (0, 1, 2)) - mean**2
        scale = self.weight(x.shape[-1]).astype(jnp.float32) * lax.rsqrt(variance + 1e-5)
        shift = self.weight(x.shape[-1]).astype(jnp.float32) - mean * scale
        y = (wide * scale + shift).astype(x.dtype)
        return jax.nn.relu(y) if is_active else y


def _group_norm(network: _Convolutions, x: jax.Array) -> jax.Array:
    """Normalise 32 groups of features over all places."""
    wide = x.astype(jnp.float32).reshape(x.shape[0], -1, 32, x.shape[-1] // 32)
    mean = jnp.mean(wide, (1, 3), keepdims=True)
    variance = jnp.mean(wide**2, (1, 3), keepdims=True) - mean**2
    y = ((wide - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    scale, shift = network.weight(x.shape[-1]), network.weight(x.shape[-1])
    return (y * scale + shift).astype(x.dtype)


def _layer_norm(network: _Convolutions, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, -1, keepdims=True)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)
    return (wide * network.weight(x.shape[-1]) + network.weight(x.shape[-1])).astype(x.dtype)


def _pool(x: jax.Array, size: int, stride: int, is_mean: bool = False) -> jax.Array:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    if is_mean:
        return lax.reduce_window(x, 0.0, lax.add, window, strides, "SAME") / size**2
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")


def _train_convolutions(
    network: Callable[..., jax.Array], batch: Sequence[jax.ShapeDtypeStruct], optimizer: Optimizer = Optimizer.SGD
) -> TrainingStep:
    """A step with replicated weights; `network` gives the loss."""
    listing = _Convolutions()
    jax.eval_shape(functools.partial(network, listing), *batch)
    return train(
        lambda weights, *batch: network(_Convolutions(weights), *batch),
        listing.listed,
        batch,
        optimizer,
        clip=False,
    )


def _pixels_of(side: int, is_folded: bool) -> tuple[int, int, int]:
    """Shape of an image, of which the host folds 2×2 pixels into 12 features if `is_folded`."""
    return (side // 2, side // 2, 12) if is_folded else (side, side, 3)


def _stem(network: _Convolutions, x: jax.Array, is_folded: bool) -> jax.Array:
    """ResNet's first convolution, and its maximum of 3×3 places."""
    x = network.convolve(x, 64, 4, 1, ((2, 1), (2, 1))) if is_folded else network.convolve(x, 64, 7, 2)
    return _pool(network.normalize(x), 3, 2)


def resnet(
    batch: int, side: int, blocks: Sequence[int], is_folded: bool = False, is_rs: bool = False, classes: int = 1000
) -> TrainingStep:
    """ResNet v1.5 of bottleneck blocks.

    Args:
        batch: Images of a device.
        side: Pixels.
        blocks: How many blocks each of the four stages has.
        is_folded: Whether the host folds 2×2 pixels into 12 features, as MLPerf's submissions to TPUs do.
        is_rs: Whether it is ResNet-RS: a stem of three convolutions, means in the shortcuts, squeeze and excitation.
        classes: Of the images.
    """

    def block(network: _Convolutions, x: jax.Array, features: int, stride: int, is_first: bool) -> jax.Array:
        shortcut = x
        if is_first:
            shortcut = _pool(x, 2, 2, is_mean=True) if is_rs and stride == 2 else x
            shortcut = network.convolve(shortcut, 4 * features, 1, 1 if is_rs else stride)
            shortcut = network.normalize(shortcut, is_active=False)
        y = network.normalize(network.convolve(x, features, 1))
        y = network.normalize(network.convolve(y, features, 3, stride))
        y = network.normalize(network.convolve(y, 4 * features, 1), is_active=False)
        if is_rs:
            squeezed = jax.nn.relu(jnp.mean(y, (1, 2)) @ network.weight(4 * features, features))
            y = y * jax.nn.sigmoid(squeezed @ network.weight(features, 4 * features))[:, None, None]
        return jax.nn.relu(y + shortcut)

    def network(network: _Convolutions, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = images.astype(jnp.bfloat16)
        if is_rs:
            for features, stride in ((32, 2), (32, 1), (64, 1), (64, 2)):
                x = network.normalize(network.convolve(x, features, 3, stride))
        else:
            x = _stem(network, x, is_folded)
        for stage, count in enumerate(blocks):
            for number in range(count):
                is_first = number == 0
                x = block(network, x, 64 * 2**stage, 2 if is_first and stage else 1, is_first)
        return cross_entropy(jnp.mean(x, (1, 2)) @ network.weight(x.shape[-1], classes), labels)

    images = shape_of((batch, *_pixels_of(side, is_folded)), jnp.bfloat16)
    return _train_convolutions(network, [images, shape_of((batch,), jnp.int32)])


def _hardest(losses: jax.Array, count: jax.Array, is_sorted: bool) -> jax.Array:
    """Return a mask of the `count` largest losses of each row; `count` has the shape (rows, 1).

    They are found by sorting, or by determining the smallest of them bit by bit.
    """
    if is_sorted:
        return jnp.argsort(jnp.argsort(-losses, -1), -1) < count
    bits = lax.bitcast_convert_type(losses, jnp.int32)

    def body(number: jax.Array, least: jax.Array) -> jax.Array:
        higher = least | (1 << (30 - number))
        return jnp.where(jnp.sum(bits >= higher, -1, keepdims=True) >= count, higher, least)

    return bits >= lax.fori_loop(0, 31, body, jnp.zeros_like(count))


def ssd(
    batch: int, side: int = 300, is_folded: bool = False, is_sorted: bool = False, has_last_stage: bool = False
) -> TrainingStep:
    """SSD with the first three stages of ResNet-34: boxes and classes at six scales, and its hardest negatives.

    Args:
        batch: Images of a device.
        side: Pixels.
        is_folded: Whether the host folds 2×2 pixels into 12 features.
        is_sorted: Whether negatives are sorted by their loss.
        has_last_stage: Whether to compute ResNet-34's last stage, although nothing uses it.
    """
    anchors = (4, 6, 6, 6, 4, 4)
    classes = 81
    boxes = sum(places**2 * each for places, each in zip((38, 19, 10, 5, 3, 1), anchors, strict=True))

    def block(network: _Convolutions, x: jax.Array, features: int, stride: int) -> jax.Array:
        shortcut = x
        if x.shape[-1] != features:
            shortcut = network.normalize(network.convolve(x, features, 1, stride), is_active=False)
        y = network.normalize(network.convolve(x, features, 3, stride))
        return jax.nn.relu(network.normalize(network.convolve(y, features), is_active=False) + shortcut)

    def network(
        network: _Convolutions, images: jax.Array, places: jax.Array, labels: jax.Array, matched: jax.Array
    ) -> jax.Array:
        x = _stem(network, images, is_folded)
        for stage, count in enumerate((3, 4, 6)):
            for number in range(count):
                x = block(network, x, 64 * 2**stage, 2 if stage == 1 and number == 0 else 1)
        unused: Any = 0.0
        if has_last_stage:
            last = x
            for _ in range(3):
                last = block(network, last, 512, 1)
            unused = 1e-9 * lax.stop_gradient(jnp.mean(last.astype(jnp.float32)))
        scales = [x]
        for inner, outer, stride, padding in (
            (256, 512, 2, "SAME"),
            (256, 512, 2, "SAME"),
            (128, 256, 2, "SAME"),
            (128, 256, 1, "VALID"),
            (128, 256, 1, "VALID"),
        ):
            x = jax.nn.relu(network.convolve(x, inner, 1))
            x = jax.nn.relu(network.convolve(x, outer, 3, stride, padding))
            scales.append(x)
        found = []
        scores = []
        for scale, each in zip(scales, anchors, strict=True):
            found.append(network.convolve(scale, 4 * each).reshape(batch, -1, 4))
            scores.append(network.convolve(scale, classes * each).reshape(batch, -1, classes))
        logits = jnp.concatenate(scores, 1).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
        wrong = jax.nn.logsumexp(logits, -1) - chosen
        negative = jnp.where(matched, 0.0, wrong)
        hard = _hardest(lax.stop_gradient(negative), 3 * jnp.sum(matched, -1, keepdims=True), is_sorted)
        off = jnp.abs(jnp.concatenate(found, 1).astype(jnp.float32) - places)
        smooth = jnp.sum(jnp.where(off < 1, 0.5 * off**2, off - 0.5), -1)
        return unused + jnp.mean(jnp.where(matched, smooth, 0.0) + jnp.where(matched | hard, wrong, 0.0))

    images = shape_of((batch, *_pixels_of(side, is_folded)), jnp.bfloat16)
    batches = [images, shape_of((batch, boxes, 4))]
    batches += [shape_of((batch, boxes), jnp.int32), shape_of((batch, boxes), jnp.bool_)]
    return _train_convolutions(network, batches)


def stable_diffusion(batch: int, side: int = 64, words: int = 77) -> TrainingStep:
    """The U-Net of Stable Diffusion 2: noise found in latents of `side`² places, told by a text of `words` vectors."""
    widths = (320, 640, 1280, 1280)
    head_dim = 64
    text_width = 1024

    def mend(network: _Convolutions, x: jax.Array, time: jax.Array, features: int) -> jax.Array:
        shortcut = x if x.shape[-1] == features else network.convolve(x, features, 1)
        y = network.convolve(jax.nn.silu(_group_norm(network, x)), features)
        y = y + (jax.nn.silu(time) @ network.weight(time.shape[-1], features))[:, None, None]
        return shortcut + network.convolve(jax.nn.silu(_group_norm(network, y)), features)

    def attend(network: _Convolutions, x: jax.Array, other: jax.Array) -> jax.Array:
        width = x.shape[-1]
        way = Attention.SPLASH if x.shape[1] == other.shape[1] >= 4096 else Attention.NAIVE
        block = Block(width, width // head_dim, head_dim, 0, causal=False, attention=way)
        q, k, v = (
            (each @ network.weight(each.shape[-1], width)).reshape(batch, -1, block.heads, head_dim)
            for each in (x, other, other)
        )
        q = q * head_dim**-0.5
        y = splash(block, q, k, v, False) if way is Attention.SPLASH else naive(block, q, k, v, False)
        return y.reshape(x.shape) @ network.weight(width, width)

    def transform(network: _Convolutions, x: jax.Array, text: jax.Array) -> jax.Array:
        width = x.shape[-1]
        y = _group_norm(network, x).reshape(batch, -1, width) @ network.weight(width, width)
        normal = _layer_norm(network, y)
        y = y + attend(network, normal, normal)
        y = y + attend(network, _layer_norm(network, y), text)
        up, gate = jnp.split(_layer_norm(network, y) @ network.weight(width, 8 * width), 2, -1)
        y = y + (up * jax.nn.gelu(gate)) @ network.weight(4 * width, width)
        return x + (y @ network.weight(width, width)).reshape(x.shape)

    def network(
        network: _Convolutions, latents: jax.Array, times: jax.Array, text: jax.Array, noise: jax.Array
    ) -> jax.Array:
        speeds = jnp.exp(-jnp.log(1e4) * jnp.arange(widths[0] // 2) / (widths[0] // 2))
        waves = jnp.concatenate([jnp.sin(times[:, None] * speeds), jnp.cos(times[:, None] * speeds)], -1)
        time = jax.nn.silu(waves.astype(jnp.bfloat16) @ network.weight(widths[0], 1280)) @ network.weight(1280, 1280)
        x = network.convolve(latents, widths[0])
        kept = [x]
        for level, features in enumerate(widths):
            for _ in range(2):
                x = mend(network, x, time, features)
                x = transform(network, x, text) if level < 3 else x
                kept.append(x)
            if level < 3:
                x = network.convolve(x, features, 3, 2)
                kept.append(x)
        x = mend(network, x, time, widths[-1])
        x = mend(network, transform(network, x, text), time, widths[-1])
        for level, features in reversed(list(enumerate(widths))):
            for _ in range(3):
                x = mend(network, jnp.concatenate([x, kept.pop()], -1), time, features)
                x = transform(network, x, text) if level < 3 else x
            if level:
                x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
                x = network.convolve(x, features)
        found = network.convolve(jax.nn.silu(_group_norm(network, x)), 4)
        return jnp.mean((found.astype(jnp.float32) - noise) ** 2)

    latents = shape_of((batch, side, side, 4), jnp.bfloat16)
    shapes = [latents, shape_of((batch,)), shape_of((batch, words, text_width), jnp.bfloat16), shape_of(latents.shape)]
    return _train_convolutions(network, shapes, Optimizer.ADAM)
