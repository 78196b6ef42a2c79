"""What a run reads has to outlast it: the run directory may not hold it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from gemma_trainer.data.reading.sources import expand
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import USAGE, Failure


def check_apart(output: Path, args: Namespace, plan: Plan) -> None:
    """Raises Failure (exit 2) when the run directory is, or lies around, anything that the run starts from."""
    for flag, source in _sources(args, plan):
        if _holds(output, source):
            what = f"is what {flag} names" if source.samefile(output) else f"holds {source}, which {flag} names"
            raise Failure(USAGE, "usage", f"--output-dir {output} {what}", fix="Choose another --output-dir.")


def _sources(args: Namespace, plan: Plan) -> Iterator[tuple[str, Path]]:
    """(flag, file or folder) of all that is read, the base model that an adapter names too."""
    named = [("--adapter", getattr(args, "adapter", None)), ("--model", args.model), ("--config", args.config)]
    started = [("--adapter", plan.adapter and plan.adapter["path"]), ("--model", plan.model)]
    yield from ((flag, Path(path).expanduser()) for flag, path in [*named, *started] if path)
    for flag, names in (("--data", args.data), ("--eval-data", args.eval_data)):
        yield from ((flag, file) for file in expand(names or []))


def _holds(output: Path, source: Path) -> bool:
    """Whether removing `output` takes `source` away: itself, or a link on the way to it. Files are compared, not names,
    for file systems may ignore case."""
    try:
        if not (source.exists() and output.exists()):
            return False
    except OSError:  # a name that cannot be
        return False
    return any(
        folder.samefile(output) for way in {source.absolute(), source.resolve()} for folder in (way, *way.parents)
    )
