"""The families: catalogue, detection, and renderers that equal the official templates byte for byte."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256

import pytest

from conversations import Maker
from gemma_trainer.data.model import Model
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import FAMILIES, detect_family, family_names, get_family, revision
from gemma_trainer.families.family import Piece, RenderError
from gemma_trainer.families.template import Template
from official_templates import OLDER, SHA, official, older_gemma4

GOLDEN_FAMILIES = {
    "gemma1": "gemma1_2",
    "gemma2": "gemma1_2",
    "gemma3": "gemma3",
    "gemma3n": "gemma3n",
    "functiongemma": "functiongemma",
    "gemma4": "gemma4_small",
    "gemma4-large": "gemma4_large",
}


def rendered(render, messages, tools=None, add_generation_prompt=False, **options) -> str | None:
    """The text, None where it is refused."""
    try:
        out = render(messages, tools, add_generation_prompt, **options)
    except RenderError:
        return None
    return out if isinstance(out, str) else "".join(piece.text for piece in out)


def thinking(golden: dict) -> dict:
    return {key: golden[key] for key in ("enable_thinking", "preserve_thinking") if key in golden}


@pytest.mark.parametrize("name", family_names())
def test_goldens(name, goldens):
    mine = [golden for golden in goldens if golden["family"] == GOLDEN_FAMILIES[name]]
    assert len(mine) == 37
    for golden in mine:
        args = golden["messages"], golden.get("tools"), golden["add_generation_prompt"]
        assert rendered(FAMILIES[name].render, *args, **thinking(golden)) == golden["rendered"], golden["name"]


def check_random_conversations(name: str, count: int) -> None:
    template, family = official(name), get_family(name)
    texts = refused = 0
    for seed in range(count):
        maker = Maker(seed)
        args = maker.messages(), maker.tools(), maker.maybe(0.5)
        options = maker.options()
        expected = rendered(template.render, *args, **options)
        assert rendered(family.render, *args, **options) == expected, f"seed {seed}"
        texts, refused = texts + (expected is not None), refused + (expected is None)
    assert texts > count / 10 and refused > count / 100  # both kinds were met


@pytest.mark.parametrize("name", family_names())
def test_random_conversations_equal_jinja(name):
    check_random_conversations(name, 150)


@pytest.mark.slow
@pytest.mark.parametrize("name", family_names())
def test_many_random_conversations_equal_jinja(name):
    check_random_conversations(name, 3_000)


@pytest.mark.parametrize("name", family_names())
def test_plain_template_equals_renderer(name):
    family = get_family(name)
    template = Template(family.plain_template)
    assert family.templates[template.sha256] == "plain"
    for seed in range(300):
        maker = Maker(seed, plain=True)
        messages, prompt = maker.plain_chat(), maker.maybe(0.5)
        if name in ("gemma1", "gemma2") and any(isinstance(m["content"], list) for m in messages):
            continue  # the official template prints a Python list there; ours joins the parts
        expected = rendered(family.render, messages, None, prompt)
        assert rendered(template.render, messages, None, prompt) == expected, f"seed {seed}"


@pytest.mark.parametrize("name", ["gemma4", "gemma4-large"])
def test_plain_template_writes_tools_and_thinking_as_the_renderer(name):
    family, template, texts = get_family(name), Template(get_family(name).plain_template), 0
    for seed in range(150):
        maker = Maker(seed)
        args = maker.messages(), maker.tools(), maker.maybe(0.5)
        options = maker.options()
        expected = rendered(family.render, *args, **options)
        if expected is not None:
            texts += 1
            assert rendered(template.render, *args, **options) == expected, f"seed {seed}"
    assert texts > 100


@pytest.mark.parametrize("name", ["gemma4", "gemma4-large"])
def test_plain_template_equals_the_goldens(name, goldens):
    template = Template(get_family(name).plain_template)
    for golden in goldens:
        if golden["family"] == GOLDEN_FAMILIES[name]:
            args = golden["messages"], golden.get("tools"), golden["add_generation_prompt"]
            assert rendered(template.render, *args, **thinking(golden)) == golden["rendered"], golden["name"]


@pytest.mark.parametrize("name", family_names())
def test_plain_template_in_transformers(name):
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": "Hi "}, {"role": "assistant", "content": "Hello"}]
    family = get_family(name)
    texts, _ = render_jinja_template(
        [messages], chat_template=family.plain_template, add_generation_prompt=True, bos_token="<bos>"
    )
    assert texts[0] == rendered(family.render, messages, None, True)


def test_jinja_equals_transformers():
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{{ bos_token }}{% generation %}{{ messages | tojson }}{% endgeneration %}\n"
        "{%- for m in messages %}\n  {% if loop.index0 > 0 %}{% break %}{% endif %}\n"
        " {{ m.content | tojson(indent=1) }}\n"
        "{% endfor %}{{ tools is none }}{{ strftime_now('%%') }}{{ x | default('no') }}"
    )
    messages = [{"role": "user", "content": '<é> & "q"'}, {"role": "assistant", "content": "b"}]
    expected, _ = render_jinja_template([messages], chat_template=source, bos_token="<bos>")
    assert Template(source).render(messages) == expected[0]


def test_template_failures_are_render_errors():
    for source in (
        "{{ raise_exception('no') }}",
        "{{ messages.x.y }}",
        "{% if %}",
        "{{ 1 + 'a' }}",
        "{{ ''.__class__.x() }}",
    ):
        with pytest.raises(RenderError) as caught:
            Template(source).render([{"role": "user", "content": "secret text"}])
        assert caught.value.code == "template-refused"
        assert "secret text" not in str(caught.value)


def test_known_hashes():
    for name, expected in SHA.items():
        family = get_family(name)
        assert family.templates[expected] == family.current_revision
    for family in FAMILIES.values():
        assert all(len(key) == 64 for key in family.templates)
        assert sorted(set(family.templates.values()) & {"plain"}) == ["plain"]


def test_final_newline_does_not_hide_a_revision():
    source = get_family("gemma3").plain_template
    for variant in (source, source.rstrip("\n"), source + ""):
        assert revision(get_family("gemma3"), Template(variant)) == "plain"
    template = official("gemma4-large")
    bare = Template(template.source.removesuffix("\n"))
    assert bare.sha256.startswith("6a1015c4")
    assert revision(get_family("gemma4-large"), bare) == "r5"


@pytest.mark.parametrize("name", OLDER)
def test_older_gemma4_revisions(name):
    template = older_gemma4(name)
    assert template.sha256 == sha256(template.source.encode()).hexdigest()
    assert revision(get_family("gemma4"), template) == name


def test_get_family():
    assert get_family("gemma4").title.startswith("Gemma 4")
    assert get_family("Gemma4_Large").name == "gemma4-large"
    with pytest.raises(ValueError, match="did you mean `gemma3n`"):
        get_family("gemma-3n")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"config": {"model_type": "gemma"}}, "gemma1"),
        ({"config": {"model_type": "gemma2"}}, "gemma2"),
        ({"config": {"model_type": "gemma3_text"}}, "gemma3"),
        ({"config": {"model_type": "gemma3"}}, "gemma3"),
        ({"config": {"model_type": "gemma3n"}}, "gemma3n"),
        (
            {"config": {"model_type": "gemma3_text"}, "tokens": {"<start_of_turn>", "<start_function_call>"}},
            "functiongemma",
        ),
        ({"config": {"model_type": "gemma4", "text_config": {"hidden_size_per_layer_input": 256}}}, "gemma4"),
        ({"config": {"model_type": "gemma4_text", "num_kv_shared_layers": 18}}, "gemma4"),
        (
            {"config": {"model_type": "gemma4", "text_config": {"hidden_size_per_layer_input": 0}}},
            "gemma4-large",
        ),
        ({"config": {"model_type": "gemma4_unified"}}, "gemma4-large"),
        ({"tokens": {"<|turn>", "<turn|>"}}, "gemma4"),
        ({"tokens": {"<start_of_turn>"}, "name": "google/gemma-2-2b-it"}, "gemma2"),
        ({"tokens": {"<start_of_turn>", "<start_of_image>"}}, "gemma3"),
        ({"name": "google/gemma-4-E2B-it"}, "gemma4"),
        ({"name": "gemma-4-31B-it"}, "gemma4-large"),
        ({"name": "/models/gemma-3n-E4B-it/"}, "gemma3n"),
        ({"name": "functiongemma-270m-it"}, "functiongemma"),
        ({"name": "gemma-2b-it"}, "gemma1"),
        ({"name": "gemma-2-9b"}, "gemma2"),
        ({"name": "llama-3"}, None),
        ({}, None),
        ({"config": {"model_type": "llama"}}, None),
    ],
)
def test_detect_family(facts, expected):
    found = detect_family(**facts)
    assert (found.name if found else None) == expected


def test_a_template_outweighs_the_name():
    assert detect_family(template=official("gemma4-large"), name="my-gemma-4-E2B").name == "gemma4-large"
    assert detect_family({"model_type": "gemma2"}, official("gemma1")).name == "gemma2"
    assert detect_family({"model_type": "gemma3_text"}, official("functiongemma")).name == "functiongemma"


def test_control_tokens_cover_what_is_written(goldens):
    """Every mark of a family is one of its control tokens."""
    for family in FAMILIES.values():
        pairs = [pair for pair in (family.call, family.result, family.thought) if pair]
        marks = [
            family.turn_start,
            family.turn_end,
            *family.stop_tokens,
            *family.placeholders.values(),
            *sum(pairs, ()),
        ]
        assert set(marks) <= family.control_tokens


def test_pieces_are_plain_tuples_of_their_type():
    pieces = get_family("gemma4").render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert all(type(piece) is Piece for piece in pieces)


def test_families_import_nothing_heavy():
    code = (
        "import sys, gemma_trainer.families.catalogue, gemma_trainer.data.render, gemma_trainer.data.tokens;"
        "heavy = {'torch', 'transformers', 'datasets', 'jinja2', 'tokenizers', 'huggingface_hub'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert run.stdout.strip() == "[]", run.stderr


@pytest.mark.parametrize(
    ("revision", "words"), [("r5", None), ("r3", "revision r3 of"), (None, "no known revision of")]
)
def test_a_reader_is_told_of_templates_that_are_not_the_current_one(revision, words):
    family = get_family("gemma4")
    template = official("gemma4") if revision == "r5" else older_gemma4(revision or "r3")
    if revision is None:
        template = Template(template.source.replace("<|think|>", "<|think|> "))
    note = Model(family, "told by the model", Renderer(family, template)).note
    assert (words in note) if words else note is None
