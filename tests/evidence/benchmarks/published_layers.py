"""What published training steps are made of: blocks of transformers, losses, optimizers, and the step itself.

Nothing is computed and no weights exist: all is plain JAX on abstract shapes.

Layers that repeat are a `lax.scan` over stacked weights, as MaxText and Levanter train them, so the time of a
compilation does not depend on the depth. With `saved=None` they are written one after the other, as by TensorFlow,
Keras and Flax, and the compiler decides what to compute anew. Where the publisher divides weights among the chips
(`shards` above 1), the step holds the bfloat16 weights of `depth` layers, gathered, and the optimizer updates the
device's shard of all of them. Where weights are replicated, the step holds all of them in float32. The sum of gradients
over devices, and the gathering of weights, are not in a program of one device.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Weights = Any  # A tree of arrays, or of their shapes.
_CHUNK = 1024  # The last axis of a shard, whose values have no shape of their own.


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A training step of one device.

    Attributes:
        function: The step.
        arguments: Its arguments, as shapes.
        donated: Which arguments the step replaces.
        depth: How many layers (or groups of layers) the scan of the step has; 0 without one.
        real_depth: How many the network has.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    depth: int = 0
    real_depth: int = 0


class Attention(enum.Enum):
    """How attention is computed."""

    NAIVE = "naive"  # The scores of all pairs of tokens are written to memory.
    FLASH = "flash"  # JAX's first kernel for TPUs, which keeps them on the chip.
    SPLASH = "splash"  # Its successor, which leaves out what a mask hides.
    BLOCKS = "blocks"  # Levanter's, in plain JAX: the scores of 1,024 by 1,024 tokens at a time.


class Optimizer(enum.Enum):
    """The rule that updates weights, and how many values it keeps for each."""

    SGD = "sgd"
    ADAM = "adam"
    LAMB = "lamb"

    @property
    def slots(self) -> int:
        """Values kept for each weight."""
        return 1 if self is Optimizer.SGD else 2

    def update(self, weight: jax.Array, gradient: jax.Array, *slots: jax.Array) -> tuple[jax.Array, ...]:
        """The new weight and slots."""
        gradient = gradient.astype(jnp.float32)
        if self is Optimizer.SGD:
            momentum = 0.9 * slots[0] + gradient + 1e-4 * weight
            return weight - 0.1 * momentum, momentum
        mean = 0.9 * slots[0] + 0.1 * gradient
        square = 0.95 * slots[1] + 0.05 * gradient**2
        change = mean / (jnp.sqrt(square) + 1e-8) + 0.1 * weight
        rate = 1e-3
        if self is Optimizer.LAMB:
            rate = 1e-3 * jnp.linalg.norm(weight) / (jnp.linalg.norm(change) + 1e-6)
        return weight - rate * change, mean, square


@dataclasses.dataclass(frozen=True)
class Block:
    """A transformer's block.

    Attributes:
        width: Features of a token.
        heads: Heads of the queries.
        head_dim: Features of a head.
        ffn: Hidden features of the feed-forward part, of one expert where there are several.
        kv_heads: Heads of keys and values; 0 for as many as of queries.
        gated: Whether the feed-forward part has two products in, multiplied by each other.
        causal: Whether a token sees only those before it.
        attention: How attention is computed.
        block: Side of the kernel's tile, in tokens.
        fused_backward: Whether the kernel's backward pass is one kernel, not two.
        window: How many tokens before it a token sees; 0 for all.
        rms: Whether a layer is normalised by its root mean square alone, not by mean and variance.
        bias: Whether products have biases.
        rotary: Whether positions rotate queries and keys.
        qk_norm: Whether queries and keys are normalised.
        v_norm: Whether values are normalised.
        key_values: Whether the values are the keys, before these are normalised and rotated, as in Gemma 4.
        latent: Features of a token that keys and values are projected from, as in DeepSeek; 0 for all of them.
        query_latent: Features of a token that queries are projected from; 0 for all of them.
        rotated: With `latent`, the features of queries and keys beside `head_dim`, which alone are rotated; all heads
            share those of a key.
        relative: Number of buckets of distances, each with a learned bias that is added to the scores, as in T5; 0 for
            none. Only for naive attention.
        parallel: Whether attention and the feed-forward part read the same normalised input, as MaxText's did in 2023.
        gate: Whether a product of the input gates what attention gives.
        post_norm: Whether each part's output is normalised too, as Gemma's.
        norm_last: Whether the sum is normalised instead of the input, as BERT's.
        cross: Whether the block attends to another sequence too.
        dropout: Share of values dropped after each part, and of attention's weights.
        hidden_dropout: Fraction of the feed-forward part's hidden features to drop.
        relu: Whether ReLU is the feed-forward part's activation, not GELU. Without effect if `gated`.
        late_division: Whether to normalise the softmax only after the product with the values, as MLPerf's BERT does on
            TPU v4. Only for naive attention.
        experts: Experts of the feed-forward part; 0 for none.
        active: How many of them a token uses.
        capacity: Room of an expert over its fair share; 0 if no token is dropped.
        sorts_back: Whether the backward pass of sorting tokens by expert reorders the gradients instead of adding them
            row by row, like MaxText's `use_custom_sort_vjp`. Without effect if `capacity` is set.
        shared: Hidden features of what every token uses beside its experts.
    """

    width: int
    heads: int
    head_dim: int
    ffn: int
    kv_heads: int = 0
    gated: bool = True
    causal: bool = True
    attention: Attention = Attention.SPLASH
    block: int = 512
    fused_backward: bool = False
    window: int = 0
    rms: bool = True
    bias: bool = False
    rotary: bool = True
    qk_norm: bool = False
    v_norm: bool = False
    key_values: bool = False
    latent: int = 0
    query_latent: int = 0
    rotated: int = 0
    relative: int = 0
    parallel: bool = False
    gate: bool = False
    post_norm: bool = False
    norm_last: bool = False
    cross: bool = False
    dropout: float = 0.0
    hidden_dropout: float = 0.0
    relu: bool = False
    late_division: bool = False
    experts: int = 0
    active: int = 0
    capacity: float = 0.0
    sorts_back: bool = False
    shared: int = 0

    @property
    def keys(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(map(math.prod, self.shapes().values()))

    def divided(self, tensor: int) -> "Block":
        """Return what one of `tensor` devices computes if they divide each product among themselves."""
        kv_heads = max(self.keys // tensor, 1)
        return dataclasses.replace(self, heads=self.heads // tensor, kv_heads=kv_heads, ffn=self.ffn // tensor)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight of one block."""
        found: dict[str, tuple[int, ...]] = {}
        for part in ("attention", "cross") if self.cross else ("attention",):
            for name, rank, also in (("query", self.query_latent, 0), ("key", self.latent, self.rotated)):
                if rank:
                    found[f"{part}/{name}_latent"] = (self.width, rank + also)
                    found[f"{part}/{name}_latent/scale"] = (rank,)
            source = self.latent or self.width
            found[f"{part}/query"] = (self.query_latent or self.width, self.heads, self.head_dim + self.rotated)
            found[f"{part}/key"] = (source, self.keys, self.head_dim)
            if not self.key_values:
                found[f"{part}/value"] = (source, self.keys, self.head_dim)
            found[f"{part}/out"] = (self.heads, self.head_dim, self.width)
            found[f"{part}/scale"] = (self.width,)
            if self.relative:
                found[f"{part}/relative"] = (self.heads, self.relative)
            if self.gate:
                found[f"{part}/gate"] = (self.width, self.heads, self.head_dim)
        if not self.parallel:
            found["ffn/scale"] = (self.width,)
        several = (self.experts,) if self.experts else ()
        for name in ("up", "gate") if self.gated else ("up",):
            found[f"ffn/{name}"] = (*several, self.width, self.ffn)
        found["ffn/down"] = (*several, self.ffn, self.width)
        if self.experts:
            found["ffn/router"] = (self.width, self.experts)
        if self.shared:
            found |= {"shared/up": (self.width, self.shared), "shared/gate": (self.width, self.shared)}
            found["shared/down"] = (self.shared, self.width)
        if self.bias:
            outputs = {name: shape[2:] if name.endswith("out") else shape[1:] for name, shape in found.items()}
            found |= {f"{name}/bias": shape for name, shape in outputs.items() if shape}
        if not self.rms:
            found |= {f"{name}/shift": shape for name, shape in found.items() if name.endswith("/scale")}
        return found


def norm(x: jax.Array, weights: Mapping[str, jax.Array], name: str, rms: bool) -> jax.Array:
    """Normalise the last axis by its root mean square, or by mean and variance."""
    wide = x.astype(jnp.float32)
    if not rms:
        wide = wide - jnp.mean(wide, -1, keepdims=True)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)
    wide = wide * weights[f"{name}/scale"].astype(jnp.float32)
    if not rms:
        wide = wide + weights[f"{name}/scale/shift"].astype(jnp.float32)
    return wide.astype(x.dtype)


def plain_norm(x: jax.Array) -> jax.Array:
    """Normalise the last axis by its root mean square, without a weight."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)).astype(x.dtype)


def multiply(pattern: str, x: jax.Array, weights: Mapping[str, jax.Array], name: str) -> jax.Array:
    """The product with a weight, plus its bias if it has one; named for what the backward pass keeps."""
    y = jnp.einsum(pattern, x, weights[name])
    if f"{name}/bias" in weights:
        y = y + weights[f"{name}/bias"]
    return checkpoint_name(y, name.partition("/")[2])


def drop(x: jax.Array, share: float) -> jax.Array:
    """Dropout, with the chip's own random numbers, as TensorFlow's and Flax's trainings on TPUs had it."""
    if not share:
        return x
    return jnp.where(lax.rng_uniform(0.0, 1.0, x.shape) < 1 - share, x / (1 - share), jnp.zeros((), x.dtype))


def _drop_narrow(x: jax.Array, share: float) -> jax.Array:
    """Dropout with random numbers in the values' own type."""
    zero, one = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    return x * jnp.floor(lax.rng_uniform(zero, one, x.shape) + (1 - share)) / (1 - share)


def _rotate(x: jax.Array) -> jax.Array:
    """Rotate pairs of features by the token's position."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * speeds)[None, :, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, -1).astype(x.dtype)


def naive(
    block: Block, q: jax.Array, k: jax.Array, v: jax.Array, causal: bool, biases: jax.Array | None = None
) -> jax.Array:
    """Attention that writes the scores of all pairs of tokens.

    `biases` has the shape (heads, buckets); see `Block.relative`.
    """
    groups = block.heads // block.keys
    q = q.reshape(*q.shape[:2], block.keys, groups, q.shape[-1])
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k)
    if biases is not None:
        scores = scores + _of_distances(biases, *scores.shape[-2:]).reshape(block.keys, groups, *scores.shape[-2:])
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, jnp.asarray(-1e9, scores.dtype))
    if block.late_division:
        most = lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
        shares = jnp.exp((scores - most).astype(jnp.float32)).astype(v.dtype)
        whole = jnp.moveaxis(jnp.sum(shares.astype(jnp.float32), -1), 3, 1)[..., None].astype(v.dtype)
        attended = jnp.einsum("bkgqs,bskd->bqkgd", _drop_narrow(shares, block.dropout), v) / whole
    else:
        shares = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype)
        attended = jnp.einsum("bkgqs,bskd->bqkgd", drop(shares, block.dropout), v)
    return attended.reshape(*attended.shape[:2], block.heads, v.shape[-1])


def _of_distances(biases: jax.Array, queries: int, keys: int) -> jax.Array:
    """The bias of each pair of tokens, as in T5: half of the buckets hold one distance each, the others up to 128."""
    buckets = biases.shape[1]
    exact = buckets // 2
    distances = np.maximum(np.arange(queries)[:, None] - np.arange(keys), 0)
    far = np.log(np.maximum(distances, 1) / exact) / math.log(128 / exact) * (buckets - exact)
    chosen = np.where(distances < exact, distances, np.minimum(exact + far.astype(int), buckets - 1))
    is_chosen = jnp.asarray(chosen, jnp.int32) == lax.broadcasted_iota(jnp.int32, (buckets, 1, 1), 0)
    return jnp.einsum("hn,nqs->hqs", biases, is_chosen.astype(biases.dtype))


_SIDE = 1024  # Tokens of a block of Levanter's attention.


def _pairs(tokens: int) -> list[tuple[slice, slice]]:
    """Return every block of queries with each block of keys that it sees."""
    if tokens % _SIDE:
        raise ValueError(f"Levanter's attention requires a multiple of {_SIDE} as the number of tokens, got {tokens}.")
    parts = [slice(start, start + _SIDE) for start in range(0, tokens, _SIDE)]
    return [(queries, keys) for queries in parts for keys in parts if keys.start <= queries.start]


def _scores(q: jax.Array, k: jax.Array, queries: slice, keys: slice) -> jax.Array:
    scores = jnp.einsum("bkgqd,bksd->bkgqs", q[..., queries, :], k[..., keys, :])
    seen = jnp.arange(queries.start, queries.stop)[:, None] >= jnp.arange(keys.start, keys.stop)
    return jnp.where(seen, scores, jnp.asarray(-1e10, scores.dtype))


def _blocks_forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    parts: list[list[jax.Array]] = []
    for queries, keys in _pairs(q.shape[-2]):
        scores = _scores(q, k, queries, keys)
        if not keys.start:
            shape = scores.shape[:-1]
            parts.append([jnp.zeros((*shape, q.shape[-1]), q.dtype), jnp.zeros(shape, q.dtype)])
            parts[-1].append(jnp.full(shape, -jnp.inf, q.dtype))
        given, whole, before = parts[-1]
        most = jnp.maximum(before, jnp.max(scores, -1))
        shares = jnp.exp(scores - most[..., None])
        faded = jnp.exp(before - most)
        given = faded[..., None] * given + jnp.einsum("bkgqs,bksd->bkgqd", shares, v[..., keys, :])
        parts[-1] = [given, faded * whole + jnp.sum(shares, -1), most]
    given = jnp.concatenate([given / whole[..., None] for given, whole, _ in parts], -2)
    logs = jnp.concatenate([most + jnp.log(whole) for _, whole, most in parts], -1)
    return given, (q, k, v, given, logs)


@jax.custom_vjp
def in_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Return blockwise causal attention; `q` has the shape (batch, key heads, groups, tokens, features).

    Each block is recomputed in the backward pass, from the saved log-sum-exp of each query.
    """
    return _blocks_forward(q, k, v)[0]


def _blocks_backward(kept: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
    q, k, v, given, logs = kept
    share = jnp.sum(gradient * given, -1)
    off_q, off_k, off_v = (jnp.zeros_like(each) for each in (q, k, v))
    for queries, keys in sorted(_pairs(q.shape[-2]), key=lambda pair: pair[1].start):
        shares = jnp.exp(_scores(q, k, queries, keys) - logs[..., queries, None])
        off = jnp.einsum("bkgqd,bksd->bkgqs", gradient[..., queries, :], v[..., keys, :])
        off = shares * (off - share[..., queries, None])
        off_v = off_v.at[..., keys, :].add(jnp.einsum("bkgqs,bkgqd->bksd", shares, gradient[..., queries, :]))
        off_k = off_k.at[..., keys, :].add(jnp.einsum("bkgqs,bkgqd->bksd", off, q[..., queries, :]))
        off_q = off_q.at[..., queries, :].add(jnp.einsum("bkgqs,bksd->bkgqd", off, k[..., keys, :]))
    return off_q, off_k, off_v


in_blocks.defvjp(_blocks_forward, _blocks_backward)


def _attend_in_blocks(block: Block, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    q, k, v = (jnp.swapaxes(each, 1, 2) for each in (q, k, v))
    y = in_blocks(q.reshape(q.shape[0], block.keys, -1, *q.shape[2:]), k, v)
    return jnp.swapaxes(y.reshape(q.shape), 1, 2)


def splash(block: Block, q: jax.Array, k: jax.Array, v: jax.Array, is_saved: bool) -> jax.Array:
    """Attention by JAX's kernel; `is_saved`: whether the backward pass finds its result kept."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    tokens = q.shape[1]
    if block.window and block.window < tokens:
        mask: Any = masks.LocalMask((tokens, tokens), (block.window, 0), 0)
    else:
        mask = masks.CausalMask((tokens, tokens)) if block.causal else masks.FullMask((tokens, tokens))
    side = min(block.block, tokens)
    names = ["block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"]
    names += [] if block.fused_backward else ["block_q_dq", "block_kv_dq"]
    sides = kernel.BlockSizes(**dict.fromkeys(names, side), use_fused_bwd_kernel=block.fused_backward)
    attend = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * block.heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sides,
        residual_checkpoint_name="context" if is_saved else None,
    )
    q, k, v = (jnp.swapaxes(each, 1, 2) for each in (q, k, v))
    return jnp.swapaxes(jax.vmap(attend)(q, k, v), 1, 2)


def _flash(block: Block, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    from jax.experimental.pallas.ops.tpu import flash_attention as kernel

    side = min(block.block, q.shape[1])
    names = ["block_q", "block_k_major", "block_k", "block_q_major_dkv", "block_k_major_dkv", "block_k_dkv"]
    names += ["block_q_dkv", "block_k_major_dq", "block_k_dq", "block_q_dq"]
    sides = kernel.BlockSizes(block_b=1, **dict.fromkeys(names, side))
    q, k, v = (jnp.swapaxes(each, 1, 2) for each in (q, k, v))
    return jnp.swapaxes(kernel.flash_attention(q, k, v, causal=block.causal, block_sizes=sides), 1, 2)


def _attend(
    block: Block, x: jax.Array, other: jax.Array | None, weights: Mapping[str, jax.Array], saved: bool
) -> jax.Array:
    part, source = ("attention", x) if other is None else ("cross", other)
    queried = x
    if block.query_latent:
        queried = multiply("bsw,wr->bsr", x, weights, f"{part}/query_latent")
        queried = norm(queried, weights, f"{part}/query_latent", True)
    if block.latent:
        both = multiply("bsw,wr->bsr", source, weights, f"{part}/key_latent")
        source = norm(both[..., : block.latent], weights, f"{part}/key_latent", True)
        shared = _rotate(both[..., None, block.latent :])
    q = multiply("bsw,whd->bshd", queried, weights, f"{part}/query")
    k = multiply("bsw,whd->bshd", source, weights, f"{part}/key")
    v = k if block.key_values else multiply("bsw,whd->bshd", source, weights, f"{part}/value")
    if block.qk_norm:
        q, k = plain_norm(q), plain_norm(k)
    if block.v_norm:
        v = plain_norm(v)
    if block.latent:
        q = jnp.concatenate([q[..., : block.head_dim], _rotate(q[..., block.head_dim :])], -1)
        k = jnp.concatenate([k, jnp.broadcast_to(shared, (*k.shape[:-1], block.rotated))], -1)
    elif block.rotary:
        q, k = _rotate(q), _rotate(k)
    q = q * q.shape[-1] ** -0.5
    if block.attention is Attention.SPLASH:
        y = splash(block, q, k, v, saved)
    elif block.attention is Attention.FLASH:
        y = _flash(block, q, k, v)
    elif block.attention is Attention.BLOCKS:
        y = _attend_in_blocks(block, q, k, v)
    else:
        y = naive(block, q, k, v, block.causal and other is None, weights.get(f"{part}/relative"))
    if block.attention is not Attention.SPLASH:  # Whose kernel names its result.
        y = checkpoint_name(y, "context")
    if block.gate:
        y = y * jax.nn.sigmoid(multiply("bsw,whd->bshd", x, weights, f"{part}/gate"))
    return multiply("bshd,hdw->bsw", y, weights, f"{part}/out")


def _feed_forward(block: Block, x: jax.Array, weights: Mapping[str, jax.Array]) -> jax.Array:
    if block.experts:
        y = _capped_experts(block, x, weights) if block.capacity else _all_experts(block, x, weights)
        if block.shared:
            up = jnp.einsum("bsw,wf->bsf", x, weights["shared/up"])
            gate = jax.nn.silu(jnp.einsum("bsw,wf->bsf", x, weights["shared/gate"]))
            y = y + jnp.einsum("bsf,fw->bsw", up * gate, weights["shared/down"])
        return y
    hidden = multiply("bsw,wf->bsf", x, weights, "ffn/up")
    if block.gated:
        hidden = hidden * jax.nn.silu(multiply("bsw,wf->bsf", x, weights, "ffn/gate"))
    else:
        hidden = jax.nn.relu(hidden) if block.relu else jax.nn.gelu(hidden)
    return multiply("bsf,fw->bsw", drop(hidden, block.hidden_dropout), weights, "ffn/down")


def _route(block: Block, x: jax.Array, weights: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    scores = jnp.einsum("bsw,we->bse", x, weights["ffn/router"]).astype(jnp.float32)
    best, chosen = lax.top_k(scores, block.active)
    return jax.nn.softmax(best, -1), chosen


def _capped_experts(block: Block, x: jax.Array, weights: Mapping[str, jax.Array]) -> jax.Array:
    """Experts with room for a fixed number of tokens, filled and emptied by products with masks."""
    shares, chosen = _route(block, x, weights)
    room = math.ceil(block.capacity * x.shape[1] * block.active / block.experts)
    picks = jax.nn.one_hot(chosen, block.experts, dtype=jnp.int32)
    flat = picks.reshape(x.shape[0], -1, block.experts)
    places = (jnp.cumsum(flat, 1) * flat - 1).reshape(picks.shape)
    combine = jnp.einsum("bsk,bskec->bsec", shares, jax.nn.one_hot(places, room, dtype=jnp.float32)).astype(x.dtype)
    dispatch = (combine > 0).astype(x.dtype)
    inside = jnp.einsum("bsw,bsec->ebcw", x, dispatch)
    up = checkpoint_name(jnp.einsum("ebcw,ewf->ebcf", inside, weights["ffn/up"]), "up")
    gate = checkpoint_name(jnp.einsum("ebcw,ewf->ebcf", inside, weights["ffn/gate"]), "gate")
    outside = jnp.einsum("ebcf,efw->ebcw", up * jax.nn.silu(gate), weights["ffn/down"])
    return jnp.einsum("ebcw,bsec->bsw", checkpoint_name(outside, "down"), combine)


@jax.custom_vjp
def reorder(x: jax.Array, order: jax.Array, back: jax.Array) -> jax.Array:
    """Return the rows of `x` in another order.

    `back` is the inverse of `order`. The backward pass reorders the gradient with it instead of adding row by row.
    """
    return x[order]


def _reorder_and_keep(x: jax.Array, order: jax.Array, back: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x[order], back


def _put_back(back: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    return gradient[back], None, None


reorder.defvjp(_reorder_and_keep, _put_back)


def _all_experts(block: Block, x: jax.Array, weights: Mapping[str, jax.Array]) -> jax.Array:
    """Experts of which each takes the tokens that chose it, sorted, by a kernel over groups of rows."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    shares, chosen = _route(block, x, weights)
    flat = x.reshape(-1, block.width)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=block.experts).astype(jnp.int32)
    back = jnp.argsort(order)
    if block.sorts_back:
        inside = reorder(jnp.repeat(flat, block.active, 0), order, back)
    else:
        inside = flat[order // block.active]
    tiles = (512, *(min(1024, -(-size // 128) * 128) for size in (block.width, block.ffn)))  # Of whole registers.
    rows = functools.partial(gmm, group_sizes=sizes, preferred_element_type=x.dtype, tiling=tiles)
    up, gate = rows(inside, weights["ffn/up"]), rows(inside, weights["ffn/gate"])
    outside = rows(up * jax.nn.silu(gate), weights["ffn/down"], tiling=(tiles[0], tiles[2], tiles[1]))
    parts = reorder(outside, back, order) if block.sorts_back else outside[back]
    parts = parts.reshape(*chosen.shape, block.width)
    return jnp.einsum("bskw,bsk->bsw", parts, shares.astype(x.dtype))


def _apply(
    block: Block,
    x: jax.Array,
    other: jax.Array | None,
    weights: Mapping[str, jax.Array],
    saved: Sequence[str],
) -> jax.Array:
    """One block."""

    def add(x: jax.Array, name: str, part: Callable[[jax.Array], jax.Array]) -> jax.Array:
        y = part(x if block.norm_last else norm(x, weights, name, block.rms))
        y = drop(plain_norm(y) if block.post_norm else y, block.dropout)
        return norm(x + y, weights, name, block.rms) if block.norm_last else x + y

    is_saved = "context" in saved
    if block.parallel:
        y = norm(x, weights, "attention", block.rms)
        return x + _attend(block, y, None, weights, is_saved) + _feed_forward(block, y, weights)
    x = add(x, "attention", lambda y: _attend(block, y, None, weights, is_saved))
    if block.cross:
        x = add(x, "cross", lambda y: _attend(block, y, other, weights, is_saved))
    return add(x, "ffn", lambda y: _feed_forward(block, y, weights))


def run(
    blocks: Sequence[Block],
    x: jax.Array,
    layers: Weights,
    saved: Sequence[str] | None,
    other: jax.Array | None = None,
) -> jax.Array:
    """Apply groups of blocks, one after the other; `saved` is as in `decoder`."""

    def apply(block: Block, x: jax.Array, member: Mapping[str, jax.Array]) -> jax.Array:
        return _apply(block, x, other, member, saved or ())

    def body(carry: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        for block, member in zip(blocks, layer, strict=True):
            carry = apply(block, carry, member)
        return carry, None

    if saved is None:
        for layer in layers:
            x, _ = body(x, layer)
        return x
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    apply = jax.checkpoint(apply, policy=policy, prevent_cse=False, static_argnums=0)
    return lax.scan(body, x, layers)[0]


def layers_of(blocks: Sequence[Block], depth: int, saved: Sequence[str] | None) -> Weights:
    """The shapes of the weights of `depth` groups of blocks: stacked, or with `saved=None` those of each layer."""
    if saved is None:
        return [tuple({name: shape_of(shape) for name, shape in block.shapes().items()} for block in blocks)] * depth
    return tuple({name: shape_of((depth, *shape)) for name, shape in block.shapes().items()} for block in blocks)


def shape_of(shape: Sequence[int], kind: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An array that has a shape and a type, but no values."""
    return jax.ShapeDtypeStruct(tuple(shape), kind)


def count(weights: Weights) -> int:
    """How many values a tree of arrays has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))


def _cast(weights: Weights, kind: Any) -> Weights:
    return jax.tree.map(lambda leaf: leaf.astype(kind), weights)


def cross_entropy(logits: jax.Array, targets: jax.Array, is_product: bool = False, smoothing: float = 0.0) -> jax.Array:
    """The mean loss of classes, in float32.

    The target's logit is selected, not gathered, so that the logits need not be written in float32.

    Args:
        logits: Of all classes, on the last axis.
        targets: The classes.
        is_product: Whether to compute the loss as a product with the one-hot target, as Levanter did until 2025.
        smoothing: Label smoothing.
    """
    logits = logits.astype(jnp.float32)
    whole = jax.nn.logsumexp(logits, -1)
    if is_product:
        target = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
        return jnp.mean(jnp.einsum("...v,...v->...", target, whole[..., None] - logits))
    is_target = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == targets[..., None]
    if not smoothing:
        return jnp.mean(whole - jnp.sum(jnp.where(is_target, logits, 0.0), -1))
    shares = jnp.where(is_target, 1 - smoothing, smoothing / (logits.shape[-1] - 1))
    return jnp.mean(jnp.sum(shares * (whole[..., None] - logits), -1))


def train(
    loss: Callable[..., jax.Array],
    weights: Weights,
    batch: Sequence[jax.ShapeDtypeStruct],
    optimizer: Optimizer,
    shards: int = 1,
    parameters: int = 0,
    depths: tuple[int, int] = (0, 0),
    clip: bool = True,
    kind: Any = jnp.bfloat16,
) -> TrainingStep:
    """A step that updates all weights, or, if they are divided among `shards`, gives gradients and updates a shard.

    `kind` is the type of the weights that `loss` gets where they are not divided.

    Raises:
        ValueError: If one group of layers stands for several. The compiler unrolls a loop of one step, so its length
            cannot be changed.
    """
    if depths[0] == 1 < depths[1]:
        raise ValueError(f"At least two of {depths[1]} groups of layers must be compiled, got one.")

    def replicated(state: Sequence[Weights], *batch: jax.Array) -> tuple[Weights, jax.Array]:
        value, gradients = jax.value_and_grad(lambda weights: loss(_cast(weights, kind), *batch))(state[0])
        if clip:
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1.0), gradients)
        leaves = [jax.tree.leaves(tree) for tree in (state[0], gradients, *state[1:])]
        updated = [optimizer.update(*each) for each in zip(*leaves, strict=True)]
        tree = jax.tree.structure(state[0])
        return [tree.unflatten(values) for values in zip(*updated, strict=True)], value

    def divided(weights: Weights, shard: Sequence[jax.Array], *batch: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        weight, gradient, *slots = shard
        norm = jnp.sqrt(jnp.sum(gradient.astype(jnp.float32) ** 2))
        return gradients, optimizer.update(weight, gradient / jnp.maximum(norm, 1.0), *slots), value

    if shards == 1 and depths[0] == depths[1]:
        return TrainingStep(replicated, ([weights] * (1 + optimizer.slots), *batch), (0,), *depths)
    rows = shape_of((math.ceil(parameters / shards / _CHUNK), _CHUNK))
    shard = [rows, shape_of(rows.shape, jnp.bfloat16), *[rows] * optimizer.slots]
    narrow = jax.tree.map(lambda leaf: shape_of(leaf.shape, jnp.bfloat16), weights)
    return TrainingStep(divided, (narrow, shard, *batch), (0, 1), *depths)


def look_up(table: jax.Array, ids: jax.Array, one_hot: bool) -> jax.Array:
    """Rows of a table: by a product, as TensorFlow's models and MaxText do on TPUs, or by an index."""
    return jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype) @ table if one_hot else table[ids]


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: Any = "SAME") -> jax.Array:
    """A convolution without bias."""
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
