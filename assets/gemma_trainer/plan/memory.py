"""How much memory a training run takes at its peak, part by part, from the shape of the model and the settings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from gemma_trainer.plan.activations import activations
from gemma_trainer.plan.size import ModelSize

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
NF4 = 0.516  # bytes a weight: 4 bits and doubly quantised scales
TEXTS = {"sft": 1, "dpo": 2, "rm": 2}  # token sequences a row

# Of trained tokens by words, in train/head.py. Each is there in float32, and where it computes in bfloat16 in that too.
SCORES_AT_A_TIME = 2**26
SCORE = {"float32": 4, "bfloat16": 6}  # bytes
SOFT_CAP = 4  # more where logits are capped
STATES = 3  # for each token: what is scored, and its gradient twice
MASK = 9  # bytes for each two tokens of a packed text: of all layers and of those with a window, and a copy in float32
PLAIN_LOGITS = 12  # bytes a logit without slices: float32 logits, their gradient, and a copy

VERIFIED_TOKENS = 128  # as train.method has it
LOGITS_COMPARED = 4  # of the trained, the saved and the bare model, and what comparing them takes

CUDA_CONTEXT = 0.6 * GIB  # context, cuBLAS workspaces
LIBRARIES = 0.72 * GIB  # Python with torch, transformers, TRL and PEFT in main memory
TOKENIZERS = 14.5  # bytes in main memory for each of tokenizer.json, which is loaded for the rows and for the result


@dataclass(frozen=True)
class Settings:
    """What memory depends on besides the model. `length` is in tokens a text, `micro` in rows a forward pass."""

    method: str = "sft"  # sft, dpo, rm
    mode: str = "lora"  # qlora, lora, full
    dtype: str = "bfloat16"  # of the weights
    autocast: bool = True  # computes in bfloat16, whatever the weights are in
    device: str = "cuda"  # cuda, mps, cpu, tpu
    backend: str = "trl"
    micro: int = 1
    length: int = 2048
    rank: int = 16
    checkpointing: bool = True
    sliced_head: bool = True
    ranks: int = 1  # processes, one a device
    parallel: str = "ddp"  # or fsdp, where there are several
    accumulates: bool = True  # gradients of earlier passes are there during a pass
    packed: bool = False  # several rows a text, kept apart by masks
    precomputed: bool = False  # DPO without a second model: the reference's figures are computed before training

    @property
    def tokens(self) -> int:
        """In one forward pass."""
        return self.micro * TEXTS[self.method] * self.length

    def on(self, devices: int) -> list[Settings]:
        """The same on several devices: a copy on each, or split among them; nothing for one."""
        return [replace(self, ranks=devices, parallel=how) for how in ("ddp", "fsdp")] if devices > 1 else []

    @property
    def computes_in(self) -> str:
        return "bfloat16" if self.autocast else self.dtype

    @property
    def copied(self) -> bool:
        """Whether each of several devices holds all weights."""
        return self.ranks > 1 and self.parallel == "ddp"

    @property
    def sharded(self) -> int:
        """Into how many parts weights and their states are split."""
        return self.ranks if self.parallel == "fsdp" else 1


@dataclass(frozen=True)
class Estimate:
    """Bytes on each device, by part. Not all parts are alive at once: `moments` tells what is, and when."""

    weights: float
    reference: float
    trained: float  # adapter weights, or what full fine-tuning adds to the weights
    optimizer: float
    gradients: float
    activations: float
    head: float
    runtime: float
    moments: dict[str, float]

    @property
    def total(self) -> float:
        """At the peak."""
        return max(self.moments.values())

    @property
    def parts(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "moments"}

    def as_dict(self) -> dict:
        """In GiB: the parts, the moments, and the total of the highest one."""
        rounded = {name: round(size / GIB, 3) for name, size in self.parts.items()}
        moments = {name: round(size / GIB, 3) for name, size in self.moments.items()}
        return {**rounded, "moments": moments, "total": round(self.total / GIB, 3)}


def estimate(model: ModelSize, settings: Settings) -> Estimate:
    states = trainable_parameters(model, settings) * trained_bytes(settings) / settings.sharded
    full = settings.mode == "full"
    parts = {
        "weights": weights(model, settings) / settings.sharded + gathered(model, settings),
        "reference": reference(model, settings) / settings.sharded,
        "trained": (0 if full else states) + cast_copies(model, settings),
        "optimizer": 2 * states,  # AdamW: two means for each weight
        "gradients": states * (2 if settings.copied else 1),  # DDP sums them up in buckets of their own
        "activations": activations(
            model.shape,
            tokens=settings.tokens,
            length=settings.length,
            dtype=settings.computes_in,
            full=full,
            rank=settings.rank,
            checkpointing=settings.checkpointing,
        )
        + masks(settings),
        "head": head(model, settings),
        "runtime": runtime(model, settings),
    }
    return Estimate(**parts, moments=moments(model, settings, parts))


def moments(model: ModelSize, settings: Settings, parts: dict[str, float]) -> dict[str, float]:
    """What is alive when the backward pass begins, when it ends, and when the saved result is reopened and compared."""
    full = settings.mode == "full"
    lasting = parts["weights"] + parts["reference"] + parts["optimizer"] + parts["runtime"]
    kept = parts["gradients"] if settings.accumulates else 0
    tied = trained_bytes(settings) * model.shape.embedding if full else 0  # its gradient as input, before it is added
    again = parts["weights"] if full and settings.device != "cuda" else 0 if full else parts["trained"]
    words = 1 if settings.method == "rm" else model.shape.vocabulary
    # The C library keeps what small blocks took; the allocators of GPUs give it to the next tensors.
    held = parts["activations"] if settings.device == "cpu" else 0
    logits = LOGITS_COMPARED * min(settings.length, VERIFIED_TOKENS) * words * 4
    return {
        "backward": lasting + parts["trained"] + kept + parts["activations"] + parts["head"],
        "update": lasting + parts["trained"] + parts["gradients"] + tied,
        "verification": lasting + parts["trained"] + again + held + logits,
    }


def weights(model: ModelSize, settings: Settings) -> float:
    """Bytes of the frozen or trained model. In transformers' 4-bit mode stacked experts keep 16 bits; in Unsloth's they do
    not, but what reads images and sound does."""
    shape, size = model.shape, BYTES[settings.dtype]
    encoders = model.encoders or 0
    if settings.mode != "qlora":
        return size * (shape.parameters + encoders)
    small = shape.linear + (shape.experts if settings.backend == "unsloth" else encoders)
    return NF4 * small + size * (shape.parameters + encoders - small)


def trainable_parameters(model: ModelSize, settings: Settings) -> int:
    score = model.shape.hidden if settings.method == "rm" else 0
    if settings.mode == "full":
        return model.shape.parameters + score
    return settings.rank * model.shape.adapted + score


def trained_bytes(settings: Settings) -> int:
    """Of each trained weight. LoRA is float32 on 16-bit weights and 16-bit on 4-bit ones (TRL), always float32 in Unsloth
    on a GPU."""
    if settings.mode == "full":
        return BYTES[settings.dtype]
    return 2 if settings.mode == "qlora" and (settings.backend, settings.device) != ("unsloth", "cuda") else 4


def cast_copies(model: ModelSize, settings: Settings) -> float:
    """Full fine-tuning of float32 weights that computes in bfloat16 keeps the linear layers in both; FSDP
    casts what it gathers."""
    mixed = settings.mode == "full" and settings.dtype == "float32" and settings.autocast
    return 2 * model.shape.linear if mixed and settings.sharded == 1 else 0


def reference(model: ModelSize, settings: Settings) -> float:
    """What DPO compares with: a second model in full fine-tuning, the adapter switched off otherwise."""
    return (
        weights(model, settings)
        if settings.method == "dpo" and settings.mode == "full" and not settings.precomputed
        else 0
    )


def masks(settings: Settings) -> float:
    """What tells which token of a packed text may see which, as measured beside texts of one row."""
    return MASK * settings.micro * settings.length**2 if settings.packed else 0


def head(model: ModelSize, settings: Settings) -> float:
    """The vocabulary head and its loss. A reward model has none."""
    shape, tokens, dtype = model.shape, settings.tokens, settings.computes_in
    if settings.method == "rm":
        return 0
    if not settings.sliced_head:
        return PLAIN_LOGITS * tokens * shape.vocabulary
    scores = min(tokens * shape.vocabulary, max(SCORES_AT_A_TIME, shape.vocabulary))
    slices = (SCORE[dtype] + (SOFT_CAP if shape.capped else 0)) * scores
    # Of a trained head: its gradient, which is summed apart, and a copy of it in the format that it computes in.
    each = BYTES[settings.dtype] + (0 if dtype == settings.dtype else BYTES[dtype])
    trained = each * shape.vocabulary * shape.hidden if settings.mode == "full" else 0
    return slices + STATES * BYTES[dtype] * tokens * shape.hidden + trained


def gathered(model: ModelSize, settings: Settings) -> float:
    """What FSDP holds whole while it computes: the embedding, and two blocks."""
    if settings.sharded == 1:
        return 0
    shape, size = model.shape, BYTES[settings.dtype]
    block = shape.linear + shape.experts
    share = weights(model, settings) * block / shape.parameters
    return size * shape.embedding + 2 * share / len(shape.layers)


def runtime(model: ModelSize, settings: Settings) -> float:
    """What is there before the model: on CPUs and Apple GPUs, libraries and tokenizers share the memory."""
    return CUDA_CONTEXT if settings.device in ("cuda", "tpu") else LIBRARIES + TOKENIZERS * model.tokenizer
