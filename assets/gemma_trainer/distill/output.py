"""The files of a run: rows and rejects that grow while it goes on and are put in order at its end, and the manifest."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gemma_trainer.data.output import check_targets, replacing
from gemma_trainer.distill.journal import Lines, encoded
from gemma_trainer.distill.request import Reply, Request
from gemma_trainer.distill.work import Reject, Result, Results
from gemma_trainer.rows.problems import USAGE, Failure

# Flags that change how a run is done or what is printed, not which rows come of it.
HOW = {
    *("base_url", "api_key_env", "batch_size", "quantize", "concurrency", "timeout", "retries", "overwrite"),
    *("student_base_url", "student_api_key_env", "out", "rejects", "licence", "plan", "retry_failed"),
    *("max_requests", "max_tokens", "max_cost", "price_in", "price_out"),
    *("config", "json", "debug", "action", "count"),  # more of a count adds to what is there
}
FILES = {
    *("prompts", "seeds", "documents", "tools", "schema", "verifier", "judge_rubric", "reward_model", "model"),
    *("adapter", "student", "student_model", "student_adapter"),
}


def meta_of(request: Request, reply: Reply) -> dict:
    """Where an answer comes from; `id` finds it in the journal."""
    return {
        "id": reply.id,
        "teacher": request.model,
        "finish_reason": reply.finish_reason,
        "sampling": {**vars(request.sampling), "seed": request.seed},
        "usage": dict(vars(reply.usage)),
    }


def sft_row(messages: list[dict], request: Request, reply: Reply, tools: list[dict] | None = None) -> dict:
    """The canonical row of an answer to `messages`."""
    row: dict = {"messages": [*messages, reply.message]}
    if tools:
        row["tools"] = tools
    if reply.reasoning_content:
        row["chat_template_kwargs"] = {"enable_thinking": True}
    return {**row, "meta": meta_of(request, reply)}


@dataclass(frozen=True)
class Files:
    """All names of a run come from --out."""

    rows: Path
    rejects: Path
    replies: Path
    failed: Path
    manifest: Path

    @classmethod
    def of(cls, out: Path, rejects: Path | None) -> Files:
        stem = out.name.removesuffix(".jsonl")
        names = ("rejects.jsonl", "replies.jsonl", "failed.jsonl", "manifest.json")
        beside, *others = (out.with_name(f"{stem}.{name}") for name in names)
        return cls(out, rejects or beside, *others)

    def check(self, inputs: list[Path], settings: dict, overwrite: bool) -> None:
        """Raises Failure (exit 2) where the run would write over its input, or over what another run made."""
        targets = [self.rows, self.rejects, self.replies, self.failed, self.manifest]
        ours = self.manifest.exists()
        unclaimed = all(not path.is_file() or not path.stat().st_size for path in targets)  # killed before its manifest
        check_targets(inputs, targets, overwrite or ours or unclaimed)
        if not ours or overwrite:
            return
        try:
            before = dict(json.loads(self.manifest.read_text("utf-8"))["settings"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise self._mismatch(f"{self.manifest} cannot be read") from None
        changed = sorted(key for key in before.keys() | settings.keys() if before.get(key) != settings.get(key))
        if changed:
            raise self._mismatch(", ".join(f"--{key.replace('_', '-')}" for key in changed) + " differs")

    def _mismatch(self, why: str) -> Failure:
        text = f"{self.rows} may not be of this command: {why}"
        fix = "Name another --out, or pass --overwrite: answers that are paid for are kept and used again."
        return Failure(USAGE, "resume-mismatch", text, fix=fix, file=str(self.rows))


def settings_of(args: Namespace) -> dict:
    """The flags that shape the rows, as JSON. Files are told by their way from --out: however a command spells it."""
    home = Path(args.out).resolve().parent
    shaping = {key: value for key, value in vars(args).items() if key not in HOW}
    shaping |= {key: _spelled(shaping[key], home) for key in FILES & shaping.keys() if shaping[key]}
    return json.loads(json.dumps({"command": args.action, **shaping}, default=str))


def _spelled(value: str | list[str], home: Path) -> str | list[str]:
    if isinstance(value, list):
        return [_spelled(one, home) for one in value]
    file, colon, function = value.rpartition(":") if ".py:" in value else (value, "", "")
    path = Path(file).expanduser()
    is_path = path.exists() or any(mark in file for mark in "*?[")  # else a name on the hub, or - for stdin
    return f"{os.path.relpath(path.resolve(), home) if is_path else file}{colon}{function}"


class Growing:
    """Rows as they come. Lines that an earlier run of the same command wrote are not written again."""

    def __init__(self, path: Path, fresh: bool):
        if fresh:
            path.unlink(missing_ok=True)
        self._lines = Lines(path)
        self._known = {hash(line) for _, line in self._lines}

    def add(self, lines: list[bytes]) -> None:
        for line in lines:
            if hash(line) not in self._known:
                self._lines.append(line)

    def close(self) -> None:
        self._lines.close()


def reject_row(reject: Reject) -> dict:
    """A line of the rejects file."""
    return {"reasons": reject.reasons, "ids": reject.ids, **reject.row}


@dataclass
class Counts:
    """What a settled run holds. `reasons` counts rejects by their first reason."""

    items: int = 0
    rows: int = 0
    rejects: int = 0
    reasons: Counter = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.items += 1
        self.rows += len(result.rows)
        self.rejects += len(result.rejects)
        self.reasons.update(reject.reasons[0] for reject in result.rejects)


def write_settled(files: Files, results: Results) -> Counts:
    """Rows and rejects in the order of items, each file whole or not at all."""
    counts = Counts()
    with replacing(files.rows, "wb", empty=True) as rows, replacing(files.rejects, "wb") as rejects:
        for _, result in results:
            counts.add(result)
            rows.writelines(encoded(row) for row in result.rows)
            rejects.writelines(encoded(reject_row(reject)) for reject in result.rejects)
    return counts


def write_manifest(path: Path, manifest: dict) -> None:
    with replacing(path) as file:
        json.dump(manifest, file, ensure_ascii=False, indent=2)
        file.write("\n")
