"""From arguments to a plan and encoded rows; nothing here imports torch."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.model import Model, describe_model, describe_released
from gemma_trainer.data.reading.sources import data_hash, expand
from gemma_trainer.data.split import split_by_prompt
from gemma_trainer.models.reward import scores
from gemma_trainer.plan import plan as planning
from gemma_trainer.plan.answer import doubts
from gemma_trainer.plan.choices import Wishes
from gemma_trainer.plan.emulate import emulate
from gemma_trainer.plan.fit import fit
from gemma_trainer.plan.hardware import Hardware, detect
from gemma_trainer.plan.plan import Plan
from gemma_trainer.plan.processes import check_parallel, choose_processes, find_place, on_each_node, shared_memory
from gemma_trainer.plan.size import size_of
from gemma_trainer.rows.problems import REMOTE_FAILED, USAGE, Failure, Problem
from gemma_trainer.train.adapter_fit import check_fit, other_base
from gemma_trainer.train.method import Method
from gemma_trainer.train.packing import packed_lengths, packing_facts, why_packing
from gemma_trainer.train.prepared import Prepared
from gemma_trainer.train.rows import EncodedSet, check_trained
from gemma_trainer.train.start import Start, find_start, reward_model_given

RANK = 16
FEW_STEPS = 10  # an epoch
NO_DROPOUT = {"trl": {}, "unsloth": {"dropout": "0: Unsloth's LoRA layers have none"}}  # to `why` of a plan


def prepare(args: Namespace, method: Method, launch: str) -> Prepared:
    """Resolve hardware, model, rows and arithmetic. Raises Failure: 2 usage, 3 data, 5 not supported here."""
    adapter = getattr(args, "adapter", None)
    for flag, given in (("model", args.model or adapter), ("data", args.data)):
        if not given:
            raise Failure(USAGE, "usage", f"--{flag} is needed", fix=f"python assets/{method.script} --help")
    hardware = machine(args)
    backend, why_backend = planning.choose_backend(
        args.backend, hardware, method.name, args.mode, args.lora_dropout or 0.0
    )
    place, wish = find_place(), None if args.processes == "auto" else args.processes
    processes, why_processes = choose_processes(wish, args.effective_batch_size, hardware, place)
    parallel = check_parallel(args.parallel, processes, hardware, place)
    if processes > 1 and "-" in [*args.data, *(args.eval_data or [])]:
        text = "several processes cannot read the same rows from stdin"
        raise Failure(USAGE, "usage", text, fix="Write the rows to a file.")

    start = find_start(args.model, adapter)
    described, warnings = _describe(args, start.files)
    family, renderer, tokenizer = described.family, described.renderer, described.tokenizer
    config = described.config or _describe(args, start.model)[0].config  # an adapter folder has none
    if scores(config):
        raise reward_model_given(start.model)
    model = size_of(start.model, config)
    if start.adapter:
        check_fit(Path(start.adapter["path"]), start.model)
        other = other_base(Path(start.adapter["path"]), start.model) if args.model and adapter else None
        warnings += [other] if other else []
    plain = _plain_template(described, warnings)

    sides = _load(args, method.name, described)
    train = method.encode(sides.train, renderer, tokenizer, args)
    check_trained(train, "--data")
    held_out = method.encode(sides.held_out, renderer, tokenizer, args)
    if not held_out.rows:
        warnings.append(Problem("no-held-out-row", "there are no held-out rows"))

    packing = getattr(args, "packing", None)  # None where the method has none
    lengths, packed = train.lengths, [] if packing is None else packed_lengths(train.lengths, args.max_length)
    units = packed if packing else lengths  # of which batches are made
    longest = max(*units, held_out.longest)
    lora = None if args.mode == "full" else _lora(args, start)
    wishes = Wishes(
        method=method.name,
        backend=backend,
        mode=args.mode,
        dtype=args.dtype,
        micro=args.micro_batch_size,
        effective=args.effective_batch_size,
        length=longest,
        rank=(lora or start.adapter or {}).get("rank") or args.lora_rank or RANK,
        packed=bool(packing),
        parallel=parallel,
        precomputed=getattr(args, "precompute_ref", False),
        continues=start.adapter is not None,
    )
    found = fit(model, shared_memory(hardware, processes, place), wishes, processes)
    settings = found.settings
    mode, micro, accumulation = settings.mode, settings.micro, args.effective_batch_size // settings.micro // processes
    warnings += [
        *_about_mode(mode, hardware, model.shape.experts, processes),
        *doubts(model, max(*lengths, held_out.longest)),
    ]
    steps = planning.count_steps(len(units), micro, accumulation * processes, args.epochs, args.max_steps)
    per_epoch = planning.count_steps(len(units), micro, accumulation * processes, 1.0, None)
    data, why = _data_facts(train, held_out, sides.data_hash), {}
    if packed:
        effective = args.effective_batch_size
        data |= packing_facts(lengths, packed, settings.tokens, effective, args.seed)
        why["packing"] = why_packing(packing, len(lengths), data, effective)
    if packing and per_epoch < FEW_STEPS:
        warnings.append(Problem("packing-few-steps", f"{len(packed)} packed sequences: {per_epoch} steps an epoch"))
    plan = Plan(
        method=method.name,
        model=start.model,
        adapter=start.adapter,
        family=family.name,
        backend=backend,
        mode=mode,
        device=hardware.kind,
        dtype=settings.dtype,
        why={"backend": why_backend, **NO_DROPOUT[backend], "processes": why_processes, **found.why, **why},
        lora=lora,
        learning_rate=args.learning_rate or method.learning_rate[mode],
        epochs=round(steps / per_epoch, 3) if args.max_steps else args.epochs,
        effective_batch_size=args.effective_batch_size,
        micro_batch_size=micro,
        accumulation_steps=accumulation,
        processes=processes,
        parallel=settings.parallel,
        steps=steps,
        warmup_steps=int(planning.WARMUP * steps),
        save_steps=args.save_steps or max(1, steps // planning.CHECKPOINTS),
        gradient_checkpointing=settings.checkpointing,
        autocast=settings.autocast,
        max_length=args.max_length,
        packing=bool(packing),
        overlong=args.overlong,
        loss_on=getattr(args, "loss_on", "last"),
        objective=method.objective(args, mode, start),
        seed=args.seed,
        template_hash=renderer.template_hash,
        template_origin=renderer.origin,
        data=data,
        hardware=hardware.as_dict(),
        memory=found.memory(),
        launch=launch,
        on_each_node=on_each_node(launch, processes, settings.parallel, hardware),
    )
    warnings += [*sides.warnings, *train.warnings, *held_out.warnings, *method.advice(args, start, described, train)]
    return Prepared(plan, found, renderer, tokenizer, train, held_out, plain, start.files, warnings)


def machine(args: Namespace) -> Hardware:
    """The hardware that is here, or the emulated one of a plan. Raises Failure (exit 2) for a run on the latter."""
    if args.emulate is not None and not args.plan:
        text = "--emulate is for hardware that is not here, where nothing can be trained"
        raise Failure(USAGE, "usage", text, fix="Add --plan, or drop --emulate.")
    if args.demo and (find_place() or args.processes not in ("auto", 1)):
        raise Failure(USAGE, "usage", "--demo trains in one process", fix="Drop --processes and the launcher.")
    return detect() if args.emulate is None else emulate(args.emulate)


def _describe(args: Namespace, reference: str) -> tuple[Model, list[Problem]]:
    """The model's own files. A plan does without those of a released one, and then says so; with --emulate it looks for
    them in the local cache alone."""
    try:
        return describe_model(args.family, reference, network=not args.emulate), []
    except Failure as failure:
        released = args.plan and failure.exit_code == REMOTE_FAILED and describe_released(args.family, reference)
        if not released:
            raise
        text = f"{failure.problem.message}; the plan goes by the catalogue, and tokens are guessed"
        return released, [Problem("tokens-guessed", text)]


def _lora(args: Namespace, start: Start) -> dict:
    """Rank, alpha and dropout; those of the adapter where its layers are trained further. Raises Failure (exit 2)."""
    if start.adapter is None:
        rank = args.lora_rank or RANK
        return {"rank": rank, "alpha": args.lora_alpha or 2 * rank, "dropout": args.lora_dropout or 0.0}
    if args.lora_rank or args.lora_alpha or args.lora_dropout:
        text = f"--lora-rank, --lora-alpha and --lora-dropout belong to new layers, and those of {start.adapter['path']} are trained further"
        raise Failure(USAGE, "usage", text, fix="Drop these flags.")
    return {"rank": start.adapter["rank"], "alpha": start.adapter["alpha"], "dropout": 0.0}


def _plain_template(described: Model, warnings: list[Problem]) -> str | None:
    """Base models come without a chat template: the family renders, and its plain template is saved with the result."""
    if described.chats:
        return None
    text = f"the model has no chat template; the plain one of {described.family.title} is used and saved"
    warnings.append(Problem("template-missing", text))
    return described.family.plain_template


def _about_mode(mode: str, hardware: Hardware, experts: int, processes: int) -> list[Problem]:
    """Warnings about what is trained on this hardware."""
    problems = []
    if mode == "qlora" and hardware.kind == "mps":
        text = "QLoRA on an Apple GPU has not been run here"
        problems.append(Problem("mode-unverified", text, fix="Pass --mode lora."))
    if mode != "full" and experts:
        text = "the experts of this model get no adapters, its other layers do"
        problems.append(Problem("experts-untrained", text))
    if processes < hardware.devices:
        problems.append(Problem("gpus-unused", f"{processes} of {hardware.devices} GPUs are used"))
    return problems


@dataclass
class _Sides:
    train: list
    held_out: list
    data_hash: str
    warnings: list[Problem]


def _load(args: Namespace, method: str, model: Model) -> _Sides:
    """Rows of both sides: --eval-data, or prompts held out of --data. Raises Failure (exit 3) for refused rows."""
    files, eval_files = expand(args.data), expand(args.eval_data or [])
    rows, warnings = read_clean(files, method, model)
    if eval_files:
        held_out, more = read_clean(eval_files, method, model)
        warnings += more
    else:
        rows, held_out = split_by_prompt(rows, args.eval_fraction, args.seed)
    return _Sides(rows, held_out, data_hash([*files, *eval_files]), warnings)


def _data_facts(train: EncodedSet, held_out: EncodedSet, data_hash: str) -> dict:
    return {
        **train.facts(),
        "eval_rows": len(held_out.rows),
        "overlong": train.overlong + held_out.overlong,
        "data_hash": data_hash,
    }
