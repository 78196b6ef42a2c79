"""The one table of role names. Whatever is not in it is no role: chat templates would print it as it stands."""

from __future__ import annotations

USER, ASSISTANT, SYSTEM, TOOL = "user", "assistant", "system", "tool"
CALL = "call"  # a turn that holds nothing but tool calls, in ShareGPT-like sets

ROLES: dict[str, str] = {
    **dict.fromkeys(("user", "human", "input", "prompter", "customer", "question"), USER),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatbot", "ai", "output", "answer", "response"), ASSISTANT),
    **dict.fromkeys(("system", "developer", "context", "instruction"), SYSTEM),
    **dict.fromkeys(
        ("tool", "function", "observation", "observations", "ipython", "tool_response", "function_response"), TOOL
    ),
    **dict.fromkeys(("tool_result", "environment"), TOOL),
    **dict.fromkeys(("function_call", "tool_call", "function-call", "tool-call"), CALL),
}
FIRST_ONLY = frozenset({"context", "instruction"})  # mean system text only at the start of a conversation


def canonical_role(name: str, first: bool = True) -> str | None:
    """user, assistant, system, tool or call; None for a name that is no role. Case and blanks do not count."""
    plain = name.strip().lower()
    return None if plain in FIRST_ONLY and not first else ROLES.get(plain)
