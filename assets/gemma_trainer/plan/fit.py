"""Chooses how a run fits: mode, number format, micro batch, devices; and what would make it fit when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from gemma_trainer.families.checkpoints import CHECKPOINTS
from gemma_trainer.plan import plan as planning
from gemma_trainer.plan.emulate import smallest_card
from gemma_trainer.plan.hardware import Hardware
from gemma_trainer.plan.memory import GIB, TEXTS, Estimate, Settings, estimate, head
from gemma_trainer.plan.size import ModelSize, released
from gemma_trainer.rows.problems import UNSUPPORTED, USAGE, Failure, Problem

# The rest is for what else runs, for memory that the allocator cannot use, and for what the estimate misses.
USABLE = {"cuda": 0.92, "mps": 0.75, "cpu": 0.85, "tpu": 0.9}
MICRO_TOKENS = {"cuda": 8192, "mps": 4096, "cpu": 2048, "tpu": 8192}  # in a pass; more makes steps no faster
KEPT = GIB  # of activations on a CPU, below which it is faster to keep them than to compute them twice
MAIN_MEMORY = (16, 32, 64, 128, 256, 512, 1024)  # GiB
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)


@dataclass(frozen=True)
class Wishes:
    """What the user asked for; None leaves the choice open."""

    method: str = "sft"
    backend: str = "trl"  # is chosen before
    mode: str | None = None
    dtype: str | None = None
    micro: int | None = None
    effective: int = 16
    length: int = 2048
    rank: int = 16
    packed: bool = False
    precomputed: bool = False
    parallel: str | None = None  # how several devices share the model
    continues: bool = False  # trains an adapter further, whose rank and base model are given


@dataclass(frozen=True)
class Way:
    """A change that makes a run fit, with what it costs and the GiB it would take."""

    change: str
    cost: str
    gib: float

    def as_dict(self) -> dict:
        return {"change": self.change, "cost": self.cost, "gib": round(self.gib, 1)}

    def __str__(self) -> str:
        return f"{self.change}: {self.gib:.1f} GiB ({self.cost})"


@dataclass(frozen=True)
class Fit:
    """`budget` is in bytes a device, `longest` the tokens a text that would still fit, 0 for none."""

    model: ModelSize
    settings: Settings
    estimate: Estimate
    budget: float
    effective: int
    longest: int
    why: dict[str, str]
    hardware: Hardware
    wishes: Wishes
    ways: list[Way] = field(default_factory=list)
    modes: frozenset[str] = frozenset()  # that were tried

    @property
    def fits(self) -> bool:
        return self.estimate.total <= self.budget

    def memory(self) -> dict:
        """What a plan says of a device's memory, in GiB."""
        return {
            "fits": self.fits,
            "budget_gib": round(self.budget / GIB, 2),
            "memory_gib": self.estimate.as_dict(),
            "longest": self.longest,
            "ways": [way.as_dict() for way in self.ways],
        }

    def as_dict(self) -> dict:
        return {
            **self.memory(),
            "mode": self.settings.mode,
            "dtype": self.settings.dtype,
            "micro_batch_size": self.settings.micro,
            "accumulation_steps": max(1, self.effective // self.settings.micro // self.settings.ranks),
            "effective_batch_size": self.effective,
            "max_length": self.settings.length,
            "gradient_checkpointing": self.settings.checkpointing,
            "devices": self.settings.ranks,
            "parallel": self.settings.parallel,
            "why": self.why,
        }


def budget_of(hardware: Hardware) -> float:
    """Bytes of each device that a run may take."""
    return USABLE[hardware.kind] * hardware.device_gib * GIB


def fit(model: ModelSize, hardware: Hardware, wishes: Wishes, devices: int = 1) -> Fit:
    """The first mode and number format that fit on `devices` devices, with the largest useful micro batch; else the
    smallest, with ways to fit. Raises Failure (exit 2) when a wished micro batch does not divide the batch."""
    _check_batch(wishes, devices)
    budget = budget_of(hardware)
    tried = list(_candidates(model, hardware, wishes, devices))
    settings = next((each for each in tried if _total(model, each) <= budget), None) or min(
        tried, key=lambda each: _total(model, each)
    )
    settings = _enlarged(model, settings, wishes, hardware, budget)
    found = Fit(
        model=model,
        settings=settings,
        estimate=estimate(model, settings),
        budget=budget,
        effective=wishes.effective,
        longest=longest(model, settings, budget),
        why=_reasons(model, settings, tried[0], hardware, wishes),
        hardware=hardware,
        wishes=wishes,
        modes=frozenset(each.mode for each in tried),
    )
    return found if found.fits else replace(found, ways=ways_to_fit(found, hardware, wishes))


def _check_batch(wishes: Wishes, devices: int) -> None:
    if wishes.micro and wishes.effective % (wishes.micro * devices):
        text = f"--micro-batch-size {wishes.micro} does not divide --effective-batch-size {wishes.effective}"
        text += f" on {devices} devices" if devices > 1 else ""
        raise Failure(USAGE, "usage", text, fix=f"Use a divisor of {wishes.effective // devices or 1}.")


def require_fit(found: Fit) -> None:
    """For a run that is about to start. Raises Failure (exit 5) that names the ways to fit."""
    if not found.fits:
        problem = misfit(found)
        raise Failure(UNSUPPORTED, problem.code, problem.message, fix=problem.fix)


def misfit(found: Fit) -> Problem:
    """Why the run that is asked for does not fit, and the cheapest ways that make it."""
    settings, need, have = found.settings, found.estimate.total / GIB, found.budget / GIB
    mode = f"even in {settings.mode}, the smallest mode," if len(found.modes) > 1 else f"in {settings.mode}"
    text = f"{found.model.name} {mode} at {settings.length} tokens takes {need:.1f} GiB, and a run may take {have:.1f}"
    return Problem("does-not-fit", text, fix="; or ".join(map(str, found.ways)) or None)


def settings_for(model: ModelSize, hardware: Hardware, wishes: Wishes, mode: str, dtype: str | None = None) -> Settings:
    """One row a pass on one device."""
    dtype, _ = planning.choose_dtype(dtype or wishes.dtype, mode, hardware)
    micro = wishes.micro or 1
    settings = Settings(
        method=wishes.method,
        backend=wishes.backend,
        mode=mode,
        dtype=dtype,
        autocast=dtype == "bfloat16" or (hardware.kind == "cuda" and hardware.bfloat16),
        device=hardware.kind,
        micro=micro,
        length=wishes.length,
        rank=wishes.rank,
        accumulates=micro < wishes.effective,
        packed=wishes.packed,
        precomputed=wishes.precomputed,
    )
    return replace(settings, checkpointing=hardware.kind != "cpu" or _activations(model, settings, False) > KEPT)


def _activations(model: ModelSize, settings: Settings, checkpointing: bool) -> float:
    return estimate(model, replace(settings, checkpointing=checkpointing)).activations


def longest(model: ModelSize, settings: Settings, budget: float) -> int:
    """Tokens of the longest text that fits one row at a time, in steps of 256 up to the model's context."""
    low, high = 0, model.shape.context // 256
    while low < high:
        middle = (low + high + 1) // 2
        trial = replace(settings, micro=1, length=256 * middle, checkpointing=True)
        low, high = (middle, high) if _total(model, trial) <= budget else (low, middle - 1)
    return 256 * low


def _total(model: ModelSize, settings: Settings) -> float:
    return estimate(model, settings).total


def _candidates(model: ModelSize, hardware: Hardware, wishes: Wishes, devices: int) -> Iterator[Settings]:
    """By preference. On a CPU float32 comes first, then half of it; several devices copy the model before they split it."""
    for mode in (wishes.mode,) if wishes.mode else planning.MODES[hardware.kind]:
        formats = (wishes.dtype,) if wishes.dtype or hardware.kind != "cpu" or mode == "full" else (None, "bfloat16")
        for dtype in formats:
            settings = settings_for(model, hardware, wishes, mode, dtype)
            ways = [each for each in settings.on(devices) if wishes.parallel in (None, each.parallel)]
            yield from ways or [settings]


def _enlarged(model: ModelSize, settings: Settings, wishes: Wishes, hardware: Hardware, budget: float) -> Settings:
    """With the largest micro batch that divides a device's share of the batch, fits, and still makes steps faster."""
    if wishes.micro:
        return settings
    for micro in _sizes(settings, wishes, hardware):
        trial = settings_for(model, hardware, replace(wishes, micro=micro), settings.mode, settings.dtype)
        trial = _on_devices(settings, trial)
        if _total(model, trial) <= budget:
            return trial
    return settings


def _sizes(settings: Settings, wishes: Wishes, hardware: Hardware) -> list[int]:
    """Micro batches that are worth trying, the largest first."""
    share = max(1, wishes.effective // settings.ranks)
    most = MICRO_TOKENS[hardware.kind] // (TEXTS[wishes.method] * max(wishes.length, 1))
    return [n for n in range(share, 0, -1) if share % n == 0 and n <= max(1, most)]


def _reasons(
    model: ModelSize, settings: Settings, first: Settings, hardware: Hardware, wishes: Wishes
) -> dict[str, str]:
    """A line for each choice."""
    _, mode = planning.choose_mode(wishes.mode, hardware)
    preferred, dtype = planning.choose_dtype(wishes.dtype, settings.mode, hardware)
    if settings.mode != first.mode:
        mode = f"{first.mode} in {first.dtype} would take {_total(model, first) / GIB:.1f} GiB"
    if settings.dtype != preferred:
        plain = _on_devices(settings, settings_for(model, hardware, wishes, settings.mode))
        dtype = f"{settings.mode} in {preferred} would take {_total(model, plain) / GIB:.1f} GiB"
    return {
        "mode": mode,
        "dtype": dtype,
        "batch": _why_batch(model, settings, hardware, wishes),
        "checkpointing": _why_checkpointing(model, settings),
        **({} if settings.method == "rm" else {"logits": _why_logits(model, settings)}),
        "length": f"texts of at most {wishes.length} tokens; the model was made for {model.shape.context}",
        **({"parallel": _why_parallel(model, settings)} if settings.ranks > 1 else {}),
        **(
            {"experts": "4-bit mode of transformers leaves experts in 16 bits"}
            if model.shape.experts and settings.mode == "qlora" and settings.backend == "trl"
            else {}
        ),
    }


def _why_batch(model: ModelSize, settings: Settings, hardware: Hardware, wishes: Wishes) -> str:
    if wishes.micro:
        return "asked for"
    larger = [n for n in _sizes(settings, wishes, hardware) if n > settings.micro]
    if settings.micro * settings.ranks == wishes.effective:
        return f"the whole batch in one pass, of {settings.tokens} tokens"
    if not larger:
        return f"{settings.tokens} tokens a pass; more would be no faster"
    trial = settings_for(model, hardware, replace(wishes, micro=larger[-1]), settings.mode, settings.dtype)
    need = _total(model, _on_devices(settings, trial)) / GIB
    return f"{settings.tokens} tokens a pass; {larger[-1]} rows would take {need:.1f} GiB"


def _why_checkpointing(model: ModelSize, settings: Settings) -> str:
    kept, again = (_activations(model, settings, each) / GIB for each in (False, True))
    if settings.checkpointing:
        return f"activations are computed twice: {again:.1f} GiB instead of {kept:.1f}"
    return f"activations are kept, which is faster: {kept:.1f} GiB"


def _why_logits(model: ModelSize, settings: Settings) -> str:
    if settings.backend == "unsloth":
        return "never of all tokens at once: Unsloth's own head"
    logits = replace(settings, mode="lora")  # without the gradient of a trained head
    sliced, full = (head(model, replace(logits, sliced_head=each)) / GIB for each in (True, False))
    return f"of trained tokens alone, some at a time: {sliced:.1f} GiB instead of {full:.1f}"


def _why_parallel(model: ModelSize, settings: Settings) -> str:
    if settings.parallel == "ddp":
        return "a copy of the model fits on each device, which is fastest"
    whole = _total(model, replace(settings, parallel="ddp")) / GIB
    return f"a whole copy would take {whole:.1f} GiB on each device, so weights are split"


@dataclass(frozen=True)
class _Lever:
    """One wish to change, and the flag that does."""

    wish: str
    value: object
    flag: str
    cost: str


def ways_to_fit(found: Fit, hardware: Hardware, wishes: Wishes, count: int = 3) -> list[Way]:
    """The cheapest changes that fit: one lever, else two or three together; then a smaller model and a larger card."""
    now = replace(wishes, mode=found.settings.mode, dtype=found.settings.dtype)
    levers = list(_levers(now, hardware, found.longest))
    done: list[set[str]] = []  # levers by which it fits; with one more it would fit all the more
    ways: list[Way] = []
    for size in (1, 2, 3):
        for chosen in combinations(levers, size):
            flags, fields = {lever.flag for lever in chosen}, {lever.wish for lever in chosen}
            enough = "length" in fields and _lengths(done) > 1
            if len(fields) < size or enough or any(known <= flags for known in done):
                continue
            changes = {"mode": found.settings.mode, **{lever.wish: lever.value for lever in chosen}}
            changed = replace(wishes, **changes)
            total = _total(
                found.model, _on_devices(found.settings, settings_for(found.model, hardware, changed, changed.mode))
            )
            if total <= found.budget:
                done.append(flags)
                ways.append(
                    Way(
                        " ".join(lever.flag for lever in chosen), "; ".join(lever.cost for lever in chosen), total / GIB
                    )
                )
    smaller, card = [] if wishes.continues else list(_smaller_models(found)), _larger_device(found)
    others = [*smaller[:1], *([card] if card else []), *smaller[1:]]
    first = max(1, count - 2)
    return [*ways[:first], *others[:2], *ways[first:], *others[2:]][:count]


def ways_down(found: Fit, count: int = 3) -> list[Way]:
    """The cheapest single changes that take less memory than a run of `found`, which ran out of it, was predicted to."""
    settings = found.settings
    now = replace(found.wishes, mode=settings.mode, micro=settings.micro)
    ways: dict[str, Way] = {}
    for lever in _levers(replace(now, dtype=settings.dtype), found.hardware, found.longest):
        changed = replace(now, **{lever.wish: lever.value})
        trial = _on_devices(settings, settings_for(found.model, found.hardware, changed, changed.mode))
        total = _total(found.model, trial)
        if total < found.estimate.total:
            ways.setdefault(lever.wish, Way(lever.flag, lever.cost, total / GIB))  # of lengths, the longest
    return list(ways.values())[:count]


def with_micro(found: Fit, micro: int, why: str) -> Fit:
    """The same with other rows a pass."""
    settings = replace(found.settings, micro=micro, accumulates=True)
    why = {**found.why, "batch": why}
    return replace(found, settings=settings, estimate=estimate(found.model, settings), why=why)


def _on_devices(like: Settings, settings: Settings) -> Settings:
    return replace(settings, ranks=like.ranks, parallel=like.parallel)


def _lengths(done: list[set[str]]) -> int:
    return sum(any(flag.startswith("--max-length") for flag in flags) for flags in done)


def _levers(now: Wishes, hardware: Hardware, longest: int) -> Iterator[_Lever]:
    """What may be changed, cheapest first."""
    if now.micro and now.micro > 1:
        yield _Lever("micro", 1, "--micro-batch-size 1", "same result, slower steps")
    if now.method == "dpo" and now.mode == "full" and not now.precomputed:
        yield _Lever("precomputed", True, "--precompute-ref", "same result, one more pass over the data")
    if now.dtype == "float32" and now.mode != "full" and (hardware.kind == "cpu" or hardware.bfloat16):
        yield _Lever("dtype", "bfloat16", "--dtype bfloat16", "weights are rounder")
    if now.mode == "full":
        yield _Lever("mode", "lora", "--mode lora", "adapters are trained instead of all weights")
    if now.mode != "qlora" and hardware.kind in ("cuda", "cpu"):
        yield _Lever("mode", "qlora", "--mode qlora", "adapters are trained on 4-bit weights")
    for length in sorted({longest, *LENGTHS} - {0}, reverse=True):
        if length < now.length:
            yield _Lever("length", length, f"--max-length {length}", "longer rows are left out")
    if now.mode != "full" and now.rank > 8 and not now.continues:
        yield _Lever("rank", 8, "--lora-rank 8", "less is learned")


def _smaller_models(found: Fit) -> Iterator[Way]:
    """Released models that fit as they are, of the same generation first, the largest first."""
    if found.model.checkpoint is None:
        return
    family = found.model.checkpoint.family.split("-")[0]
    for checkpoint in sorted(CHECKPOINTS, key=lambda c: (c.family.split("-")[0] != family, -c.shape.parameters)):
        model = released(checkpoint)
        total = _total(model, replace(found.settings, micro=found.wishes.micro or 1))
        if checkpoint.shape.parameters < found.model.shape.parameters and total <= found.budget:
            yield Way(f"--model {model.name}", "a smaller model", total / GIB)


def _larger_device(found: Fit) -> Way | None:
    alone = _total(found.model, replace(found.settings, ranks=1, parallel="ddp"))
    total, kind = alone / GIB, found.settings.device
    need = total / USABLE[kind]
    if kind == "cuda":
        card = smallest_card(need)
        return Way(f"one {card[0]}", "a card with more memory", total) if card else None
    size = next((size for size in MAIN_MEMORY if size >= need), None)
    return Way(f"{size} GiB of main memory", "a larger machine", total) if size and kind in ("cpu", "mps") else None
