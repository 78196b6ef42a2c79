"""What must hold for any input: no traceback, no hang, no row lost, clean output, the same again, the file unchanged.

usage: python tests/fuzz_run.py [--count 50000] [--start 0] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "assets")]

import dataset_prep  # noqa: E402
from fuzz_inputs import Broken, broken  # noqa: E402
from gemma_trainer.rows.problems import DATA_INVALID, OK, USAGE, Failure  # noqa: E402
from preparing import row_validator  # noqa: E402

HANG = 5  # CPU seconds
STUCK = 120  # seconds
MESSAGE = 400  # characters: a message quotes no text in full
FORMS = ["messages", "prompt-completion", "sharegpt", "alpaca", "openai", "gemini"]
AGAIN = {"responses": "sft"}  # teacher output becomes training rows
_VALIDATORS: dict = {}


class Hang(BaseException):
    """Not an Exception: no code under test may catch it."""


def check_input(made: Broken) -> None:
    """Run one input through dataset_prep.py. Raises whatever is wrong."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, watched():
        check(made, Path(folder))


def check(made: Broken, folder: Path) -> None:
    file, out, rejects = folder / made.name, folder / "out" / "out.jsonl", folder / "out" / "rejects.jsonl"
    file.write_bytes(made.data)
    code, first = attempt("validate", file, *made.flags, "--report", folder / "report.jsonl")
    assert attempt("validate", file, *made.flags) == (code, first), "a second run says something else"
    if not first:
        return
    assert 0 <= first["valid"] <= first["rows"]
    repairs = ["--repair", *made.repairs] if made.repairs else []
    _, converted = attempt("convert", file, *made.flags, *repairs, "--out", out, "--rejects", rejects)
    assert file.read_bytes() == made.data, "the input was changed"
    if converted:
        check_converted(made, first, converted, out, rejects)
    look = ["--html", folder / "page.html"] if len(made.data) % 3 == 0 else []
    attempt("inspect", file, *made.flags, *look)
    attempt("stats", file, *made.flags)
    check_split(made, first, file, folder / "split")
    if first["valid"] and first["task"] == "sft":
        check_exported(made, file, folder, FORMS[len(made.data) % len(FORMS)])


def check_converted(made: Broken, first: dict, converted: dict, out: Path, rejects: Path) -> None:
    rows, refused = read(out), read(rejects)
    assert converted["rows"] == first["rows"] == len(rows) + len(refused), "rows were lost or made"
    assert (converted["rows_out"], converted["rejected"]) == (len(rows), len(refused))
    assert all(entry["codes"] for entry in refused), "a row was refused without a reason"
    if "drop-duplicates" not in made.repairs and "teacher-reply" not in made.flags:
        assert first["valid"] <= len(rows), "convert refused a row that validate took"
    if not rows:
        return
    task = AGAIN.get(converted["task"], converted["task"])
    code, again = attempt("validate", out, "--task", task, "--family", converted["family"])
    assert code == OK and again["valid"] == again["rows"] == len(rows), f"output is refused: {again['errors_by_code']}"
    for row in rows:
        _VALIDATORS.setdefault(task, row_validator(task)).validate(row)


def check_split(made: Broken, first: dict, file: Path, folder: Path) -> None:
    _, result = attempt("split", file, *made.flags, "--eval-fraction", "0.5", "--out", folder)
    if result:
        sizes = [len(read(Path(result[name]))) if result[name] else 0 for name in ("train", "eval", "rejects")]
        assert sizes == [result["train_rows"], result["eval_rows"], result["rejected"]]
        assert sum(sizes) == first["rows"], "split lost rows"


def check_exported(made: Broken, file: Path, folder: Path, form: str) -> None:
    """In another trainer's form no row is lost either, and what was written is read again."""
    out, rejects = folder / "out" / f"{form}.jsonl", folder / "out" / f"{form}.rejects.jsonl"
    _, result = attempt("convert", file, *made.flags, "--to", form, "--out", out, "--rejects", rejects)
    if result:
        rows = read(out)
        assert result["rows"] == len(rows) + len(read(rejects)), "rows were lost or made"
        if rows:
            code, again = attempt("validate", out, "--task", "sft", "--family", result["family"])
            assert again["rows"] == len(rows) and code == OK, f"{form} is refused: {again['errors_by_code']}"


def attempt(*words: object) -> tuple[int, dict]:
    """(exit code, result), the result empty where the command was refused as a whole."""
    args = parser().parse_args([str(word) for word in words])
    try:
        outcome = dataset_prep.run(args)
    except Failure as failure:
        assert failure.exit_code in (USAGE, DATA_INVALID), failure.problem
        assert len(failure.problem.message) <= MESSAGE
        return failure.exit_code, {}
    problems = [problem.as_dict() for problem in outcome.errors + outcome.warnings]
    json.dumps([outcome.result, problems, outcome.next], allow_nan=False)
    assert all(len(problem["message"]) <= MESSAGE for problem in problems), "a message is long"
    assert outcome.exit_code in (OK, DATA_INVALID) and isinstance(outcome.summary, str)
    return outcome.exit_code, outcome.result


def parser() -> argparse.ArgumentParser:
    if not _PARSERS:
        _PARSERS.append(argparse.ArgumentParser())
        dataset_prep.add_arguments(_PARSERS[0])
    return _PARSERS[0]


_PARSERS: list[argparse.ArgumentParser] = []


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line] if file.exists() else []


class watched:
    """Raises Hang after HANG seconds of CPU; wall time says little on a busy machine."""

    def __enter__(self) -> None:
        def stop(*_):
            raise Hang(f"over {HANG} s of CPU")

        self.before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, HANG)

    def __exit__(self, *_) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self.before)


def try_seed(seed: int) -> str:
    """What is wrong with this input, empty when nothing is."""
    made = broken(seed)
    try:
        check_input(made)
    except BaseException as error:
        where = "\n".join(line[:200] for line in traceback.format_exc().strip().splitlines()[-16:])
        return f"{type(error).__name__}: {error}"[:400] + f"\n{where}"
    return ""


def failures(seeds: range) -> Iterator[tuple[int, str]]:
    """(seed, what is wrong), run in a process of its own that is replaced when it dies or never returns."""
    pool = ProcessPoolExecutor(1)
    for seed in seeds:
        try:
            found = pool.submit(try_seed, seed).result(timeout=STUCK)
        except (BrokenProcessPool, TimeoutError) as error:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown()
            pool = ProcessPoolExecutor(1)
            found = f"{type(error).__name__}: the process died or never returned"
        if found:
            yield seed, found
        if (seed + 1) % 1_000 == 0:
            print(f"seed {seed + 1} reached", file=sys.stderr, flush=True)
    pool.shutdown()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=1_000)
    options.add_argument("--start", type=int, default=0)
    options.add_argument("--keep", type=Path, help="folder that takes the inputs that failed")
    args = options.parse_args()
    failed, started = [], time.monotonic()
    for seed, found in failures(range(args.start, args.start + args.count)):
        failed.append(seed)
        made = broken(seed)
        print(f"\nseed {seed}, {made.kind}, {made.name} {' '.join(made.flags)} {made.repairs}: {found}", flush=True)
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{seed}-{made.name}").write_bytes(made.data)
    kinds = Counter(broken(seed).kind for seed in range(args.start, args.start + min(args.count, 1_000)))
    print(f"{args.count} inputs in {time.monotonic() - started:.0f} s, {len(failed)} failed: {failed[:50]}")
    print("kinds of the first: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
