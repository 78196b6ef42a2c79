"""The one skeleton of all scripts: arguments, --config, --json, problems, exit codes."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import errno
import io
import json
import math
import os
import re
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gemma_trainer.rows.commands import command
from gemma_trainer.rows.config_file import checked, read_config
from gemma_trainer.rows.problems import (
    INTERNAL,
    OK,
    STOPPED,
    UNSUPPORTED,
    USAGE,
    Failure,
    Problem,
    is_disk_full,
    is_out_of_memory,
    missing,
)

__all__ = ["Outcome", "command", "fraction", "log", "main", "missing", "positive", "seed", "signals"]

EXIT_CODES = """exit codes:
  0 ok   1 internal error   2 usage   3 data invalid   4 dependency missing
  5 does not fit or not supported on this hardware   6 stopped early, resumable   7 remote failed"""


_FOLDER = Path(__file__).parents[1]  # of the scripts


@dataclass
class Outcome:
    """What a command found. `summary` is the text for people, `result` the object for programs."""

    result: dict = field(default_factory=dict)
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    summary: str = ""
    exit_code: int = OK


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)  # flags are looked for in words, too

    def error(self, message: str):
        script, *action = self.prog.split()
        action = action or [word for word in self.given[:1] if word in _actions(self)]
        raise Failure(USAGE, "usage", message, fix=command(_FOLDER / script, *action, "--help"))

    def parse_known_args(self, args=None, namespace=None):
        self.given = list(args or ())
        return super().parse_known_args(args, namespace)


def log(text: str) -> None:
    """Say something to people; stdout stays for the result."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(size: int, what: str) -> Iterator[Callable[[int], object]]:
    """A bar of bytes on stderr, for people at a terminal; gives the function that moves it on."""
    bar = None
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            bar = tqdm(total=size, desc=what, unit="B", unit_scale=True, leave=False, mininterval=0.2)
    try:
        yield bar.update if bar is not None else lambda size: None
    finally:
        if bar is not None:
            bar.close()


# Schedulers warn with SIGTERM; Slurm with whatever --signal says, which is SIGUSR1 in most job scripts.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAME = 1.0  # seconds within which a second signal is the first one: a group and its parent may both send it


class Signals:
    """Ctrl-C, SIGTERM and SIGUSR1 while a command works: KeyboardInterrupt, or a call of `instead`, once, where that is set.

    After `deaf` the result is printed whole. `last`: the process ends with this command, and its exit code is the result's
    whatever else arrives while Python shuts down.
    """

    instead: Callable[[], object] | None = None
    deaf = last = False
    interrupted = False  # KeyboardInterrupt was raised, which libraries may have made another error of
    _heard = -math.inf

    def __enter__(self) -> Signals:
        self.instead, self.deaf, self.interrupted, self._heard = None, False, False, -math.inf
        self._before = {number: signal.signal(number, self._hear) for number in STOPS}
        return self

    def __exit__(self, *exc) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.last or self.heard else handler)

    @property
    def heard(self) -> bool:
        return self._heard > -math.inf

    def _hear(self, number, frame) -> None:
        now = time.monotonic()
        if now - self._heard < SAME:
            return
        self._heard = now
        if self.deaf:
            return
        instead, self.instead = self.instead, None
        if instead is None:
            self.interrupted = True
            raise KeyboardInterrupt
        instead()


signals = Signals()  # of the process


def main(
    name: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], Outcome],
    argv: list[str] | None = None,
    voice: Callable[[], Callable[[Outcome], None] | None] | None = None,
) -> int:
    """Parse, run, print, and return the exit code. `description` is the script's docstring, examples included.

    `voice` gives, before anything else is done, what takes the outcome where stdout is not for this process; else None.
    """
    signals.last = argv is None
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no UTF-8 gets escapes, not a crash
            stream.reconfigure(errors="backslashreplace")
    asked = _Asked("--json" in argv, "--debug" in argv)

    def work() -> Outcome:
        asked.tell = voice() if voice else None
        args = _parse(_parser(name, description, add_arguments), argv, asked)
        with contextlib.redirect_stdout(sys.stderr):  # libraries print there, and stdout is the result
            return run(args)

    with signals:
        outcome = _outcome(name, argv, work, asked)
        if asked.tell is None:
            return _print(name, outcome, asked.json)
        asked.tell(outcome)
        return outcome.exit_code


@dataclass
class _Asked:
    """What is known even if parsing fails: an agent that asked for JSON gets JSON."""

    json: bool
    debug: bool
    tell: Callable[[Outcome], None] | None = None  # what `voice` gives


def _outcome(name: str, argv: list[str], work: Callable[[], Outcome], asked: _Asked) -> Outcome:
    """What the command gives; every way to fail is an outcome too. Signals change nothing once it is known."""
    try:
        try:
            return work()
        finally:
            signals.deaf = True
    except Failure as failure:
        if asked.debug and failure.__cause__:
            traceback.print_exc()
        errors = [failure.problem, *failure.details]
        return Outcome(failure.result, errors, next=failure.next, exit_code=failure.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        if signals.interrupted or isinstance(error, KeyboardInterrupt):
            return Outcome(
                errors=[Problem("interrupted", "Stopped by a signal.", fix="Run the same command again.")],
                next=[command(_FOLDER / name, *argv)],
                exit_code=STOPPED,
            )
        if asked.debug:
            traceback.print_exc()
        return _unforeseen(error)


def _parser(name: str, description: str, add_arguments: Callable) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=name, description=description, epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    for action, leaf in _actions(parser).items():
        _help_alone(leaf, action, description)
    for leaf in _leaves(parser):
        _add_common(leaf)
    return parser


def _unforeseen(error: Exception) -> Outcome:
    text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    if is_disk_full(error):
        place = getattr(error, "filename", None) or "the disk of temporary files or of the output"
        text = f"{place}: {getattr(error, 'strerror', None) or text}"
        return Outcome(errors=[Problem("disk-full", text)], exit_code=STOPPED)
    if is_out_of_memory(error):
        return Outcome(errors=[Problem("out-of-memory", text)], exit_code=UNSUPPORTED)
    code = "io-failed" if isinstance(error, OSError) else "internal"
    return Outcome(errors=[Problem(code, text)], exit_code=INTERNAL)


def _print(name: str, outcome: Outcome, as_json: bool) -> int:
    """The exit code."""
    try:
        _emit(name, outcome, as_json)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        _forget_stdout()
    except OSError as error:
        if sys.stdout is not None:
            _forget_stdout()
        log(f"error: the result cannot be written to stdout: {error.strerror}")
        return INTERNAL
    return outcome.exit_code


def _forget_stdout() -> None:
    """Python flushes stdout once more at its end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive(kind: type, most: float = sys.float_info.max):
    """An argparse type for numbers above zero, and of at most `most`."""

    def convert(text: str):
        value = kind(text)
        if not 0 < value <= most:
            bound = f" of at most {most:g}" if most < sys.float_info.max else ""
            raise argparse.ArgumentTypeError(f"{text} is not a number above zero{bound}")
        return value

    convert.__name__ = f"positive {kind.__name__}"
    return convert


def fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 2^32)")
    return value


def _add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("every command")
    group.add_argument("--config", metavar="FILE.yaml", help="flags from a YAML file; the command line wins")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, all else on stderr")
    group.add_argument("--debug", action="store_true", help="print the traceback of an internal error")


def _help_alone(parser: argparse.ArgumentParser, action: str, description: str) -> None:
    """A --help of a sub-command without an end of its own gets that of the script: its examples, and exit codes."""
    if parser.epilog:
        return
    _, _, examples = description.partition("examples:\n")
    own = [one.rstrip() for one in re.split(r"\n(?=  \S)", examples) if f".py {action} " in one]
    parser.epilog = "\n".join([*(["examples:", *own, ""] if own else []), EXIT_CODES])
    parser.description = "\n".join(textwrap.fill(line, 100) for line in (parser.description or "").splitlines())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def _leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers that hold flags: those of the sub-commands, or the parser itself."""
    return list(_actions(parser).values()) or [parser]


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The sub-commands by name; none for most scripts."""
    found = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return found[0] if found else {}


def _parse(parser: argparse.ArgumentParser, argv: list[str], asked: _Asked) -> argparse.Namespace:
    """What `asked` holds is known of the file of --config too, as soon as that is read."""
    leaf = next((p for p in _leaves(parser) if p.prog.split()[-1] in argv[:1]), parser)
    common = _Parser(prog=leaf.prog, add_help=False)
    _add_common(common)
    file = common.parse_known_args(argv)[0].config
    if file and not {"-h", "--help"} & set(argv):
        values = read_config(Path(file))
        asked.json |= values.get("json") is True
        asked.debug |= values.get("debug") is True
        leaf.set_defaults(**checked(leaf, values, Path(file)))
    return parser.parse_args(argv)


def _emit(name: str, outcome: Outcome, as_json: bool) -> None:
    if sys.stdout is None:  # closed by who started the command; print would say nothing
        raise OSError(errno.EBADF, "it is closed")
    if as_json:
        document = {
            "ok": outcome.exit_code == OK,
            "command": name,
            "result": outcome.result,
            "errors": [p.as_dict() for p in outcome.errors],
            "warnings": [p.as_dict() for p in outcome.warnings],
            "next": outcome.next,
        }
        # The escapes of a stream that knows no UTF-8 are none of JSON's.
        escape = codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"
        print(json.dumps(document, ensure_ascii=escape, allow_nan=False), flush=True)
        return
    for problem in outcome.errors:
        log(f"error: {problem}")
    for problem in outcome.warnings:
        log(f"warning: {problem}")
    if outcome.summary:
        print(outcome.summary, flush=True)
    if outcome.next:
        print("next:\n" + "\n".join(f"  {line}" for line in outcome.next), flush=True)
