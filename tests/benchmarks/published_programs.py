"""Training steps that others have timed: what one device computes, in plain JAX on abstract shapes.

Each public function takes the dimensions of a network and the number of examples that the device sees, and returns a
`Step`. Nothing is computed and no weights exist: `published_compile` lowers the step for a TPU and keeps what the
compiler schedules.

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


def _drop(x: jax.Array, key: jax.Array, share: float) -> jax.Array:
    if not share:
        return x
    kept = jax.random.bernoulli(key, 1 - share, x.shape)
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


def _naive(block: Block, q: jax.Array, k: jax.Array, v: jax.Array, key: jax.Array, causal: bool) -> jax.Array:
    groups = block.heads // block.keys
    q = q.reshape(*q.shape[:2], block.keys, groups, q.shape[-1])
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k)
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, jnp.asarray(-1e9, scores.dtype))
    shares = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype)
    shares = _drop(shares, key, block.dropout)
    attended = jnp.einsum("bkgqs,bskd->bqkgd", shares, v)
    return attended.reshape(*attended.shape[:2], block.heads, v.shape[-1])


def _splash(block: Block, q: jax.Array, k: jax.Array, v: jax.Array, is_saved: bool) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    tokens = q.shape[1]
    if block.window and block.window < tokens:
        mask: Any = masks.LocalMask((tokens, tokens), (block.window, 0), 0)
    else:
        mask = masks.CausalMask((tokens, tokens)) if block.causal else masks.FullMask((tokens, tokens))
    side = min(block.block, tokens)
    sides = dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"), side)
    sides |= {"block_kv_dkv_compute": side, "block_q_dq": side, "block_kv_dq": side}
    attend = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * block.heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=kernel.BlockSizes(**sides),
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
        y = _splash(block, q, k, v, saved)
    elif block.attention is Attention.FLASH:
        y = _flash(block, q, k, v)
    else:
        y = _naive(block, q, k, v, key, block.causal and other is None)
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
    return _product("bsf,fw->bsw", _drop(hidden, key, block.dropout), weights, "ffn/down")


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
        y = _drop(_plain_norm(y) if block.post_norm else y, key, block.dropout)
        return _norm(x + y, weights, name, block.rms) if block.norm_last else x + y

    is_saved = "context" in saved
    x = add(x, "attention", lambda y: _attend(block, y, None, weights, keys[0], is_saved), keys[1])
    if block.cross:
        x = add(x, "cross", lambda y: _attend(block, y, other, weights, keys[2], is_saved), keys[3])
    return add(x, "ffn", lambda y: _feed_forward(block, y, weights, keys[4]), keys[5])


def _run(
    blocks: Sequence[Block],
    x: jax.Array,
    weights: Weights,
    saved: Sequence[str] | None,
    other: jax.Array | None = None,
) -> jax.Array:
    """Scan over groups of blocks; `saved` names what the backward pass finds kept, and None keeps all."""

    def body(carry: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        number, group = layer
        key = jax.random.fold_in(jax.random.key(0, impl="unsafe_rbg"), number)
        for block, member in zip(blocks, group, strict=True):
            carry = _apply(block, carry, other, member, key, saved or ())
        return carry, None

    if saved is not None:
        policy = jax.checkpoint_policies.save_only_these_names(*saved)
        body = jax.checkpoint(body, policy=policy, prevent_cse=False)
    depth = jax.tree.leaves(weights)[0].shape[0]
    return lax.scan(body, x, (jnp.arange(depth), weights))[0]


def _stacked(blocks: Sequence[Block], depth: int) -> Weights:
    return tuple({name: _shape((depth, *shape)) for name, shape in block.shapes().items()} for block in blocks)


def _shape(shape: Sequence[int], kind: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), kind)


def _count(weights: Weights) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))


def _cast(weights: Weights) -> Weights:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def _train(
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
    rows = _shape((math.ceil(parameters / shards / _CHUNK), _CHUNK))
    shard = [rows, _shape(rows.shape, jnp.bfloat16), *[rows] * optimizer.slots]
    narrow = jax.tree.map(lambda leaf: _shape(leaf.shape, jnp.bfloat16), weights)
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
        saved: What of a layer is kept for the backward pass; None for everything.
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
    weights = {"embedding": _shape((words, width)), "scale": _shape((width,)), "layers": _stacked(group, compiled)}
    if not tied:
        weights["unembedding"] = _shape((width, words))
    if learned_positions:
        weights["positions"] = _shape((tokens, width))
    if not block.rms:
        weights["scale/shift"] = _shape((width,))

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
            return _cross_entropy(x_and_targets[0] @ last, x_and_targets[1])

        targets = jnp.roll(ids, -1, 1)
        if loss_chunks == 1:
            return part((x, targets))
        chunked = x.reshape(loss_chunks, -1, width), targets.reshape(loss_chunks, -1)
        return jnp.mean(lax.map(jax.checkpoint(part), chunked))

    outside = (1 if tied else 2) * vocabulary * width
    inside = sum(math.prod(shape) for shape in whole.shapes().values()) * layers
    return _train(
        loss,
        weights,
        [_shape((batch, tokens), jnp.int32)],
        Optimizer(optimizer),
        shards * tensor if shards * tensor > 1 else 1,
        outside + inside,
        (compiled, real),
    )


def product(batch: int, side: int) -> Step:
    """A product of two square matrices in bfloat16; `batch` is 1."""
    square = _shape((side, side), jnp.bfloat16)

    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    if batch != 1:
        raise ValueError(f"A product is computed once, not {batch} times.")
    return Step(multiply, (square, square))


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
        "patches": _shape((patch, patch, 3, width)),
        "positions": _shape((places, width)),
        "layers": _stacked([block], depth or layers),
        "scale": _shape((width,)),
        "scale/shift": _shape((width,)),
        "classes": _shape((width, classes)),
    }

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = _convolve(images.astype(jnp.bfloat16), weights["patches"], patch, "VALID")
        x = x.reshape(batch, places, width) + weights["positions"]
        x = _run([block], x, weights["layers"], saved)
        x = _norm(x, {"last/scale": weights["scale"], "last/scale/shift": weights["scale/shift"]}, "last", False)
        return _cross_entropy(jnp.mean(x, 1) @ weights["classes"], labels)

    whole = _count(weights) + _count(_stacked([block], 1)) * (layers - (depth or layers))
    images = [_shape((batch, side, side, 3)), _shape((batch,), jnp.int32)]
    return _train(loss, weights, images, Optimizer.ADAM, shards, whole, (depth or layers, layers))


def mixer(batch: int, side: int, patch: int, layers: int, width: int, tokens_ffn: int, ffn: int) -> Step:
    """MLP-Mixer: products over the patches in place of attention."""
    places = (side // patch) ** 2
    shapes = {"tokens/up": (places, tokens_ffn), "tokens/down": (tokens_ffn, places), "tokens/scale": (width,)}
    shapes |= {"ffn/up": (width, ffn), "ffn/down": (ffn, width), "ffn/scale": (width,)}
    shapes |= {f"{name}/bias": shape[1:] for name, shape in shapes.items() if len(shape) == 2}
    shapes |= {f"{name}/shift": shape for name, shape in shapes.items() if name.endswith("scale")}
    weights = {
        "patches": _shape((patch, patch, 3, width)),
        "layers": {name: _shape((layers, *shape)) for name, shape in shapes.items()},
        "classes": _shape((width, 1000)),
    }

    def body(x: jax.Array, layer: Mapping[str, jax.Array]) -> tuple[jax.Array, None]:
        y = jnp.swapaxes(_norm(x, layer, "tokens", False), 1, 2)
        y = _product("bwf,fs->bws", jax.nn.gelu(_product("bws,sf->bwf", y, layer, "tokens/up")), layer, "tokens/down")
        x = x + jnp.swapaxes(y, 1, 2)
        y = jax.nn.gelu(_product("bsw,wf->bsf", _norm(x, layer, "ffn", False), layer, "ffn/up"))
        return x + _product("bsf,fw->bsw", y, layer, "ffn/down"), None

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = _convolve(images.astype(jnp.bfloat16), weights["patches"], patch, "VALID").reshape(batch, places, width)
        return _cross_entropy(jnp.mean(lax.scan(body, x, weights["layers"])[0], 1) @ weights["classes"], labels)

    images = [_shape((batch, side, side, 3)), _shape((batch,), jnp.int32)]
    return _train(loss, weights, images, Optimizer.ADAM, depths=(layers, layers))


def bert(
    batch: int, tokens: int, layers: int, predicted: int, vocabulary: int, optimizer: str, **dimensions: Any
) -> Step:
    """BERT: both directions, and the loss of `predicted` masked tokens of each text and of the next sentence."""
    naive: dict[str, Any] = {"attention": Attention.NAIVE, "causal": False, "gated": False, "rms": False}
    block = Block(**naive, bias=True, rotary=False, norm_last=True, dropout=0.1, **dimensions)
    width = block.width
    weights = {
        "embedding": _shape((vocabulary, width)),
        "positions": _shape((tokens, width)),
        "segments": _shape((2, width)),
        "layers": _stacked([block], layers),
        "transform": _shape((width, width)),
        "pooler": _shape((width, width)),
        "next": _shape((width, 2)),
        "words": _shape((vocabulary,)),
        "scale": _shape((width,)),
        "scale/shift": _shape((width,)),
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
        return _cross_entropy(logits, words) + _cross_entropy(pooled, labels)

    shapes = [(batch, tokens), (batch, tokens), (batch, predicted), (batch, predicted), (batch,)]
    integers = [_shape(shape, jnp.int32) for shape in shapes]
    return _train(loss, weights, integers, Optimizer(optimizer), depths=(layers, layers))


def translation(batch: int, tokens: int, layers: int, vocabulary: int, dropout: float, **dimensions: Any) -> Step:
    """The transformer that reads one sentence and writes another, each `tokens` long, several packed in one."""
    naive: dict[str, Any] = {"attention": Attention.NAIVE, "gated": False, "rms": False, "rotary": False}
    reader = Block(**naive, causal=False, dropout=dropout, **dimensions)
    writer = dataclasses.replace(reader, causal=True, cross=True)
    weights = {
        "embedding": _shape((vocabulary, reader.width)),
        "reader": _stacked([reader], layers),
        "writer": _stacked([writer], layers),
    }

    def loss(weights: Weights, source: jax.Array, target: jax.Array) -> jax.Array:
        read = _run([reader], weights["embedding"][source], weights["reader"], None)
        written = _run([writer], weights["embedding"][target], weights["writer"], None, _plain_norm(read))
        return _cross_entropy(_plain_norm(written) @ weights["embedding"].T, jnp.roll(target, -1, 1))

    texts = [_shape((batch, tokens), jnp.int32)] * 2
    return _train(loss, weights, texts, Optimizer.ADAM, depths=(layers, layers), clip=False)


def gnmt(batch: int, tokens: int, width: int, layers: int, vocabulary: int, dropout: float) -> Step:
    """Google's recurrent translation: LSTMs that read (the first both ways), and LSTMs that write with attention."""
    first = [("forward", width, width), ("backward", width, width), ("reader/1", 2 * width, width)]
    readers = [(f"reader/{number}", width, width) for number in range(2, layers)]
    writers = [("writer/0", 2 * width, width)] + [(f"writer/{number}", 2 * width, width) for number in range(1, layers)]
    weights = {name: _shape((into + out, 4 * out)) for name, into, out in (*first, *readers, *writers)}
    weights |= {f"{name}/bias": _shape(leaf.shape[1:]) for name, leaf in weights.items()}
    weights |= {name: _shape((width, width)) for name in ("query", "memory")}
    weights |= {"energy": _shape((width,)), "unembedding": _shape((width, vocabulary))}
    weights |= {name: _shape((vocabulary, width)) for name in ("source", "target")}

    def step(state: tuple[jax.Array, jax.Array], inside: jax.Array, recurrent: jax.Array) -> Any:
        hidden, cell = state
        gates = (inside + hidden @ recurrent).astype(jnp.float32)
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return ((jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(inside.dtype), cell)

    start = (jnp.zeros((batch, width), jnp.bfloat16), jnp.zeros((batch, width)))

    def recur(weights: Weights, name: str, x: jax.Array, number: int, reverse: bool = False) -> jax.Array:
        into, recurrent = weights[name][:-width], weights[name][-width:]
        x = _drop(x, jax.random.fold_in(jax.random.key(0, impl="unsafe_rbg"), number), dropout)

        def body(state: Any, inside: jax.Array) -> Any:
            state = step(state, inside, recurrent)
            return state, state[0]

        return lax.scan(body, start, x @ into + weights[f"{name}/bias"], reverse=reverse)[1]

    def attend(weights: Weights, x: jax.Array, memory: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first writing layer, whose input at a step is what it attended to at the step before."""
        into, recurrent = weights["writer/0"][:-width], weights["writer/0"][-width:]
        inside = x @ into[:width] + weights["writer/0/bias"]

        def body(carry: Any, inside: jax.Array) -> Any:
            state, context = carry
            state = step(state, inside + context @ into[width:], recurrent)
            energy = jnp.tanh(keys + state[0] @ weights["query"]) @ weights["energy"]
            shares = jax.nn.softmax(energy.astype(jnp.float32), 0).astype(memory.dtype)
            context = jnp.einsum("sb,sbw->bw", shares, memory)
            return (state, context), (state[0], context)

        return lax.scan(body, (start, jnp.zeros((batch, width), jnp.bfloat16)), inside)[1]

    def loss(weights: Weights, source: jax.Array, target: jax.Array) -> jax.Array:
        x = weights["source"][source.T]
        both = [recur(weights, "forward", x, 0), recur(weights, "backward", x, 1, reverse=True)]
        x = recur(weights, "reader/1", jnp.concatenate(both, -1), 2)
        for number in range(2, layers):
            x = x + recur(weights, f"reader/{number}", x, number + 1)
        y, context = attend(weights, weights["target"][target.T], x, x @ weights["memory"])
        for number in range(1, layers):
            new = recur(weights, f"writer/{number}", jnp.concatenate([y, context], -1), 10 + number)
            y = new if number == 1 else y + new
        return _cross_entropy(y @ weights["unembedding"], jnp.roll(target.T, -1, 0))

    texts = [_shape((batch, tokens), jnp.int32)] * 2
    return _train(loss, weights, texts, Optimizer.ADAM)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: Any = "SAME") -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


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
        self.listed[name] = _shape(shape)
        return jnp.zeros(shape, jnp.bfloat16) if self._weights is None else self._weights[name]

    def convolve(self, x: jax.Array, features: int, size: int = 3, stride: int = 1, padding: Any = "SAME") -> jax.Array:
        """A convolution without bias."""
        return _convolve(x, self.weight(size, size, x.shape[-1], features), stride, padding)

    def normalize(self, x: jax.Array, is_active: bool = True) -> jax.Array:
        """Batch normalisation of the replica's own batch, and ReLU."""
        wide = x.astype(jnp.float32)
        mean = jnp.mean(wide, (0, 1, 2))
        variance = jnp.mean(wide**2, (0, 1, 2)) - mean**2
        scale = self.weight(x.shape[-1]).astype(jnp.float32) * lax.rsqrt(variance + 1e-5)
        shift = self.weight(x.shape[-1]).astype(jnp.float32) - mean * scale
        y = (wide * scale + shift).astype(x.dtype)
        return jax.nn.relu(y) if is_active else y


def _pool(x: jax.Array, size: int, stride: int, is_mean: bool = False) -> jax.Array:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    if is_mean:
        return lax.reduce_window(x, 0.0, lax.add, window, strides, "SAME") / size**2
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")


def _train_convolutions(network: Callable[..., jax.Array], batch: Sequence[jax.ShapeDtypeStruct]) -> Step:
    """A step of stochastic gradient descent with momentum; `network` gives the loss."""
    listing = _Convolutions()
    jax.eval_shape(functools.partial(network, listing), *batch)
    return _train(
        lambda weights, *batch: network(_Convolutions(weights), *batch),
        listing.listed,
        batch,
        Optimizer.SGD,
        clip=False,
    )


def resnet(
    batch: int, side: int, blocks: Sequence[int], is_folded: bool = False, is_rs: bool = False, classes: int = 1000
) -> Step:
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
            x = network.convolve(x, 64, 4, 1, ((2, 1), (2, 1))) if is_folded else network.convolve(x, 64, 7, 2)
            x = _pool(network.normalize(x), 3, 2)
        for stage, count in enumerate(blocks):
            for number in range(count):
                is_first = number == 0
                x = block(network, x, 64 * 2**stage, 2 if is_first and stage else 1, is_first)
        return _cross_entropy(jnp.mean(x, (1, 2)) @ network.weight(x.shape[-1], classes), labels)

    pixels = (side // 2, side // 2, 12) if is_folded else (side, side, 3)
    return _train_convolutions(network, [_shape((batch, *pixels), jnp.bfloat16), _shape((batch,), jnp.int32)])


def ssd(batch: int, side: int = 300) -> Step:
    """SSD with the first three stages of ResNet-34: boxes and classes at six scales, and its hardest negatives."""
    anchors, classes = (4, 6, 6, 6, 4, 4), 81
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
        x = _pool(network.normalize(network.convolve(images, 64, 7, 2)), 3, 2)
        for stage, count in enumerate((3, 4, 6)):
            for number in range(count):
                x = block(network, x, 64 * 2**stage, 2 if stage == 1 and number == 0 else 1)
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
        found, scores = [], []
        for scale, each in zip(scales, anchors, strict=True):
            found.append(network.convolve(scale, 4 * each).reshape(batch, -1, 4))
            scores.append(network.convolve(scale, classes * each).reshape(batch, -1, classes))
        logits = jnp.concatenate(scores, 1).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
        wrong = jax.nn.logsumexp(logits, -1) - chosen
        negative = jnp.where(matched, 0.0, wrong)
        rank = jnp.argsort(jnp.argsort(-lax.stop_gradient(negative), -1), -1)
        hard = rank < 3 * jnp.sum(matched, -1, keepdims=True)
        off = jnp.abs(jnp.concatenate(found, 1).astype(jnp.float32) - places)
        smooth = jnp.sum(jnp.where(off < 1, 0.5 * off**2, off - 0.5), -1)
        return jnp.mean(jnp.where(matched, smooth, 0.0) + jnp.where(matched | hard, wrong, 0.0))

    batches = [_shape((batch, side, side, 3), jnp.bfloat16), _shape((batch, boxes, 4))]
    batches += [_shape((batch, boxes), jnp.int32), _shape((batch, boxes), jnp.bool_)]
    return _train_convolutions(network, batches)
