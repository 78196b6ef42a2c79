"""Chooses how a run fits: mode, number format, micro batch, devices; and what would make it fit when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from gemma_trainer.families.checkpoints import CHECKPOINTS
from gemma_trainer.plan import plan as planning
from gemma_trainer.plan.choices import (
    USABLE,
    Wishes,
    activations,
    budget_of,
    candidates,
    enlarged,
    longest,
    most_rows,
    on_devices,
    peak,
    row_counts,
    settings_for,
)
from gemma_trainer.plan.emulate import smallest_card
from gemma_trainer.plan.hardware import Hardware
from gemma_trainer.plan.memory import GIB, Estimate, Settings, estimate, head
from gemma_trainer.plan.size import ModelSize, released
from gemma_trainer.rows.problems import UNSUPPORTED, USAGE, Failure, Problem

MAIN_MEMORY = (16, 32, 64, 128, 256, 512, 1024)  # GiB
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)


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


def fit(model: ModelSize, hardware: Hardware, wishes: Wishes, devices: int = 1) -> Fit:
    """The first mode and number format that fit on `devices` devices, with the largest useful micro batch; else the
    smallest, with ways to fit. Raises Failure (exit 2) when a wished micro batch does not divide the batch."""
    _check_batch(wishes, devices)
    budget = budget_of(hardware)
    tried = list(candidates(model, hardware, wishes, devices))
    settings = next((each for each in tried if peak(model, each) <= budget), None) or min(
        tried, key=lambda each: peak(model, each)
    )
    settings = enlarged(model, settings, wishes, hardware, budget)
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


def _reasons(
    model: ModelSize, settings: Settings, first: Settings, hardware: Hardware, wishes: Wishes
) -> dict[str, str]:
    """A line for each choice."""
    _, mode = planning.choose_mode(wishes.mode, hardware)
    preferred, dtype = planning.choose_dtype(wishes.dtype, settings.mode, hardware)
    if settings.mode != first.mode:
        mode = f"{first.mode} in {first.dtype} would take {peak(model, first) / GIB:.1f} GiB"
    if settings.dtype != preferred:
        plain = on_devices(settings, settings_for(model, hardware, wishes, settings.mode))
        dtype = f"{settings.mode} in {preferred} would take {peak(model, plain) / GIB:.1f} GiB"
    return {
        "mode": mode,
        "dtype": dtype,
        "batch": _why_batch(model, settings, hardware, wishes),
        "checkpointing": _why_checkpointing(model, settings),
        **({} if settings.method == "rm" else {"logits": _why_logits(model, settings)}),
        "length": f"texts of at most {wishes.length} tokens; the model was made for {model.shape.context}",
        **({"parallel": _why_parallel(model, settings, wishes)} if settings.ranks > 1 else {}),
        **(
            {"experts": "4-bit mode of transformers leaves experts in 16 bits"}
            if model.shape.experts and settings.mode == "qlora" and settings.backend == "trl"
            else {}
        ),
    }


def _why_batch(model: ModelSize, settings: Settings, hardware: Hardware, wishes: Wishes) -> str:
    if wishes.micro:
        return "asked for"
    larger = [n for n in row_counts(settings, wishes, hardware) if n > settings.micro]
    if settings.micro * settings.ranks == wishes.effective:
        return f"the whole batch in one pass, of {settings.tokens} tokens"
    if not larger:
        most, share = most_rows(wishes, hardware), wishes.effective // settings.ranks
        if 2 * settings.micro <= most:
            return f"{settings.tokens} tokens a pass; no other number up to {most} divides {share} rows"
        return f"{settings.tokens} tokens a pass; more would be no faster"
    trial = settings_for(model, hardware, replace(wishes, micro=larger[-1]), settings.mode, settings.dtype)
    need = peak(model, on_devices(settings, trial)) / GIB
    return f"{settings.tokens} tokens a pass; {larger[-1]} rows would take {need:.1f} GiB"


def _why_checkpointing(model: ModelSize, settings: Settings) -> str:
    kept, again = (activations(model, settings, each) / GIB for each in (False, True))
    if settings.checkpointing:
        return f"activations are computed twice: {again:.1f} GiB instead of {kept:.1f}"
    return f"activations are kept, which is faster: {kept:.1f} GiB"


def _why_logits(model: ModelSize, settings: Settings) -> str:
    if settings.backend == "unsloth":
        return "never of all tokens at once: Unsloth's own head"
    logits = replace(settings, mode="lora")  # without the gradient of a trained head
    sliced, full = (head(model, replace(logits, sliced_head=each)) / GIB for each in (True, False))
    return f"of trained tokens alone, some at a time: {sliced:.1f} GiB instead of {full:.1f}"


def _why_parallel(model: ModelSize, settings: Settings, wishes: Wishes) -> str:
    if wishes.parallel:
        return "asked for"
    if settings.parallel == "ddp":
        return "a copy of the model fits on each device, which is fastest"
    whole = peak(model, replace(settings, parallel="ddp")) / GIB
    return f"a whole copy would take {whole:.1f} GiB on each device, so weights are split"


@dataclass(frozen=True)
class _Lever:
    """One wish to change, and the flag that does."""

    wish: str
    value: object
    flag: str
    cost: str


def ways_to_fit(found: Fit, hardware: Hardware, wishes: Wishes, count: int = 3) -> list[Way]:
    """The cheapest changes that fit: one lever, else two or three together; then a smaller model and another machine."""
    now = replace(wishes, mode=found.settings.mode, dtype=found.settings.dtype)
    levers = list(_levers(now, hardware, found))
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
            total = peak(
                found.model, on_devices(found.settings, settings_for(found.model, hardware, changed, changed.mode))
            )
            if total <= found.budget:
                done.append(flags)
                ways.append(
                    Way(
                        " ".join(lever.flag for lever in chosen), "; ".join(lever.cost for lever in chosen), total / GIB
                    )
                )
    smaller, machine = [] if wishes.continues else _smaller_models(found), _other_machine(found)
    others = [*smaller[:1], *([machine] if machine else []), *smaller[1:]]
    first = max(1, count - 2)
    return [*ways[:first], *others[:2], *ways[first:], *others[2:]][:count]


def ways_down(found: Fit, count: int = 3) -> list[Way]:
    """The cheapest single changes that take less memory than a run of `found`, which ran out of it, was predicted to."""
    settings = found.settings
    now = replace(found.wishes, mode=settings.mode, micro=settings.micro)
    ways: dict[str, Way] = {}
    for lever in _levers(replace(now, dtype=settings.dtype), found.hardware, found):
        changed = replace(now, **{lever.wish: lever.value})
        trial = on_devices(settings, settings_for(found.model, found.hardware, changed, changed.mode))
        total = peak(found.model, trial)
        if total < found.estimate.total:
            ways.setdefault(lever.wish, Way(lever.flag, lever.cost, total / GIB))  # of lengths, the longest
    return list(ways.values())[:count]


def with_micro(found: Fit, micro: int, why: str) -> Fit:
    """The same with other rows a pass."""
    settings = replace(found.settings, micro=micro, accumulates=True)
    why = {**found.why, "batch": why}
    return replace(found, settings=settings, estimate=estimate(found.model, settings), why=why)


def _lengths(done: list[set[str]]) -> int:
    return sum(any(flag.startswith("--max-length") for flag in flags) for flags in done)


def _levers(now: Wishes, hardware: Hardware, found: Fit) -> Iterator[_Lever]:
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
    for length in sorted({found.longest, *LENGTHS} - {0}, reverse=True):
        if length < now.length and length <= found.model.shape.context:
            yield _Lever("length", length, f"--max-length {length}", "longer rows are left out")
    if now.mode != "full" and now.rank > 8 and not now.continues:
        yield _Lever("rank", 8, "--lora-rank 8", "less is learned")


def _smaller_models(found: Fit) -> list[Way]:
    """Released models that fit as they are, of the same generation first, the largest first; where none does, those that
    fit with one row a pass."""
    if found.model.checkpoint is None:
        return []
    family = found.model.checkpoint.family.split("-")[0]
    smaller = [
        released(checkpoint)
        for checkpoint in sorted(CHECKPOINTS, key=lambda c: (c.family.split("-")[0] != family, -c.shape.parameters))
        if checkpoint.shape.parameters < found.model.shape.parameters
        and checkpoint.shape.context >= found.settings.length
    ]
    for micro, flag in ((found.wishes.micro or 1, ""), (1, " --micro-batch-size 1")):
        sizes = [(model.name, peak(model, replace(found.settings, micro=micro))) for model in smaller]
        if ways := [Way(f"--model {name}{flag}", "a smaller model", total / GIB)
                    for name, total in sizes if total <= found.budget]:  # fmt: skip
            return ways
    return []


def _other_machine(found: Fit) -> Way | None:
    """Fewer processes where they share the memory of this machine, else the smallest machine that is large enough."""
    settings, kind = found.settings, found.settings.device
    alone = peak(found.model, replace(settings, ranks=1, parallel="ddp"))
    total, need = alone / GIB, alone / GIB / USABLE[kind]
    if kind == "cpu" and settings.ranks > 1 and alone <= settings.ranks * found.budget:
        return Way("--processes 1", "steps take longer", total)
    if kind == "cuda":
        card = smallest_card(need)
        return Way(f"one {card[0]}", "a card with more memory", total) if card else None
    size = next((size for size in MAIN_MEMORY if size >= need), None)
    return Way(f"{size} GiB of main memory", "a larger machine", total) if size and kind in ("cpu", "mps") else None
