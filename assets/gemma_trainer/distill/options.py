"""The flags of distill_dataset.py."""

from __future__ import annotations

import argparse
import re

from gemma_trainer.cli import fraction, seed
from gemma_trainer.families.catalogue import family_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    respond = commands.add_parser("respond", help="answers of a teacher to prompts", description=RESPOND)
    respond.add_argument("prompts", nargs="*", metavar="PROMPTS", help="files, folders or globs of prompts")
    _add_choice(respond)
    synthesize = commands.add_parser("synthesize", help="new prompts and their answers", description=SYNTHESIZE)
    _add_sources(synthesize)
    compare = commands.add_parser("compare", help="pairs of a better and a worse answer", description=COMPARE)
    compare.add_argument("prompts", nargs="*", metavar="PROMPTS", help="files, folders or globs of prompts")
    _add_pairs(compare)
    for command in (respond, synthesize, compare):
        _add_criteria(command)
        _add_teacher(command)
        _add_answers(command)
        _add_gate(command)
        _add_files(command)
        _add_limits(command)


RESPOND = "Ask the teacher every prompt and keep the good answers as rows for sft_train.py."
SYNTHESIZE = (
    "Let the teacher write new prompts after seeds, tools or documents, and answer them. A run with a larger --count "
    "goes on where a smaller one ended."
)
COMPARE = (
    "Make pairs for dpo_train.py and rm_train.py: the teacher's answer against the student's, or the best against the "
    "worst of several."
)


MOST = 10**12  # of what a budget counts
METHODS = ["reward", "judge", "verifier", "majority"]


def number(low: float, high: float, kind: type = float, name: str = "number", form: str = "g"):
    """An argparse type for numbers from `low` to `high`: far beyond what is meant, short of what breaks."""

    def convert(text: str):
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low:{form}} to {high:{form}}")
        return value

    convert.__name__ = name
    return convert


def whole(low: int, high: int):
    return number(low, high, int, "whole number", ",")


def code(text: str) -> str:
    """An argparse type for languages: en-US is en."""
    return re.split(r"[-_]", text.strip().lower())[0]


def _add_teacher(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the teacher: a server, or a model in this process").add_argument
    add("--base-url", metavar="URL", help="OpenAI-compatible server, e.g. http://localhost:8000/v1")
    add("--teacher", metavar="NAME", help="the model's name there")
    add(
        "--api-key-env", default="OPENAI_API_KEY", metavar="NAME", help="variable with the key (default OPENAI_API_KEY)"
    )
    add("--model", metavar="ID|DIR|FILE.gguf", help="a Gemma to run here with transformers")
    add("--adapter", metavar="DIR", help="adapter or run directory on --model, which it may name itself")
    add("--quantize", choices=["auto", "on", "off"], default="auto", help="4 bits (default auto: on a GPU)")
    add("--batch-size", type=whole(1, 4096), default=16, metavar="N", help="answers at a time here (default 16)")
    add("--concurrency", type=whole(1, 4096), default=64, metavar="N", help="most requests in flight (default 64)")
    add("--timeout", type=number(0.001, 86_400), default=600.0, metavar="SECONDS", help="for one try (default 600)")
    add("--retries", type=whole(0, 100), default=8, metavar="N", help="tries after the first (default 8)")


def _add_answers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the answers").add_argument
    add("--temperature", type=number(0, 2), default=0.7, help="0 is greedy (default 0.7)")
    add("--top-p", type=number(0.01, 1), default=0.95, help="default 0.95")
    add("--max-new-tokens", type=whole(1, 1_000_000), default=2048, metavar="N", help="of one answer (default 2048)")
    add("--thinking", choices=["auto", "on", "off"], default="auto", help="default auto: as the teacher does by itself")
    add("--drop-thinking", action="store_true", help="keep no reasoning_content")
    add("--system", metavar="TEXT", help="system text for prompts that have none; '' takes theirs away")
    add("--seed", type=seed, default=0, help="every request derives its own from it (default 0)")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("several answers a prompt").add_argument
    add("--samples", type=whole(1, 1000), default=1, metavar="N", help="answers to ask for (default 1)")
    add("--best-of", choices=METHODS, help="keep the best one only; majority goes by the final answers")
    add("--reward-model", metavar="DIR", help="run directory of rm_train.py, for ranking by reward")


def _add_pairs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the pairs").add_argument
    ways = ["student", "reward", "judge", "verifier"]
    add(
        "--by",
        choices=ways,
        default="student",
        help="what the better answer is told by (default student: the teacher's)",
    )
    add("--samples", type=whole(1, 1000), metavar="N", help="answers to choose from (default 4)")
    add("--reward-model", metavar="DIR", help="run directory of rm_train.py, for ranking by reward")
    add("--student-model", metavar="ID|DIR", help="the student, to run here with transformers")
    add("--student-adapter", metavar="DIR", help="adapter or run directory of the student")
    add("--student-base-url", metavar="URL", help="or a server that answers as the student")
    add("--student-name", metavar="NAME", help="the student's name there (default: that of the folder)")
    add(
        "--student-api-key-env",
        metavar="NAME",
        help="variable with its key (default: none, unless the teacher's server)",
    )


def _add_criteria(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what an answer has to be").add_argument
    add("--schema", metavar="FILE.json", help="JSON that fits this JSON Schema")
    add("--verifier", metavar="FILE.py:FUNCTION", help="right to a function of yours: function(answer, row); it is run")
    add("--judge-threshold", type=number(1, 10), metavar="N", help="given this score or more by a judge")
    add("--judge-rubric", metavar="FILE", help="text of what the judge goes by (default: correct, complete, as asked)")
    add(
        "--judge-model",
        metavar="NAME",
        help="another model of the teacher's server as the judge (default: the teacher)",
    )


def _add_sources(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where new samples come from").add_argument
    kinds = ["instruct", "evolve", "multi-turn", "documents", "tools"]
    add("--seeds", nargs="+", default=[], metavar="FILES", help="rows that show what is wanted")
    add("--documents", nargs="+", default=[], metavar="FILES", help="text files to ask about")
    add("--tools", metavar="FILE.json", help="tools that are to be called")
    add("--kind", choices=kinds, help="what is made (default: told by what is given; instruct of seeds)")
    add("--count", type=whole(1, 10_000_000), default=100, metavar="N", help="samples to draw (default 100)")


def _add_gate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is kept").add_argument
    add("--student", metavar="ID|DIR", help="model to be trained: its tokens and template decide what fits")
    add("--family", choices=["auto", *family_names()], default="auto", help="of the student (default: told by it)")
    add("--max-length", type=whole(1, 10_000_000), metavar="N", help="tokens of a row (default 2048)")
    add("--language", type=code, metavar="CODE", help="refuse answers in another language, e.g. en")
    add("--near-duplicates", type=fraction, default=0.8, metavar="LIKENESS", help="0 keeps them (default 0.8)")


def _add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("files").add_argument
    add("--out", metavar="FILE.jsonl", help="canonical rows")
    add("--rejects", metavar="FILE.jsonl", help="refused answers with reasons (default OUT.rejects.jsonl)")
    add("--overwrite", action="store_true", help="replace an --out of other flags; answers paid for are used again")
    add("--retry-failed", action="store_true", help="ask again what failed for good before")
    add("--licence", metavar="TEXT", help="note on the teacher's terms for the manifest")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what it may cost").add_argument
    add("--max-requests", type=whole(1, MOST), metavar="N", help="stop after N answers, restarts included")
    add("--max-tokens", type=whole(1, MOST), metavar="N", help="stop after N tokens read and written")
    add("--max-cost", type=number(1e-9, MOST), metavar="MONEY", help="stop at this cost, by --price-in and --price-out")
    add("--price-in", type=number(0, 1e6), default=0.0, metavar="MONEY", help="a million tokens read")
    add("--price-out", type=number(0, 1e6), default=0.0, metavar="MONEY", help="a million tokens written")
    add(
        "--plan",
        action="store_true",
        help="print the first request, counts and costs; a server is asked for its models only",
    )
