"""Everything a run will do, resolved before anything heavy is imported."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from gemma_trainer.plan.hardware import Hardware
from gemma_trainer.plan.packages import unsloth_install, unsloth_lack
from gemma_trainer.rows.problems import DEPENDENCY_MISSING, UNSUPPORTED, Failure

MODES = {"cuda": ("qlora", "lora"), "mps": ("lora",), "cpu": ("lora", "qlora"), "tpu": ("lora",)}  # by preference
WARMUP = 0.05  # share of the steps
CHECKPOINTS = 10  # per run


@dataclass
class Plan:
    """`epochs` passes over `data.train_rows` rows make `steps` optimizer steps of `effective_batch_size` rows, which are
    `micro_batch_size` x `accumulation_steps` in each of `processes`. With `packing` these are sequences of several rows."""

    method: str
    model: str
    adapter: dict | None  # what training starts from on top of the model: path, hash, rank, alpha
    family: str
    backend: str
    mode: str
    device: str
    dtype: str
    why: dict[str, str]  # one line for each choice that the user did not make
    lora: dict | None
    learning_rate: float
    epochs: float
    effective_batch_size: int
    micro_batch_size: int
    accumulation_steps: int
    processes: int
    parallel: str  # "ddp": each process holds the model; "fsdp": they split it
    steps: int
    warmup_steps: int
    save_steps: int
    gradient_checkpointing: bool
    autocast: bool  # computes in bfloat16, whatever the dtype of the weights
    max_length: int
    packing: bool
    overlong: str
    loss_on: str
    objective: dict  # what only this method sets: the loss and its parameters
    seed: int
    template_hash: str | None
    template_origin: str
    data: dict
    hardware: dict
    memory: dict  # of the device: what is predicted and whether it fits, see plan/fit.py
    launch: str
    on_each_node: str | None  # what to run on every one of several nodes

    def as_dict(self) -> dict:
        return asdict(self)

    def summary(self) -> str:
        lora = f", rank {self.lora['rank']}, alpha {self.lora['alpha']}" if self.lora else ""
        unit = "packed sequences" if self.packing else "rows"
        rows = [
            ("model", f"{self.model} ({self.family}, template {self.template_origin})"),
            *([("adapter", self.adapter["path"])] if self.adapter else []),
            ("machine", str(self.hardware["summary"])),
            ("engine", f"{self.backend}, {self.mode}{lora}, {self.dtype} on {self.device}{self._split}"),
            ("memory", f"{memory_line(self.memory)}; a run may take {self.memory['budget_gib']:.1f}"),
            ("data", _data_line(self.data)),
            (
                "batch",
                f"{self.micro_batch_size} {unit} x {self.accumulation_steps} accumulation x {self.processes} processes = "
                f"{self.effective_batch_size} {unit} a step",
            ),
            (
                "steps",
                f"{self.steps} ({self.epochs:g} epochs), warm-up {self.warmup_steps}, checkpoint every {self.save_steps}",
            ),
            ("rate", f"{self.learning_rate:g}, cosine"),
            *((name.replace("_", " "), str(value)) for name, value in self.objective.items() if value),
            ("length", f"at most {self.max_length} tokens, longer rows: {self.overlong}, loss on {self.loss_on} turns"),
            *((f"why {key}", reason) for key, reason in self.why.items()),
            ("launch", self.launch),
            *([("on each node", self.on_each_node)] if self.on_each_node else []),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    @property
    def _split(self) -> str:
        return f", {self.processes} processes ({self.parallel})" if self.processes > 1 else ""


def memory_line(memory: dict) -> str:
    """The peak and its parts, largest first."""
    gib = memory["memory_gib"]
    moment = max(gib["moments"], key=gib["moments"].get)
    parts = sorted(((size, name) for name, size in gib.items() if name not in ("moments", "total")), reverse=True)
    each = ", ".join(f"{name} {size:.1f}" for size, name in parts if size >= 0.05)
    return f"{gib['total']:.1f} GiB at the peak ({moment}): {each}"


def _data_line(data: dict) -> str:
    line = f"{data['train_rows']} rows to train on, {data['eval_rows']} held out, {data['train_tokens']} tokens, "
    line += f"{data['trained_tokens']} of them trained, longest row {data['longest']}"
    return line + (f", answers {answer_lengths(data)}" if "answer_tokens" in data else "")


def answer_lengths(data: dict) -> str:
    """How long the answers of preferences are on average."""
    chosen, rejected = data["answer_tokens"].values()
    return f"of {chosen:.1f} tokens chosen, of {rejected:.1f} rejected"


def choose_backend(
    wish: str, hardware: Hardware, method: str = "sft", mode: str | None = None, dropout: float = 0.0
) -> tuple[str, str]:
    """(engine, why). The one place where an engine is chosen. Raises Failure: exit 4 where Unsloth is asked for and not
    ready, 5 where there is no engine."""
    if hardware.kind == "tpu":
        text = "no script of the pack trains on a TPU"
        raise Failure(UNSUPPORTED, "hardware-unsupported", text, fix="Use an NVIDIA GPU, an Apple GPU or a CPU.")
    if wish == "unsloth":
        _require_unsloth(hardware, method, mode, dropout)
    if wish != "auto":
        return wish, "asked for"
    if hardware.kind != "cuda":
        return "trl", {"mps": "the path for Apple GPUs", "cpu": "the path for machines without a GPU"}[hardware.kind]
    unfit = _not_for_unsloth(hardware, method, mode, dropout)
    unfit = unfit or ("Unsloth is for QLoRA first" if mode == "lora" else None)
    if unfit:
        return "trl", f"runs LoRA, QLoRA and full fine-tuning; {unfit}"
    lack = unsloth_lack()
    if lack:
        return (
            "trl",
            f"runs LoRA, QLoRA and full fine-tuning on one NVIDIA GPU; Unsloth would take less memory, but {lack}",
        )
    return "unsloth", "takes the least time and memory for QLoRA on one NVIDIA GPU"


def _require_unsloth(hardware: Hardware, method: str, mode: str | None, dropout: float) -> None:
    """Raises Failure where Unsloth cannot do what is asked for."""
    unfit = _not_for_unsloth(hardware, method, mode, dropout)
    if unfit:
        raise Failure(UNSUPPORTED, "backend-unsupported", unfit, fix="Pass --backend trl.")
    lack = unsloth_lack()
    if lack:
        install = unsloth_install()
        raise Failure(DEPENDENCY_MISSING, "dependency-missing", f"--backend unsloth: {lack}: {install}", fix=install)


def _not_for_unsloth(hardware: Hardware, method: str, mode: str | None, dropout: float) -> str | None:
    """Why Unsloth is out of the question, wherever it is installed."""
    if hardware.devices > 1:
        return f"the Unsloth engine uses one GPU, and there are {hardware.devices}"
    if hardware.kind == "mps":
        return "the Unsloth engine needs an NVIDIA GPU or a CPU"
    if method == "rm":
        return "Unsloth loads no reward models"
    if mode == "full":
        return "the Unsloth engine trains adapters"
    return "Unsloth's LoRA layers have no dropout" if dropout else None


def choose_mode(wish: str | None, hardware: Hardware) -> tuple[str, str]:
    """(mode, why): "qlora", "lora" or "full". What does not fit in it is tried in the others of MODES."""
    if wish:
        return wish, "asked for"
    if hardware.kind == "cuda":
        return MODES["cuda"][0], "4-bit weights leave the most memory for length and batch"
    return MODES[hardware.kind][0], "4-bit saves time only on NVIDIA GPUs"


def choose_dtype(wish: str | None, mode: str, hardware: Hardware) -> tuple[str, str]:
    """(dtype of weights and computation, why): "bfloat16" or "float32". float16 overflows in Gemma, so it is not offered.

    Raises Failure (exit 5) when bfloat16 is asked of a GPU that has none.
    """
    if wish == "bfloat16" and hardware.kind != "cpu" and not hardware.bfloat16:
        raise Failure(
            UNSUPPORTED, "dtype-unsupported", "this GPU does not compute in bfloat16", fix="Pass --dtype float32."
        )
    if wish:
        return wish, "asked for"
    if mode == "full":
        return "float32", "small updates are lost in bfloat16 weights"
    if hardware.bfloat16:
        return "bfloat16", "half the memory of float32, and the GPU computes in it"
    if hardware.kind == "cpu":
        return "float32", "exact everywhere; --dtype bfloat16 is faster on CPUs that compute in it"
    return "float32", "this GPU has no bfloat16, and Gemma overflows in float16"


def count_steps(rows: int, micro: int, accumulation: int, epochs: float, max_steps: int | None) -> int:
    """Optimizer steps; the last batch of an epoch may be smaller."""
    if max_steps:
        return max_steps
    return max(1, math.ceil(epochs * math.ceil(math.ceil(rows / micro) / accumulation)))
