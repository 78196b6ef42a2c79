"""Rows with tool calls: a user's request, the call, its made-up result, the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gemma_trainer.distill.drawing import ASKERS, SHAPES, TEXT, Answered, Draw, Studio, add, form, opening, refuse
from gemma_trainer.distill.gate import Reason
from gemma_trainer.distill.request import Request
from gemma_trainer.distill.structured import ask_value
from gemma_trainer.distill.tool_rows import tools_of
from gemma_trainer.distill.work import Ask, Result

_ASKED = form(request=TEXT)
_RESULT = form(result={"type": ["object", "array", "string", "number", "boolean"]})
_NEEDLESS = 0.15  # share of requests that none of the tools serves: a model has to learn when not to call
_CALLS = 3  # rounds of calls in a row
_SHOWN = 8  # tools that a row declares, so that a large set does not fill the prompt


@dataclass(frozen=True)
class ToolUse:
    """Draws go through the tools in turn; a row declares the tool that is meant and some others by chance."""

    tools: list[dict]
    system: str | None = None
    wanted: int = 1
    novel: float = 0.7

    def meant(self, draw: Draw) -> dict | None:
        """The tool that the request is for, None for a request that none serves."""
        needless = draw.chance("needless").random() < _NEEDLESS
        return None if needless else self.tools[draw.number % len(self.tools)]

    def shown(self, draw: Draw) -> list[dict]:
        chance, meant = draw.chance("shown"), self.meant(draw)
        others = [tool for tool in self.tools if tool is not meant]
        least = 0 if meant else 1
        some = chance.sample(others, min(len(others), chance.randint(least, _SHOWN - 1)))
        shown = [*some, meant] if meant else some
        return chance.sample(shown, len(shown))

    def request(self, studio: Studio, draw: Draw) -> Request:
        """For what a user asks."""
        chance, meant = draw.chance("asker"), self.meant(draw)
        asker, shape = chance.choice(ASKERS), chance.choice(SHAPES)
        declared = json.dumps([tool["function"] for tool in self.shown(draw)], ensure_ascii=False)
        aim = (
            f"for which the assistant has to call `{meant['function']['name']}`. It tells all values that the required "
            "arguments need, in the words of a user, made up and plausible"
            if meant
            else "that the assistant can answer by itself and for which none of these functions is of any use"
        )
        text = (
            f"An assistant can call these functions:\n{declared}\n\n"
            f"Write a request of a user, {asker}, {shape}, {aim}. The user does not know of functions and does not "
            'name them. JSON only: {"request": "..."}'
        )
        return studio.writing(draw, text, _ASKED.schema)

    async def draw(self, studio: Studio, draw: Draw, ask: Ask) -> Result:
        request = self.request(studio, draw)
        found = await ask_value(ask, request, _ASKED)
        if found.fault:
            return Result(rejects=[refuse(found.replies, [found.fault], request)])
        ids, meant, tools = list(found.ids), self.meant(draw), self.shown(draw)
        text = found.value["request"].strip()
        answered, more = await self._conversation(studio, draw, ask, opening(self.system, text), tools)
        names = [tool["function"]["name"] for tool in tools]
        result = Result()
        add(result, answered.refused(*_check(answered, text, names, meant)), [*ids, *more], kind=draw.kind)
        return result

    async def _conversation(
        self, studio: Studio, draw: Draw, ask: Ask, prompt: list[dict], tools: list[dict]
    ) -> tuple[Answered, list[str]]:
        """(the last answer, with all before it as its prompt; ids of the requests before it)."""
        ids: list[str] = []
        for step in range(1, _CALLS + 1):
            answered = await self._answer(studio, ask, prompt, tools, ids)
            if answered.reasons or not answered.reply.tool_calls:
                return answered, ids
            ids.append(answered.reply.id)
            message = {**answered.reply.message, "tool_calls": _numbered(answered.reply.tool_calls, step)}
            prompt = [*prompt, message]
            for number, call in enumerate(message["tool_calls"]):
                content, more, fault = await self._result(studio, draw, ask, prompt, call, tools, 10 * step + number)
                ids += more
                if fault:
                    return answered.refused(Reason("schema-invalid", fault)), ids
                name = call["function"]["name"]
                prompt = [*prompt, {"role": "tool", "name": name, "tool_call_id": call["id"], "content": content}]
        answered = await self._answer(studio, ask, prompt, tools, ids)
        if answered.reply.tool_calls:
            answered = answered.refused(Reason("tool-call-invalid", f"more than {_CALLS} rounds of calls"))
        return answered, ids

    async def _answer(
        self, studio: Studio, ask: Ask, prompt: list[dict], tools: list[dict], ids: list[str]
    ) -> Answered:
        """The teacher's turn; calls that cannot be made are told as a tool would tell it, and asked for once more."""
        answered = await studio.answer(ask, prompt, tools)
        fault = tools_of(tools).fault(answered.reply.tool_calls) if answered.reply.tool_calls else None
        if fault is None or not all(isinstance(call.get("function"), dict) for call in answered.reply.tool_calls):
            return answered
        ids.append(answered.reply.id)
        calls = _numbered(answered.reply.tool_calls, 0)
        told = [{"role": "tool", "tool_call_id": call["id"], "content": f"error: {fault}"} for call in calls]
        wrong = {"role": "assistant", "content": answered.reply.content, "tool_calls": calls}
        again = await studio.answer(ask, [*prompt, wrong, *told], tools)
        return await studio.check(ask, prompt, tools, again.judged)

    async def _result(
        self, studio: Studio, draw: Draw, ask: Ask, messages: list[dict], call: dict, tools: list[dict], step: int
    ) -> tuple[str, list[str], str | None]:
        """(what the tool gives, ids, fault)."""
        function = call["function"]
        declared = next(tool["function"] for tool in tools if tool["function"]["name"] == function["name"])
        asked = next(message["content"] for message in messages if message["role"] == "user")
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        text = (
            f"You play a function of a program, declared as:\n{json.dumps(declared, ensure_ascii=False)}\n\n"
            f"A user asked: {asked}\nThe function is called with {arguments}. "
            "Give what it returns: short, made up, plausible, with the facts that the user needs. "
            'JSON only: {"result": ...}'
        )
        found = await ask_value(ask, studio.writing(draw, text, _RESULT.schema, step), _RESULT)
        if found.fault:
            return "", found.ids, found.fault
        value = found.value["result"]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), found.ids, None


def _numbered(calls: list[dict], step: int) -> list[dict]:
    """The calls with ids of our own, which are the same in every run."""
    return [
        {"id": f"call_{step}_{at}", **{k: v for k, v in call.items() if k != "id"}} for at, call in enumerate(calls, 1)
    ]


def _check(answered: Answered, text: str, names: list[str], meant: dict | None) -> list[Reason]:
    """Whether the row shows what it was drawn for."""
    called = any(message.get("tool_calls") for message in answered.prompt) or bool(answered.reply.tool_calls)
    reasons = []
    if meant is None and called:
        reasons.append(Reason("tool-call-invalid", "a tool is called where none was of use"))
    if meant is not None and not called and not answered.reasons:
        reasons.append(Reason("no-tool-call", f"{meant['function']['name']} was to be called"))
    if any(name in text for name in names if "_" in name or "." in name):
        reasons.append(Reason("names-tool", "the request names a function, which no user does"))
    return reasons
