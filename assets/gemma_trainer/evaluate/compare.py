"""Base and tuned model on the same held-out rows."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma_trainer.cli import Outcome, log
from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.model import describe_model
from gemma_trainer.data.output import check_targets, replacing
from gemma_trainer.data.reading.sources import expand
from gemma_trainer.data.render import Renderer
from gemma_trainer.evaluate.metrics import LABELS, METRICS
from gemma_trainer.families.family import RenderError
from gemma_trainer.models.resolve import read_run, resolve_model
from gemma_trainer.plan.adapter import is_adapter
from gemma_trainer.plan.hardware import detect, share_cores
from gemma_trainer.plan.packages import missing_packages
from gemma_trainer.plan.plan import choose_dtype
from gemma_trainer.rows.problems import DATA_INVALID, USAGE, Failure, Problem, missing


@dataclass
class HeldOut:
    """Rows of one measurement with their tasks, in file order."""

    rows: list[dict]
    tasks: list
    renderer: Renderer
    tokenizer: RowTokenizer
    warnings: list[Problem]


@dataclass(frozen=True)
class Subject:
    """The models to measure: `tuned`, which is the base itself when an adapter goes on it."""

    base: str | None
    tuned: str
    adapter: str | None


def run_evaluation(args: Namespace) -> Outcome:
    """Raises Failure with the exit codes of the contract."""
    require_packages()
    output = Path(args.output) if args.output else None
    files = expand(args.data)
    if output:
        check_targets(files, [output], args.overwrite)
    share_cores()
    subject = find_subject(args)
    held_out = load_held_out(files, subject.adapter or subject.tuned, args.family, args.max_length, args.max_rows)
    metrics = choose_metrics(args.metric, held_out.rows)
    log(f"measuring {', '.join(metrics)} on {len(held_out.rows)} rows")
    base, tuned, lines = _measure_both(subject, args, held_out, metrics)
    result = {"rows": len(held_out.rows), "metrics": list(metrics), "model": subject.tuned, "adapter": subject.adapter}
    result |= {"base": base, "tuned": tuned}
    if output:
        _write(output, held_out, *lines)
        result["output"] = str(output)
    return Outcome(
        result=result,
        warnings=[*held_out.warnings, *sql_warnings(tuned)],
        summary=table(base, tuned, len(held_out.rows)),
    )


def require_packages() -> None:
    """Raises Failure (exit 4) before anything heavy is imported."""
    lacking = missing_packages("train")
    if lacking:
        raise missing(" ".join(lacking), "evaluation", "train")


def find_subject(args: Namespace) -> Subject:
    """Which folders or hub ids are base and tuned model. Raises Failure (exit 2)."""
    check_adapter(args.adapter)
    if args.adapter:
        from gemma_trainer.models.load import adapter_base

        base = resolve_model(args.model or adapter_base(args.adapter))
        return Subject(base, base, args.adapter)
    if not args.model:
        raise Failure(USAGE, "usage", "--model or --adapter is needed")
    tuned = resolve_model(args.model)
    base = None
    if args.compare_base:
        try:
            base = resolve_model(read_run(tuned)["plan"]["model"])
        except (TypeError, KeyError):
            raise Failure(
                USAGE,
                "usage",
                f"{tuned} is no run directory, so it names no base to compare with",
                fix="Drop --compare-base.",
            ) from None
    return Subject(base, tuned, None)


def check_adapter(folder: str | None) -> None:
    """Raises Failure (exit 2) for a folder of whole weights, as a run with --mode full leaves."""
    path = Path(folder or "").expanduser()
    if folder and (path / "config.json").is_file() and not is_adapter(path):
        text = f"--adapter {folder} holds a whole model and no adapter"
        raise Failure(USAGE, "usage", text, fix=f"Use --model {folder} instead, without --adapter.")


def load_held_out(data: Sequence[Path], model: str, family: str, max_length: int, max_rows: int | None) -> HeldOut:
    """Rows that have a right answer and fit. Raises Failure (exit 3) when rows are refused or none is left."""
    from gemma_trainer.evaluate.generate import make_task

    described = describe_model(family, model)
    loaded, warnings = read_clean(data, "sft", described)
    held_out = HeldOut([], [], described.renderer, described.tokenizer, warnings)
    overlong = 0
    for row in loaded[:max_rows]:
        try:
            task = make_task(row.data, held_out.renderer, held_out.tokenizer) if "messages" in row.data else None
        except RenderError as error:
            raise Failure(
                DATA_INVALID, "rows-not-renderable", str(error), file=row.file, line=row.line, path=error.path
            ) from None
        if task and len(task.encoded.ids) <= max_length:
            held_out.rows.append(row.data)
            held_out.tasks.append(task)
        elif task:
            overlong += 1
    if overlong:
        held_out.warnings.append(Problem("rows-overlong", f"{overlong} rows over {max_length} tokens were left out"))
    if not held_out.rows:
        raise Failure(DATA_INVALID, "no-rows", "no row with an answer to measure is left")
    return held_out


def choose_metrics(wish: Sequence[str] | None, rows: Sequence[dict]) -> tuple[str, ...]:
    """All metrics that the rows allow, or the wished ones. Raises Failure (exit 3) for `sql` without schemas."""
    with_schema = all(isinstance(row.get("schema"), str) for row in rows)
    if wish and "sql" in wish and not with_schema:
        raise Failure(DATA_INVALID, "sql-schema-missing", "rows have no `schema` column to run SQL on")
    return tuple(wish) if wish else tuple(m for m in METRICS if m != "sql" or with_schema)


def load_subject(reference: str, args: Namespace):
    """A causal language model as the flags say."""
    from gemma_trainer.models.load import load_model, quiet_libraries

    quiet_libraries()
    hardware = detect()
    dtype, _ = choose_dtype(args.dtype, "lora", hardware)
    return load_model(
        reference,
        dtype=dtype,
        device=hardware.kind,
        quantize=args.quantize,
        trust_remote_code=args.trust_remote_code,
    )


def measure_model(model, held_out: HeldOut, metrics: Sequence[str], max_new_tokens: int | None, batch_size: int):
    """(summary, lines): means over the rows, and answer, target and scores of each."""
    from gemma_trainer.evaluate.generate import mean_loss
    from gemma_trainer.evaluate.score import answer_all, score_rows, summarise

    lines: list[dict] = []
    if set(metrics) - {"loss"}:
        family = held_out.renderer.family
        answers = answer_all(model, held_out.tokenizer, family, held_out.tasks, max_new_tokens, batch_size)
        lines = score_rows(metrics, held_out.rows, held_out.tasks, answers)
    summary = summarise(lines)
    if "loss" in metrics:
        pad = held_out.tokenizer.backend.token_to_id("<pad>") or 0
        encoded = [task.encoded for task in held_out.tasks]
        summary["loss"] = mean_loss(model, encoded, pad, batch_size)
    return summary, lines


def _measure_both(
    subject: Subject, args: Namespace, held_out: HeldOut, metrics: Sequence[str]
) -> tuple[dict | None, dict, tuple[list[dict], list[dict]]]:
    """(base, tuned, lines of both). An adapter shares the weights of its base, so those are loaded once."""
    from gemma_trainer.models.load import load_adapter

    def measure(model):
        return measure_model(model, held_out, metrics, args.max_new_tokens, args.batch_size)

    base, base_lines, model = None, [], None
    if args.compare_base:
        model = load_subject(subject.base, args)
        base, base_lines = measure(model)
    if subject.adapter:
        model = load_adapter(model or load_subject(subject.base, args), subject.adapter)
    else:
        del model  # not both in memory
        model = load_subject(subject.tuned, args)
    tuned, lines = measure(model)
    return base, tuned, (base_lines, lines)


def sql_warnings(summary: dict) -> list[Problem]:
    """What kept rows out of sql_match."""
    problems = []
    if summary.get("sql_gold_broken"):
        problems.append(
            Problem("gold-sql-broken", f"{summary['sql_gold_broken']} right answers do not run on their schema")
        )
    if summary.get("sql_both_empty"):
        problems.append(Problem("sql-both-empty", f"{summary['sql_both_empty']} pairs of queries both return nothing"))
    return problems


def table(base: dict | None, tuned: dict, rows: int) -> str:
    """Base and tuned side by side, for people."""
    lines = [f"{rows} rows" + " " * 13 + f"{'base':>10}{'tuned':>10}"] if base else [f"{rows} rows"]
    for key, label in LABELS.items():
        if tuned.get(key) is None:
            continue
        numbers = ([base.get(key)] if base else []) + [tuned[key]]
        lines.append(f"{label:<20}" + "".join(f"{_shown(key, number):>10}" for number in numbers))
    return "\n".join(lines)


def _shown(key: str, number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.4f}" if key in ("loss", "reward_margin") else f"{number:.1%}"


def _write(path: Path, held_out: HeldOut, base: list[dict], tuned: list[dict]) -> None:
    """One line a row that can be read on its own: what was asked, the right answer, and what each model said."""
    with replacing(path) as file:
        for number, (row, line) in enumerate(zip(held_out.rows, tuned, strict=True)):
            asked = row["messages"][: held_out.tasks[number].answer]
            told = {"row": number + 1, "messages": asked, **line}
            if base:
                told["base"] = {key: value for key, value in base[number].items() if key != "target"}
            file.write(json.dumps(told, ensure_ascii=False) + "\n")
