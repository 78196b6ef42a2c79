"""How many weights a Gemma has and where they lie, from its config.json alone.

Only text is trained, so the language model is counted; encoders of images and sound are told by the catalogue or the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# What transformers fills in where a config.json leaves a field out; released ones do. tests/test_checkpoints.py compares.
_GEMMA3 = {"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072}  # fmt: skip
_GEMMA4 = _GEMMA3 | {"vocab_size": 262_144, "num_hidden_layers": 30}
DEFAULTS: dict[str, dict] = {
    "gemma": _GEMMA3 | {"vocab_size": 256_000, "hidden_size": 3072, "intermediate_size": 24_576, "num_hidden_layers": 28,
                        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192},
    "gemma2": _GEMMA3 | {"vocab_size": 256_000, "max_position_embeddings": 8192, "final_logit_softcapping": 30.0},
    "gemma3_text": _GEMMA3,
    "gemma3n_text": _GEMMA3 | {"vocab_size": 262_400, "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 35,
                               "num_key_value_heads": 2, "max_position_embeddings": 32_768, "vocab_size_per_layer_input": 262_144,
                               "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 15, "altup_num_inputs": 4,
                               "laurel_rank": 64, "final_logit_softcapping": 30.0},
    "gemma4_text": _GEMMA4 | {"vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
                              "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "attention_k_eq_v": False,
                              "enable_moe_block": False},
    "gemma4_unified_text": _GEMMA4 | {"max_position_embeddings": 262_144, "num_kv_shared_layers": 0,
                                      "use_double_wide_mlp": False, "attention_k_eq_v": False},
}  # fmt: skip
GLOBAL_HEAD = 512  # of Gemma 4's full-attention layers, where a config says nothing
PATTERN = {"gemma3n_text": 5}  # every n-th layer sees everything; 6 elsewhere


# What a config.json may say; no model comes near. 0 is for what a model may be without.
MOST, MOST_LAYERS = 2**24, 2**12
EXPERTS = {"num_experts", "top_k_experts", "moe_intermediate_size"}
MAY_LACK = {"num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input", *EXPERTS}
MORE = ("global_head_dim", "num_global_key_value_heads", *sorted(EXPERTS))  # without a default


@dataclass(frozen=True)
class Layer:
    """Widths of one decoder layer: of queries, of keys and values (0 where it reads an earlier layer's), of the MLP."""

    queries: int
    keys: int
    values: int
    ffn: int


@dataclass(frozen=True)
class Shape:
    """A language model. Parameters are counts: `linear` of the layers that 4-bit mode quantises, `experts` of the stacked
    expert weights, `embedding` with the head, which shares it, `per_layer_embedding`, `norms` of the rest."""

    kind: str  # model_type of the language model
    layers: tuple[Layer, ...]
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int  # tokens
    linear: int
    experts: int
    embedding: int
    per_layer_embedding: int
    norms: int
    adapted: int  # LoRA parameters for each unit of rank, on the seven linear layers of every block
    per_layer_width: int = 0  # of the per-layer embedding
    active_experts: int = 0  # that one token goes to
    expert_ffn: int = 0
    capped: bool = False  # logits go through a soft cap

    @property
    def parameters(self) -> int:
        return self.linear + self.experts + self.embedding + self.per_layer_embedding + self.norms

    @property
    def generation(self) -> str:
        return self.kind.removesuffix("_text").removesuffix("_unified")

    def parts(self) -> dict[str, int]:
        names = ("linear", "experts", "embedding", "per_layer_embedding", "norms")
        return {name: getattr(self, name) for name in names}


def read_shape(config: dict) -> Shape:
    """From the content of a config.json. Raises ValueError when it is no Gemma that can be reckoned."""
    text = config.get("text_config") or config
    if not isinstance(text, dict):
        raise ValueError(f"a model whose text_config is {text!r}")
    kind = text.get("model_type") or f"{config.get('model_type')}_text"
    if kind not in DEFAULTS:
        raise ValueError(f"a `{config.get('model_type')}` model")
    text = DEFAULTS[kind] | {key: value for key, value in text.items() if value is not None}
    _check_sizes(kind, text)
    try:
        return _shape(kind, text)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"a model whose config.json is damaged ({type(error).__name__}: {error})") from None


def _check_sizes(kind: str, text: dict) -> None:
    """Raises ValueError for what cannot be the size of a part."""
    sizes = [key for key, value in DEFAULTS[kind].items() if type(value) is int]
    for key in (*sizes, *(key for key in MORE if key in text)):
        values = text[key] if key == "intermediate_size" and isinstance(text[key], list) else [text[key]]
        least, most = int(key not in MAY_LACK), MOST_LAYERS if key == "num_hidden_layers" else MOST
        wrong = next((value for value in values if type(value) is not int or not least <= value <= most), None)
        if wrong is not None:
            raise ValueError(f"a model whose {key} is {wrong!r}")


def _shape(kind: str, text: dict) -> Shape:
    layers = tuple(_layers(kind, text))
    hidden, vocabulary, count = text["hidden_size"], text["vocab_size"], len(layers)
    experts = _experts(text)
    blocks = [pair for layer in layers for pair in _adapted(hidden, layer)]
    others = [pair for pair, times in _other_linears(kind, text, count) for _ in range(times)]
    tied = text.get("tie_word_embeddings", True)
    per_layer = text.get("hidden_size_per_layer_input", 0)
    return Shape(
        kind=kind,
        layers=layers,
        hidden=hidden,
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        vocabulary=vocabulary,
        context=text["max_position_embeddings"],
        linear=sum(i * o for i, o in [*blocks, *others]),
        experts=count * experts * 3 * hidden * (text["moe_intermediate_size"] if experts else 0),
        embedding=vocabulary * hidden * (1 if tied else 2),
        per_layer_embedding=text.get("vocab_size_per_layer_input", 0) * per_layer * count,
        norms=_norms(kind, text, layers, experts),
        adapted=sum(i + o for i, o in blocks),
        per_layer_width=per_layer,
        active_experts=text["top_k_experts"] if experts else 0,
        expert_ffn=text["moe_intermediate_size"] if experts else 0,
        capped=bool(text.get("final_logit_softcapping")),
    )


def _layers(kind: str, text: dict) -> Iterator[Layer]:
    count = text["num_hidden_layers"]
    types = text.get("layer_types") or [
        "sliding_attention" if (i + 1) % PATTERN.get(kind, text.get("sliding_window_pattern", 6)) else "full_attention"
        for i in range(count)
    ]
    gemma4 = kind.startswith("gemma4")
    overrides = {int(key): own for key, own in (text.get("per_layer_config") or {}).items()}  # transformers writes "05"
    first_shared = count - text.get("num_kv_shared_layers", 0)
    for i in range(count):
        full = gemma4 and (types[i] == "full_attention" or i == count - 1)
        head, kv = text["head_dim"], text["num_key_value_heads"]
        if full and not overrides:
            head = text.get("global_head_dim", GLOBAL_HEAD)
            kv = text.get("num_global_key_value_heads", kv) if text["attention_k_eq_v"] else kv
        own = overrides.get(i, {})
        head, kv = own.get("head_dim", head), own.get("num_key_value_heads", kv)
        shared = i >= first_shared
        ffn = text["intermediate_size"]
        ffn = ffn[i] if isinstance(ffn, list) else ffn * (2 if shared and text.get("use_double_wide_mlp") else 1)
        keys = 0 if shared else kv * head
        yield Layer(text["num_attention_heads"] * head, keys, 0 if full and text["attention_k_eq_v"] else keys, ffn)


def _adapted(hidden: int, layer: Layer) -> list[tuple[int, int]]:
    """(in, out) of the linear layers that LoRA goes on: q, k, v, o, gate, up, down."""
    pairs = [
        (hidden, layer.queries),
        (layer.queries, hidden),
        (hidden, layer.ffn),
        (hidden, layer.ffn),
        (layer.ffn, hidden),
    ]
    return pairs + [(hidden, width) for width in (layer.keys, layer.values) if width]


def _other_linears(kind: str, text: dict, count: int) -> list[tuple[tuple[int, int], int]]:
    """((in, out), how often) of linear layers without adapters."""
    hidden, per_layer = text["hidden_size"], text.get("hidden_size_per_layer_input", 0)
    found = []
    if per_layer:
        found += [((hidden, per_layer), 2 * count), ((hidden, per_layer * count), 1)]
    if kind == "gemma3n_text":
        n = text["altup_num_inputs"]
        found += [((hidden, text["laurel_rank"]), 2 * count), ((hidden, n), count), ((n, n * n + n), count)]
        found += [((hidden, hidden), 2 * (n - 1))]
    if _experts(text):
        found += [((hidden, text["num_experts"]), count)]
    return found


def _experts(text: dict) -> int:
    return text["num_experts"] if text.get("enable_moe_block") else 0


def _norms(kind: str, text: dict, layers: tuple[Layer, ...], experts: int) -> int:
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    wide = 2 if kind == "gemma" else 4
    per_layer = text.get("hidden_size_per_layer_input", 0)
    total = hidden + per_layer
    for layer in layers:
        total += wide * hidden
        if kind not in ("gemma", "gemma2"):
            total += layer.queries // heads * (2 if layer.keys else 1)
        total += hidden if per_layer else 0
        total += 3 * hidden if kind == "gemma3n_text" else 0  # laurel, and two of alternating updates
        total += 4 * hidden + experts if experts else 0  # three norms, the router's scale, a scale for each expert
    return total
