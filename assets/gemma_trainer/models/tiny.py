"""Tiny Gemma models and a small tokenizer, made from a config at run time: for the demo and for tests.

Nothing is downloaded. The architectures are the real transformers classes with few and narrow layers; the
tokenizer has every control token of its family, so templates, masks and stop tokens work as with real weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma_trainer.families.catalogue import get_family

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

BASE_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")  # ids 0-4 in every Gemma tokenizer
MAX_POSITIONS = 1024
# One newline, a word, a digit or a punctuation mark with at most one space before it: no token ever holds the
# newline that ends a header together with the first word of an answer.
PIECES = r"\n| ?[\p{L}\p{M}_]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}_]|\s"


def make_tokenizer(
    texts: Iterable[str], family: str = "gemma3", vocab_size: int = 1024, chat_template: str | None = None
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the most frequent pieces of `texts` as tokens; same texts, same tokenizer.

    All control tokens of the family are in it. ids 0-3 are <pad>, <eos>, <bos>, <unk> as in Gemma. As in the
    real ones, Gemma 1 to 3 put <bos> in front when asked for special tokens and Gemma 4 does not. The plain
    `tokenizers.Tokenizer` is its `backend_tokenizer`. `chat_template`: Jinja text, by default the family's
    plain one. Raises ValueError for an unknown family.
    """
    from transformers import PreTrainedTokenizerFast

    known = get_family(family)
    special = [*BASE_TOKENS, *sorted(known.control_tokens - set(BASE_TOKENS))]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_piece_model(texts, special, vocab_size, adds_bos="gemma4" not in known.model_types),
        pad_token=known.pad,
        eos_token=known.eos,
        bos_token=known.bos,
        unk_token="<unk>",
        padding_side="left",
        extra_special_tokens=special[4:],
        model_max_length=MAX_POSITIONS,
    )
    tokenizer.chat_template = chat_template or known.plain_template
    return tokenizer


def _piece_model(texts: Iterable[str], special: list[str], vocab_size: int, adds_bos: bool) -> Tokenizer:
    """Control tokens, 256 bytes, then whole pieces by frequency. Words outside the vocabulary become bytes.

    Without merges every frequent word is one token already in a vocabulary of a few hundred entries; BPE
    would spend half of them on fragments.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), byte_level])
    counts = Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))
    pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
    tokens = dict.fromkeys([*special, *sorted(byte_level.alphabet()), "user", "model", "system", *pieces])
    vocab = {token: i for i, token in enumerate([*tokens][: max(vocab_size, len(special) + 256)])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocab["<bos>"])]
        )
    return tokenizer


_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


def _text(vocab: int, **sizes: Any) -> dict[str, Any]:
    """Fields that all kinds share."""
    layers = sizes.get("num_hidden_layers", 4)
    return {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 32,
        "max_position_embeddings": MAX_POSITIONS,
        "layer_types": (["sliding_attention", "full_attention"] * layers)[:layers],
        **_IDS,
        **sizes,
    }


def _gemma3_text(vocab: int, **sizes: Any) -> PretrainedConfig:
    from transformers import Gemma3TextConfig

    sizes = _text(vocab, **sizes)
    return Gemma3TextConfig(**{"query_pre_attn_scalar": sizes["head_dim"], **sizes})


def _gemma4_text(vocab: int, **sizes: Any) -> PretrainedConfig:
    """E2B in small: per-layer embeddings, the last two layers read the keys and values of earlier ones."""
    from transformers import Gemma4TextConfig

    own = {
        "vocab_size_per_layer_input": vocab,
        "hidden_size_per_layer_input": 16,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
    }
    return Gemma4TextConfig(**_text(vocab, **{**own, **sizes}))


def _gemma3(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> PreTrainedModel:
    from transformers import Gemma3ForCausalLM

    return Gemma3ForCausalLM(_gemma3_text(len(tokenizer), **sizes))


def _gemma3_vision(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> PreTrainedModel:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

    token = tokenizer.convert_tokens_to_ids
    vision = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
    )
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=_gemma3_text(len(tokenizer), **sizes),
            vision_config=vision,
            mm_tokens_per_image=4,
            image_token_index=token("<image_soft_token>"),
            boi_token_index=token("<start_of_image>"),
            eoi_token_index=token("<end_of_image>"),
        )
    )


def _gemma3n(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> PreTrainedModel:
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    own = {
        "vocab_size_per_layer_input": len(tokenizer),
        "hidden_size_per_layer_input": 16,
        "num_kv_shared_layers": 2,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
    }
    return Gemma3nForCausalLM(Gemma3nTextConfig(**_text(len(tokenizer), **{**own, **sizes})))


def _gemma4(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> PreTrainedModel:
    from transformers import Gemma4ForCausalLM

    return Gemma4ForCausalLM(_gemma4_text(len(tokenizer), **sizes))


def _gemma4_vision(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> PreTrainedModel:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4VisionConfig

    token = tokenizer.convert_tokens_to_ids
    vision = Gemma4VisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        position_embedding_size=64,
    )
    return Gemma4ForConditionalGeneration(
        Gemma4Config(
            text_config=_gemma4_text(len(tokenizer), **sizes),
            vision_config=vision,
            audio_config=None,
            image_token_id=token("<|image|>"),
            video_token_id=token("<|video|>"),
            audio_token_id=token("<|audio|>"),
            boi_token_id=token("<|image>"),
            eoi_token_id=token("<image|>"),
            boa_token_id=token("<|audio>"),
            eoa_token_index=token("<audio|>"),
        )
    )


KINDS: dict[str, Callable[..., PreTrainedModel]] = {
    "gemma3": _gemma3,
    "gemma3-vision": _gemma3_vision,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "gemma4-vision": _gemma4_vision,
}


def make_model(kind: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0, **sizes: Any) -> PreTrainedModel:
    """A float32 model with random weights that depend on `seed` only.

    `kind`: a key of KINDS; those with "-vision" are conditional-generation models with a small image encoder.
    `sizes` override fields of the text config. Raises KeyError for an unknown kind.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = KINDS[kind](tokenizer, **sizes)
    model.generation_config = _generation_config(tokenizer)
    return model


def _generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Greedy, and stops at <eos> or at the end of the turn."""
    from transformers import GenerationConfig

    ends = {"<end_of_turn>", "<turn|>"} & set(tokenizer.get_vocab())
    return GenerationConfig(**{**_IDS, "eos_token_id": [1, *map(tokenizer.convert_tokens_to_ids, ends)]})


def save_tiny(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: str | Path) -> Path:
    """Write a local model directory that the Auto classes load: config, safetensors, tokenizer, template."""
    directory = Path(directory)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
