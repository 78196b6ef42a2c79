#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "jinja2>=3.1", "jsonschema>=4.20", "msgspec>=0.19", "numpy>=1.26", "orjson>=3.9", "pyarrow>=15", "pyyaml>=6",
#   "tokenizers>=0.22", "tqdm>=4.60", "xxhash>=3",
# ]
# ///
"""Check, convert, split and look at training data for Gemma, before a GPU is spent on it.

DATA is any number of files, folders, globs or - for stdin: JSON Lines, JSON, CSV, TSV, Parquet, Arrow, each also
.gz or .zst. Formats and layouts are told by content. Nothing needs a model; with --model lengths and masks are exact.

examples:
  python assets/dataset_prep.py validate train.jsonl --family gemma3
  python assets/dataset_prep.py validate train.parquet --model google/gemma-4-E2B-it --max-length 2048 --json
  python assets/dataset_prep.py convert sharegpt.json --out train.jsonl --rejects rejects.jsonl
  python assets/dataset_prep.py convert faq.csv --map prompt=question completion=answer --out train.jsonl
  python assets/dataset_prep.py inspect train.jsonl --model ./gemma-3-270m-it --html train.html
  python assets/dataset_prep.py split train.jsonl --eval-fraction 0.1 --seed 0
  python assets/dataset_prep.py validate shards/ --workers 8 --shard 3/16 --records reports/
  python assets/dataset_prep.py merge-reports reports/

convert writes every good row to --out and every refused one, whole and with its reason, to --rejects (default
OUT.rejects.jsonl). Refused rows give exit 3 unless --rejects names a place for them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from gemma_trainer import cli
from gemma_trainer.data.checking.repair import ASKED
from gemma_trainer.data.exports.export import EXPORTS, check_target
from gemma_trainer.data.layouts.registry import LAYOUT_NAMES, LAYOUTS, TASKS
from gemma_trainer.data.prepare import Request, Session, merge_records
from gemma_trainer.data.report import Report
from gemma_trainer.data.shape import shape_lines
from gemma_trainer.data.view import painted
from gemma_trainer.families.catalogue import family_names
from gemma_trainer.rows.problems import DATA_INVALID, OK, USAGE, Failure
from gemma_trainer.rows.visible import visible

ACTIONS = {
    "validate": ("say what is wrong, where, and how to fix it", "train.jsonl --model ./gemma-3-270m-it --json"),
    "convert": ("write canonical rows, or those of another trainer", "sharegpt.json --out train.jsonl"),
    "inspect": ("show rendered rows with their loss mask", "train.jsonl --rows 3 --family gemma4 --html train.html"),
    "split": ("write train and held-out rows that share no prompt", "train.jsonl --eval-fraction 0.1 --seed 0"),
    "stats": ("tell lengths, roles, turns, tools, languages, repeats", "train.jsonl --model ./gemma-3-270m-it"),
    "merge-reports": ("add up what the shards of a validation found", "reports/ --json"),
}
CONVERTED = {
    "byte-order-mark",
    "lone-carriage-returns",
    "not-json-lines",
    "column-renamed",
    "inline-thought",
    "think-tags",
}  # gone after convert
SHOWN = 3  # rows
TRAINERS = {"sft": "sft_train.py", "dpo": "dpo_train.py", "rm": "rm_train.py"}


def separator(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError("one character, or `tab`")
    return text


def shard(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise argparse.ArgumentTypeError(f"`{text}` is not I/N with I from 1 to N, such as 3/16")
    if not 1 <= int(number) <= int(of):
        raise argparse.ArgumentTypeError(f"I of I/N must be from 1 to N, and {number} is not from 1 to {of}")
    return int(number), int(of)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
    for name, (text, example) in ACTIONS.items():
        epilog = f"example:\n  python assets/dataset_prep.py {name} {example}\n\n{cli.EXIT_CODES}"
        kind = argparse.RawDescriptionHelpFormatter
        leaf = actions.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=kind)
        if name == "merge-reports":
            leaf.add_argument("data", nargs="*", metavar="DIR", help="folders that validate --records has written")
            _add_problems(leaf)
            continue
        _add_shared(leaf)
        {"convert": _add_convert, "inspect": _add_inspect, "split": _add_split, "validate": _add_validate}.get(
            name, lambda leaf: None
        )(leaf)
        if name in ("inspect", "stats"):
            leaf.add_argument("--html", metavar="FILE", help="write a page with all of it to look at")


def _add_validate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--records", metavar="DIR", help="keep each file's result there; files that have one are not read again")
    add("--shard", type=shard, default=(1, 1), metavar="I/N", help="every N-th file from the I-th on; needs --records")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=cli.positive(int), default=SHOWN, metavar="N", help=f"rows to show (default {SHOWN})")
    add("--loss-on", choices=["assistant", "last"], default="assistant", help="trained turns (default assistant)")


def _add_split(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--eval-fraction", type=cli.fraction, default=0.1, metavar="X", help="share of prompts held out (default 0.1)")
    add("--seed", type=cli.seed, default=0, metavar="N", help="another seed holds out other prompts (default 0)")
    add("--group", metavar="COLUMN", help="rows of equal value there stay on one side (default: of equal prompt)")
    add("--out", metavar="DIR", help="folder for NAME.train.jsonl and NAME.eval.jsonl (default: that of DATA)")


def _add_shared(parser: argparse.ArgumentParser) -> None:
    tasks, layouts = ["auto", *TASKS], ["auto", *LAYOUTS, *LAYOUT_NAMES]
    add = parser.add_argument
    add("data", nargs="*", metavar="DATA", help="files, folders, globs, or - for stdin")
    add(
        "--task",
        choices=tasks,
        default="auto",
        metavar="TASK",
        help=f"{', '.join(tasks)}; auto looks at the first rows",
    )
    add("--family", choices=["auto", *family_names()], default="auto", metavar="NAME",
        help=f"{', '.join(family_names())} (default: told by --model, else gemma4)")  # fmt: skip
    add("--model", metavar="ID|DIR|FILE.gguf", help="its tokenizer and template give exact lengths and texts")
    add("--max-length", type=cli.positive(int), default=2048, metavar="N", help="tokens a row (default 2048)")
    add("--from", dest="layout", choices=layouts, default="auto", metavar="LAYOUT", help=f"{', '.join(layouts)}")
    add("--map", nargs="+", default=[], metavar="FIELD=COLUMN", help="columns of other names, e.g. prompt=question")
    add("--delimiter", type=separator, metavar="CHAR", help="separator of delimited text (default: a comma)")
    add("--workers", type=cli.positive(int), default=1, metavar="N", help="processes (default 1)")
    _add_problems(parser)


def _add_problems(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--strict", action="store_true", help="warnings fail too")
    add("--max-errors", type=cli.positive(int), default=20, metavar="N", help="problems to print (default 20)")
    add("--report", metavar="FILE", help="every problem, JSON Lines")
    add("--overwrite", action="store_true", help="replace existing output files")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    repairs = "; ".join(f"{name}: {text}" for name, text in ASKED.items())
    parser.add_argument("--out", metavar="FILE", help="canonical rows, JSON Lines")
    parser.add_argument("--rejects", metavar="FILE", help="refused rows (default OUT.rejects.jsonl, and exit 3)")
    parser.add_argument("--repair", nargs="+", choices=ASKED, default=[], metavar="NAME", help=f"ask for {repairs}")
    parser.add_argument("--to", choices=EXPORTS, default="messages", metavar="FORM", help=f"{', '.join(EXPORTS)}")


def run(args: argparse.Namespace) -> cli.Outcome:
    if not args.data:
        raise Failure(USAGE, "usage", "no DATA was given", fix="Name files, folders or globs, or - for stdin.")
    if args.action == "merge-reports":
        return _merge(args)
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
        workers=args.workers,
        shard=getattr(args, "shard", (1, 1)),
    )
    if args.action == "convert" and not args.out:
        raise Failure(USAGE, "usage", "convert needs --out FILE")
    if request.shard != (1, 1) and not args.records:
        raise Failure(USAGE, "usage", "--shard needs --records DIR, from which merge-reports adds the shards up")
    if "-" in args.data and getattr(args, "records", None):
        raise Failure(USAGE, "usage", "--records keeps results of files, and - is none", fix="Name files or folders.")
    session = Session(request)
    session.retry = lambda rejects: _retry(args, session, rejects)
    command = {"validate": _validate, "convert": _convert, "inspect": _inspect, "split": _split, "stats": _stats}
    with session.report, cli.progress(session.stored_bytes, args.action) as session.advance:
        if getattr(args, "html", None):
            session.check_targets(Path(args.html))
        outcome = command[args.action](args, session)
    outcome.result["notes"] = session.notes
    outcome.next = [] if args.action in ("inspect", "stats") and "-" in args.data else outcome.next  # stdin is gone
    return outcome


def _validate(args: argparse.Namespace, session: Session) -> cli.Outcome:
    result = session.validate(Path(args.records) if args.records else None)
    outcome = _outcome(args, session.report, result)
    trainable = args.data
    # What came through stdin is gone, and one --delimiter does not fit files of different separators.
    again = "-" not in args.data and session.report.errors_by_code["csv-separator"] in (0, len(session.files))
    if again and _needs_convert(args, session, result):
        trainable = [f"{_stem(args.data[0])}.clean.jsonl"]
        rejects = f"{_stem(args.data[0])}.rejects.jsonl"
        outcome.next = [_command(args, session, "convert", "--out", trainable[0], "--rejects", rejects)]
    if again and result["valid"]:
        outcome.next += _train(args, session, trainable)
    verdict = "valid" if outcome.exit_code == OK else "NOT valid"
    outcome.summary = f"{verdict}: {result['valid']} of {result['rows']} rows\n" + _summary(result)
    if result["tokens"]:
        outcome.summary += "\ntokens  " + ", ".join(f"{name} {count}" for name, count in result["tokens"].items())
    return outcome


def _needs_convert(args: argparse.Namespace, session: Session, result: dict) -> bool:
    """Whether the trainers, which have no --map and no --delimiter, want other rows than these."""
    lasting = set() if session.options.family.thinking else {"think-tags"}  # there is no other place for the thinking
    mended = result["warnings_by_code"].keys() & (result["repaired"].keys() | CONVERTED) - lasting
    return bool(result["errors_by_code"] or mended or args.map or args.delimiter)


def _convert(args: argparse.Namespace, session: Session) -> cli.Outcome:
    check_target(args.to, session.model)
    result = session.convert(Path(args.out), Path(args.rejects) if args.rejects else None, args.to)
    report = session.report
    outcome = _outcome(args, report, result)
    if args.rejects and result["rows_out"] and not report.file_errors:
        outcome.errors = []  # the rejects file holds them, row by row
        outcome.exit_code = DATA_INVALID if args.strict and outcome.warnings else OK
    if report.file_errors:
        outcome.next = [_command(args, session, "validate")]  # what is left of a damaged file is not the data
    elif result["rows_out"] and args.to == "messages":
        outcome.next = _train(args, session, [args.out])
    elif result["rows_out"]:
        outcome.next = [cli.command(__file__, "inspect", _operand(args.out), "--rows", 1)]
    elif result["rejects"]:
        outcome.exit_code = DATA_INVALID
    counts = f"{result['rows']} rows in, {result['rows_out']} out, {result['rejected']} refused"
    files = "".join(f"\n{name:7} {result[name]}" for name in ("out", "rejects") if result[name])
    outcome.summary = f"{counts}{files}\n{_summary(result)}"
    return outcome


def _split(args: argparse.Namespace, session: Session) -> cli.Outcome:
    stem = Path(_stem(args.data[0]))
    folder = Path(args.out) if args.out else stem.parent
    names = [folder / f"{stem.name}.{side}.jsonl" for side in ("train", "eval")]
    result = session.split(*names, args.eval_fraction, args.seed, args.group)
    outcome = _outcome(args, session.report, result)
    if result["train_rows"]:
        outcome.next = _train(args, session, [result["train"]], result["eval"])
    counts = f"{result['rows']} rows in, {result['train_rows']} to train on, {result['eval_rows']} held out"
    files = "".join(f"\n{name:7} {result[name]}" for name in ("train", "eval", "rejects") if result[name])
    repeats = "repeats rows {rows}, prompts {prompts}".format(**result["duplicates"])
    outcome.summary = f"{counts}, {result['rejected']} refused{files}\n{repeats}\n{_summary(result)}"
    return outcome


def _inspect(args: argparse.Namespace, session: Session) -> cli.Outcome:
    result = session.inspect(args.rows, args.loss_on, whole=bool(args.html))
    outcome = _outcome(args, session.report, result)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    key = "trained text is green" if colour else "trained text stands in « »"
    views = "\n".join(painted(view, colour) for view in result["rows"])
    outcome.summary = (f"{views}\n--- {key}\n" if views else "") + _summary(result)
    outcome.next = [_command(args, session, "validate")]
    return _with_page(args, session, outcome, result["rows"])


def _stats(args: argparse.Namespace, session: Session) -> cli.Outcome:
    result = session.stats()
    outcome = _outcome(args, session.report, result)
    repeats = "repeats rows {rows}, prompts {prompts}".format(**result["duplicates"])
    outcome.summary = "\n".join([*shape_lines(result["stats"]), repeats, _summary(result)])
    outcome.next = [_command(args, session, "inspect", "--html", f"{_stem(args.data[0])}.html")]
    views = session.views(SHOWN, "assistant", Report()) if args.html else []
    return _with_page(args, session, outcome, views)


def _with_page(args: argparse.Namespace, session: Session, outcome: cli.Outcome, views: list[dict]) -> cli.Outcome:
    if args.html:
        from gemma_trainer.data.pages.page import write_page

        facts = {**outcome.result, "data": args.data, "max_length": args.max_length, "next": outcome.next}
        write_page(args.html, facts, facts.get("stats", {}), views, [*outcome.errors, *outcome.warnings])
        outcome.result["html"] = args.html
        outcome.summary += f"\npage    {args.html}"
    return outcome


def _merge(args: argparse.Namespace) -> cli.Outcome:
    result, report = merge_records(args.data, args.max_errors, args.report, args.overwrite)
    outcome = _outcome(args, report, result)
    verdict = "valid" if outcome.exit_code == OK else "NOT valid"
    outcome.summary = f"{verdict}: {result['valid']} of {result['rows']} rows in {result['files']} files\n" + _summary(
        result
    )
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
    return "\n".join([*lines, *(f"note: {visible(note)}" for note in result["notes"])])


def _command(args: argparse.Namespace, session: Session, action: str, *words: str) -> str:
    """The command for the same data, read with the same flags."""
    delimiter = _separator(args, session)
    flags = [*_flags(args), *(["--delimiter", delimiter] if delimiter else [])]
    return cli.command(__file__, action, *map(_operand, args.data), *flags, *words)


def _retry(args: argparse.Namespace, session: Session, rejects: Path) -> str:
    """The command that converts rejects once they are corrected."""
    repairs, target = getattr(args, "repair", []), getattr(args, "to", "messages")
    flags = [
        *_flags(args),
        *(["--repair", *repairs] if repairs else []),
        *(["--to", target] if target != "messages" else []),
    ]
    return cli.command(__file__, "convert", _operand(rejects), *flags, "--out", f"{_stem(str(rejects))}.clean.jsonl")


def _flags(args: argparse.Namespace) -> list[str]:
    given = [("--task", args.task), ("--family", args.family), ("--model", args.model), ("--from", args.layout)]
    flags = [word for flag, value in given if value not in (None, "auto") for word in (flag, value)]
    return [*flags, "--map", *args.map] if args.map else flags


def _separator(args: argparse.Namespace, session: Session) -> str | None:
    """The --delimiter that was given, or else the one that every file of another separator than a comma has."""
    told = {shlex.split(p.fix or "")[2] for p in session.report.errors if p.code == "csv-separator"}
    separator = told.pop() if len(told) == 1 else args.delimiter
    return "tab" if separator == "\t" else separator


def _operand(name: str | Path) -> str:
    """A file's name that is not taken for a flag."""
    name = str(name)
    return f"./{name}" if name.startswith("-") and name != "-" else name


def _train(args: argparse.Namespace, session: Session, data: list[str], held_out: str | None = None) -> list[str]:
    """The command that trains on the data, as far as its script is here."""
    script = Path(__file__).with_name(TRAINERS.get(session.options.task, "none"))
    if not script.exists() or "pretokenized" in session.report.layouts:  # of which other trainers can make use
        return []
    evaluation = ["--eval-data", _operand(held_out)] if held_out else []
    data = [_operand(name) for name in data]
    return [cli.command(str(script), "--model", args.model or "MODEL", "--data", *data, *evaluation, "--plan")]


def _stem(name: str) -> str:
    """The name of an input without what tells its format; a name for outputs that lie beside it."""
    if name == "-":
        return "data"
    path = Path(name.rstrip("/")) if Path(name).name not in ("", ".", "..") else Path(name).resolve()
    plain = path.name.removesuffix(".gz").removesuffix(".zst").replace("*", "").replace("?", "")
    return _operand(path.with_name(plain.rsplit(".", 1)[0] or "data"))


if __name__ == "__main__":
    sys.exit(cli.main("dataset_prep.py", __doc__, add_arguments, run))
