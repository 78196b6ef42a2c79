"""The Gemma checkpoints that Google released and that can be tuned here.

Where figures come from: Gemma 1 to 3n, the fields of the released config.json files as the model pages and transformers'
conversion scripts give them; Gemma 4, configs in test fixtures of several projects that agree (the sizes that follow from
them, 4.6, 7.5, 11.9, 25.2 and 30.7 billion, are those of its model card). Encoders: Gemma 3's from its config (SigLIP,
27 layers of 1152); see the constants. None is "not known".
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cached_property

from gemma_trainer.families.shape import Shape, read_shape

TERMS, APACHE = "Gemma Terms of Use", "Apache-2.0"
TEXT, IMAGE, VIDEO, AUDIO = "text", "image", "video", "audio"


@dataclass(frozen=True)
class Checkpoint:
    """One size of one generation. `encoders`: parameters of what reads images and sound, loaded but not trained."""

    name: str
    family: str
    base: str | None  # hub id
    tuned: str | None  # hub id of the instruction-tuned one
    config: dict = field(repr=False)  # what the config.json says of the language model
    modalities: tuple[str, ...]
    licence: str
    gated: bool | None  # the hub asks for a login and consent
    encoders: int | None = 0
    older: tuple[str, ...] = ()  # hub ids of earlier releases of the same size

    @cached_property
    def shape(self) -> Shape:
        return read_shape(self.config)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(name for name in (self.tuned, self.base, *self.older) if name)

    def as_dict(self) -> dict:
        shape = self.shape
        return {
            "name": self.name,
            "family": self.family,
            "base": self.base,
            "tuned": self.tuned,
            "layers": len(shape.layers),
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "ffn": max(layer.ffn for layer in shape.layers),
            "vocabulary": shape.vocabulary,
            "context": shape.context,
            "modalities": list(self.modalities),
            "licence": self.licence,
            "gated": self.gated,
            "parameters": {**shape.parts(), "encoders": self.encoders},
        }


def _config(kind: str, layers: int, hidden: int, ffn: int, heads: int, kv: int, context: int, **more) -> dict:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": kv, "max_position_embeddings": context}
    return {"model_type": kind, **sizes, **more}


def _gemma1(name: str, config: dict) -> Checkpoint:
    size = name.rsplit("-", 1)[1]
    return Checkpoint(
        name,
        "gemma1",
        f"google/{name}",
        f"google/{name}-it",
        config,
        (TEXT,),
        TERMS,
        True,
        older=(f"google/gemma-1.1-{size}-it",),
    )


def _gemma2(name: str, config: dict) -> Checkpoint:
    return Checkpoint(name, "gemma2", f"google/{name}", f"google/{name}-it", config, (TEXT,), TERMS, True)


SIGLIP = 416_866_032  # Gemma 3's vision tower, from its config
MOBILENET, EARS_3N = 300_000_000, 681_348_640  # Gemma 3n: its announcement; transformers' default config
# Gemma 4: transformers' default configs (the model cards say 150, 300 and 550 million), and for the large ones a SigLIP-sized
# config of test fixtures. The 12B has no encoders, only matrices that bring patches and sound to its width.
SMALL_EYES, EARS, LARGE_EYES, PATCHES = 167_364_608, 304_824_608, 569_548_080, 52_379_904


def _gemma3(name: str, vocabulary: int, config: dict, sees: bool, base: str = "-pt") -> Checkpoint:
    config |= {"vocab_size": vocabulary}
    # The tower, and the projector: a norm and a matrix from its width to the language model's.
    encoders = SIGLIP + 1152 * (config["hidden_size"] + 1) if sees else 0
    modalities = (TEXT, IMAGE) if sees else (TEXT,)
    return Checkpoint(
        name, "gemma3", f"google/{name}{base}", f"google/{name}-it", config, modalities, TERMS, True, encoders
    )


def _gemma3n(name: str, config: dict) -> Checkpoint:
    modalities = (TEXT, IMAGE, VIDEO, AUDIO)
    return Checkpoint(
        name,
        "gemma3n",
        f"google/{name}",
        f"google/{name}-it",
        config,
        modalities,
        TERMS,
        True,
        encoders=MOBILENET + EARS_3N,
    )


def _gemma4(name: str, config: dict, encoders: int, hears: bool) -> Checkpoint:
    family = "gemma4" if name[8] == "E" else "gemma4-large"
    modalities = (TEXT, IMAGE, VIDEO, AUDIO) if hears else (TEXT, IMAGE, VIDEO)
    return Checkpoint(name, family, f"google/{name}", f"google/{name}-it", config, modalities, APACHE, None, encoders)


def _pattern(layers: int, every: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]


_V3, _K32, _K128, _K256 = 262_144, 32_768, 131_072, 262_144
_CAP = {"final_logit_softcapping": 30.0}
_WIDE = {"vocab_size": _V3, **_CAP, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True}

CHECKPOINTS: tuple[Checkpoint, ...] = (
    _gemma1("gemma-2b", _config("gemma", 18, 2048, 16_384, 8, 1, 8192)),
    _gemma1("gemma-7b", _config("gemma", 28, 3072, 24_576, 16, 16, 8192)),
    _gemma2("gemma-2-2b", _config("gemma2", 26, 2304, 9216, 8, 4, 8192)),
    _gemma2("gemma-2-9b", _config("gemma2", 42, 3584, 14_336, 16, 8, 8192)),
    _gemma2("gemma-2-27b", _config("gemma2", 46, 4608, 36_864, 32, 16, 8192, head_dim=128)),
    _gemma3("gemma-3-270m", _V3, _config("gemma3_text", 18, 640, 2048, 4, 1, _K32), False, base=""),
    _gemma3("gemma-3-1b", _V3, _config("gemma3_text", 26, 1152, 6912, 4, 1, _K32), False),
    _gemma3("gemma-3-4b", 262_208, _config("gemma3_text", 34, 2560, 10_240, 8, 4, _K128), True),
    _gemma3("gemma-3-12b", 262_208, _config("gemma3_text", 48, 3840, 15_360, 16, 8, _K128), True),
    _gemma3("gemma-3-27b", 262_208, _config("gemma3_text", 62, 5376, 21_504, 32, 16, _K128, head_dim=128), True),
    _gemma3n("gemma-3n-E2B", _config("gemma3n_text", 30, 2048, 8192, 8, 2, _K32, num_kv_shared_layers=10)),
    _gemma3n("gemma-3n-E4B", _config("gemma3n_text", 35, 2048, 16_384, 8, 2, _K32, num_kv_shared_layers=15)),
    Checkpoint(
        "functiongemma-270m", "functiongemma", None, "google/functiongemma-270m-it",
        _config("gemma3_text", 18, 640, 2048, 4, 1, _K32, vocab_size=_V3), (TEXT,), TERMS, True,
    ),
    _gemma4(
        "gemma-4-E2B",
        _config("gemma4_text", 35, 1536, 6144, 8, 1, _K128, num_kv_shared_layers=20, use_double_wide_mlp=True,
                layer_types=_pattern(35, 5), **_CAP),
        encoders=SMALL_EYES + EARS, hears=True,
    ),
    _gemma4(
        "gemma-4-E4B",
        _config("gemma4_text", 42, 2560, 10_240, 8, 2, _K128, num_kv_shared_layers=18, layer_types=_pattern(42, 6), **_CAP),
        encoders=SMALL_EYES + EARS, hears=True,
    ),
    _gemma4(
        "gemma-4-12B", _config("gemma4_unified_text", 48, 3840, 15_360, 16, 8, _K256, num_global_key_value_heads=1, **_WIDE),
        encoders=PATCHES, hears=True,
    ),
    _gemma4(
        "gemma-4-26B-A4B",
        _config("gemma4_text", 30, 2816, 2112, 16, 8, _K256, num_global_key_value_heads=2, enable_moe_block=True,
                num_experts=128, top_k_experts=8, moe_intermediate_size=704, **_WIDE),
        encoders=LARGE_EYES, hears=False,
    ),
    _gemma4(
        "gemma-4-31B", _config("gemma4_text", 60, 5376, 21_504, 32, 16, _K256, num_global_key_value_heads=4, **_WIDE),
        encoders=LARGE_EYES, hears=False,
    ),
)  # fmt: skip


def find_checkpoint(reference: str) -> Checkpoint | None:
    """The checkpoint of a hub id, with any owner (`unsloth/gemma-3-4b-it`) or none, or of its size's name."""
    key = reference.rstrip("/").rsplit("/", 1)[-1].lower()
    return _by_name().get(key)


def nearest(reference: str) -> str | None:
    """The hub id that was probably meant."""
    key = reference.rsplit("/", 1)[-1].lower()
    near = difflib.get_close_matches(key, _by_name(), n=1, cutoff=0.6)
    return _by_name()[near[0]].ids[0] if near else None


def _by_name() -> dict[str, Checkpoint]:
    return {name.rsplit("/", 1)[-1].lower(): found for found in CHECKPOINTS for name in (found.name, *found.ids)}
