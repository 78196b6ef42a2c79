"""Random conversations, seeded: odd roles, parts, tools, nested values, white space, control tokens."""

from __future__ import annotations

import random

WORDS = [
    "Hello",
    "a",
    " b ",
    "\n",
    "\t",
    "  ",
    "é",
    "日本語",
    "🎉",
    "'quoted'",
    '"x"',
    "{",
    "}",
    "{{ x }}",
    "{% y %}",
    "None",
    "<b>",
    "\xa0",
    "\u2028",
    "<|turn>",
    "<turn|>\n",
    "<end_of_turn>",
    "<start_of_turn>model\n",
    "<|channel>thought\n",
    "<channel|>",
    "<think>",
    "</think>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<escape>",
    "1.50",
    "\r\n",
    "<bos>",
    "\x1c",
]
KEYS = ["city", "City", "b", "A", "type", "items", "description", "x y", "é", "n", "required", "properties"]


class Maker:
    def __init__(self, seed: int, plain: bool = False):
        self.random = random.Random(seed)
        self.plain = plain  # well-formed rows only, as canonical rows are

    def text(self) -> str:
        words = [
            word for word in WORDS if not self.plain or ("|" not in word and "_of_" not in word and "<b" not in word)
        ]
        return "".join(self.random.choices(words, k=self.random.choice([0, 1, 1, 2, 5, 9])))

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def parts(self) -> list[dict]:
        kinds = (
            ["text"] * 4 + ["image", "audio", "video"] + ([] if self.plain else ["image_url", "input_audio", "other"])
        )
        chosen = self.random.choices(kinds, k=self.random.randint(0 if not self.plain else 1, 4))
        return [{"type": kind, "text": self.text()} if kind == "text" else {"type": kind} for kind in chosen]

    def content(self) -> object:
        if self.maybe(0.25):
            return self.parts()
        if not self.plain and self.maybe(0.06):
            return self.random.choice([None, 3, 2.5, True, {}, {"a": 1}, [], ["a"], [{"type": "text"}]])
        return self.text()

    def value(self, depth: int = 0) -> object:
        kind = self.random.randint(0, 9 if depth < 3 else 6)
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        if kind >= 8:
            return {key: self.value(depth + 1) for key in self.random.sample(KEYS, self.random.randint(0, 3))}
        return [self.text(), self.text(), -3, 1e16, 0.1, True, None][kind]

    def arguments(self) -> object:
        if not self.plain and self.maybe(0.05):
            return self.random.choice([None, '{"a": 1}', [], 3])
        return {key: self.value() for key in self.random.sample(KEYS, self.random.randint(0, 4))}

    def schema(self, depth: int = 0) -> object:
        if not self.plain and self.maybe(0.04):
            return self.random.choice([None, "string", 3, True, [], [1, "a"]])
        kinds = ["string", "integer", "boolean", "array", "object", "STRING", ["string", "null"], None]
        schema: dict = {"type": self.random.choice(kinds)}
        for key, value in (
            ("description", self.text()), ("enum", self.random.choice([["a", "b"], [1, 2], []])),
            ("nullable", self.maybe(0.5)), ("default", self.value(2)), ("title", "T"),
            ("additionalProperties", False),
            ("required", self.random.sample(KEYS, 2)),
        ):  # fmt: skip
            if self.maybe(0.25):
                schema[key] = value
        if depth < 3 and self.maybe(0.5):
            schema["items"] = self.schema(depth + 1)
        if depth < 3 and self.maybe(0.5):
            schema["properties"] = self.properties(depth + 1)
        if schema["type"] is None:
            del schema["type"]
        return schema

    def properties(self, depth: int = 0) -> dict:
        return {key: self.schema(depth) for key in self.random.sample(KEYS, self.random.randint(0, 3))}

    def tool(self) -> dict:
        function: dict = {"name": self.random.choice(["f", "g", "get_weather"])}
        if self.maybe(0.8):
            function["description"] = self.text()
        if self.maybe(0.8):
            function["parameters"] = {"type": "object", "properties": self.properties()}
            if self.maybe(0.5):
                function["parameters"]["required"] = self.random.sample(KEYS, self.random.randint(0, 2))
            if self.maybe(0.1):
                del function["parameters"]["type"]
        if self.maybe(0.1):
            function["response"] = self.random.choice([{"type": "object", "description": "d"}, {}, {"type": "string"}])
        return {"type": "function", "function": function}

    def tools(self) -> list[dict] | None:
        return [self.tool() for _ in range(self.random.randint(1, 3))] if self.maybe(0.4) else None

    def call(self, number: int) -> dict:
        name = self.random.choice(["f", "g", "get_weather"])
        return {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": self.arguments()},
        }

    def assistant(self, role: str = "assistant") -> dict:
        message: dict = {"role": role, "content": self.content()}
        if self.maybe(0.3):
            message[self.random.choice(["reasoning_content", "reasoning_content", "reasoning"])] = self.text()
        if self.maybe(0.35):
            message["tool_calls"] = [self.call(number) for number in range(self.random.randint(1, 3))]
            if self.maybe(0.2):
                message["content"] = self.random.choice([None, ""])
        if not self.plain and self.maybe(0.05):
            message["tool_responses"] = [{"name": "f", "response": self.value(1)} for _ in range(2)]
        return message

    def tool_message(self) -> dict:
        message = {"role": "tool", "content": self.text() if self.maybe(0.7) else self.value(1)}
        if self.maybe(0.8):
            message["name"] = "f"
        if self.maybe(0.8):
            message["tool_call_id"] = f"c{self.random.randint(0, 3)}"
        if self.maybe(0.1):
            message["content"] = self.parts()
        return message

    def messages(self) -> list[dict]:
        """Any order of roles, half of the time in the order that most templates want."""
        if self.maybe(0.5):
            return self.chat()
        roles = ["user", "user", "assistant", "assistant", "tool", "model", "system", "human"]
        return [self._message(role) for role in self.random.choices(roles, k=self.random.randint(1, 8))]

    def chat(self) -> list[dict]:
        """[system] user assistant [tool ... assistant] user ..."""
        messages = [self._message(self.random.choice(["system", "developer"]))] if self.maybe(0.3) else []
        for _ in range(self.random.randint(1, 4)):
            messages += [self._message("user"), self.assistant()]
            while messages[-1].get("tool_calls") and self.maybe(0.8):
                messages += [self.tool_message() for _ in messages[-1]["tool_calls"]] + [self.assistant()]
        return messages

    def plain_chat(self) -> list[dict]:
        """Alternating turns of text and parts, system text in front: what every plain template takes."""
        messages = [{"role": "system", "content": self.text()}] if self.maybe(0.4) else []
        for number in range(self.random.randint(1, 6)):
            role = "assistant" if number % 2 else "user"
            messages.append({"role": role, "content": self.parts() if self.maybe(0.2) else self.text()})
        return messages

    def _message(self, role: str) -> dict:
        if role == "tool":
            return self.tool_message()
        if role in ("assistant", "model"):
            return self.assistant(role)
        return {"role": role, "content": self.content()}

    def options(self) -> dict:
        options = {"enable_thinking": self.maybe(0.5)} if self.maybe(0.4) else {}
        return {**options, "preserve_thinking": True} if self.maybe(0.3) else options
