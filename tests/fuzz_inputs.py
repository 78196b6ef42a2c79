"""Broken data files, each made from a seed: bytes, JSON, rows, tables and packed files that are nearly right.

`python tests/fuzz_run.py --count 50000` runs dataset_prep.py over them.
"""

from __future__ import annotations

import gzip
import io
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fuzz_rows import COLUMNS, ROWS, RowMaker

CASES = Path(__file__).parent / "cases"
SUFFIXES = [".jsonl"] * 3 + [".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt", "", ".jsonl.gz"]
TASKS = ["auto", "auto", "sft", "sft", "dpo", "rm", "prompts", "responses"]
FAMILIES = ["gemma4", "gemma4", "gemma3", "gemma2", "gemma3n", "gemma4-large", "functiongemma"]
LAYOUTS = ["messages", "prompt-completion", "sharegpt", "alpaca", "preference", "text", "prompt", "teacher-reply"]
PIECES = [b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n", b"\n\n", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b",", b":",
    b"\t", b";", b"\\u", b"\\ud800", b"\\udc00", b"NaN", b"Infinity", b"null", b"true", b"-", b"1e999", b"//", b"/*", b"#", b"\x1a",
    b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x1f\x8b", b"PAR1", b"ARROW1", b"\x28\xb5\x2f\xfd", b"<|turn>", b"\xff\xfe"]  # fmt: skip


class Broken(NamedTuple):
    """A file and how it is to be read. `repairs` belong to convert."""

    kind: str
    name: str
    data: bytes
    flags: list[str]
    repairs: list[str]


def broken(seed: int) -> Broken:
    return Fuzzer(seed).make()


@cache
def case_files() -> list[tuple[str, bytes]]:
    files = sorted(path for path in CASES.iterdir() if path.suffix not in (".json", ".md") or path.name[0].isdigit())
    return [(path.name, path.read_bytes()) for path in files if path.is_file()]


class Fuzzer(RowMaker):
    def make(self) -> Broken:
        kind = self.random.choice(KINDS)
        name, data = getattr(self, f"_{kind}")()
        if self.chance(0.05):
            name, data = self._packed(name, data)
        if self.chance(0.1):
            name = "rows" + self.one(SUFFIXES)
        return Broken(kind, name, data, self.flags(kind), self.repairs())

    def flags(self, kind: str) -> list[str]:
        flags = ["--task", self.one(TASKS), "--family", self.one(FAMILIES)]
        if self.chance(0.15):
            flags += ["--max-length", self.one(["1", "40", "100000"])]
        if self.chance(0.05):
            flags += ["--from", self.one(LAYOUTS)]
        if self.chance(0.04):
            flags += ["--map", f"{self.one(COLUMNS)}={self.one(COLUMNS)}"]
        if self.chance(0.3 if kind == "table" else 0.02):
            flags += ["--delimiter", self.one([";", ",", "|", "tab"])]
        return flags + ["--strict"] * self.chance(0.1)

    def repairs(self) -> list[str]:
        names = ["merge-turns", "drop-dangling", "drop-null-arguments", "drop-duplicates", "strip-nul"]
        return [name for name in names if self.chance(0.1)]

    # Kinds of files: (name, bytes)

    def _noise(self) -> tuple[str, bytes]:
        size = self.one([0, 1, 2, 3, 7, 30, 300, 3000])
        alphabet = self.one([bytes(range(256)), b'{}[]",:\\ntf0 \r\n', bytes(range(128))])
        return "rows" + self.one(SUFFIXES), bytes(self.random.choices(alphabet, k=size))

    def _mutated(self) -> tuple[str, bytes]:
        name, data = self.one(case_files())
        for _ in range(self.random.randint(1, 4)):
            data = self.mutation(data)
        return name, data

    def _broken_json(self) -> tuple[str, bytes]:
        text = "\n".join(self.spelled(self.row()) for _ in range(self.random.randint(1, 4)))
        for _ in range(self.random.randint(1, 3)):
            text = self.misspelling(text)
        return "rows" + self.one([".jsonl", ".json"]), text.encode("utf-8", "surrogatepass")

    def _random_json(self) -> tuple[str, bytes]:
        rows = [self.value() for _ in range(self.random.randint(1, 5))]
        return self.written(rows)

    def _near_valid(self) -> tuple[str, bytes]:
        rows = [self.row() for _ in range(self.random.randint(1, 5))]
        at = self.random.randrange(len(rows))
        for _ in range(self.random.randint(1, 2)):
            rows[at] = self.replaced(rows[at])
        return self.written(rows)

    def _whole(self) -> tuple[str, bytes]:
        layouts = self.random.sample(ROWS, self.one([1, 1, 1, 2]))
        rows = [getattr(self, f"_row_{self.one(layouts)}")() for _ in range(self.random.randint(1, 8))]
        return self.written(rows + rows[: self.one([0, 0, 1])])

    def _extreme(self) -> tuple[str, bytes]:
        deep = self.one([20, 200, 2_000, 50_000])
        big = [
            "[" * deep, "[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep, '{"a":' * deep, "9" * self.one([19, 20, 400, 9000]),
            "-" + "1" * 30, "1e400", "-1e-400", "0." + "1" * 3000, '"' + "long " * self.one([100, 60_000]) + '"', "1e" + "9" * 40,
            '"' + "\\n" * 5000 + '"', '"' + "<" * 3000 + '"', '"' + "\\ud83d" * 50 + '"', "{" + ",".join(f'"k{n}":{n}' for n in range(3000)) + "}",
        ]  # fmt: skip
        row = self.spelled(self.replaced(self.row(), "@@"))
        text = row.replace('"@@"', self.one(big), 1) if self.chance(0.8) else self.one(big)
        lines = [self.spelled(self.row()), text, self.spelled(self.row())]
        data = "[" + ",".join(lines) + "]" if self.chance(0.2) else "\n".join(lines)
        return "rows" + self.one([".jsonl", ".json", ".csv"]), data.encode("utf-8", "surrogatepass")

    def _unicode(self) -> tuple[str, bytes]:
        lines = []
        for _ in range(self.random.randint(1, 4)):
            row = self.row()
            for _ in range(self.random.randint(1, 3)):
                row = self.replaced(row, self.text())
            lines.append(json.dumps(row, ensure_ascii=self.chance(0.6)))
        return "rows.jsonl", "\n".join(lines).encode(
            self.one(["utf-8"] * 6 + ["utf-16", "latin-1"]), self.one(["replace", "backslashreplace"])
        )

    def _table(self) -> tuple[str, bytes]:
        separator = self.one([",", ",", "\t", ";", "|"])
        header = self.one([["prompt", "completion"], ["instruction", "input", "output"], ["prompt", "chosen", "rejected"], ["text"],
                           ["messages"], ["question", "answer"], self.random.sample(COLUMNS, 3)])  # fmt: skip
        lines = [header] + [[self.cell(separator) for _ in header] for _ in range(self.random.randint(0, 5))]
        for line in lines:
            if self.chance(0.1):
                line.append("extra") if self.chance(0.5) else line.pop()
        text = self.one(["\n", "\n", "\r\n", "\r"]).join(separator.join(line) for line in lines)
        data = text.encode("utf-8", "replace")
        return "rows" + self.one([".csv", ".csv", ".tsv", ".txt"]), self.mutation(data) if self.chance(0.3) else data

    def _columns(self) -> tuple[str, bytes]:
        import pyarrow
        from pyarrow import parquet

        rows = [getattr(self, f"_row_{self.one(ROWS)}")()] * self.random.randint(1, 3)
        try:
            table = pyarrow.Table.from_pylist(rows)
            sink = io.BytesIO()
            if self.chance(0.6):
                name = "rows.parquet"
                parquet.write_table(table, sink)
            else:
                name = "rows.arrow"
                make = self.one([pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
                with make(sink, table.schema) as writer:
                    writer.write_table(table)
        except (pyarrow.ArrowException, UnicodeError, TypeError, AttributeError):  # rows that no table can hold
            return self.written(rows)
        data = sink.getvalue()
        for _ in range(self.one([0, 1, 1, 2])):
            data = self.mutation(data)
        return name, data

    def _archive(self) -> tuple[str, bytes]:
        name, data = self._packed(*self.one([self._whole, self._table, self._mutated, self._near_valid])())
        for _ in range(self.one([0, 1, 2])):
            data = self.mutation(data)
        return name, data

    def _packed(self, name: str, data: bytes) -> tuple[str, bytes]:
        if self.chance(0.5):
            return name + ".gz", gzip.compress(data, 1, mtime=0)
        import pyarrow

        return name + ".zst", pyarrow.compress(data, codec="zstd", asbytes=True)

    # Changes

    def mutation(self, data: bytes) -> bytes:
        at, to = sorted(self.random.randint(0, len(data)) for _ in range(2))
        kind = self.random.randint(0, 8)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            return data[:at] + bytes([data[at] ^ (1 << self.random.randint(0, 7))]) + data[at + 1 :]
        if kind == 1:
            return data[:at]
        if kind == 2:
            return data[:at] + data[to:]
        if kind == 3:
            return data[:to] + data[at:to] * self.one([1, 2, 20]) + data[to:]
        if kind == 4:
            other = self.one(case_files())[1]
            return data[:at] + other[self.random.randint(0, len(other)) :]
        if kind == 5:
            return data.replace(self.one([b"\n", b'"', b",", b"}", b":", b" "]), self.one(PIECES), self.one([1, -1]))
        if kind == 6:
            return self.one(PIECES) + data
        return data[:at] + self.one(PIECES) + data[at:]

    def misspelling(self, text: str) -> str:
        at = self.random.randint(0, len(text))
        changes = [
            lambda: text[:at] + text[at + 1 :], lambda: text[:at], lambda: text[at:], lambda: text.replace('"', "'"), lambda: text.replace("}", ",}"),
            lambda: text[:at] + self.one(['"', "{", "}", "[", "]", ",", ":", "\\", "\n", "\x00", "// no", "\t", "NaN"]) + text[at:],
            lambda: text.replace("\n", ""), lambda: text.replace("\n", ",\n"), lambda: "[" + text, lambda: text + "]", lambda: "\ufeff" + text,
            lambda: text.replace("null", "None").replace("true", "True"), lambda: "```json\n" + text + "\n```", lambda: text.replace('": ', '" '),
            lambda: text.replace("{", '{"role": "x", ', 1), lambda: repr(text), lambda: json.dumps(text), lambda: text.replace("\\", "\\\\"),
        ]  # fmt: skip
        return self.one(changes)()

    def replaced(self, value: object, by: object = None) -> object:
        """The value with one item somewhere inside it replaced, renamed, doubled or gone."""
        if not isinstance(value, dict | list) or not value or self.chance(0.12):
            return self.value(2) if by is None else by
        if isinstance(value, list):
            at = self.random.randrange(len(value))
            if by is None and self.chance(0.15):
                return value[:at] + value[at + 1 :] if self.chance(0.5) else [*value, value[at]]
            return [*value[:at], self.replaced(value[at], by), *value[at + 1 :]]
        key = self.one(list(value))
        if by is None and self.chance(0.15):
            rest = {name: item for name, item in value.items() if name != key}
            return rest if self.chance(0.5) else {**rest, self.one([*COLUMNS, "", key.upper()]): value[key]}
        return {**value, key: self.replaced(value[key], by)}

    # Spelling

    def written(self, rows: list) -> tuple[str, bytes]:
        texts = [self.spelled(row) for row in rows]
        style = self.random.randint(0, 9)
        if style == 0:
            text = "[" + self.one([",", ",\n", " , "]).join(texts) + "]"
        elif style == 1:
            text = '{"' + self.one(["data", "train", "rows", "messages"]) + '": [' + ",".join(texts) + "]}"
        elif style == 2:
            text = self.one(["\r\n", "\n\n", " \n", "\r", ""]).join(texts)
        else:
            text = "\n".join(texts) + "\n" * self.chance(0.7)
        return "rows" + (self.one([".json", ".jsonl"]) if style < 3 else ".jsonl"), text.encode(
            "utf-8", "surrogatepass"
        )

    def cell(self, separator: str) -> str:
        text = self.one([self.words(), self.text(), "", json.dumps(self.chat()), "nan", "a\nb", self.words() * 3])
        quote = any(mark in text for mark in (separator, '"', "\n", "\r")) and not self.chance(0.1)
        return '"' + text.replace('"', '""' if not self.chance(0.05) else '"') + '"' if quote else text


KINDS = [name[1:] for name in vars(Fuzzer) if name in (
    "_noise", "_mutated", "_broken_json", "_random_json", "_near_valid", "_whole", "_extreme", "_unicode", "_table", "_columns", "_archive"
)] + ["mutated", "near_valid", "near_valid", "broken_json"]  # fmt: skip
