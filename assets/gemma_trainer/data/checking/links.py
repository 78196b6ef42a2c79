"""Which call a tool result answers."""

from __future__ import annotations

from gemma_trainer.data.notes import Notes
from gemma_trainer.families.family import Family
from gemma_trainer.rows.roles import ASSISTANT, TOOL


def link_results(messages: list[dict], family: Family, notes: Notes, path: str) -> list[dict]:
    """Messages in which each result has what its family's template needs: an id among several calls, a name for
    FunctionGemma. What cannot be told for sure is left as it is, for the checks to refuse.
    """
    needs_name = family.tools and not family.thinking
    out = list(messages)
    for at, message in enumerate(messages):
        if message["role"] != TOOL or (at and messages[at - 1]["role"] == TOOL):
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == TOOL:
            end += 1
        if at and out[at - 1]["role"] == ASSISTANT and out[at - 1].get("tool_calls"):
            _link_run(out, at - 1, range(at, end), needs_name, notes, path)
    return out if out != messages else messages


def call_of(result: dict, calls: list[dict]) -> dict | None:
    """The call that a result answers by its id or, without one, by its name or by being the only one."""
    wanted = result.get("tool_call_id")
    if wanted is not None:
        named = [call for call in calls if call.get("id") == wanted]
        if not named and all(call.get("id") is None for call in calls):
            named = [call for call in calls if call["function"]["name"] == result.get("name")]
            named = named or (calls if len(calls) == 1 else [])
        return named[0] if named else None
    if result.get("name"):
        named = [call for call in calls if call["function"]["name"] == result["name"]]
        return named[0] if len(named) == 1 else None
    return calls[0] if len(calls) == 1 else None


def _link_run(out: list[dict], caller: int, results: range, needs_name: bool, notes: Notes, path: str) -> None:
    calls = out[caller]["tool_calls"]
    if any(call.get("id") is None for call in calls):
        calls = _number(out, caller, results, notes, path)
    for at in results:
        result = out[at]
        call = call_of(result, calls)
        if call is None and len(results) == len(calls) and not result.get("tool_call_id"):
            same_place = calls[at - results.start]
            call = same_place if result.get("name") in (None, same_place["function"]["name"]) else None
        if call is None:
            continue
        added = {}
        if needs_name and not result.get("name"):
            added["name"] = call["function"]["name"]
        unnamed = len(calls) > 1 or not result.get("name")
        if call.get("id") is not None and result.get("tool_call_id") is None and unnamed:
            added["tool_call_id"] = call["id"]
        if added:
            out[at] = {**result, **added}
            notes.repair("tool-linked", f"{' and '.join(added)} came from the call", f"{path}[{at}]")


def _number(out: list[dict], caller: int, results: range, notes: Notes, path: str) -> list[dict]:
    """Ids for calls that have none: those of their results where these tell, else new ones where there are several."""
    calls = out[caller]["tool_calls"]
    given = [out[at]["tool_call_id"] for at in results if out[at].get("tool_call_id") is not None]
    if len(calls) == 1:
        ids = given[:1]
    elif not given:
        ids = [f"call_{caller}_{number}" for number in range(len(calls))]
    else:
        names = [out[at].get("name") for at in results]
        in_order = len(given) == len(set(given)) == len(results) == len(calls) and all(
            name in (None, call["function"]["name"]) for name, call in zip(names, calls, strict=True)
        )
        ids = given if in_order else []
    if not ids:
        return calls
    numbered = [{"id": ids[at], **call} for at, call in enumerate(calls)]
    out[caller] = {**out[caller], "tool_calls": numbered}
    notes.repair("tool-linked", "calls without an id got one", f"{path}[{caller}].tool_calls")
    return numbered
