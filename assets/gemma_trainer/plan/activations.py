"""What a token leaves in memory between the forward and the backward pass, in bytes.

The figures are those of autograd's saved tensors in transformers 5.24 with LoRA on the seven linear layers, fitted on
seven shapes for each generation (largest error 0.1 %); benchmarks/README.md says how they were taken.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma_trainer.families.shape import Layer, Shape


class Kept(NamedTuple):
    """Bytes for each unit of width: of the hidden state, queries, keys, the MLP, and of the rank of LoRA."""

    hidden: float
    queries: float
    keys: float
    ffn: float
    rank: float


FLOAT, HALF = "float32", "bfloat16"
KEPT: dict[tuple[str, str], Kept] = {
    ("gemma", FLOAT): Kept(16, 8, 8, 16, 28),
    ("gemma", HALF): Kept(18, 6, 4, 8, 14),
    ("gemma2", FLOAT): Kept(30, 8, 8, 16, 28),
    ("gemma2", HALF): Kept(28, 6, 4, 8, 14),
    ("gemma3", FLOAT): Kept(24, 12, 12, 16, 28),
    ("gemma3", HALF): Kept(26, 10, 8, 8, 14),
    ("gemma3n", FLOAT): Kept(80, 12, 16, 16, 28),
    ("gemma3n", HALF): Kept(58, 10, 12, 8, 14),
    ("gemma4", FLOAT): Kept(24, 12, 16, 16, 28),
    ("gemma4", HALF): Kept(26, 10, 12, 8, 14),
}
# Of full fine-tuning on top: a trained norm keeps its normalised input in float32, of the hidden state (in float32 and in
# bfloat16 runs) and of queries and keys.
TRAINED_NORMS = {"gemma": (8, 8), "gemma2": (16, 16), "gemma3": (16, 16), "gemma3n": (48, 80), "gemma4": (16, 16)}
TRAINED_HEAD_NORMS = {"gemma3": 4, "gemma3n": 4, "gemma4": 4}
# Where there are per-layer embeddings: for each unit of their width, and of the hidden state with adapters and in full.
# Gemma 3n always has them, so its figures above hold the latter.
PER_LAYER, PER_LAYER_HIDDEN = 16, (4, 12)
SCORES = 8  # Gemma 2: for each head and each pair of tokens, since eager attention keeps its scores
EXPERT = {FLOAT: (8, 12), HALF: (10, 6)}  # for each expert a token goes to: of the hidden state, of the expert's width
STREAMS = {"gemma3n": 4}  # copies of the hidden state that pass from layer to layer


def kept_by_layer(shape: Shape, layer: Layer, dtype: str, full: bool, rank: int, length: int) -> float:
    """Bytes for each token of one layer without checkpointing. `length`: tokens a text, for Gemma 2's scores."""
    kept, hidden = KEPT[shape.generation, dtype], shape.hidden
    keys = layer.keys or layer.values
    total = kept.hidden * hidden + kept.queries * layer.queries + kept.keys * keys + kept.ffn * layer.ffn
    if full:
        total += TRAINED_NORMS[shape.generation][dtype == HALF] * hidden
        total += TRAINED_HEAD_NORMS.get(shape.generation, 0) * (layer.queries + keys)
    else:
        total += kept.rank * rank
    if shape.per_layer_width:
        total += PER_LAYER * shape.per_layer_width
        total += PER_LAYER_HIDDEN[full] * hidden if shape.generation == "gemma4" else 0
    if shape.experts:
        wide, narrow = EXPERT[dtype]
        total += shape.active_experts * (wide * hidden + narrow * shape.expert_ffn)
    if shape.generation == "gemma2":
        total += SCORES * shape.heads * length
    return total


def kept_at_border(shape: Shape, dtype: str, full: bool) -> float:
    """Bytes for each token and layer that checkpointing keeps: what passes between layers."""
    size = 4 if dtype == FLOAT or full else 2
    return size * shape.hidden * STREAMS.get(shape.generation, 1) + 8 * shape.per_layer_width


def activations(
    shape: Shape, *, tokens: int, length: int, dtype: str, full: bool, rank: int, checkpointing: bool
) -> float:
    """Bytes of `tokens` tokens in texts of `length`. Checkpointing keeps the borders and one layer at a time."""
    layers = [kept_by_layer(shape, layer, dtype, full, rank, length) for layer in shape.layers]
    if not checkpointing:
        return tokens * sum(layers)
    return tokens * (len(layers) * kept_at_border(shape, dtype, full) + max(layers))
