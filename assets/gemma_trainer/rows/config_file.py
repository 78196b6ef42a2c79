"""The YAML file of --config: flags by their names."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from gemma_trainer.rows.commands import without
from gemma_trainer.rows.problems import USAGE, Failure, missing


def read_config(path: Path) -> dict:
    """The values of a YAML file. Raises Failure (exit 2) where there is none, or it is no mapping."""
    try:
        import yaml
    except ImportError:
        raise missing("pyyaml", "--config") from None
    try:
        values = yaml.safe_load(path.read_text("utf-8")) or {}
    except FileNotFoundError:
        raise Failure(USAGE, "file-not-found", f"--config {path} does not exist") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise Failure(USAGE, "config-unreadable", f"--config {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise Failure(USAGE, "config-unreadable", f"--config {path} holds {type(values).__name__}, not a mapping")
    return values


def checked(parser: argparse.ArgumentParser, values: dict, path: Path) -> dict:
    """The values of the file by their flags' names, checked as strictly as flags are.

    Raises Failure (exit 2) for an unknown key (the nearest name is told) or a bad value.
    """
    flags = {a.dest: a for a in parser._actions if a.dest not in ("help", "config")}
    return {_flag_name(flags, key, path): _flag_value(flags, key, value, path) for key, value in values.items()}


def _flag_name(flags: dict, key: object, path: Path) -> str:
    dest = str(key).replace("-", "_")
    if dest not in flags:
        near = difflib.get_close_matches(dest, flags, n=1, cutoff=0.4)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise Failure(USAGE, "unknown-config-key", f"unknown key `{key}` in {path}{hint}", file=str(path))
    return dest


def _flag_value(flags: dict, key: object, value: object, path: Path):
    action = flags[_flag_name(flags, key, path)]
    if isinstance(action, argparse._StoreTrueAction):
        if not isinstance(value, bool):
            raise Failure(USAGE, "usage", f"`{key}` in {path} is true or false, not {value!r}")
        return value
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and action.nargs not in ("+", "*"):
        raise Failure(USAGE, "usage", f"`{key}` in {path} takes one value, not a list")
    converted = [_convert(action, key, item, path) for item in values]
    return converted if action.nargs in ("+", "*") else converted[0]


def _convert(action: argparse.Action, key: object, item: object, path: Path):
    if isinstance(item, dict | list):
        raise Failure(USAGE, "usage", f"`{key}` in {path} takes plain values, not {item!r}")
    try:
        item = item if item is None else (action.type or str)(str(item))
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise Failure(USAGE, "usage", f"`{key}` in {path}: {item!r} is not accepted ({error})") from None
    if action.choices and item not in action.choices:
        raise Failure(
            USAGE, "usage", f"`{key}` in {path} is one of {', '.join(map(str, action.choices))}, not {item!r}"
        )
    return item


def written_out(argv: list[str], file: str | None, *names: str) -> list[str]:
    """The words of a command with the flags of its --config `file` in place of it, before its own, which win; the words
    as they are where the file sets none of the flags `names`."""
    given = read_config(Path(file)) if file else {}
    if not any(given.get(name) for name in names):
        return argv
    words = []
    for key, value in given.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        if value is not None and value is not False:
            words += [f"--{str(key).replace('_', '-')}", *map(str, values)]
    return [*words, *without("--config", argv)]
