"""What a template refuses is named, by its place in the row as it was written."""

from __future__ import annotations

import pytest

from gemma_trainer.data.lengths import sequences
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import RenderError
from gemma_trainer.families.template import Template
from judging import noted
from preparing import TOOLS, assistant, chat, user

TURN = "{{- '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' ~ m.content ~ '<turn|>\\n' -}}"
LOOP = "{%- for m in messages -%}%s" + TURN + "{%- endfor -%}"


def refusing(condition: str, where: str = LOOP) -> Template:
    return Template(where.replace("%s", f"{{%- if {condition} -%}}{{{{ raise_exception('no') }}}}{{%- endif -%}}"))


HELLO = [user("Hi"), assistant("Ha"), user("Ho"), assistant("He")]
CASES = [
    (Template(LOOP.replace("%s", "{%- for c in m.content -%}{%- endfor -%}")),
     chat(user("Hi"), assistant("Ha"), user("Ho"), assistant(None)), "messages[3]"),
    (refusing("m.role == 'tool'"), chat(user("Hi"), {"role": "tool", "content": "x"}, *HELLO[1:]), "messages[1]"),
    (refusing("(m.role == 'user') != (loop.index0 is even)"), chat(*HELLO[:2], assistant("Hm"), *HELLO[2:]), "messages[2]"),
    (refusing("loop.last and m.role == 'user'"), chat(*HELLO[:3]), "messages[2]"),  # as the first message alone is
    (refusing("tools"), chat(*HELLO, tools=TOOLS), "tools"),
    (refusing("true", "%s" + LOOP.replace("%s", "")), chat(*HELLO), "messages"),
    (refusing("m.content == 'x'"), {"prompt": [user("x")]}, "prompt[0]"),
    (refusing("m.content == 'x'"), {"prompt": HELLO[:3], "chosen": [assistant("x")], "rejected": [assistant("y")]}, "chosen[0]"),
    (refusing("m.content == 'x'"), {"prompt": HELLO[:3], "chosen": [assistant("y")], "rejected": [assistant("y"), assistant("x")]},
     "rejected[1]"),
    (refusing("m.content == 'x'"), {"prompt": [user("x")], "chosen": [assistant("y")], "rejected": [assistant("z")]}, "prompt[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "row", "path"), CASES)
def test_the_message_that_a_template_refuses_is_named(template, row, path):
    renderer = Renderer(get_family("gemma4"), template)
    with pytest.raises(RenderError) as caught:
        for one in sequences(row):
            renderer.render(one)
    assert (caught.value.code, caught.value.path) == ("template-refused", path)
    assert ("no single message" in str(caught.value)) == (path == "messages")
    if "messages" in row or "chosen" not in row:
        with pytest.raises(RenderError) as caught:
            renderer.prompt(row)
        assert caught.value.path == path


@pytest.mark.parametrize(
    ("row", "task", "path"),
    [
        (chat(*HELLO[:2], user([{"type": "text", "text": "a"}]), assistant("b", tool_calls=[{"function": {"name": "f", "arguments": {1: "a", "b": 2}}}])),
         "sft", "messages[3]"),
        ({"prompt": HELLO[:1], "chosen": [assistant("b", tool_calls=[{"function": {"name": "f", "arguments": {1: "a", "b": 2}}}])],
          "rejected": [assistant("c")]}, "dpo", "chosen[0]"),
    ],
)  # fmt: skip
def test_what_the_family_refuses_is_named(row, task, path):
    """Keys of several types, which a Python caller can give, cannot be sorted."""
    refused = [note for note in noted(row, task=task)[1].found if note.code == "template-refused"]
    assert [note.path for note in refused] == [path]
