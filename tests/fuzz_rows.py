"""Rows of every layout, values of every JSON type, and texts of odd characters: the material of broken files."""

from __future__ import annotations

import json
import random

from conversations import Maker

COLUMNS = [
    "messages", "conversations", "conversation", "prompt", "completion", "response", "instruction", "input", "output", "system",
    "history", "text", "chosen", "rejected", "tools", "images", "id", "role", "content", "from", "value", "margin", "label", "score",
    "score_chosen", "finish_reason", "contents", "question", "answer", "weight", "systemInstruction", "preferred_output", "input_ids",
    "labels", "segments", "completions", "chat_template_kwargs",
]  # fmt: skip
MARKS = [
    "<|turn>", "<turn|>", "<end_of_turn>", "<start_of_turn>user\n", "<bos>", "<eos>", "<|channel>thought\n", "<think>", "<channel|>",
    "</think>", "<|image|>", "<start_of_image>", "<|tool_call>", '<|"|>', "<|turn", "< turn|>", "<|x|>", "\u2581", "\u2028", "\x85",
    "\x1c", "\x00", "\ufeff", "\ufffd", "\u202e", "\u0301", "\U0010ffff", "\uffff",
]  # fmt: skip


class RowMaker:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.maker = Maker(seed)
        self.plain = Maker(seed, plain=True)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one(self, options):
        return self.random.choice(options)

    def spelled(self, value: object) -> str:
        return json.dumps(value, ensure_ascii=self.chance(0.7), separators=self.one([None, (",", ":")]))

    def value(self, depth: int = 0) -> object:
        kind = self.random.randint(0, 15 if depth < 4 else 10)
        if kind >= 13:
            names = [
                *COLUMNS,
                *COLUMNS,
                "",
                "\ud800",
                "a b",
                "type",
                "function",
                "arguments",
                "parts",
                "tool_calls",
                "0",
            ]
            return {self.one(names): self.value(depth + 1) for _ in range(self.random.randint(0, 4))}
        if kind >= 11:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 4))]
        return [None, True, False, 0, -1, 2**70, 1.5, float("nan"), "", self.text(), self.maker.text()][kind]

    def text(self) -> str:
        if self.chance(0.5):
            letters = [
                chr(self.random.randrange(self.one([0x80, 0x800, 0x10000, 0x110000])))
                for _ in range(self.random.randint(0, 8))
            ]
            return "".join(letters) + self.one(MARKS)
        words = ["Name", "a bread", " ", "\n", "rye", "nan", "None", "1", "é", "日本", "{", "[1]", '{"a": 1}', *MARKS]
        return "".join(self.random.choices(words, k=self.random.randint(0, 6)))

    def words(self) -> str:
        return " ".join(
            self.random.choices(
                ["what", "is", "rye", "bread", "good", "é", "no\nway", "12", "<b>"], k=self.random.randint(1, 6)
            )
        )

    def row(self) -> object:
        return getattr(self, f"_row_{self.one(ROWS)}")()

    def chat(self, turns: int | None = None) -> list[dict]:
        count = turns or self.random.randint(1, 3)
        return [{"role": role, "content": self.words()} for _ in range(count) for role in ("user", "assistant")]

    def _row_messages(self) -> object:
        system = [{"role": "system", "content": self.words()}] if self.chance(0.2) else []
        return {"messages": system + self.chat()}

    def _row_rich(self) -> object:
        maker = self.one([self.maker, self.plain])
        row = {"messages": maker.chat(), "tools": maker.tools(), "chat_template_kwargs": maker.options()}
        return {key: item for key, item in row.items() if item}

    def _row_parts(self) -> object:
        return {"messages": self.plain.plain_chat(), "images": self.one([[], ["a.png"], [{"path": "b.png"}], "c.png"])}

    def _row_sharegpt(self) -> object:
        names = {"user": self.one(["human", "user"]), "assistant": self.one(["gpt", "model", "chatgpt"])}
        turns = [{"from": names[m["role"]], "value": m["content"]} for m in self.chat()]
        return {self.one(["conversations", "conversation"]): turns, **({"system": "S"} if self.chance(0.2) else {})}

    def _row_alpaca(self) -> object:
        return {"instruction": self.words(), "input": self.one(["", self.words()]), "output": self.words()}

    def _row_completion(self) -> object:
        if self.chance(0.5):
            return {"prompt": self.words(), self.one(["completion", "response"]): self.words()}
        chat = self.chat()
        return {"prompt": chat[:-1], "completion": chat[-1:]}

    def _row_pair(self) -> object:
        prompt, good, bad = self.chat(2)[:-1], self.words(), self.words()
        if self.chance(0.4):
            return {"prompt": self.words(), "chosen": good, "rejected": bad}
        good, bad = ([{"role": "assistant", "content": text}] for text in (good, bad))
        row = {"prompt": prompt, "chosen": good, "rejected": bad}
        if self.chance(0.3):
            row = {"chosen": prompt + good, "rejected": prompt + bad}
        return {**row, "margin": self.one([0.5, 1, -1])} if self.chance(0.2) else row

    def _row_text(self) -> object:
        return {"text": self.one([self.words(), f"<bos><start_of_turn>user\n{self.words()}<end_of_turn>\n<start_of_turn>model\nHi<end_of_turn>\n",
                                  f"<bos><|turn>user\n{self.words()}<turn|>\n<|turn>model\nHi<turn|>\n"])}  # fmt: skip

    def _row_prompt(self) -> object:
        return {"prompt": self.one([self.words(), self.chat(1)[:1]])}

    def _row_reply(self) -> object:
        return {
            "id": self.one(["a", 1]),
            "prompt": self.words(),
            "response": self.words(),
            "finish_reason": self.one(["stop", "length", None]),
        }

    def _row_gemini(self) -> object:
        names = {"user": "user", "assistant": "model"}
        return {"contents": [{"role": names[m["role"]], "parts": [{"text": m["content"]}]} for m in self.chat()]}

    def _row_other(self) -> object:
        chat = self.chat(1)
        return self.one([
            {"question": self.words(), "answer": self.words()}, chat, {"input": {"messages": chat[:1]}, "preferred_output": chat[1:], "non_preferred_output": chat[1:]},
            {"prompt": self.words(), "completion": self.words(), "label": True}, {"prompt": "a", "responses": ["b", "c"], "scores": [1, 0]},
            {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}, {"input_ids": [2, 5, 9], "labels": [-100, 5, 9]},
            {"segments": [{"label": True, "text": self.words()}]}, {"messages": chat, "rejected_response": self.words()}, self.spelled(self._row_messages()),
            {"conversations": chat[:1], "chosen": chat[1], "rejected": chat[1]}, {"system": "S", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        ])  # fmt: skip

    # Lines of plain conversations, nearly all of them good: what a fast path takes or must not take

    def plain_lines(self) -> list[str]:
        lines = [self.plain_line() for _ in range(self.random.randint(1, 30))]
        return lines + self.random.choices(lines, k=self.one([0, 0, 1]))

    def plain_line(self) -> str:
        roles = [*(["system"] * self.chance(0.2)), *["user", "assistant"] * self.random.randint(1, 3)]
        if self.chance(0.06):
            roles = self.random.choices(
                ["user", "assistant", "system", "model", "User", "tool", ""], k=self.random.randint(0, 4)
            )
        messages = [{"role": role, "content": self.said()} for role in roles]
        row: dict = {"messages": messages}
        if self.chance(0.04):
            row[self.one(COLUMNS)] = self.value(3)
        if messages and self.chance(0.04):
            self.one(messages)[self.one(["name", "weight", "content", "role", "tool_calls", "train", "x"])] = (
                self.value(3)
            )
        line = self.spelled(row)
        return self.respelled(line) if self.chance(0.12) else line

    def said(self) -> str:
        if self.chance(0.75):
            return self.words()
        ends = ["", " ", "\n", "\u3000", "\x1c", "\t", "\u200b", "\xa0"]
        texts = ["nan", "NaN", "None", "null", "<NA>", "N/A", "a", "", "\u00c3\u00a9", "[INST] x [/INST]", "<<SYS>>", "<s>", "</s>", "<unused3>", "<x",
                 "<", "\\", '"', '\\"', "\u2028", "\ufffd", "x" * 3000, "<|im_start|>", "<|eot_id|>", "</think> a", "1", "...", "<b>bold</b>"]  # fmt: skip
        return self.one(ends) + self.one([self.one(texts), self.one(MARKS), self.text()]) + self.one(ends)

    def respelled(self, line: str) -> str:
        """The same line or nearly: keys twice, escaped keys, blanks, numbers that are none."""
        first, then = self.one(            [('"role": "', '"role": "user", "role": "'), ('"content": "', '"content": "other", "content": "'), ('"role"', '"\\u0072ole"'),
             ('{"messages"', '{"messages": [], "messages"'), ('"', "\\u0022"), ("{", "{ "), ("}", "\t}"), ("user", "us\\u0065r"), (" ", "\\u0020"),
             ('"content": "', '"content": "\\ud800'), ('"content": "', '"content": "\\u0000'), ("]", ",]"), ('"content": ', '"content": NaN, "x": '),
             ("}]", '}, {"role": "user"}]'), ('"assistant"', '"assistant", "content": "\\u0022", "content2": "a"'), ("\\n", "\n")]
        )  # fmt: skip
        return line.replace(first, then, self.one([1, 1, -1]))


ROWS = [name[5:] for name in vars(RowMaker) if name.startswith("_row_")]
