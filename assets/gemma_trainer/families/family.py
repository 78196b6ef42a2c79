"""What one Gemma generation is: its control tokens, roles, modalities, template and traps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

ASSISTANT_ROLES = ("assistant", "model")


class Piece(NamedTuple):
    """A run of rendered text. `message` is the index of the message that wrote it, None for scaffolding.

    `trained` pieces carry loss: assistant text, thinking, tool calls, the terminator (a piece of its own).
    """

    text: str
    message: int | None = None
    trained: bool = False


# Piece(...) runs Python code; the hot paths of the renderers make a piece of a tuple at a third of the cost.
new_piece: Callable[[tuple[str, int | None, bool]], Piece] = partial(tuple.__new__, Piece)


class RenderError(ValueError):
    """The template refuses the conversation. `path` points at the message, `code` is a key of CODES."""

    def __init__(self, code: str, message: str, path: str | None = None):
        super().__init__(message)
        self.code, self.path = code, path


@dataclass(frozen=True, eq=False)
class Family:
    """Facts of one family. `render` reproduces the template revision `current_revision` byte for byte.

    render(messages, tools=None, add_generation_prompt=False, **template_kwargs) -> list[Piece]
    """

    name: str  # value of --family
    title: str  # for people: "Gemma 4 (E2B, E4B)"
    render: Callable[..., list[Piece]]
    turn_start: str  # "<start_of_turn>" or "<|turn>"
    turn_end: str  # the terminator: "<end_of_turn>" or "<turn|>"
    stop_tokens: tuple[str, ...]  # generation stops at any of these
    control_tokens: frozenset[str]  # text that the tokenizer turns into control tokens
    placeholders: dict[str, str]  # modality -> token the template writes for a media part
    system: str  # "refused" | "folded" into the first user turn | "turn" of its own
    alternates: bool  # user and assistant must take turns
    tools: bool  # declares tools and renders tool calls and results
    thinking: bool  # renders reasoning_content
    context: int  # tokens
    model_types: tuple[str, ...]  # `model_type` values of config.json
    templates: dict[str, str]  # sha256 of a chat template -> revision name
    current_revision: str  # the revision that `render` reproduces
    plain: str  # file in families/templates: our own Jinja for models that come without a template
    call: tuple[str, str] | None = None  # marks around a tool call
    result: tuple[str, str] | None = None  # marks around a tool result; the model stops on the first one
    thought: tuple[str, str] | None = None  # marks around thinking
    traps: dict[str, str] = field(default_factory=dict)  # short name -> what goes wrong, for reports
    bos: str = "<bos>"
    eos: str = "<eos>"
    pad: str = "<pad>"

    @property
    def plain_template(self) -> str:
        """Jinja text for tokenizers without a template; of Gemma 4 with tools and thinking, of others without."""
        return (Path(__file__).parent / "templates" / self.plain).read_text("utf-8")


# Words of JSON Schema that templates take for part of a schema where an argument has that name.
STANDARD_NAMES = frozenset({"description", "type", "properties", "required", "nullable"})

# Traps that several families share.
TRAPS = {
    "double-bos": "The template writes <bos> and the tokenizer adds another: use add_special_tokens=False.",
    "no-bos": "The tokenizer adds no <bos>; text that did not pass the template must get one.",
    "system-refused": "There is no system turn; the template raises an error.",
    "system-folded": "System text is put before the first user text; only its first part is used.",
    "list-printed": "Content given as parts is printed as a Python list, and null as `None`.",
    "tools-ignored": "tools and tool_calls are ignored without an error.",
    "eos-is-not-the-end": "<eos> does not end a turn; the terminator must be trained and stop generation.",
    "any-role": "Unknown roles (human, gpt) are written as they are, without an error.",
    "glued-answers": "Consecutive assistant messages become one turn, their texts joined by nothing.",
    "thought-stripped": "Thinking inside content is deleted; it belongs in reasoning_content.",
    "thought-last-turn": "reasoning_content is rendered only after the last user message.",
    "text-after-result": "Text beside a tool call moves behind the tool result.",
    "standard-names-lost": "Tool arguments named description, type, properties, required or nullable are left out.",
    "empty-result-lost": "An empty tool result is left out.",
    "empty-thought": "With thinking off the generation prompt ends in an empty thought; rows do not hold it.",
}


def traps(*names: str) -> dict[str, str]:
    return {name: TRAPS[name] for name in names}
