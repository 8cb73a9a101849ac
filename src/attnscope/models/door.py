"""The door of Hugging Face models: attention with both derivatives in O(n) memory, under the name
"attnscope".

Every model that looks its attention up in transformers' `AttentionInterface` hands over queries,
keys and values after projection, norms and rotary embedding, with its mask, scale, soft-cap and
sinks. An argument that this file does not know is refused: to ignore one would be to compute
another map than the model's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnscope.operators.fused_autograd import fused_attention
from attnscope.validation import described

NAME = "attnscope"

COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}

IRRELEVANT = frozenset(
    {
        "cache_position",
        "deterministic",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Arguments that models pass along and that no attention of transformers puts into its scores:
positions are in queries, keys and mask already.
"""

INTERVALS = torch.int32
"""The dtype that tells intervals of keys from masks that come from elsewhere."""
MASK_ENTRIES = 2**22
"""Masks are looked at in strips of this many entries."""


def register_attention() -> None:
    """Make `attn_implementation="attnscope"` known to transformers; calling it again does no harm.

    A model loaded so has the same values as with eager attention, and memory O(n) in its forward
    pass and in its derivatives: `torch.func.jvp`, `vjp`, `grad`, `vmap`, `jacfwd`, `jacrev`,
    ordinary `backward()`, and second derivatives except forward over forward, which is refused.

    Then `AutoModel.from_pretrained(name, attn_implementation="attnscope")`.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "register_attention needs transformers 5: pip install 'attnscope[hf]'."
        ) from error
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of eager attention.

    Args:
        module: the attention module that calls.
        query: (batch, heads, queries, k).
        key: (batch, groups, keys, k).
        value: (batch, groups, keys, v).
        attention_mask: what `attention_mask` made, a boolean tensor (True is read), numbers to add,
            or None. None means all keys, or for a causal module those up to the query.
        dropout: must be 0 in training.
        scaling: of the scores, one over the root of k if None.
        is_causal: what None as a mask means; the module says it if None.
        position_bias: added to the scores.
        softcap: of the scores.
        s_aux: the sinks, one logit for each head.
        sliding_window: must be in the mask already.

    Returns:
        The output as (batch, queries, heads, v), and None for the coupling, which is not formed.
    """
    _refuse_unknown(others)
    if dropout and module.training:
        raise ValueError(
            f"attnscope attention has no dropout, got {dropout} in training mode. Call model.eval()"
            " or set the attention dropout of the config to 0."
        )
    kind = _computed_in(query, key, value)
    if attention_mask is None:
        _refuse_window(sliding_window, key.shape[2])
        mask, bias = _without_mask(module, is_causal, query, key), None
    else:
        mask, bias = _as_mask_or_bias(attention_mask, query, key)
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    out = fused_attention(
        query.to(kind),
        key.to(kind),
        value.to(kind),
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        mask=mask,
        bias=None if bias is None else bias.to(kind),
        sinks=None if s_aux is None else s_aux.to(kind).reshape(1, -1, 1, 1),
        softcap=None if softcap is None else float(softcap),
    )
    return out.transpose(1, 2).contiguous().to(query.dtype), None


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    **others: Any,
) -> Tensor:
    """Which keys each query reads, as transformers asks for it, in O(n) memory where it can be.

    Causal, sliding and chunked masks, packed sequences and padding on either side let every row
    read one interval of keys. Where that is so (it is checked on the mask itself, strip by strip),
    the mask is an integer tensor (batch, 1, queries, 3): the first key, the one after the last, and
    the number of all keys. Otherwise it is boolean, (batch, 1, queries, keys).
    """
    from transformers.masking_utils import sdpa_mask

    # Never None: what None means would depend on the module. And always strip by strip.
    others |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}

    def strip(start: int, count: int) -> Tensor:
        made: Tensor = sdpa_mask(
            batch_size, count, kv_length, q_offset + start, kv_offset, **others
        )
        return made

    # An attention that took intervals for numbers to add could do so only over so few keys.
    if kv_length <= 3:
        return strip(0, q_length)
    rows = max(1, MASK_ENTRIES // (batch_size * kv_length))
    ends = []
    for start in range(0, q_length, rows):
        reads = strip(start, min(rows, q_length - start))
        first = reads.to(torch.uint8).argmax(-1, keepdim=True)
        stop = first + reads.sum(-1, keepdim=True)
        at = torch.arange(kv_length, device=reads.device)
        if not torch.equal((at >= first) & (at < stop), reads):
            return strip(0, q_length)
        ends.append(torch.cat([first, stop, torch.full_like(first, kv_length)], -1))
    return torch.cat(ends, -2).to(INTERVALS)


def _refuse_unknown(others: dict[str, Any]) -> None:
    if others.get("output_attentions"):
        raise ValueError(
            "attnscope attention never forms the attention weights, got output_attentions=True."
            ' Load the model with attn_implementation="eager" to see them.'
        )
    unknown = [
        name
        for name, value in others.items()
        if name not in IRRELEVANT and value is not None and value is not False
    ]
    if unknown:
        raise NotImplementedError(
            f"attnscope attention does not know what {', '.join(unknown)} should do to the scores,"
            " and to ignore it could change the map. Leave it out, or load the model with"
            ' attn_implementation="eager".'
        )


def _refuse_window(window: int | None, keys: int) -> None:
    if window is not None and 0 <= window < keys:
        raise NotImplementedError(
            f"this model asks for a sliding window of {window} over {keys} keys without a mask that"
            ' holds it. Load it with attn_implementation="eager".'
        )


def _computed_in(query: Tensor, key: Tensor, value: Tensor) -> torch.dtype:
    kinds = {query.dtype, key.dtype, value.dtype}
    if len(kinds) > 1 or query.dtype not in COMPUTED_IN:
        raise TypeError(
            "attnscope attention takes queries, keys and values of one dtype, float64, float32,"
            f" bfloat16 or float16, got {query.dtype}, {key.dtype} and {value.dtype}. Convert the"
            " model with .to(...)."
        )
    return COMPUTED_IN[query.dtype]


def _without_mask(
    module: nn.Module, is_causal: bool | None, query: Tensor, key: Tensor
) -> Tensor | None:
    """Where a model makes no mask, its module says whether it is causal."""
    m, n = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if m == 1 or causal is False:
        return None
    if causal is None:
        raise NotImplementedError(
            f"{type(module).__name__} gives no mask and does not say whether it is causal. Load the"
            ' model with attn_implementation="eager".'
        )
    stop = torch.arange(1, m + 1, device=query.device).clamp(max=n)
    return torch.stack([torch.zeros_like(stop), stop], -1)[None, None]


def _as_mask_or_bias(
    given: Tensor, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """A mask as `fused_attention` reads it, or numbers to add to the scores."""
    b, h, m, n = *query.shape[:3], key.shape[2]
    intervals = given.dtype == INTERVALS
    expected = (b, 1, m, 3) if intervals else (b, h, m, n)
    fits = given.ndim == 4 and given.shape[3] == expected[3]
    fits = fits and all(got in (1, want) for got, want in zip(given.shape, expected, strict=True))
    if not fits or (intervals and (given.shape[2] != m or int(given[0, 0, 0, 2]) != n)):
        raise ValueError(
            f"attnscope attention takes a mask of shape {(b, h, m, n)}, where all but the last axis"
            f" may be 1, got {described(given)}."
        )
    if intervals:
        return given[..., :2], None
    if given.dtype == torch.bool:
        return given, None
    if not given.dtype.is_floating_point:
        raise TypeError(
            "attnscope attention takes a boolean mask (True is read) or numbers to add to the"
            f" scores, got {described(given)}."
        )
    return None, given
