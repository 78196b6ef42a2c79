"""64-bit keys by which rows of a set are compared with each other. 0 means that a row has no such key."""

from __future__ import annotations

from array import array
from functools import lru_cache

from gemma_trainer.data.checking.check_pairs import answer_text
from gemma_trainer.data.reading.hashing import key_function
from gemma_trainer.rows.content import are_plain, fold, packed, text_of, without_ids

SPLIT_COLUMNS = ("split", "subset", "fold", "partition")
BETWEEN = "\x1f"  # stands between the contents of a row


def prompt_text(row: dict) -> str:
    """What a row is asked, case and blanks folded: equal for rows that must not stand on both sides of a split."""
    if "messages" in row or "prompt" in row:
        messages = row.get("prompt") or _until_answer(row["messages"])
        return fold("\n".join(f"{message['role']}: {_said(message)}" for message in messages))
    return fold(row["text"]) if "text" in row else repr(row.get("input_ids"))


def _until_answer(messages: list[dict]) -> list[dict]:
    first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:first] or messages[:1]


def _said(message: dict) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else f"{text_of(content)}{content or ''}"


class Table:
    """Keys of the rows of a batch, in the order of rows; `tags` hold what rows of equal key may differ in."""

    __slots__ = ("keys", "tags")

    def __init__(self, tagged: bool = False):
        self.keys = array("Q")
        self.tags = array("Q") if tagged else None

    def put(self, at: int, key: int, tag: int = 0) -> None:
        """Key (and tag) of row `at` of the batch, counted from 0; it takes the place of an earlier one."""
        del self.keys[at:]
        if self.tags is not None:
            del self.tags[at:]
        self.fill(at)
        self.keys.append(key)
        if self.tags is not None:
            self.tags.append(tag)

    def holds(self, at: int) -> bool:
        """Whether row `at`, the newest of the batch, has been put."""
        return len(self.keys) > at

    def fill(self, size: int) -> None:
        """No key for the rows up to `size`."""
        blank = bytes(8 * (size - len(self.keys)))
        self.keys.frombytes(blank)
        if self.tags is not None:
            self.tags.frombytes(blank)


class Keys:
    """What the rows of one batch are compared by. `names` tell which split a tag of `prompts` stands for."""

    def __init__(self, task: str):
        self.task = task
        self.rows, self.prompts, self.pairs, self.ids = Table(), Table(tagged=True), Table(tagged=True), Table()
        self.names: dict[int, str] = {}

    def put(self, at: int, row: dict, split: str | None) -> None:
        """The keys of a canonical row. `split` is the part of the data it belongs to, where that is told."""
        split = next((row[name] for name in SPLIT_COLUMNS if isinstance(row.get(name), str)), split)
        if self.task in ("dpo", "rm"):
            prompt = _key(prompt_text(row))
            chosen, rejected = _key(answer_text(row["chosen"])), _key(answer_text(row["rejected"]))
            self.rows.put(at, _mixed(prompt, chosen, rejected))
            if chosen != rejected:
                self.pairs.put(at, _mixed(prompt, *sorted((chosen, rejected))), chosen < rejected)
        elif self.task != "prompts":
            self.rows.put(at, row_key(row))
        if self.task == "prompts" or split is not None:
            self.put_prompt(at, prompt_text(row), split)
        if self.task in ("prompts", "responses") and isinstance(row.get("id"), str | int):
            self.ids.put(at, _key(repr(row["id"])))

    def put_prompt(self, at: int, prompt: str, split: str | None) -> None:
        """The key of a prompt, as prompt_text gives it, and the split it is in."""
        self.prompts.put(at, _key(prompt), self._tag(split))

    def _tag(self, split: str | None) -> int:
        if split is None:
            return 0
        tag = _key(split)
        self.names[tag] = split
        return tag


def row_key(row: dict) -> int:
    """Equal for rows that train the same: texts, roles, calls and tools, not the other columns."""
    if "messages" not in row:
        return _key(row["text"]) if "text" in row else _key(packed(row.get("input_ids")))
    messages = row["messages"]
    if not row.get("tools") and are_plain(messages):
        return chat_key([m["content"] for m in messages], shape_seed(tuple([m["role"] for m in messages])))
    return _key(packed([without_ids(messages), row.get("tools") or None]))


def chat_key(contents: list[str], seed: int) -> int:
    """The key of a plain conversation; `seed` is its shape_seed."""
    return _hash(BETWEEN.join(contents).encode("utf-8", "surrogatepass"), seed)


@lru_cache(maxsize=1 << 12)
def shape_seed(roles: tuple[str, ...]) -> int:
    """Who speaks in which order, as a number: for user and assistant in turn, the number of messages tells it."""
    turns = roles[1:] if roles[0] == "system" else roles
    if turns and len(turns) % 2 == 0 and turns == ("user", "assistant") * (len(turns) // 2):
        return len(roles)
    return _key(" ".join(roles)) | 1 << 63


def _key(text: str) -> int:
    return _hash(text.encode("utf-8", "surrogatepass"), 0)


def _mixed(*keys: int) -> int:
    return _hash(b"".join([key.to_bytes(8, "little") for key in keys]), 0)


def _hash(data: bytes, seed: int) -> int:
    return key_function()(data, seed) or 1  # 0 is no key
