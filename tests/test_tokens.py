"""Ids and masks equal what the official template and tokenizer give; tokenizers are found where they lie."""

from __future__ import annotations

import json

import pytest

from conversations import Maker
from gemma_trainer.data.render import Rendered, Renderer, Span
from gemma_trainer.data.tokens import RowTokenizer, load_tokenizer
from gemma_trainer.families.catalogue import family_names, get_family
from gemma_trainer.families.family import RenderError
from gemma_trainer.rows.problems import Failure
from official_templates import official

REAL = [("gemma3", "gemma3"), ("gemma4", "gemma4"), ("gemma4_large", "gemma4-large")]
GOLDENS = {"gemma3": "gemma3", "gemma4": "gemma4_small", "gemma4-large": "gemma4_large"}


def random_rows(count: int):
    """Canonical rows and what a trainer would ask for."""
    for seed in range(count):
        maker = Maker(seed, plain=True)
        messages = maker.plain_chat() if maker.maybe(0.6) else maker.chat()
        yield {"messages": messages, "tools": maker.tools(), "chat_template_kwargs": maker.options()}


def transformers_ids(tokenizer, row: dict, add_generation_prompt: bool = False) -> list[int]:
    options = row.get("chat_template_kwargs") or {}
    return tokenizer.apply_chat_template(
        row["messages"],
        tools=row.get("tools"),
        add_generation_prompt=add_generation_prompt,
        return_dict=False,
        **options,
    )


def check_against_transformers(tokenizer, name: str, goldens: list[dict], count: int) -> None:
    tokens = RowTokenizer(tokenizer.backend_tokenizer)
    renderer = Renderer(get_family(name), official(name))
    compared = 0
    for golden in goldens:
        # transformers drops a null content first, so its text differs from the template's own
        if golden["family"] == GOLDENS[name] and golden["rendered"] and "none" not in golden["name"]:
            row = {"messages": golden["messages"], "tools": golden.get("tools")}
            row["chat_template_kwargs"] = {k: golden[k] for k in golden if k.endswith("_thinking")}
            ids = tokens.encode(renderer.render(row, "assistant", golden["add_generation_prompt"])).ids
            assert ids == transformers_ids(tokenizer, row, golden["add_generation_prompt"]), golden["name"]
            compared += 1
    for number, row in enumerate(random_rows(count)):
        try:
            out = renderer.render(row)
        except RenderError:
            continue
        encoded = tokens.encode(out)
        assert encoded.ids == transformers_ids(tokenizer, row), f"row {number}"
        assert tokens.count(out.text) == len(encoded.ids) == len(encoded.mask)
        compared += 1
    assert compared > count / 3


@pytest.mark.parametrize("name", GOLDENS)
def test_ids_equal_transformers_on_a_small_tokenizer(name, goldens, small_tokenizer):
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizer(name), bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = official(name).source
    check_against_transformers(fast, name, goldens, 150)


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "name"), REAL)
def test_ids_equal_transformers_on_the_real_tokenizer(folder, name, goldens, real_tokenizers):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_tokenizers / folder)
    check_against_transformers(tokenizer, name, goldens, 1_000)


@pytest.mark.parametrize("name", family_names())
def test_mask_decodes_to_the_trained_text(name, small_tokenizer):
    tokens, renderer = RowTokenizer(small_tokenizer(name)), Renderer(get_family(name))
    rows = [
        {
            "messages": [
                {"role": "user", "content": "Hé 🎉"},
                {"role": "assistant", "content": "the cat 🎉日本 sat"},
            ]
        }
    ]
    rows += [row for row in random_rows(80) if not row.get("chat_template_kwargs")]
    seen = 0
    for row in rows:
        try:
            out = renderer.render(row)
        except RenderError:
            continue
        ids, mask = tokens.encode(out)
        spoken = [token for token, trained in zip(ids, mask, strict=True) if trained]
        assert tokens.backend.decode(spoken, skip_special_tokens=False) == "".join(out.trained_text)
        assert set(mask) <= {0, 1} and ids.count(2) == 1 and ids[0] == 2
        seen += 1
    assert seen > 5


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "name"), REAL)
def test_real_masks_decode_to_the_trained_text(folder, name, real_tokenizers):
    tokens, template, facts = load_tokenizer(str(real_tokenizers / folder))
    assert facts.family.name == name and template.sha256 == official(name).sha256
    assert facts.adds_bos == (name == "gemma3")
    renderer = Renderer(facts.family, template)
    for row in random_rows(300):
        try:
            out = renderer.render(row)
        except RenderError:
            continue
        ids, mask = tokens.encode(out)
        spoken = [token for token, trained in zip(ids, mask, strict=True) if trained]
        assert tokens.backend.decode(spoken, skip_special_tokens=False) == "".join(out.trained_text)


def test_batch_equals_single(small_tokenizer):
    tokens, renderer = RowTokenizer(small_tokenizer("gemma4")), Renderer(get_family("gemma4"))
    rows = [renderer.render(row) for row in random_rows(20) if not any(m["role"] == "tool" for m in row["messages"])]
    assert tokens.encode_batch(rows) == [tokens.encode(row) for row in rows]
    assert tokens.count_batch([row.text for row in rows]) == [len(tokens.encode(row).ids) for row in rows]


def test_exactly_one_bos(small_tokenizer):
    for name in ("gemma3", "gemma4"):
        tokens = RowTokenizer(small_tokenizer(name))
        assert tokens.adds_bos == (name == "gemma3")
        for text in ("the cat", "<bos>the cat", "<bos><bos>the cat"):
            ids, mask = tokens.encode(Rendered(text, [Span(text.index("the"), len(text), 0)]))
            assert ids[0] == 2 and ids.count(2) == 1
            assert mask == [0] + [1] * (len(ids) - 1)


def test_a_token_belongs_where_it_begins(small_tokenizer):
    tokens = RowTokenizer(small_tokenizer("gemma3"))
    ids, mask = tokens.encode(Rendered("<bos>🎉a", [Span(6, 7, 0)]))  # four bytes of one character, then `a`
    assert mask == [0] * (len(ids) - 1) + [1]


def test_truncation_and_padding_of_the_file_are_ignored(small_tokenizer, tmp_path):
    backend = small_tokenizer("gemma3")
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokens = RowTokenizer.from_dir(tmp_path)
    assert tokens.count("a b c d e f") > 3
    assert len(tokens.encode_batch([Rendered("<bos>a"), Rendered("<bos>a b c d")])[0].ids) == 2


class TestLoad:
    @pytest.fixture
    def folder(self, small_tokenizer, tmp_path):
        small_tokenizer("gemma4").save(str(tmp_path / "tokenizer.json"))
        return tmp_path

    def test_template_file_first(self, folder):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
        (folder / "chat_template.jinja").write_bytes(b"new\r\n")
        _, template, facts = load_tokenizer(str(folder))
        assert template.source == "new\r\n"
        assert (facts.family.name, facts.adds_bos, facts.source) == ("gemma4", False, str(folder))

    @pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
    def test_template_in_json(self, folder, name):
        (folder / name).write_text(json.dumps({"chat_template": "T"}))
        assert load_tokenizer(str(folder))[1].source == "T"

    def test_named_templates(self, folder):
        named = [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        assert load_tokenizer(str(folder))[1].source == "D"

    def test_no_template(self, folder):
        (folder / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": {}}))
        _, template, facts = load_tokenizer(str(folder))
        assert template is None and facts.family.name == "gemma4-large" and facts.config["model_type"] == "gemma4"

    def test_adapter_folder(self, folder):
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "google/gemma-4-31B-it"}))
        assert load_tokenizer(str(folder))[2].family.name == "gemma4-large"

    def test_unknown_model(self, tmp_path):
        tmp_path.joinpath("tokenizer.json").write_text(
            '{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}'
        )
        tokens, _, facts = load_tokenizer(str(tmp_path))
        assert facts.family is None and tokens.bos_id is None
        assert tokens.encode(Rendered("aa", [Span(1, 2, 0)])) == ([0, 0], [0, 1])

    @pytest.mark.parametrize(
        ("model", "code"),
        [
            ("no/such/folder/here", "model-not-found"),
            ("nowhere", "model-not-found"),
            ("missing.gguf", "model-not-found"),
            ("org/never-downloaded", "model-offline"),
        ],
    )
    def test_not_there(self, model, code, monkeypatch, tmp_path):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(Failure) as caught:
            load_tokenizer(model)
        assert caught.value.problem.code == code

    def test_no_tokenizer(self, tmp_path):
        with pytest.raises(Failure) as caught:
            load_tokenizer(str(tmp_path))
        assert (caught.value.exit_code, caught.value.problem.code) == (2, "tokenizer-not-found")

    @pytest.mark.parametrize(
        ("name", "text"), [("tokenizer.json", "{"), ("config.json", "{x"), ("config.json", "\udc80")]
    )
    def test_broken_files(self, folder, name, text):
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(Failure) as caught:
            load_tokenizer(str(folder))
        assert caught.value.problem.code == "tokenizer-unreadable"

    def test_broken_gguf(self, tmp_path):
        pytest.importorskip("gguf")
        (tmp_path / "m.gguf").write_bytes(b"GGUF but not really")
        with pytest.raises(Failure) as caught:
            load_tokenizer(str(tmp_path / "m.gguf"))
        assert caught.value.problem.code == "tokenizer-unreadable"

    def test_gguf(self, tmp_path):
        gguf = pytest.importorskip("gguf")
        pytest.importorskip("transformers")
        control = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
        letters = ["\n", *"▁abcdefghijklmnopqrstuvwxyz", "he", "ll"]
        tokens = [*control, *[f"<0x{byte:02X}>" for byte in range(256)], *letters]
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
        writer.add_token_types([3] * len(control) + [6] * 256 + [1] * len(letters))
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_chat_template("{{ bos_token }}")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        loaded, template, facts = load_tokenizer(str(tmp_path / "m.gguf"))
        assert (template.source, facts.family.name) == ("{{ bos_token }}", "gemma3")
        ids, mask = loaded.encode(Rendered("<bos><start_of_turn>user\nhello<end_of_turn>", [Span(25, 42, 0)]))
        assert [tokens[token] for token, trained in zip(ids, mask, strict=True) if trained][-1] == "<end_of_turn>"
        assert ids[:2] == [2, 5] and len(ids) == len(mask)
