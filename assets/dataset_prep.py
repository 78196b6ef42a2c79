#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["orjson>=3.9", "pyarrow>=15", "tokenizers>=0.22", "jinja2>=3.1", "pyyaml>=6"]
# ///
"""Check, convert and look at training data for Gemma, before a GPU is spent on it.

DATA is any number of files, folders, globs or - for stdin: JSON Lines, JSON, CSV, TSV, Parquet, Arrow, each also
.gz or .zst. Formats and layouts are told by content. Nothing needs a model; with --model lengths and masks are exact.

examples:
  python assets/dataset_prep.py validate train.jsonl --family gemma3
  python assets/dataset_prep.py validate train.parquet --model google/gemma-4-E2B-it --max-length 2048 --json
  python assets/dataset_prep.py convert sharegpt.json --out train.jsonl --rejects rejects.jsonl
  python assets/dataset_prep.py convert faq.csv --map prompt=question completion=answer --out train.jsonl
  python assets/dataset_prep.py inspect train.jsonl --rows 3 --model ./gemma-3-270m-it

convert writes every good row to --out and every refused one, whole and with its reason, to --rejects (default
OUT.rejects.jsonl). Refused rows give exit 3 unless --rejects names a place for them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gemma_trainer import cli
from gemma_trainer.data.layouts import LAYOUT_NAMES, LAYOUTS, TASKS
from gemma_trainer.data.prepare import Request, Session
from gemma_trainer.data.repair import ASKED
from gemma_trainer.data.report import Report
from gemma_trainer.data.view import painted
from gemma_trainer.families.catalogue import family_names
from gemma_trainer.rows.problems import DATA_INVALID, OK, USAGE, Failure

ACTIONS = {
    "validate": ("say what is wrong, where, and how to fix it", "train.jsonl --model ./gemma-3-270m-it --json"),
    "convert": ("write canonical rows", "sharegpt.json --out train.jsonl --rejects rejects.jsonl"),
    "inspect": ("show rendered rows with their loss mask", "train.jsonl --rows 3 --family gemma4"),
}
CONVERTED = {
    "byte-order-mark",
    "lone-carriage-returns",
    "not-json-lines",
    "inline-thought",
    "think-tags",
}  # gone after convert
TRAINERS = {"sft": "sft_train.py", "dpo": "dpo_train.py", "rm": "rm_train.py"}


def separator(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError("one character, or `tab`")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="validate|convert|inspect")
    for name, (text, example) in ACTIONS.items():
        epilog = f"example:\n  python assets/dataset_prep.py {name} {example}\n\n{cli.EXIT_CODES}"
        kind = argparse.RawDescriptionHelpFormatter
        leaf = actions.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=kind)
        _add_shared(leaf)
        if name == "convert":
            _add_convert(leaf)
        if name == "inspect":
            leaf.add_argument("--rows", type=cli.positive(int), default=3, metavar="N", help="rows to show (default 3)")
            leaf.add_argument(
                "--loss-on",
                choices=["assistant", "last"],
                default="assistant",
                help="trained turns (default assistant)",
            )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    tasks, layouts = ["auto", *TASKS], ["auto", *LAYOUTS, *LAYOUT_NAMES]
    add = parser.add_argument
    add("data", nargs="*", metavar="DATA", help="files, folders, globs, or - for stdin")
    add(
        "--task", choices=tasks, default="auto", metavar="TASK", help=f"{', '.join(tasks)}; auto looks at the first row"
    )
    add("--family", choices=["auto", *family_names()], default="auto", metavar="NAME",
        help=f"{', '.join(family_names())} (default: told by --model, else gemma4)")  # fmt: skip
    add("--model", metavar="ID|DIR|FILE.gguf", help="its tokenizer and template give exact lengths and texts")
    add("--max-length", type=cli.positive(int), default=2048, metavar="N", help="tokens a row (default 2048)")
    add("--from", dest="layout", choices=layouts, default="auto", metavar="LAYOUT", help=f"{', '.join(layouts)}")
    add("--map", nargs="+", default=[], metavar="FIELD=COLUMN", help="columns of other names, e.g. prompt=question")
    add("--delimiter", type=separator, metavar="CHAR", help="separator of delimited text (default: a comma)")
    add("--strict", action="store_true", help="warnings fail too")
    add("--max-errors", type=cli.positive(int), default=20, metavar="N", help="problems to print (default 20)")
    add("--report", metavar="FILE", help="every problem, JSON Lines")
    add("--overwrite", action="store_true", help="replace existing output files")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    repairs = "; ".join(f"{name}: {text}" for name, text in ASKED.items())
    parser.add_argument("--out", metavar="FILE", help="canonical rows, JSON Lines")
    parser.add_argument("--rejects", metavar="FILE", help="refused rows (default OUT.rejects.jsonl, and exit 3)")
    parser.add_argument("--repair", nargs="+", choices=ASKED, default=[], metavar="NAME", help=f"ask for {repairs}")


def run(args: argparse.Namespace) -> cli.Outcome:
    if not args.data:
        raise Failure(USAGE, "usage", "no DATA was given", fix="Name files, folders or globs, or - for stdin.")
    request = Request(
        data=args.data,
        task=args.task,
        family=args.family,
        model=args.model,
        max_length=args.max_length,
        layout=args.layout,
        mapping=args.map,
        delimiter=args.delimiter,
        repairs=getattr(args, "repair", []),
        converting=args.action == "convert",
        max_errors=args.max_errors,
        report=args.report,
        overwrite=args.overwrite,
    )
    if args.action == "convert" and not args.out:
        raise Failure(USAGE, "usage", "convert needs --out FILE")
    session = Session(request)
    return {"validate": _validate, "convert": _convert, "inspect": _inspect}[args.action](args, session)


def _validate(args: argparse.Namespace, session: Session) -> cli.Outcome:
    result = session.validate()
    outcome = _outcome(args, session.report, result)
    trainable = args.data
    if "-" in args.data:
        pass  # what came through stdin is gone
    elif result["errors_by_code"] or result["warnings_by_code"].keys() & (result["repaired"].keys() | CONVERTED):
        trainable = [f"{_stem(args.data[0])}.clean.jsonl"]
        rejects = f"{_stem(args.data[0])}.rejects.jsonl"
        outcome.next = [_command(args, "convert", "--out", trainable[0], "--rejects", rejects)]
    if result["valid"] and "-" not in trainable:
        outcome.next += _train(args, session, trainable)
    verdict = "valid" if outcome.exit_code == OK else "NOT valid"
    outcome.summary = f"{verdict}: {result['valid']} of {result['rows']} rows\n" + _summary(result)
    if result["tokens"]:
        outcome.summary += "\ntokens  " + ", ".join(f"{name} {count}" for name, count in result["tokens"].items())
    return outcome


def _convert(args: argparse.Namespace, session: Session) -> cli.Outcome:
    result = session.convert(Path(args.out), Path(args.rejects) if args.rejects else None)
    report = session.report
    outcome = _outcome(args, report, result)
    if args.rejects and result["rows_out"] and not report.file_errors:
        outcome.errors = []  # the rejects file holds them, row by row
        outcome.exit_code = DATA_INVALID if args.strict and outcome.warnings else OK
    if result["rows_out"]:
        outcome.next = _train(args, session, [args.out])
    elif result["rejects"]:
        outcome.exit_code = DATA_INVALID
    counts = f"{result['rows']} rows in, {result['rows_out']} out, {result['rejected']} refused"
    files = "".join(f"\n{name:7} {result[name]}" for name in ("out", "rejects") if result[name])
    outcome.summary = f"{counts}{files}\n{_summary(result)}"
    return outcome


def _inspect(args: argparse.Namespace, session: Session) -> cli.Outcome:
    result = session.inspect(args.rows, args.loss_on)
    outcome = _outcome(args, session.report, result)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    key = "trained text is green" if colour else "trained text stands in « »"
    views = "\n".join(painted(view, colour) for view in result["rows"])
    outcome.summary = f"{views}\n--- {key}\n{_summary(result)}"
    outcome.next = [_command(args, "validate")]
    return outcome


def _outcome(args: argparse.Namespace, report: Report, result: dict) -> cli.Outcome:
    failed = report.errors_by_code or (args.strict and report.warnings_by_code)
    return cli.Outcome(result, report.errors, report.warnings, exit_code=DATA_INVALID if failed else OK)


def _summary(result: dict) -> str:
    lines = [f"task {result['task']}, family {result['family']}, layout {result['layout']}"]
    for name in ("errors_by_code", "warnings_by_code", "repaired"):
        if result.get(name):
            counts = ", ".join(f"{code} {count}" for code, count in sorted(result[name].items()))
            lines.append(f"{name.split('_')[0]}: {counts}")
    return "\n".join([*lines, *(f"note: {note}" for note in result["notes"])])


def _command(args: argparse.Namespace, action: str, *words: str) -> str:
    given = [("--task", args.task), ("--family", args.family), ("--model", args.model), ("--from", args.layout)]
    flags = [word for flag, value in given if value not in (None, "auto") for word in (flag, value)]
    flags += ["--map", *args.map] if args.map else []
    flags += ["--delimiter", args.delimiter] if args.delimiter else []
    return cli.command(__file__, action, *args.data, *flags, *words)


def _train(args: argparse.Namespace, session: Session, data: list[str]) -> list[str]:
    """The command that trains on the data, as far as its script is here."""
    script = Path(__file__).with_name(TRAINERS.get(session.options.task, "none"))
    if not script.exists():
        return []
    return [cli.command(str(script), "--model", args.model or "MODEL", "--data", *data, "--plan")]


def _stem(name: str) -> str:
    return "data" if name == "-" else name.rstrip("/").removesuffix(".gz").removesuffix(".zst").rsplit(".", 1)[0]


if __name__ == "__main__":
    sys.exit(cli.main("dataset_prep.py", __doc__, add_arguments, run))
