"""Training steps that others have timed, of transformers and their kin: what one device computes, in plain JAX.

Each function takes the dimensions of a network and the number of examples that the device sees, and returns a step on
abstract shapes. `published_compile` lowers it for a TPU and keeps what the compiler schedules. The recurrent networks
and those of convolutions are in published_networks.py.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.evidence.benchmarks.published_layers import (
    Attention,
    Block,
    Optimizer,
    TrainingStep,
    Weights,
    convolve,
    count,
    cross_entropy,
    drop,
    layers_of,
    look_up,
    multiply,
    norm,
    plain_norm,
    run,
    shape_of,
    train,
)


def decoder(
    batch: int,
    tokens: int,
    layers: int,
    vocabulary: int,
    saved: Sequence[str] | None = (),
    depth: int = 0,
    shards: int = 1,
    tensor: int = 1,
    tied: bool = False,
    one_hot: bool = False,
    loss_chunks: int = 1,
    period: int = 1,
    last: Mapping[str, Any] | None = None,
    first: int = 0,
    first_ffn: int = 0,
    optimizer: str = "adam",
    attention: str = "splash",
    learned_positions: bool = False,
    product_loss: bool = False,
    **dimensions: Any,
) -> TrainingStep:
    """A language model that predicts each next token.

    Args:
        batch: Sequences that the device sees: those of all chips that divide a layer's products among themselves.
        tokens: Of a sequence.
        layers: Of the network.
        vocabulary: Number of different tokens.
        saved: What of a layer is kept for the backward pass, by name; None where layers are written one after the other
            and the compiler decides.
        depth: Layers to compile; 0 for all.
        shards: Among how many devices weights and optimizer are divided.
        tensor: Among how many devices each product is divided.
        tied: Whether the embedding is the last product's weight too.
        one_hot: Whether tokens are looked up by a product.
        loss_chunks: In how many parts of the tokens the loss is computed, one after the other.
        period: Every how many layers one sees all tokens, where the others have a window.
        last: What else is different in that layer: fields of `Block`.
        first: Layers before all others, which have no experts. They count in `layers`, but not in `depth`.
        first_ffn: Hidden features of their feed-forward part.
        optimizer: Name of the optimizer.
        attention: Name of the way of attention.
        learned_positions: Whether positions are learned vectors.
        product_loss: Whether to compute the loss as a product with one-hot targets.
        dimensions: Those of `Block`.
    """
    whole = Block(attention=Attention(attention), **dimensions)
    wholes = [whole] * (period - 1) + [dataclasses.replace(whole, window=0, **(last or {})) if period > 1 else whole]
    dense = dataclasses.replace(whole, experts=0, shared=0, ffn=first_ffn)
    group = [each.divided(tensor) for each in wholes]
    compiled, real = (depth or layers - first) // period, (layers - first) // period
    width = whole.width
    words = vocabulary // tensor
    weights = {"embedding": shape_of((words, width)), "scale": shape_of((width,))}
    weights["layers"] = layers_of(group, compiled, saved)
    if first:
        weights["first"] = layers_of([dense.divided(tensor)], first, saved)
    if not tied:
        weights["unembedding"] = shape_of((width, words))
    if learned_positions:
        weights["positions"] = shape_of((tokens, width))
    if not whole.rms:
        weights["scale/shift"] = shape_of((width,))

    def loss(weights: Weights, ids: jax.Array) -> jax.Array:
        x = look_up(weights["embedding"], ids, one_hot)
        if learned_positions:
            x = x + weights["positions"]
        if first:
            x = run([dense.divided(tensor)], x, weights["first"], saved)
        x = run(group, x, weights["layers"], saved)
        x = norm(x, {f"last/{name}": leaf for name, leaf in weights.items() if "scale" in name}, "last", whole.rms)
        last = weights["embedding"].T if tied else weights["unembedding"]

        def part(x_and_targets: tuple[jax.Array, jax.Array]) -> jax.Array:
            return cross_entropy(x_and_targets[0] @ last, x_and_targets[1], product_loss)

        targets = jnp.roll(ids, -1, 1)
        if loss_chunks == 1:
            return part((x, targets))
        chunked = x.reshape(loss_chunks, -1, width), targets.reshape(loss_chunks, -1)
        return jnp.mean(lax.map(jax.checkpoint(part), chunked))

    outside = (1 if tied else 2) * vocabulary * width
    inside = real * sum(each.parameters for each in wholes) + first * dense.parameters
    return train(
        loss,
        weights,
        [shape_of((batch, tokens), jnp.int32)],
        Optimizer(optimizer),
        shards * tensor if shards * tensor > 1 else 1,
        outside + inside,
        (compiled, real),
    )


def product(batch: int, side: int) -> TrainingStep:
    """A product of two square matrices in bfloat16; `batch` is 1."""
    square = shape_of((side, side), jnp.bfloat16)

    def square_product(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    if batch != 1:
        raise ValueError(f"A product is computed once, not {batch} times.")
    return TrainingStep(square_product, (square, square))


def vit(
    batch: int,
    side: int,
    patch: int,
    layers: int,
    saved: Sequence[str] | None = None,
    depth: int = 0,
    shards: int = 1,
    classes: int = 1000,
    kind: str = "bfloat16",
    **dimensions: Any,
) -> TrainingStep:
    """A vision transformer: patches of an image, a stack of blocks, and the mean of all patches.

    `side` and `patch` are in pixels, `kind` is the type of all values; the rest is as in `decoder`.
    """
    block = Block(
        attention=Attention.NAIVE, causal=False, gated=False, rms=False, bias=True, rotary=False, **dimensions
    )
    places = (side // patch) ** 2
    width = block.width
    weights = {
        "patches": shape_of((patch, patch, 3, width)),
        "positions": shape_of((places, width)),
        "layers": layers_of([block], depth or layers, saved),
        "scale": shape_of((width,)),
        "scale/shift": shape_of((width,)),
        "classes": shape_of((width, classes)),
    }

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = convolve(images.astype(kind), weights["patches"], patch, "VALID")
        x = x.reshape(batch, places, width) + weights["positions"]
        x = run([block], x, weights["layers"], saved)
        x = norm(x, {"last/scale": weights["scale"], "last/scale/shift": weights["scale/shift"]}, "last", False)
        return cross_entropy(jnp.mean(x, 1) @ weights["classes"], labels)

    whole = count(weights) + count(layers_of([block], 1, saved)) * (layers - (depth or layers))
    images = [shape_of((batch, side, side, 3)), shape_of((batch,), jnp.int32)]
    depths = (depth or layers, layers)
    return train(loss, weights, images, Optimizer.ADAM, shards, whole, depths, kind=jnp.dtype(kind))


def mixer(
    batch: int, side: int, patch: int, layers: int, width: int, tokens_ffn: int, ffn: int, kind: str = "bfloat16"
) -> TrainingStep:
    """MLP-Mixer: products over the patches in place of attention; `kind` is the type of all values."""
    places = (side // patch) ** 2
    shapes = {"tokens/up": (places, tokens_ffn), "tokens/down": (tokens_ffn, places), "tokens/scale": (width,)}
    shapes |= {"ffn/up": (width, ffn), "ffn/down": (ffn, width), "ffn/scale": (width,)}
    shapes |= {f"{name}/bias": shape[1:] for name, shape in shapes.items() if len(shape) == 2}
    shapes |= {f"{name}/shift": shape for name, shape in shapes.items() if name.endswith("scale")}
    weights = {
        "patches": shape_of((patch, patch, 3, width)),
        "layers": [{name: shape_of(shape) for name, shape in shapes.items()}] * layers,
        "classes": shape_of((width, 1000)),
    }

    def apply(x: jax.Array, layer: Mapping[str, jax.Array]) -> jax.Array:
        y = jnp.swapaxes(norm(x, layer, "tokens", False), 1, 2)
        y = multiply("bwf,fs->bws", jax.nn.gelu(multiply("bws,sf->bwf", y, layer, "tokens/up")), layer, "tokens/down")
        x = x + jnp.swapaxes(y, 1, 2)
        y = jax.nn.gelu(multiply("bsw,wf->bsf", norm(x, layer, "ffn", False), layer, "ffn/up"))
        return x + multiply("bsf,fw->bsw", y, layer, "ffn/down")

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = convolve(images.astype(kind), weights["patches"], patch, "VALID").reshape(batch, places, width)
        for layer in weights["layers"]:
            x = apply(x, layer)
        return cross_entropy(jnp.mean(x, 1) @ weights["classes"], labels)

    images = [shape_of((batch, side, side, 3)), shape_of((batch,), jnp.int32)]
    return train(loss, weights, images, Optimizer.ADAM, depths=(layers, layers), kind=jnp.dtype(kind))


def bert(
    batch: int, tokens: int, layers: int, predicted: int, vocabulary: int, optimizer: str, **dimensions: Any
) -> TrainingStep:
    """BERT: both directions, and the loss of `predicted` masked tokens of each text and of the next sentence."""
    naive: dict[str, Any] = {"attention": Attention.NAIVE, "causal": False, "gated": False, "rms": False}
    block = Block(**naive, bias=True, rotary=False, norm_last=True, dropout=0.1, **dimensions)
    width = block.width
    weights = {
        "embedding": shape_of((vocabulary, width)),
        "positions": shape_of((tokens, width)),
        "segments": shape_of((2, width)),
        "layers": layers_of([block], layers, None),
        "transform": shape_of((width, width)),
        "pooler": shape_of((width, width)),
        "next": shape_of((width, 2)),
        "words": shape_of((vocabulary,)),
        "scale": shape_of((width,)),
        "scale/shift": shape_of((width,)),
    }

    def loss(
        weights: Weights, ids: jax.Array, segments: jax.Array, places: jax.Array, words: jax.Array, labels: jax.Array
    ) -> jax.Array:
        scales = {"last/scale": weights["scale"], "last/scale/shift": weights["scale/shift"]}
        x = look_up(weights["embedding"], ids, False) + look_up(weights["segments"], segments, True)
        x = drop(norm(x + weights["positions"], scales, "last", False), block.dropout)
        x = run([block], x, weights["layers"], None)
        masked = jnp.take_along_axis(x, places[..., None], 1)
        masked = norm(jax.nn.gelu(masked @ weights["transform"]), scales, "last", False)
        logits = masked @ weights["embedding"].T + weights["words"]
        pooled = jnp.tanh(x[:, 0] @ weights["pooler"]) @ weights["next"]
        return cross_entropy(logits, words) + cross_entropy(pooled, labels)

    shapes = [(batch, tokens), (batch, tokens), (batch, predicted), (batch, predicted), (batch,)]
    integers = [shape_of(shape, jnp.int32) for shape in shapes]
    return train(loss, weights, integers, Optimizer(optimizer), depths=(layers, layers))


def translation(
    batch: int, tokens: int, layers: int, vocabulary: int, dropout: float, smoothing: float, **dimensions: Any
) -> TrainingStep:
    """The transformer that reads `tokens` tokens and writes as many. Sentences are packed; their masks are left out."""
    naive: dict[str, Any] = {"attention": Attention.NAIVE, "gated": False, "rms": False, "rotary": False}
    naive |= {"relu": True, "dropout": dropout, "hidden_dropout": dropout}
    reader = Block(**naive, causal=False, **dimensions)
    writer = dataclasses.replace(reader, causal=True, cross=True)
    weights = {
        "embedding": shape_of((vocabulary, reader.width)),
        "reader": layers_of([reader], layers, None),
        "writer": layers_of([writer], layers, None),
    }

    def loss(weights: Weights, source: jax.Array, target: jax.Array) -> jax.Array:
        texts = [drop(look_up(weights["embedding"], ids, False), dropout) for ids in (source, target)]
        read = run([reader], texts[0], weights["reader"], None)
        written = run([writer], texts[1], weights["writer"], None, plain_norm(read))
        logits = plain_norm(written) @ weights["embedding"].T
        return cross_entropy(logits, jnp.roll(target, -1, 1), smoothing=smoothing)

    texts = [shape_of((batch, tokens), jnp.int32)] * 2
    return train(loss, weights, texts, Optimizer.ADAM, depths=(layers, layers), clip=False)
