#!/usr/bin/env python3
"""Measure dataset_prep.py against parsers, jsonschema, transformers, tokenizers and Jinja, and print a table.

Every command runs in a process of its own, warm, on one core unless a line says otherwise; medians of interleaved rounds.
Speeds are per CPU second; "net" is without start-up, which is the same command on a file of one row. Rows: benchmarks/rows.py.

usage: python benchmarks/dataset_prep.py [--rows 100000] [--only structure tokens ...] [--tokenizers FOLDER] [--full]

--tokenizers: a folder with gemma3 and gemma4, as tests/real_tokenizers.py builds it; or name Gemma 3's tokenizer.json in
GEMMA3_TOKENIZER_JSON. Without either only what needs no tokenizer is measured. --full adds files of 1,000,000 rows (3 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "assets" / "dataset_prep.py"
ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
MILLION = 1_000_000


class Ran(NamedTuple):
    """CPU and wall seconds, peak MiB of the largest process, and the JSON object on stdout."""

    cpu: float
    wall: float
    peak: float
    output: dict


class Line(NamedTuple):
    """One line of the table; `met` is None where there is no goal."""

    what: str
    measured: str
    goal: str = ""
    met: bool | None = None


class Bench:
    def __init__(self, args: argparse.Namespace):
        self.rows, self.rounds, self.full, self.sample = args.rows, args.rounds, args.full, args.sample
        self.folder: Path = args.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        # Compiled modules are kept, as an installation keeps them, but not beside the sources.
        os.environ |= {**ONE_CORE, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.folder / "pycache")}
        self.tokenizers: Path | None = args.tokenizers or built_tokenizers(self.folder)
        leaf = subprocess.run([sys.executable, SCRIPT, "validate", "--help"], capture_output=True, text=True).stdout
        self.one_worker = ["--workers", "1"] if "--workers" in leaf else []

    # What is measured

    def structure(self) -> Iterator[Line]:
        """Every check of rows, without a tokenizer, beside parsers on the same lines."""
        for kind in ("sft", "quoted"):
            file, one = self.file(kind, self.rows), self.file(kind, 1)
            commands = {"ours": self.ours("validate", file), "ours one": self.ours("validate", one)}
            for name in ("orjson", "json"):
                commands |= {name: self.other(name, file), f"{name} one": self.other(name, one)}
            if kind == "sft":
                commands["jsonschema"] = self.other("jsonschema", file, "--limit", self.sample)
            runs = self.interleaved(commands)
            assert runs["ours"].output["result"]["valid"] == self.rows
            yield from self.against_parsers(f"structure only, {kind} rows", file, runs)

    def against_parsers(self, name: str, file: Path, runs: dict[str, Ran]) -> Iterator[Line]:
        size, goal = file.stat().st_size / 1e6, ">= 55 %" if "sft" in name else ""
        whole = {tool: runs[tool].cpu for tool in ("ours", "orjson", "json")}
        net = {tool: max(cpu - runs[f"{tool} one"].cpu, 1e-3) for tool, cpu in whole.items()}
        for tool, label in (("ours", "dataset_prep.py"), ("orjson", "orjson.loads"), ("json", "json.loads")):
            speeds = f"{size / whole[tool]:,.0f} MB/s whole, {size / net[tool]:,.0f} net, {self.rows / net[tool]:,.0f} rows/s net"
            yield Line(f"{name}, {self.rows:,} ({size:.0f} MB): {label}", speeds)
        share = net["orjson"] / net["ours"]
        text = f"{whole['orjson'] / whole['ours']:.0%} whole, {share:.0%} net"
        yield Line(f"{name}: speed as a share of orjson.loads", text, goal, share >= 0.55 if goal else None)
        yield Line(
            f"{name}: against json.loads",
            f"{whole['json'] / whole['ours']:.1f} x whole, {net['json'] / net['ours']:.1f} x net",
        )
        if "jsonschema" in runs:
            schema = runs["jsonschema"].output
            times = schema["cpu"] / schema["rows"] * self.rows / net["ours"]
            text = f"{times:.0f} x net ({schema['rows']:,} rows, scaled)"
            yield Line(f"{name}: against jsonschema on parsed rows", text, ">= 20 x", times >= 20)

    def startup(self) -> Iterator[Line]:
        one = self.file("sft", 1)
        commands = {"without tokens": self.ours("validate", one)}
        if self.tokenizers:
            commands["with tokens"] = self.ours("validate", one, model="gemma4")
            commands["tokenizers' Tokenizer.from_file alone"] = self.other("load", one, model="gemma4")
            commands["transformers' AutoTokenizer"] = self.other("template-sft", one, model="gemma4")
        runs = self.interleaved(commands)
        goals = {"without tokens": 0.3, "with tokens": 1.5}
        for name, ran in runs.items():
            goal = goals.get(name)
            yield Line(
                f"start to first result, {name}",
                f"{ran.cpu:.2f} CPU-s",
                f"<= {goal} s" if goal else "",
                ran.cpu <= goal if goal else None,
            )

    def tokens(self) -> Iterator[Line]:
        """Exact counts and masks beside one template call and one encoding for every text."""
        for kind, goal in (("sft", 8), ("dpo", 15)):
            file, one, part = self.file(kind, self.rows), self.file(kind, 1), ("--limit", self.sample)
            commands = {
                "ours": self.ours("validate", file, kind, model="gemma4"), "ours one": self.ours("validate", one, kind, model="gemma4"),
                "usual": self.other(f"template-{kind}", file, *part, model="gemma4"),
                "encode": self.other("encode", file, *part, model="gemma4"),
            }  # fmt: skip
            runs = self.interleaved(commands)
            result, name = runs["ours"].output["result"], f"with tokens, {kind.upper()}"
            assert result["valid"] == self.rows and result["rendering"] == "direct", result
            net = self.rows / max(runs["ours"].cpu - runs["ours one"].cpu, 1e-3)
            yield Line(
                f"{name}, {self.rows:,} rows: dataset_prep.py",
                f"{self.rows / runs['ours'].cpu:,.0f} rows/s whole, {net:,.0f} net",
            )
            others = {"the usual pattern": ("usual", goal), "encode_batch_fast of the bare texts": ("encode", 3)}
            for label, (tool, least) in others.items():
                speed = runs[tool].output["rows"] / runs[tool].output["cpu"]
                start = runs[tool].cpu - runs[tool].output["cpu"]  # imports, loading, parsing
                whole, times = (start + self.rows / speed) / runs["ours"].cpu, net / speed
                text = f"{whole:.1f} x whole, {times:.1f} x net ({speed:,.0f} rows/s net, {self.sample:,} rows, scaled)"
                yield Line(f"{name}: against {label}", text, f">= {least} x", min(whole, times) >= least)

    def exact(self) -> Iterator[Line]:
        """Tokens of every row, and what is trained in all, against the official template and tokenizer."""
        for family in ("gemma4", "gemma3"):
            for kind in ("sft", "dpo"):
                rows = self.rows if self.full else self.sample
                file, report = self.file(kind, rows), self.folder / "report.jsonl"
                ours = self.ours(
                    "validate", file, kind, "--max-length", "1", "--report", report, "--overwrite", model=family
                )
                tokens = run(ours, fails=True).output["result"]["tokens"]
                counts = run(self.other("official", file, model=family)).output["counts"]
                texts = len(counts) // rows
                official = [max(size for size, _ in counts[at : at + texts]) for at in range(0, len(counts), texts)]
                found = sizes(report)
                differ = sum(found.get(row) != size for row, size in enumerate(official, 1))
                off = [
                    tokens["total"] - sum(size for size, _ in counts),
                    tokens["trained"] - sum(trained for _, trained in counts),
                ]
                yield Line(f"exactness, {family}, {kind.upper()}, {rows:,} rows ({tokens['total']:,} tokens, {tokens['trained']:,} trained)",
                           f"{differ} rows differ; totals off by {off[0]} and {off[1]}", "0", not differ and off == [0, 0])  # fmt: skip

    def rendering(self) -> Iterator[Line]:
        for family, goal in (("gemma4", 50), ("gemma3", None)):
            file, part = self.file("sft", self.rows), ("--limit", self.sample, "--family", family)
            names = {"direct": "text and spans", "pieces": "pieces, as counting takes them", "jinja": "text"}
            runs = self.interleaved({name: self.other(name, file, *part, model=family) for name in names})
            jinja = runs.pop("jinja").output
            for name, ran in runs.items():
                ours = ran.output
                assert ours["hash"] == jinja["hash"], "the texts differ"
                times = jinja["cpu"] / ours["cpu"]
                cost, theirs = (out["cpu"] / out["rows"] * 1e6 for out in (ours, jinja))
                text = f"{times:.0f} x ({cost:.1f} us a row against {theirs:.0f}), same bytes"
                met = (f">= {goal} x", times >= goal) if goal else ()
                yield Line(f"rendering, {family}: {names[name]}, against Jinja's text", text, *met)

    def memory(self) -> Iterator[Line]:
        counts = [10_000, 100_000] + [MILLION] * self.full
        for name, model, limit in (("structure only", None, 80), ("with tokens", "gemma4", 450)):
            if model and not self.tokenizers:
                continue
            peaks = [run(self.ours("validate", self.file("sft", count), model=model)).peak for count in counts]
            shown = ", ".join(f"{peak:.0f} MiB at {count:,}" for peak, count in zip(peaks, counts, strict=True))
            spread = max(peaks) - min(peaks)
            good = max(peaks) <= limit and spread <= 10
            yield Line(f"peak memory, {name}", f"{shown}; within {spread:.0f}", f"<= {limit} MB, within 10", good)

    def million(self) -> Iterator[Line]:
        """Every command on a file of 1,000,000 rows, as a user would run it."""
        if not self.full:
            return
        file, out = self.file("sft", MILLION), self.folder / "out"
        out.mkdir(exist_ok=True)
        commands = {
            "validate": ["validate", file], "convert": ["convert", file, "--out", out / "rows.jsonl", "--overwrite"],
            "inspect --html": ["inspect", file, "--html", out / "page.html", "--overwrite"],
            "split": ["split", file, "--out", out / "split", "--overwrite"], "stats": ["stats", file],
        }  # fmt: skip
        for name, words in commands.items():
            ran = run([sys.executable, SCRIPT, *words, "--family", "gemma4", "--task", "sft", "--json"], fails=True)
            if not ran.output["ok"]:
                yield Line(f"1,000,000 rows: {name}", f"refused: {ran.output['errors'][0]['code']}")
            else:
                yield Line(f"1,000,000 rows: {name}", f"{ran.wall:.0f} s, {ran.cpu:.0f} CPU-s, {ran.peak:.0f} MiB")

    def workers(self) -> Iterator[Line]:
        if not self.one_worker:
            return
        for name, model in (("structure only", None), ("with tokens", "gemma4")):
            if model and not self.tokenizers:
                continue
            file = self.file("sft", self.rows)
            commands = {
                str(count): [*self.ours("validate", file, model=model), "--workers", str(count)] for count in (1, 2)
            }
            runs = self.interleaved(commands)
            times = runs["1"].wall / runs["2"].wall
            text = f"{times:.2f} x ({runs['1'].wall:.1f} s against {runs['2'].wall:.1f})"
            yield Line(f"two workers against one, {name}, wall", text, ">= 1.7 x", times >= 1.7)

    # How

    def file(self, kind: str, count: int) -> Path:
        file = self.folder / f"{kind}-{count}.jsonl"
        if not file.exists():
            say(f"writing {file.name}")
            subprocess.run([sys.executable, HERE / "rows.py", kind, str(count), file], check=True)
        return file

    def ours(self, action: str, file: Path, task: str = "sft", *words: object, model: str | None = None) -> list:
        source = ["--model", self.tokenizers / model] if model else ["--family", "gemma4"]
        return [
            sys.executable,
            SCRIPT,
            action,
            file,
            "--json",
            "--task",
            task,
            "--max-length",
            "100000",
            *source,
            *self.one_worker,
            *words,
        ]

    def other(self, name: str, file: Path, *words: object, model: str | None = None) -> list:
        source = ["--model", self.tokenizers / model] if model else []
        return [sys.executable, HERE / "baselines.py", name, file, *source, *words]

    def interleaved(self, commands: dict[str, list]) -> dict[str, Ran]:
        """The median of each command, the commands taking turns so that a busy minute hits them all."""
        runs: dict[str, list[Ran]] = {name: [] for name in commands}
        for at in range(self.rounds):
            for name, words in commands.items():
                say(f"round {at + 1} of {self.rounds}: {name}")
                runs[name].append(run(words))
        return {name: _median(several) for name, several in runs.items()}


def _median(runs: list[Ran]) -> Ran:
    output = runs[0].output
    if "cpu" in output:
        output = {**output, "cpu": median(ran.output["cpu"] for ran in runs)}
    return Ran(*(median(ran[at] for ran in runs) for at in range(3)), output)


def run(words: list, fails: bool = False) -> Ran:
    """Run to the end. The peak would hold that of this process too, which is why it stays small."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=errors)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if status and not (fails and output):
            errors.seek(0)
            raise SystemExit(f"{words[1:]} ended with {status}: {output[-600:]!r} {errors.read()[-2000:].decode()}")
    return Ran(usage.ru_utime + usage.ru_stime, time.monotonic() - started, usage.ru_maxrss / 1024, json.loads(output))


def sizes(report: Path) -> dict[int, int]:
    """{row: tokens} of rows that a report calls too long."""
    found = {}
    for line in report.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["code"] == "over-length":
            found[entry["row"]] = int(re.match(r"\d+", entry["message"])[0])
    return found


def built_tokenizers(folder: Path) -> Path | None:
    source = os.environ.get("GEMMA3_TOKENIZER_JSON")
    out = folder / "tokenizers"
    if source and not out.exists():
        out.mkdir()
        code = "import sys; from pathlib import Path; from real_tokenizers import build; build(Path(sys.argv[1]), Path(sys.argv[2]))"
        paths = os.pathsep.join(str(HERE.parent / name) for name in ("tests", "assets"))
        subprocess.run([sys.executable, "-c", code, source, out], check=True, env={**os.environ, "PYTHONPATH": paths})
    return out if out.exists() else None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


MEASURES: dict[str, Callable[[Bench], Iterator[Line]]] = {
    name: getattr(Bench, name)
    for name in ("structure", "startup", "tokens", "exact", "rendering", "memory", "workers", "million")
}
NEED_TOKENIZERS = {"tokens", "exact", "rendering"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=3_000, help="rows of what is too slow for all (default 3000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="NAME", help=", ".join(MEASURES)
    )
    parser.add_argument("--full", action="store_true", help="files of 1,000,000 rows too, exactness on all rows")
    parser.add_argument("--tokenizers", type=Path, help="folder with gemma3 and gemma4")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "gemma-trainer-benchmark", help="for rows"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    args = parser.parse_args()
    bench = Bench(args)
    table = ["| what | measured | goal | met |", "| --- | --- | --- | --- |"]
    print("\n".join(table), flush=True)
    for name in args.only:
        if name in NEED_TOKENIZERS and not bench.tokenizers:
            say(f"{name} is left out: no --tokenizers and no GEMMA3_TOKENIZER_JSON")
            continue
        for line in MEASURES[name](bench):
            met = "" if line.met is None else "yes" if line.met else "NO"
            table.append(f"| {line.what} | {line.measured} | {line.goal} | {met} |")
            print(table[-1], flush=True)
    if args.markdown:
        args.markdown.write_text("\n".join(table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
