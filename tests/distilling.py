"""Prompts, and runs of distill_dataset.py against the mock server, that several test files share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from scripts import ASSETS, Ran, command


def write_prompts(folder: Path, count: int) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"What is the capital of country {n}?"}) + "\n" for n in range(count))
    )
    return file


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def words(prompts: Path, url: str, *more: object) -> list:
    """The arguments of `respond` with `train.jsonl` beside the prompts."""
    out = prompts.with_name("train.jsonl")
    return ["respond", prompts, "--base-url", url, "--teacher", "m", "--out", out, "--json", *more]


def distill(*words: object, **environment: str) -> Ran:
    """The script in this process: a start costs more than most of the tests."""
    from gemma_trainer import cli
    from gemma_trainer.distill.options import add_arguments
    from gemma_trainer.distill.session import distill

    script, argv = str(ASSETS / "distill_dataset.py"), list(map(str, words))
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", [script, *argv]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = cli.main("distill_dataset.py", "", add_arguments, lambda args: distill(args, script), argv)
    return Ran(code, out.getvalue(), err.getvalue())


def respond(prompts: Path, url: str, *more: object, **environment: str) -> Ran:
    return distill(*words(prompts, url, *more), **environment)


def respond_command(prompts: Path, url: str, *more: object) -> list[str]:
    return command("distill_dataset.py", *words(prompts, url, *more))


def asked(rows: Iterable[dict]) -> list[str]:
    """The last user text of each row."""
    return [next(m["content"] for m in reversed(row["messages"]) if m["role"] == "user") for row in rows]
