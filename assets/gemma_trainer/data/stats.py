"""What is in a data set: lengths, roles, turns, scripts, tools. Memory does not grow with the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from hashlib import blake2b
from unicodedata import name as character_name

from gemma_trainer.data.histogram import above, bars, bucket, quantiles
from gemma_trainer.data.layouts.tokenised import trained_mask
from gemma_trainer.data.lengths import guessed_tokens
from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import media_of, text_of
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, TOOL, USER

BATCH = 8  # rows of a batch, for the share of padding
MAX_LENGTHS = tuple(2**power for power in range(8, 18))  # 256 to 131072 tokens: what --max-length may be
WHOLE = 0.99  # share of rows that a good --max-length leaves whole
SAMPLE = 64  # characters of each of two texts that tell the script of a row
NEWEST = 1024  # rows that are counted at once; whole batches
MOST_SYSTEMS, MOST_NAMES, SHOWN_NAMES, NAME = 10_000, 1_000, 20, 80
KINDS = ("messages", "preference", "prompt", "text", "input_ids")
ROLE_ORDER = (SYSTEM, USER, ASSISTANT, TOOL, "text")

SCRIPTS = {
    "LATIN": "Latin",
    "CYRILLIC": "Cyrillic",
    "CJK": "Han",
    "ARABIC": "Arabic",
    "DEVANAGARI": "Devanagari",
    "HANGUL": "Hangul",
    "HIRAGANA": "Kana",
    "KATAKANA": "Kana",
    "GREEK": "Greek",
    "HEBREW": "Hebrew",
    "THAI": "Thai",
}
_NO_LETTERS = bytes(number for number in range(128) if not chr(number).isalpha())


class Stats:
    """Facts of canonical rows. Parts of a data set, added apart and merged, give what the whole gives
    (only the share of padding knows the order of rows, and which rare tools lie beyond the first thousand names).

    `counts` are single numbers, `tables` map a number or a name to how often it was seen.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.tables: defaultdict[str, Counter] = defaultdict(Counter)
        self.peaks: dict[str, int] = {}  # most characters of one message, by role
        self.systems: set[int] = set()  # hashes of system prompts
        self._lengths: list[int] = []  # of the newest rows, not in the tables yet; as the sizes of messages by role
        self._sizes: defaultdict[str, list[int]] = defaultdict(list)
        self._ascii: list[str] = []

    def add(
        self,
        row: dict,
        tokens: int | None,
        trained: int | None = None,
        total: int | None = None,
        family: Family | None = None,
    ) -> None:
        """Count a canonical row.

        `tokens` is the row's length, for a preference that of its longer side; None is guessed, for `family`. `trained` of
        them carry loss, over both sides. `total` are the tokens of both sides where that is not `tokens`.
        """
        counts = self.counts
        kind = _kind(row)
        counts[kind] += 1
        thoughts = counts["thoughts"]
        if kind == "preference":
            self._preference(row)
        elif kind in ("messages", "prompt"):
            self._chat(row[kind])
        elif kind == "input_ids":
            mask = trained_mask(row)
            tokens, trained = len(row["input_ids"]), None if mask is None else sum(mask)
        else:
            self._sizes["text"].append(len(row["text"]))
            self._script(row["text"][: 2 * SAMPLE])
        if row.get("tools"):
            counts["tool rows"] += 1
        if counts["thoughts"] > thoughts:
            counts["thinking rows"] += 1
        if tokens is None:
            tokens = guessed_tokens(row, family)
            counts["guessed"] += 1
        if trained is None:
            counts["mask unknown"] += 1
        else:
            counts["trained"] += trained
        if total is not None:
            counts["second sides"] += total - tokens
        self._lengths.append(tokens)
        if len(self._lengths) >= NEWEST:
            self._settle()

    @property
    def rows(self) -> int:
        return sum(self.counts[kind] for kind in KINDS)

    def _preference(self, row: dict) -> None:
        prompt, chosen, rejected = row["prompt"], row["chosen"], row["rejected"]
        turns, _, asked = self._messages(prompt)
        _, good, answer = self._messages(chosen)
        _, bad, _ = self._messages(rejected)
        self.tables["messages"][len(prompt) + len(chosen)] += 1
        self.tables["turns"][turns + 1] += 1
        self.counts["chosen characters"] += good
        self.counts["rejected characters"] += bad
        self.counts["chosen longer"] += good > bad
        if prompt[0]["role"] == SYSTEM:
            self._system(prompt[0])
        self._script(asked[-SAMPLE:] + answer[-SAMPLE:])

    def _chat(self, messages: list[dict]) -> None:
        turns, _, sample = self._messages(messages)
        self.tables["messages"][len(messages)] += 1
        self.tables["turns"][turns] += 1
        if messages[0]["role"] == SYSTEM:
            self._system(messages[0])
        self._script(sample)

    def _messages(self, messages: list[dict]) -> tuple[int, int, str]:
        """(questions that got an answer, characters, how the last two messages begin)."""
        sizes = self._sizes
        turns = characters = 0
        asked = False
        text = ""
        for message in messages:
            before = text
            role, text = message["role"], message["content"]
            if len(message) > 2 or text.__class__ is not str:
                text = self._details(message)
            if role == USER:
                asked = True
            elif asked and role == ASSISTANT:
                turns += 1
                asked = False
            size = len(text)
            characters += size
            sizes[role].append(size)
        return turns, characters, before[:SAMPLE] + text[:SAMPLE]

    def _details(self, message: dict) -> str:
        """Count what only some messages have. Returns the text of the message."""
        counts, content = self.counts, message["content"]
        self.tables["media"].update(media_of(content))
        counts["weight 0"] += message.get("weight") == 0
        counts["results"] += message["role"] == TOOL
        if message.get("reasoning_content"):
            counts["thoughts"] += 1
            counts["thought characters"] += len(message["reasoning_content"])
        names = self.tables["calls"]
        for call in message.get("tool_calls") or ():
            counts["calls"] += 1
            name = call["function"]["name"][:NAME]
            if name in names or len(names) < MOST_NAMES:
                names[name] += 1
        return text_of(content)

    def _system(self, message: dict) -> None:
        self.counts["system rows"] += 1
        if len(self.systems) < MOST_SYSTEMS:
            text = text_of(message["content"]).encode("utf-8", "surrogatepass")
            self.systems.add(int.from_bytes(blake2b(text, digest_size=8).digest(), "big"))

    def _script(self, sample: str) -> None:
        if sample.isascii():
            self._ascii.append(sample)
            return
        found: dict[str, int] = {}
        for character in set(sample):
            if script := script_of(character):
                found[script] = found.get(script, 0) + sample.count(character)
        for script, letters in found.items():
            self.tables["scripts"][script] += letters
        if found:
            self.tables["script rows"][max(sorted(found), key=found.__getitem__)] += 1

    def _settle(self) -> None:
        """Move the newest rows into the tables: many at once cost less than one by one."""
        newest = self._lengths
        self.tables["lengths"].update(newest)
        for at in range(0, len(newest), BATCH):
            batch = newest[at : at + BATCH]
            self.counts["padded"] += len(batch) * max(batch)
        newest.clear()
        for role, sizes in self._sizes.items():
            table = self.tables[f"characters {role}"]
            for size, count in Counter(sizes).items():
                table[bucket(size)] += count
            self.counts[f"characters {role}"] += sum(sizes)
            self.peaks[role] = max(self.peaks.get(role, 0), *sizes)
        self._sizes.clear()
        letters = [len(sample.encode().translate(None, _NO_LETTERS)) for sample in self._ascii]
        self.tables["scripts"]["Latin"] += sum(letters)
        self.tables["script rows"]["Latin"] += sum(map(bool, letters))
        self._ascii.clear()

    def merge(self, other: Stats) -> None:
        """Take in what another one has counted of later rows."""
        self._settle()
        other._settle()
        for name, count in other.counts.items():
            self.counts[name] += count
        for name, table in other.tables.items():
            self.tables[name].update(table)
        names = self.tables["calls"]
        for name, _ in names.most_common()[MOST_NAMES:]:
            del names[name]
        for role, peak in other.peaks.items():
            self.peaks[role] = max(peak, self.peaks.get(role, 0))
        if len(self.systems) < MOST_SYSTEMS:
            self.systems |= other.systems

    def as_state(self) -> dict:
        """Everything, as JSON can hold it, for reports of parts that are merged later."""
        self._settle()
        tables = {name: [[key, count] for key, count in table.items()] for name, table in self.tables.items()}
        return {"counts": dict(self.counts), "tables": tables, "peaks": self.peaks,
                "systems": [f"{number:016x}" for number in sorted(self.systems)]}  # fmt: skip

    @classmethod
    def from_state(cls, state: dict) -> Stats:
        """What `as_state` gave. Raises KeyError, TypeError, ValueError for anything else."""
        stats = cls()
        stats.counts.update(state["counts"])
        for name, pairs in state["tables"].items():
            stats.tables[name].update(dict(pairs))
        stats.peaks = dict(state["peaks"])
        stats.systems = {int(number, 16) for number in state["systems"]}
        return stats

    def fits(self, max_length: int) -> dict:
        """How the rows fit a --max-length: rows that stay whole, rows that are cut, and the share of the latter."""
        self._settle()
        cut = above(self.tables["lengths"], max_length)
        rows = self.rows
        return {"max_length": max_length, "whole": rows - cut, "cut": cut, "cut_share": _share(cut, rows)}

    @property
    def suggested(self) -> int | None:
        """The smallest of MAX_LENGTHS that holds 99 % of the rows whole (or the largest); None without rows."""
        self._settle()
        rows = self.rows
        fitting = (most for most in MAX_LENGTHS if rows - above(self.tables["lengths"], most) >= WHOLE * rows)
        return next(fitting, MAX_LENGTHS[-1]) if rows else None

    def as_dict(self, max_length: int | None = None) -> dict:
        """The facts for people and schemas/stats.json. Shares are of 1, `bars` are [first, last, count]."""
        self._settle()
        counts, rows = self.counts, self.rows
        system, thinking, distinct = counts["system rows"], counts["thinking rows"], len(self.systems)
        return {
            "rows": rows,
            "kinds": {kind: counts[kind] for kind in KINDS if counts[kind]},
            "tokens": self._tokens(max_length),
            "messages_per_row": bars(self.tables["messages"]),
            "turns_per_row": bars(self.tables["turns"]),
            "roles": self._roles(),
            "system": {
                "rows": system,
                "share": _share(system, rows),
                "distinct": min(distinct, MOST_SYSTEMS),
                "more": distinct >= MOST_SYSTEMS,
            },
            "tools": self._tools(),
            "thinking": {
                "rows": thinking,
                "share": _share(thinking, rows),
                "messages": counts["thoughts"],
                "characters": counts["thought characters"],
            },
            "media": dict(self.tables["media"].most_common()),
            "scripts": self._scripts(),
            "weight_0_messages": counts["weight 0"],
            "preferences": self._preferences(),
        }

    def _tokens(self, max_length: int | None) -> dict:
        counts, lengths = self.counts, self.tables["lengths"]
        marks = dict(
            zip(("p50", "p90", "p95", "p99", "max"), quantiles(lengths, (0.5, 0.9, 0.95, 0.99, 1)), strict=True)
        )
        cut = {}
        for most in MAX_LENGTHS:
            cut[str(most)] = above(lengths, most)
            if not cut[str(most)]:
                break
        longest = sum(number * count for number, count in lengths.items())
        return {
            "exact": counts["guessed"] == 0,
            "guessed_rows": counts["guessed"],
            "total": longest + counts["second sides"],
            "trained": None if counts["mask unknown"] else counts["trained"],
            "mean": round(longest / max(1, self.rows), 1),
            **marks,
            "bars": bars(lengths, edge=max_length),
            "fits": self.fits(max_length) if max_length else None,
            "suggested_max_length": self.suggested,
            "cut_at": cut,
            "padding": {
                "batch": BATCH,
                "padded": counts["padded"],
                "packed": longest,
                "waste": _share(counts["padded"] - longest, counts["padded"]),
            },
        }

    def _roles(self) -> dict:
        out = {}
        for role in sorted(self.peaks, key=lambda role: (ROLE_ORDER.index(role) if role in ROLE_ORDER else 9, role)):
            sizes = self.tables[f"characters {role}"]
            p50, p95 = quantiles(sizes, (0.5, 0.95))
            out[role] = {
                "messages": sizes.total(),
                "characters": self.counts[f"characters {role}"],
                "p50": p50,
                "p95": p95,
                "max": self.peaks[role],
            }
        return out

    def _tools(self) -> dict:
        counts, names = self.counts, self.tables["calls"]
        top = dict(names.most_common(SHOWN_NAMES))
        return {
            "rows": counts["tool rows"],
            "calls": counts["calls"],
            "results": counts["results"],
            "by_name": top,
            "other": counts["calls"] - sum(top.values()),
        }

    def _scripts(self) -> dict:
        letters, rows = self.tables["scripts"], self.tables["script rows"]
        total = letters.total()
        return {
            script: {"share": _share(count, total), "rows": rows[script]}
            for script, count in letters.most_common()
            if count
        }

    def _preferences(self) -> dict | None:
        counts = self.counts
        if not (pairs := counts["preference"]):
            return None
        return {
            "rows": pairs,
            "chosen_longer": counts["chosen longer"],
            "chosen_longer_share": _share(counts["chosen longer"], pairs),
            "chosen_characters": round(counts["chosen characters"] / pairs, 1),
            "rejected_characters": round(counts["rejected characters"] / pairs, 1),
        }


@lru_cache(16384)
def script_of(character: str) -> str | None:
    """The script of a letter by its Unicode name, "other" for one that is not in SCRIPTS; None for what is no letter."""
    if not character.isalpha():
        return None
    words = character_name(character, "").replace("-", " ").split()
    return next((SCRIPTS[word] for word in words if word in SCRIPTS), "other")


def _kind(row: dict) -> str:
    if "messages" in row:
        return "messages"
    if "chosen" in row:
        return "preference"
    return next((kind for kind in ("input_ids", "prompt", "text") if kind in row), "text")


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
