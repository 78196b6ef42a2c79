"""Canonical row -> faults. Every check is about one row; running/repeats.py compares rows with each other."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from gemma_trainer.data.checking.characters import check_characters
from gemma_trainer.data.checking.check_media import check_media
from gemma_trainer.data.checking.check_text import check_text, said, surplus_bos
from gemma_trainer.data.checking.check_tools import check_calls, check_tools
from gemma_trainer.data.checking.marks_in_text import (
    PRINTED_PARTS,
    foreign_format,
    foreign_tokens,
    is_special,
    owners,
    tokens_in,
)
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.checking.thoughts import has_open_tag, has_tags, moved, visible
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.shown import CALL_REASONING, REASONING
from gemma_trainer.families.blame import blamed, path_in_row
from gemma_trainer.families.family import Family, RenderError
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.content import BLANK_WORDS, are_plain, is_blank, media_of, says_nothing, text_of, texts
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, TOOL, USER

_THINKS = ("inline-thought", "think-tags", "thought-misplaced", "thought-unclosed")

_ASSISTANT_FIRST = "Drop the first message, make it a system message, or put the user message it answers before it."


def check_conversation(
    messages: list[dict], row: dict, setting: Setting, notes: Notes, path="messages", start: int = 0, shift: int = 0
) -> None:
    """Faults of the messages from index `start` on. Paths count from `shift`, for lists that were joined."""
    family = setting.family
    tools = row.get("tools")
    last_user = _last(messages, USER)
    plain = True  # neither calls nor tool results so far
    for at in range(start, len(messages)):
        message = messages[at]
        where = f"{path}[{at - shift}]"
        role = message["role"]
        if message["content"].__class__ is not str or len(message) > 2:
            plain = plain and role != TOOL and "tool_calls" not in message
            _check_reasoning(message, at, last_user, row, setting, notes, where)
            if message["content"].__class__ is list:
                _check_parts(message, family, notes, f"{where}.content")
        if role == ASSISTANT:
            _check_answer(message, family, notes, where)
        elif role == USER and says_nothing(message["content"]):
            notes.fault("prompt-empty", "a user message says nothing", f"{where}.content")
        elif role == TOOL:
            plain = False
        for key, text in texts(message):
            if "<" in text or "[" in text or "\0" in text or "\ufffd" in text:
                _check_text(text, message, family, notes, f"{where}.{key}")
    if not plain or tools:
        check_calls(messages, tools, setting, notes, path, start, shift)
    _check_order(messages, family, notes, path, start, shift)


def check_renders(messages: list[dict], row: dict, family: Family, notes: Notes) -> None:
    """Rows with parts, tools or other fields: whether the family's renderer takes them.

    Plain conversations need no such trial, the checks above cover what can go wrong with them.
    """
    if row.get("tools") or not are_plain(messages):
        rendered(messages, row, family, notes)


def rendered(messages: list[dict], row: dict, family: Family, notes: Notes, side: str | None = None) -> str | None:
    """What the family's renderer writes. None where the row has an error, be it that the renderer refuses it."""
    if any(CODES[note.code].severity == "error" for note in notes.found):
        return None
    render = partial(family.render, add_generation_prompt=False, **(row.get("chat_template_kwargs") or {}))
    try:
        return "".join([piece.text for piece in render(messages, row.get("tools"))])
    except RenderError as error:
        error = blamed(error, render, messages, row.get("tools"))
        notes.fault(error.code, str(error), path_in_row(error.path or "messages", row, side))
        return None


def check_sft(row: dict, setting: Setting, notes: Notes) -> None:
    """A row of messages: something to learn, in an order that the template takes."""
    messages = row["messages"]
    check_options(row, notes)
    check_tools(row.get("tools"), setting, notes)
    check_conversation(messages, row, setting, notes)
    answers = [message for message in messages if message["role"] == ASSISTANT]
    if not answers:
        notes.fault("answer-missing", "no message is the assistant's", "messages")
    elif all(message.get("weight") == 0 for message in answers):
        notes.fault("no-trained-token", "every assistant message has weight 0", "messages")
    elif messages[-1]["role"] in (USER, SYSTEM):
        notes.fault("ends-with-user", "the last message has no answer", f"messages[{len(messages) - 1}]")
    elif messages[-1]["role"] == TOOL:
        notes.fault("ends-with-tool", "the last message is a tool result", f"messages[{len(messages) - 1}]")
    _check_thinking_used(row, answers, setting.family, notes)
    check_media(row, {"messages": messages}, setting, notes)
    check_renders(messages, row, setting.family, notes)


def check_prompt(row: dict, setting: Setting, notes: Notes) -> None:
    """A row of --task prompts: something to be answered."""
    prompt = row["prompt"]
    check_options(row, notes)
    check_tools(row.get("tools"), setting, notes)
    check_conversation(prompt, row, setting, notes, "prompt")
    if prompt[-1]["role"] not in (USER, TOOL):
        text = f"the prompt ends with the {prompt[-1]['role']}"
        notes.fault("prompt-last-role", text, f"prompt[{len(prompt) - 1}]")
    elif all(says_nothing(message["content"]) for message in prompt):
        notes.fault("content-missing", "the prompt is blank", "prompt")
    check_media(row, {"prompt": prompt}, setting, notes)
    check_renders(prompt, row, setting.family, notes)


def check_words(row: dict, notes: Notes) -> None:
    """Words for a missing value beside the answers, in a row that no repair has touched: where a family has no system
    turn, its text goes into the user's."""
    for name in ("messages", "prompt", "chosen", "rejected"):
        for at, message in enumerate(row.get(name) or ()):
            role = message["role"]
            for key, text in texts(message):
                if text in BLANK_WORDS and (
                    role in (SYSTEM, USER) or (role == ASSISTANT and key == "reasoning_content")
                ):
                    what = "reasoning" if role == ASSISTANT else f"{role} text"
                    notes.fault("blank-as-word", f"the {what} is the word {text}", f"{name}[{at}].{key}")


def check_options(row: dict, notes: Notes) -> None:
    """The options of the template: words such as "false" would count as true."""
    for name in ("enable_thinking", "preserve_thinking"):
        value = (row.get("chat_template_kwargs") or {}).get(name)
        if value is not None and not isinstance(value, bool):
            notes.fault("template-kwargs-invalid", f"{name} is not true or false", f"chat_template_kwargs.{name}")


def _check_answer(message: dict, family: Family, notes: Notes, where: str) -> None:
    content = message["content"]
    text = text_of(content)
    if text in BLANK_WORDS:
        notes.fault("blank-as-word", f"the answer is the word {text}", f"{where}.content")
    if "tool_calls" in message:
        return
    if not any(visible(text) for _, text in texts({"content": content})):
        if message.get("weight") != 0:
            what = "nothing but media" if not says_nothing(content) and not text else "nothing"
            notes.fault("answer-empty", f"an assistant message says {what}", f"{where}.content")
    elif content.__class__ is list and not _is_text(content):
        notes.fault("media-in-answer", "the model writes text only", f"{where}.content")


def _is_text(parts: list) -> bool:
    return all(part.get("type") == "text" for part in parts)


def _check_order(messages: list[dict], family: Family, notes: Notes, path: str, start: int, shift: int) -> None:
    """Who speaks in turn from index `start` on; what begins there, behind a prompt, is an answer."""
    first = start or (1 if messages[0]["role"] == SYSTEM else 0)
    if first > start and family.system == "refused":
        text = "a system message with no user message behind it" if path == "messages" else "a system message"
        notes.fault("system-refused", text, f"{path}[0]")
    wanted = ASSISTANT if start else USER
    for at in range(first, len(messages)):
        role, where = messages[at]["role"], f"{path}[{at - shift}]"
        if not family.alternates:
            if role == ASSISTANT and at > start and _is_glued(messages, at, family):
                notes.fault("answers-glued", "an assistant message follows another: the template joins them", where)
        elif role == SYSTEM:
            notes.fault("system-not-first", "a system message after the start", where)
            return
        elif role == TOOL:
            return  # told as tools-unsupported
        elif role != wanted:
            opens = at == first  # nothing to join it with
            text = "an assistant message begins the conversation" if opens else f"two {role} messages in a row"
            text += f"; the template wants the {wanted} there"
            notes.fault("roles-not-alternating", text, f"{where}.role", _ASSISTANT_FIRST if opens else None)
            return
        wanted = USER if role == ASSISTANT else ASSISTANT


def _is_glued(messages: list[dict], at: int, family: Family) -> bool:
    before = messages[at - 1]
    return before["role"] == ASSISTANT and "glued-answers" in family.traps and "tool_calls" not in before


def _check_parts(message: dict, family: Family, notes: Notes, path: str) -> None:
    """Parts that the template does not render, or glues to each other."""
    content, role = message["content"], message["role"]
    lost = role == SYSTEM or (role == TOOL and family.tools and not family.thinking)
    if lost and media_of(content):
        notes.fault("media-lost", f"{media_of(content)[0]} in a {role} message is not rendered", path)
    elif role in (USER, ASSISTANT) and family.placeholders:
        for left, right in pairwise(content):
            if left.get("type") == right.get("type") == "text" and left["text"].strip() and right["text"].strip():
                notes.fault("parts-glued", "two texts follow each other, with nothing between them", path)
                return


def _check_text(text: str, message: dict, family: Family, notes: Notes, path: str) -> None:
    check_characters(text, notes, path)
    if "[" in text and PRINTED_PARTS.match(text):
        notes.fault("python-literal", "the content is a printed Python list of parts", path)
    spoken = message["role"] == ASSISTANT
    if spoken and "think" in text:
        _check_think_tags(text, message, family, notes, path)
    tokens = tokens_in(text)
    if tokens and spoken and family.thought and not path.endswith("reasoning_content"):
        tokens = _check_channel(text, tokens, message, family, notes, path)
    for token in dict.fromkeys(tokens):
        if token in family.placeholders.values():
            if spoken:
                notes.fault("media-in-answer", f"the answer holds the placeholder {token}", path)
            continue  # counted against the media of the row
        if is_special(token, family):
            notes.fault("special-token", f"the text holds the special token {token}", path)
        elif token in family.control_tokens:
            notes.fault("control-token", f"the text holds the control token {token}", path)
        elif token in foreign_tokens(family):
            notes.fault("foreign-token", f"{token} is a control token of {owners(token)}, not of {family.title}", path)
    other = foreign_format(text)
    if other:
        notes.fault("foreign-markup", f"marks of {other} stand in the text", path)


def _check_think_tags(text: str, message: dict, family: Family, notes: Notes, path: str) -> None:
    if has_open_tag(text):
        notes.fault("thought-unclosed", "<think> never closes", path)
    elif has_tags(text) and not family.thinking:
        fix = f"Take the thinking out, or leave it where it is meant as text: {family.title} has no other place for it."
        notes.fault("think-tags", "the answer holds <think> tags", path, fix)
    elif has_tags(text):
        code = "think-tags" if moved(message, family)[1] else "thought-misplaced"
        notes.fault(code, "the answer holds <think> tags", path)


def _check_channel(text: str, tokens: list[str], message: dict, family: Family, notes: Notes, path: str) -> list[str]:
    """Thinking inside an answer; returns the tokens that are left to check."""
    opening, closing = family.thought
    depth = 0
    for token in tokens:
        depth += (token == opening) - (token == closing)
        if depth < 0:
            return tokens  # a closing mark alone is a forged token
    if opening not in tokens:
        return tokens
    if depth:
        notes.fault("thought-unclosed", f"{opening} never closes: the template deletes all that follows", path)
    else:
        code = "inline-thought" if moved(message, family)[1] else "thought-misplaced"
        notes.fault(code, "thinking in the content is deleted by the template", path)
    return [token for token in tokens if token not in family.thought]


def _check_thinking_used(row: dict, answers: list[dict], family: Family, notes: Notes) -> None:
    options = row.get("chat_template_kwargs")
    if not options or not family.thinking or options.get("enable_thinking") is not True:
        return
    told = any(note.code in _THINKS for note in notes.found)
    if answers and not told and not any("reasoning_content" in message for message in answers):
        notes.fault("thinking-unused", "enable_thinking is true, and no answer has reasoning", "chat_template_kwargs")


def _check_reasoning(
    message: dict, at: int, last_user: int, row: dict, setting: Setting, notes: Notes, where: str
) -> None:
    if "reasoning_content" not in message:
        return
    path = f"{where}.reasoning_content"
    if not isinstance(message["reasoning_content"], str):
        notes.fault("content-type", "the reasoning is no text", path)
        return
    if (row.get("chat_template_kwargs") or {}).get("preserve_thinking") and "tool_calls" in message:
        last_user = -1
    if message["role"] != ASSISTANT:
        notes.fault("reasoning-lost", f"the reasoning of the {message['role']} is not trained", path, "Drop it.")
    elif not setting.family.thinking:
        fix = "Drop it, or tune a Gemma 4."
        notes.fault("reasoning-lost", f"the template of {setting.family.title} does not render it", path, fix)
    elif setting.hides(CALL_REASONING if "tool_calls" in message else REASONING):
        what = "no reasoning" if setting.hides(CALL_REASONING) else "reasoning only beside a tool call"
        fix = f"Drop it, {setting.better_template}."
        notes.fault("reasoning-lost", f"the chat template in use writes {what}", path, fix)
    elif at <= last_user:
        fix = "Drop it, or end a row with this answer."
        notes.fault("reasoning-lost", "reasoning before the last user message is not rendered", path, fix)
    elif setting.shown is None and "tool_calls" not in message:
        notes.fault("reasoning-template", "older templates drop the reasoning of a plain answer", path)


def _last(messages: list[dict], role: str) -> int:
    return max((at for at, message in enumerate(messages) if message["role"] == role), default=-1)


def check_text_row(row: dict, setting: Setting, notes: Notes) -> None:
    """A row of the text layout."""
    text, family = row["text"], setting.family
    bare = said(text, family)
    if is_blank(bare):
        notes.fault("text-empty", "the text is empty", "text")
        return
    if bare in BLANK_WORDS:
        notes.fault("blank-as-word", f"the text is the word {bare}", "text")
    check_characters(text, notes, "text")
    if surplus_bos(text, family):
        notes.repair("text-bos", f"{family.bos} at the start was taken off", "text")
    check_text(text, family, notes)
    check_media(row, {"text": [{"role": USER, "content": text}]}, setting, notes)
