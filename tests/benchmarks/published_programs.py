"""Training steps that others have timed: what one device computes, in plain JAX on abstract shapes.

Each public function takes the dimensions of a network and the number of examples that the device sees, and returns a
`Step`. Nothing is computed and no weights exist: `published_compile` lowers the step for a TPU and keeps what the
compiler schedules.

published_networks.py has the recurrent networks and those of convolutions.

Layers that repeat are a `lax.scan` over stacked weights, as MaxText, Levanter and Flax train them, so the time of a
compilation does not depend on the depth. Where the publisher divides weights among the chips (`shards` above 1), the
step holds the bfloat16 weights of `depth` layers, gathered, and the optimizer updates the device's shard of all of
them. Where weights are replicated, the step holds all of them in float32. The sum of gradients over devices, and the
gathering of weights, are not in a program of one device.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Weights = Any  # A tree of arrays, or of their shapes.
_MASK = "mask"  # What dropout keeps.
_CHUNK = 1024  # The last axis of a shard, whose values have no shape of their own.


@dataclasses.dataclass(frozen=True)
class Step:
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
        gate: Whether a product of the input gates what attention gives.
        post_norm: Whether each part's output is normalised too, as Gemma's.
        norm_last: Whether the sum is normalised instead of the input, as BERT's.
        cross: Whether the block attends to another sequence too.
        dropout: Share of values dropped after each part, and of attention's weights.
        experts: Experts of the feed-forward part; 0 for none.
        active: How many of them a token uses.
        capacity: Room of an expert over its fair share; 0 if no token is dropped.
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
    gate: bool = False
    post_norm: bool = False
    norm_last: bool = False
    cross: bool = False
    dropout: float = 0.0
    experts: int = 0
    active: int = 0
    capacity: float = 0.0
    shared: int = 0

    @property
    def keys(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight of one block."""
        found: dict[str, tuple[int, ...]] = {}
        for part in ("attention", "cross") if self.cross else ("attention",):
            found[f"{part}/query"] = (self.width, self.heads, self.head_dim)
            found[f"{part}/key"] = (self.width, self.keys, self.head_dim)
            found[f"{part}/value"] = (self.width, self.keys, self.head_dim)
            found[f"{part}/out"] = (self.heads, self.head_dim, self.width)
            found[f"{part}/scale"] = (self.width,)
            if self.gate:
                found[f"{part}/gate"] = (self.width, self.heads, self.head_dim)
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


def _norm(x: jax.Array, weights: Mapping[str, jax.Array], name: str, rms: bool) -> jax.Array:
    wide = x.astype(jnp.float32)
    if not rms:
        wide = wide - jnp.mean(wide, -1, keepdims=True)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)
    wide = wide * weights[f"{name}/scale"].astype(jnp.float32)
    if not rms:
        wide = wide + weights[f"{name}/scale/shift"].astype(jnp.float32)
    return wide.astype(x.dtype)


def _plain_norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)).astype(x.dtype)


def _product(pattern: str, x: jax.Array, weights: Mapping[str, jax.Array], name: str) -> jax.Array:
    y = jnp.einsum(pattern, x, weights[name])
    if f"{name}/bias" in weights:
        y = y + weights[f"{name}/bias"]
    return checkpoint_name(y, name.partition("/")[2])


def drop(x: jax.Array, key: jax.Array, share: float) -> jax.Array:
    """Dropout."""
    if not share:
        return x
    kept = checkpoint_name(jax.random.bernoulli(key, 1 - share, x.shape), _MASK)
    return jnp.where(kept, x / (1 - share), jnp.zeros((), x.dtype))


def _rotate(x: jax.Array) -> jax.Array:
    """Rotate pairs of features by the token's position."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * speeds)[None, :, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, -1).astype(x.dtype)


def naive(block: Block, q: jax.Array, k: jax.Array, v: jax.Array, key: jax.Array, causal: bool) -> jax.Array:
    """Attention that writes the scores of all pairs of tokens."""
    groups = block.heads // block.keys
    q = q.reshape(*q.shape[:2], block.keys, groups, q.shape[-1])
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k)
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, jnp.asarray(-1e9, scores.dtype))
    shares = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype)
    shares = drop(shares, key, block.dropout)
    attended = jnp.einsum("bkgqs,bskd->bqkgd", shares, v)
    return attended.reshape(*attended.shape[:2], block.heads, v.shape[-1])


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
    block: Block, x: jax.Array, other: jax.Array | None, weights: Mapping[str, jax.Array], key: jax.Array, saved: bool
) -> jax.Array:
    part, source = ("attention", x) if other is None else ("cross", other)
    q = _product("bsw,whd->bshd", x, weights, f"{part}/query")
    k = _product("bsw,whd->bshd", source, weights, f"{part}/key")
    v = _product("bsw,whd->bshd", source, weights, f"{part}/value")
    if block.qk_norm:
        q, k = _plain_norm(q), _plain_norm(k)
    if block.rotary:
        q, k = _rotate(q), _rotate(k)
    q = q * block.head_dim**-0.5
    if block.attention is Attention.SPLASH:
        y = splash(block, q, k, v, saved)
    elif block.attention is Attention.FLASH:
        y = _flash(block, q, k, v)
    else:
        y = naive(block, q, k, v, key, block.causal and other is None)
    if block.gate:
        y = y * jax.nn.sigmoid(_product("bsw,whd->bshd", x, weights, f"{part}/gate"))
    return _product("bshd,hdw->bsw", y, weights, f"{part}/out")


def _feed_forward(block: Block, x: jax.Array, weights: Mapping[str, jax.Array], key: jax.Array) -> jax.Array:
    if block.experts:
        y = _capped_experts(block, x, weights) if block.capacity else _all_experts(block, x, weights)
        if block.shared:
            up = jnp.einsum("bsw,wf->bsf", x, weights["shared/up"])
            gate = jax.nn.silu(jnp.einsum("bsw,wf->bsf", x, weights["shared/gate"]))
            y = y + jnp.einsum("bsf,fw->bsw", up * gate, weights["shared/down"])
        return y
    hidden = _product("bsw,wf->bsf", x, weights, "ffn/up")
    if block.gated:
        hidden = hidden * jax.nn.silu(_product("bsw,wf->bsf", x, weights, "ffn/gate"))
    else:
        hidden = jax.nn.gelu(hidden)
    return _product("bsf,fw->bsw", drop(hidden, key, block.dropout), weights, "ffn/down")


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


def _all_experts(block: Block, x: jax.Array, weights: Mapping[str, jax.Array]) -> jax.Array:
    """Experts of which each takes the tokens that chose it, sorted, by a kernel over groups of rows."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    shares, chosen = _route(block, x, weights)
    flat = x.reshape(-1, block.width)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=block.experts).astype(jnp.int32)
    inside = flat[order // block.active]
    tiles = tuple(
        min(side, size) for side, size in zip((512, 1024, 1024), (10**9, block.width, block.ffn), strict=True)
    )
    rows = functools.partial(gmm, group_sizes=sizes, preferred_element_type=x.dtype, tiling=tiles)
    up, gate = rows(inside, weights["ffn/up"]), rows(inside, weights["ffn/gate"])
    outside = rows(up * jax.nn.silu(gate), weights["ffn/down"], tiling=(tiles[0], tiles[2], tiles[1]))
    parts = outside[jnp.argsort(order)].reshape(*chosen.shape, block.width)
    return jnp.einsum("bskw,bsk->bsw", parts, shares.astype(x.dtype))


def _apply(
    block: Block,
    x: jax.Array,
    other: jax.Array | None,
    weights: Mapping[str, jax.Array],
    key: jax.Array,
    saved: Sequence[str],
) -> jax.Array:
    """One block."""
    keys = jax.random.split(key, 6)

    def add(x: jax.Array, name: str, part: Callable[[jax.Array], jax.Array], key: jax.Array) -> jax.Array:
        y = part(x if block.norm_last else _norm(x, weights, name, block.rms))
        y = drop(_plain_norm(y) if block.post_norm else y, key, block.dropout)
        return _norm(x + y, weights, name, block.rms) if block.norm_last else x + y

    is_saved = "context" in saved
    x = add(x, "attention", lambda y: _attend(block, y, None, weights, keys[0], is_saved), keys[1])
    if block.cross:
        x = add(x, "cross", lambda y: _attend(block, y, other, weights, keys[2], is_saved), keys[3])
    return add(x, "ffn", lambda y: _feed_forward(block, y, weights, keys[4]), keys[5])


def _policy(saved: Sequence[str] | None) -> Any:
    """What a layer keeps for the backward pass: what is named, or with None what products and dropout give.

    The compiler computes the rest anew where layers are written one after the other; in a scan it would be written to
    memory.
    """
    policies = jax.checkpoint_policies
    if saved is None:
        return policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(_MASK))
    return policies.save_only_these_names(*saved)


def _run(
    blocks: Sequence[Block],
    x: jax.Array,
    weights: Weights,
    saved: Sequence[str] | None,
    other: jax.Array | None = None,
) -> jax.Array:
    """Scan over groups of blocks; `saved` is as in `decoder`."""

    def apply(block: Block, x: jax.Array, member: Mapping[str, jax.Array], key: jax.Array) -> jax.Array:
        return _apply(block, x, other, member, key, saved or ())

    apply = jax.checkpoint(apply, policy=_policy(saved), prevent_cse=False, static_argnums=0)

    def body(carry: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        number, group = layer
        key = jax.random.fold_in(jax.random.key(0, impl="unsafe_rbg"), number)
        for block, member in zip(blocks, group, strict=True):
            carry = apply(block, carry, member, key)
        return carry, None

    depth = jax.tree.leaves(weights)[0].shape[0]
    return lax.scan(body, x, (jnp.arange(depth), weights))[0]


def _stacked(blocks: Sequence[Block], depth: int) -> Weights:
    return tuple({name: shape_of((depth, *shape)) for name, shape in block.shapes().items()} for block in blocks)


def shape_of(shape: Sequence[int], kind: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An array that has a shape and a type, but no values."""
    return jax.ShapeDtypeStruct(tuple(shape), kind)


def _count(weights: Weights) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))


def _cast(weights: Weights) -> Weights:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean loss of classes, in float32.

    The target's logit is selected, not gathered, so that the logits need not be written in float32.
    """
    logits = logits.astype(jnp.float32)
    is_target = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == targets[..., None]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(jnp.where(is_target, logits, 0.0), -1))


def train(
    loss: Callable[..., jax.Array],
    weights: Weights,
    batch: Sequence[jax.ShapeDtypeStruct],
    optimizer: Optimizer,
    shards: int = 1,
    parameters: int = 0,
    depths: tuple[int, int] = (0, 0),
    clip: bool = True,
) -> Step:
    """A step that updates all weights, or, if they are divided among `shards`, gives gradients and updates a shard."""

    def replicated(state: Sequence[Weights], *batch: jax.Array) -> tuple[Weights, jax.Array]:
        value, gradients = jax.value_and_grad(lambda weights: loss(_cast(weights), *batch))(state[0])
        if clip:
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1.0), gradients)
        leaves = [jax.tree.leaves(tree) for tree in (state[0], gradients, *state[1:])]
        updated = [optimizer.update(*each) for each in zip(*leaves, strict=True)]
        kind = jax.tree.structure(state[0])
        return [kind.unflatten(values) for values in zip(*updated, strict=True)], value

    def divided(weights: Weights, shard: Sequence[jax.Array], *batch: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        weight, gradient, *slots = shard
        norm = jnp.sqrt(jnp.sum(gradient.astype(jnp.float32) ** 2))
        return gradients, optimizer.update(weight, gradient / jnp.maximum(norm, 1.0), *slots), value

    if shards == 1 and depths[0] == depths[1]:
        return Step(replicated, ([weights] * (1 + optimizer.slots), *batch), (0,), *depths)
    rows = shape_of((math.ceil(parameters / shards / _CHUNK), _CHUNK))
    shard = [rows, shape_of(rows.shape, jnp.bfloat16), *[rows] * optimizer.slots]
    narrow = jax.tree.map(lambda leaf: shape_of(leaf.shape, jnp.bfloat16), weights)
    return Step(divided, (narrow, shard, *batch), (0, 1), *depths)


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
    optimizer: str = "adam",
    attention: str = "splash",
    learned_positions: bool = False,
    **dimensions: Any,
) -> Step:
    """A language model that predicts each next token.

    Args:
        batch: Sequences that the device sees: those of all chips that divide a layer's products among themselves.
        tokens: Of a sequence.
        layers: Of the network.
        vocabulary: Number of different tokens.
        saved: What of a layer is kept for the backward pass, by name; None for what all its products give.
        depth: Layers to compile; 0 for all.
        shards: Among how many devices weights and optimizer are divided.
        tensor: Among how many devices each product is divided.
        tied: Whether the embedding is the last product's weight too.
        one_hot: Whether tokens are looked up by a product.
        loss_chunks: In how many parts of the tokens the loss is computed, one after the other.
        period: Every how many layers one sees all tokens, where the others have a window.
        optimizer: Name of the optimizer.
        attention: Name of the way of attention.
        learned_positions: Whether positions are learned vectors.
        dimensions: Those of `Block`.
    """
    whole = Block(attention=Attention(attention), **dimensions)
    block = dataclasses.replace(
        whole, heads=whole.heads // tensor, kv_heads=max(whole.keys // tensor, 1), ffn=whole.ffn // tensor
    )
    group = [block] * (period - 1) + [dataclasses.replace(block, window=0) if period > 1 else block]
    compiled, real = (depth or layers) // period, layers // period
    width, words = block.width, vocabulary // tensor
    weights = {"embedding": shape_of((words, width)), "scale": shape_of((width,)), "layers": _stacked(group, compiled)}
    if not tied:
        weights["unembedding"] = shape_of((width, words))
    if learned_positions:
        weights["positions"] = shape_of((tokens, width))
    if not block.rms:
        weights["scale/shift"] = shape_of((width,))

    def loss(weights: Weights, ids: jax.Array) -> jax.Array:
        if one_hot:
            x = jnp.einsum("bsv,vw->bsw", jax.nn.one_hot(ids, words, dtype=jnp.bfloat16), weights["embedding"])
        else:
            x = weights["embedding"][ids]
        if learned_positions:
            x = x + weights["positions"]
        x = _run(group, x, weights["layers"], saved)
        x = _norm(x, {f"last/{name}": leaf for name, leaf in weights.items() if "scale" in name}, "last", block.rms)
        last = weights["embedding"].T if tied else weights["unembedding"]

        def part(x_and_targets: tuple[jax.Array, jax.Array]) -> jax.Array:
            return cross_entropy(x_and_targets[0] @ last, x_and_targets[1])

        targets = jnp.roll(ids, -1, 1)
        if loss_chunks == 1:
            return part((x, targets))
        chunked = x.reshape(loss_chunks, -1, width), targets.reshape(loss_chunks, -1)
        return jnp.mean(lax.map(jax.checkpoint(part), chunked))

    outside = (1 if tied else 2) * vocabulary * width
    inside = sum(math.prod(shape) for shape in whole.shapes().values()) * layers
    return train(
        loss,
        weights,
        [shape_of((batch, tokens), jnp.int32)],
        Optimizer(optimizer),
        shards * tensor if shards * tensor > 1 else 1,
        outside + inside,
        (compiled, real),
    )


def product(batch: int, side: int) -> Step:
    """A product of two square matrices in bfloat16; `batch` is 1."""
    square = shape_of((side, side), jnp.bfloat16)

    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    if batch != 1:
        raise ValueError(f"A product is computed once, not {batch} times.")
    return Step(multiply, (square, square))


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: Any = "SAME") -> jax.Array:
    """A convolution without bias."""
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def vit(
    batch: int,
    side: int,
    patch: int,
    layers: int,
    saved: Sequence[str] | None = None,
    depth: int = 0,
    shards: int = 1,
    classes: int = 1000,
    **dimensions: Any,
) -> Step:
    """A vision transformer: patches of an image, a stack of blocks, and the mean of all patches.

    `side` and `patch` are in pixels; the rest is as in `decoder`.
    """
    block = Block(
        attention=Attention.NAIVE, causal=False, gated=False, rms=False, bias=True, rotary=False, **dimensions
    )
    places, width = (side // patch) ** 2, block.width
    weights = {
        "patches": shape_of((patch, patch, 3, width)),
        "positions": shape_of((places, width)),
        "layers": _stacked([block], depth or layers),
        "scale": shape_of((width,)),
        "scale/shift": shape_of((width,)),
        "classes": shape_of((width, classes)),
    }

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = convolve(images.astype(jnp.bfloat16), weights["patches"], patch, "VALID")
        x = x.reshape(batch, places, width) + weights["positions"]
        x = _run([block], x, weights["layers"], saved)
        x = _norm(x, {"last/scale": weights["scale"], "last/scale/shift": weights["scale/shift"]}, "last", False)
        return cross_entropy(jnp.mean(x, 1) @ weights["classes"], labels)

    whole = _count(weights) + _count(_stacked([block], 1)) * (layers - (depth or layers))
    images = [shape_of((batch, side, side, 3)), shape_of((batch,), jnp.int32)]
    return train(loss, weights, images, Optimizer.ADAM, shards, whole, (depth or layers, layers))


def mixer(batch: int, side: int, patch: int, layers: int, width: int, tokens_ffn: int, ffn: int) -> Step:
    """MLP-Mixer: products over the patches in place of attention."""
    places = (side // patch) ** 2
    shapes = {"tokens/up": (places, tokens_ffn), "tokens/down": (tokens_ffn, places), "tokens/scale": (width,)}
    shapes |= {"ffn/up": (width, ffn), "ffn/down": (ffn, width), "ffn/scale": (width,)}
    shapes |= {f"{name}/bias": shape[1:] for name, shape in shapes.items() if len(shape) == 2}
    shapes |= {f"{name}/shift": shape for name, shape in shapes.items() if name.endswith("scale")}
    weights = {
        "patches": shape_of((patch, patch, 3, width)),
        "layers": {name: shape_of((layers, *shape)) for name, shape in shapes.items()},
        "classes": shape_of((width, 1000)),
    }

    @functools.partial(jax.checkpoint, policy=_policy(None), prevent_cse=False)
    def body(x: jax.Array, layer: Mapping[str, jax.Array]) -> tuple[jax.Array, None]:
        y = jnp.swapaxes(_norm(x, layer, "tokens", False), 1, 2)
        y = _product("bwf,fs->bws", jax.nn.gelu(_product("bws,sf->bwf", y, layer, "tokens/up")), layer, "tokens/down")
        x = x + jnp.swapaxes(y, 1, 2)
        y = jax.nn.gelu(_product("bsw,wf->bsf", _norm(x, layer, "ffn", False), layer, "ffn/up"))
        return x + _product("bsf,fw->bsw", y, layer, "ffn/down"), None

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = convolve(images.astype(jnp.bfloat16), weights["patches"], patch, "VALID").reshape(batch, places, width)
        return cross_entropy(jnp.mean(lax.scan(body, x, weights["layers"])[0], 1) @ weights["classes"], labels)

    images = [shape_of((batch, side, side, 3)), shape_of((batch,), jnp.int32)]
    return train(loss, weights, images, Optimizer.ADAM, depths=(layers, layers))


def bert(
    batch: int, tokens: int, layers: int, predicted: int, vocabulary: int, optimizer: str, **dimensions: Any
) -> Step:
    """BERT: both directions, and the loss of `predicted` masked tokens of each text and of the next sentence."""
    naive: dict[str, Any] = {"attention": Attention.NAIVE, "causal": False, "gated": False, "rms": False}
    block = Block(**naive, bias=True, rotary=False, norm_last=True, dropout=0.1, **dimensions)
    width = block.width
    weights = {
        "embedding": shape_of((vocabulary, width)),
        "positions": shape_of((tokens, width)),
        "segments": shape_of((2, width)),
        "layers": _stacked([block], layers),
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
        norm = {"last/scale": weights["scale"], "last/scale/shift": weights["scale/shift"]}
        x = weights["embedding"][ids] + weights["positions"] + weights["segments"][segments]
        x = _run([block], _norm(x, norm, "last", False), weights["layers"], None)
        masked = jnp.take_along_axis(x, places[..., None], 1)
        masked = _norm(jax.nn.gelu(masked @ weights["transform"]), norm, "last", False)
        logits = masked @ weights["embedding"].T + weights["words"]
        pooled = jnp.tanh(x[:, 0] @ weights["pooler"]) @ weights["next"]
        return cross_entropy(logits, words) + cross_entropy(pooled, labels)

    shapes = [(batch, tokens), (batch, tokens), (batch, predicted), (batch, predicted), (batch,)]
    integers = [shape_of(shape, jnp.int32) for shape in shapes]
    return train(loss, weights, integers, Optimizer(optimizer), depths=(layers, layers))


def translation(batch: int, tokens: int, layers: int, vocabulary: int, dropout: float, **dimensions: Any) -> Step:
    """The transformer that reads one sentence and writes another, each `tokens` long, several packed in one."""
    naive: dict[str, Any] = {"attention": Attention.NAIVE, "gated": False, "rms": False, "rotary": False}
    reader = Block(**naive, causal=False, dropout=dropout, **dimensions)
    writer = dataclasses.replace(reader, causal=True, cross=True)
    weights = {
        "embedding": shape_of((vocabulary, reader.width)),
        "reader": _stacked([reader], layers),
        "writer": _stacked([writer], layers),
    }

    def loss(weights: Weights, source: jax.Array, target: jax.Array) -> jax.Array:
        read = _run([reader], weights["embedding"][source], weights["reader"], None)
        written = _run([writer], weights["embedding"][target], weights["writer"], None, _plain_norm(read))
        return cross_entropy(_plain_norm(written) @ weights["embedding"].T, jnp.roll(target, -1, 1))

    texts = [shape_of((batch, tokens), jnp.int32)] * 2
    return train(loss, weights, texts, Optimizer.ADAM, depths=(layers, layers), clip=False)
