"""What a chat template leaves out is an error of the row or told as a warning, whoever reads the rows."""

from __future__ import annotations

import json

import pytest

from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.model import describe_model
from gemma_trainer.data.render import Renderer
from gemma_trainer.data.shown import CALL_REASONING, CALLS, REASONING, RESULTS, TOOLS
from gemma_trainer.families.catalogue import family_names, get_family
from gemma_trainer.families.template import Template
from gemma_trainer.models.tiny import make_tokenizer
from gemma_trainer.rows.problems import Failure
from judging import ROUND
from official_templates import OLDER, official, older_gemma4
from preparing import GOOD, assistant, chat, codes, prep, user
from preparing import TOOLS as DECLARED

TURN = "{{- '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' ~ (m.content or '') ~ '<turn|>\\n' -}}"
BARE = "{{- bos_token -}}{%- for m in messages -%}" + TURN + "{%- endfor -%}"  # knows neither tools nor thinking
BARE += "{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A function that gives the folder of a Gemma 4's tokenizer with a chat template, or with none."""

    def folder(template: str | None):
        path = tmp_path_factory.mktemp("model")
        tokenizer = make_tokenizer(["Tide? 3.2 metres. Rye."], "gemma4")
        tokenizer.chat_template = template
        tokenizer.save_pretrained(path)
        (path / "config.json").write_text(json.dumps({"model_type": "gemma4_text", "num_kv_shared_layers": 2}))
        return path

    return folder


def written(tmp_path, row: dict):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n" + json.dumps(GOOD) + "\n")
    return file


CALL_ROWS = {
    "declared": ("sft", {**GOOD, "tools": DECLARED}),
    "called": ("sft", chat(*ROUND, tools=DECLARED)),
    "undeclared": ("sft", chat(*ROUND)),
    "without content": ("sft", chat(ROUND[0], {k: v for k, v in ROUND[1].items() if k != "content"}, *ROUND[2:])),
    "prompts": ("prompts", {"prompt": ROUND[:3], "tools": DECLARED}),
    "pair": ("dpo", {"prompt": ROUND[:1], "chosen": ROUND[1:], "rejected": [assistant("No idea.")], "tools": DECLARED}),
}


@pytest.mark.parametrize("name", CALL_ROWS)
def test_tools_that_the_template_leaves_out_refuse_the_row(name, model, tmp_path):
    task, row = CALL_ROWS[name]
    folder, file = model(BARE), written(tmp_path, row)
    code, document = prep("validate", file, "--model", folder, "--task", task)
    problem = next(problem for problem in document["errors"] if problem["code"] == "tools-unsupported")
    assert code == 3 and problem["row"] == 1 and "chat template in use" in problem["message"]
    with pytest.raises(Failure) as caught:
        read_clean([file], task, describe_model("auto", str(folder)))
    assert "tools-unsupported" in {problem.code for problem in caught.value.details}


def test_a_template_that_is_unknown_is_taken_for_the_current_one(tmp_path):
    code, document = prep("validate", written(tmp_path, chat(*ROUND, tools=DECLARED)), "--family", "gemma4")
    assert code == 0 and not codes(document)


@pytest.mark.parametrize("name", family_names())
def test_current_templates_show_what_the_family_says(name):
    family = get_family(name)
    shown = Renderer(family, official(name)).shown
    assert ({TOOLS, CALLS, RESULTS} <= shown) == family.tools
    assert ({REASONING, CALL_REASONING} <= shown) == family.thinking
    assert Renderer(family).shown is None


def test_calls_without_their_arguments_are_not_written():
    names = "{%- for c in m.tool_calls or [] -%}{{- c.function.name -}}{%- endfor -%}"
    shown = Renderer(get_family("gemma4"), Template(BARE.replace("{%- endfor -%}", names + "{%- endfor -%}", 1))).shown
    assert CALLS not in shown and RESULTS in shown


@pytest.mark.parametrize("revision", OLDER)
def test_older_gemma4_templates_show_tools(revision):
    shown = Renderer(get_family("gemma4"), older_gemma4(revision)).shown
    assert {TOOLS, CALLS, RESULTS} <= shown and REASONING not in shown


@pytest.mark.parametrize(
    ("template", "said"),
    [(BARE, "no reasoning"), (None, None), ("r3", "reasoning only beside a tool call"), ("r1", "no reasoning")],
)
def test_lost_reasoning_tells_what_the_template_writes(template, said):
    from gemma_trainer.data.checking.process import process
    from gemma_trainer.data.checking.setting import Setting
    from gemma_trainer.data.notes import Notes
    from gemma_trainer.data.options import Options
    from judging import CASES

    family, notes = get_family("gemma4"), Notes()
    source = older_gemma4(template) if template in OLDER else Template(template) if template else official("gemma4")
    shown = Renderer(family, source).shown
    row = chat(user("2+2?"), assistant("4", reasoning_content="Two and two."))
    process(row, Options(shown=shown), Setting(family, CASES, shown), notes)
    assert [note.code for note in notes.found] == (["reasoning-lost"] if said else [])
    if said:
        assert said in notes.found[0].message and "revision r5" in notes.found[0].fix


@pytest.mark.parametrize("name", CALL_ROWS)
def test_a_gemma4_without_template_is_trained_on_tools_as_what_is_saved_writes_them(name, model, tmp_path):
    """Null content beside a call, or none at all, is the canonical form."""
    task, row = CALL_ROWS[name]
    folder, file = model(None), written(tmp_path, row)
    code, document = prep("validate", file, "--model", folder, "--task", task)
    assert not {"tools-unsupported", "template-refused"} & codes(document)
    described = describe_model("auto", str(folder))
    assert described.renderer.template.source == described.family.plain_template and not described.chats
    assert code == (3 if task != "sft" else 0)  # GOOD is no row of another task
    messages = row.get("messages") or row["prompt"] + row.get("chosen", [])
    current = Renderer(described.family)
    assert described.renderer.render({**row, "messages": messages}) == current.render({**row, "messages": messages})


@pytest.mark.parametrize("name", ["gemma4", "gemma4-large", "functiongemma"])
def test_plain_templates_take_calls_without_content(name):
    family = get_family(name)
    template = Template(family.plain_template)
    for caller in (ROUND[1], {key: value for key, value in ROUND[1].items() if key != "content"}):
        assert "None" not in template.render([ROUND[0], caller, *ROUND[2:]])
