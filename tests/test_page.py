"""The HTML page: what it shows is what is trained, nothing in it runs or loads, and a browser shows it right."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_trainer.data.histogram import bars
from gemma_trainer.data.lengths import render_all
from gemma_trainer.data.model import describe_model
from gemma_trainer.data.pages.page import page, write_page
from gemma_trainer.data.pages.page_parts import histogram
from gemma_trainer.data.pages.page_rows import SHOWN
from gemma_trainer.data.stats import Stats
from gemma_trainer.data.view import row_view
from gemma_trainer.rows.problems import Failure, Problem
from preparing import TOOLS, assistant, call, chat, result, user
from reading_html import Reader, browser  # noqa: F401

EVIL = "<script>document.title='ran'</script></pre></mark><img src=x onerror=\"document.title='ran'\"> &amp; 'q'"
CHAT = chat(user("Name a bread."), assistant("Rye.\nOr wheat."))
PAIR = {"prompt": [user("Tide?")], "chosen": [assistant("Twice a day.")], "rejected": [assistant("No.")]}
SETS = {
    "chat": [CHAT, chat(user("شرح\nالمد 😀👩‍👩‍👧"), assistant("مرتين **في** اليوم"))],
    "evil": [chat(user(EVIL), assistant(EVIL))],
    "tools": [chat(user("Tide?"), assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), assistant("3.2"), tools=TOOLS)],
    "preference": [PAIR, PAIR],
    "prompts": [{"prompt": [user("Why?")]}],
    "text": [{"text": "\nOnce upon a time.\r\n"}],
    "empty": [],
}  # fmt: skip


@lru_cache
def model(family: str):
    return describe_model(family, None)


def views(rows: list[dict], family: str = "gemma4", tokens: bool = False) -> list[dict]:
    out = []
    for at, row in enumerate(rows, start=1):
        texts = render_all(row, model(family))
        for side, rendered in zip(("chosen", "rejected") if len(texts) == 2 else (None,), texts, strict=True):
            view = row_view("data/rows.jsonl", at, at, rendered, None)
            if tokens:
                view |= {"tokens": len(rendered.text) // 2, "trained_tokens": 3}
            out.append({**view, "side": side} if side else view)
    return out


def facts(rows: list[dict], /, **more) -> dict:
    return {
        "task": "sft", "family": "gemma4", "family_from": "asked for", "layout": "messages", "rendering": "packaged",
        "template_hash": None, "data_hash": "ab" * 32, "rows": len(rows), "valid": len(rows), "errors_by_code": {},
        "warnings_by_code": {}, "notes": [], "max_length": 16, "data": ["data/rows.jsonl"],
    } | more  # fmt: skip


def made(rows: list[dict], problems=(), tokens: bool = False, family: str = "gemma4", **more) -> str:
    stats = Stats()
    for row in rows:
        stats.add(row, 20 if tokens else None, 3 if tokens else None)
    told = facts(rows, family=family, **more)
    return page(told, stats.as_dict(16), views(rows, family, tokens), list(problems))


@pytest.mark.parametrize("tokens", [False, True], ids=["guessed", "exact"])
@pytest.mark.parametrize("kind", SETS)
def test_page_is_whole_and_loads_nothing(kind, tokens):
    text = made(SETS[kind], tokens=tokens, next=["python assets/sft_train.py --plan"])
    read = Reader(text)
    sections = [one.attributes["id"] for one in read.all("section")]
    assert sections == (["faults", "mask", "lengths", "shape", "repeats"] if SETS[kind] else ["faults"])
    assert [a.attributes["href"] for a in read.all("a")] == ["#main", *(f"#{name}" for name in sections)]
    assert [len(read.all(tag)) for tag in ("h1", "main", "nav", "header", "footer")] == [1] * 5
    identities = [one.attributes["id"] for one in read.elements if "id" in one.attributes]
    assert len(identities) == len(set(identities))
    for one in read.elements:
        assert not any(name in ("src", "srcset", "data") or name.startswith("on") for name in one.attributes), one
    assert not re.search(r"https?:|@import|url\((?!#hatch)", "".join(tag.text for tag in read.all("style")))
    assert ("Guessed" in text) == (bool(SETS[kind]) and not tokens)
    assert "python assets/sft_train.py --plan" in read.all("header")[0].text


@pytest.mark.parametrize("kind", SETS)
def test_only_its_own_script_may_run(kind):
    read = Reader(made(SETS[kind]))
    (script,) = read.all("script")
    policy = next(one.attributes["content"] for one in read.all("meta") if one.attributes.get("http-equiv"))
    assert f"script-src 'sha256-{b64encode(sha256(script.text.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'") and "ran" not in script.text


@pytest.mark.parametrize("family", ["gemma1", "gemma3", "gemma4", "functiongemma"])
@pytest.mark.parametrize("kind", ["chat", "evil", "prompts", "text"])
def test_shown_text_is_the_rendered_one_and_marked_text_the_trained(kind, family):
    shown = Reader(made(SETS[kind], family=family)).one("mask")
    trained = []
    for view in views(SETS[kind], family):
        assert odd(view["text"]) in shown.text
        trained += [odd(view["text"][start:end]) for start, end in view["trained"]]
    assert shown.marked == ["what is coloured and underlined", *trained][: None if trained else 0]


def odd(text: str) -> str:
    return text.replace("\r", "U+000D")


def test_control_tokens_are_chips_and_look_alikes_are_not():
    read = Reader(made([chat(user("<turn> or <start_of_turn>?"), assistant("<|turns|>"))]))
    chips = [one.text for one in read.all("span", "token")]
    assert set(chips) == {"<marks>", "<bos>", "<|turn>", "<turn|>"}
    assert chips.count("<|turn>") == 2


def test_characters_that_hide_or_turn_text_are_named():
    read = Reader(made([chat(user("a\u202eb\x00\u200b\ufeff"), assistant("\ud800 \x1b[31m"))]))
    assert [one.text for one in read.all("span", "odd")] == [
        "U+202E", "U+0000", "U+200B", "U+FEFF", "U+D800", "U+001B",
    ]  # fmt: skip


def test_sides_of_a_pair_stand_below_their_prompt():
    read = Reader(made([PAIR]))
    texts = [one.text for one in read.all("pre") if "python" not in one.text]
    assert texts[0].count("Tide?") == 1 and [text.strip() for text in texts[1:]] == [
        "Twice a day.<turn|>",
        "No.<turn|>",
    ]
    assert [kind in one.classes for one, kind in zip(read.all("div", "chosen"), ["chosen"], strict=True)] == [True]
    assert "longer one in 100\u00a0% of 1 pair" in read.one("shape").text


def test_long_rows_are_clipped_and_folded():
    rows = [chat(user("word " * 20_000), assistant("yes " * 100)), chat(user("Hi"), assistant("line\n" * 5000))]
    text = made(rows)
    read = Reader(text)
    assert len(text) < 100_000 and len(read.all("input", "unfold")) == 2
    cuts = [one.text for one in read.all("span", "cut")]
    view = views(rows)[0]
    assert cuts[0] == f"{len(view['text']) - SHOWN:,} characters left out, 0 of them trained"
    lost = int(re.search(r"(\S+) of them trained", cuts[1]).group(1).replace(",", ""))
    second = views(rows)[1]
    assert lost == len(second["text"]) - SHOWN
    assert view["text"][-30:] in read.one("mask").text


def test_faults_are_told_by_code_with_places_cause_and_fix():
    problems = [Problem("control-token", f"text `{EVIL}`", "data/rows.jsonl", line, line) for line in (2, 1100, 7, 9)]
    problems.append(Problem("duplicate-row", "the same row as line 1", "data/rows.jsonl", 2, 2))
    problems.append(Problem("empty-file", "no data", "data/none.jsonl"))
    told = {"errors_by_code": {"control-token": 12, "empty-file": 1}, "warnings_by_code": {"duplicate-row": 1}}
    read = Reader(made([CHAT, CHAT], problems, **told))
    section = read.one("faults").text
    assert "13 errors and 1 warning." in section and "and 9 more" in section
    assert "rows.jsonl line\u00a01,100" in section and "none.jsonl" in section and EVIL in section
    assert "convert --repair drop-duplicates" in [one.text for one in read.all("code")]
    assert "duplicate-row" in read.one("repeats").text and "control-token" not in read.one("repeats").text
    assert "Not valid" in read.all("header")[0].text
    in_row = [one.text for one in read.all("li") if "severity" not in one.classes and "same row as line 1" in one.text]
    assert len(in_row) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "Valid"),
        ({"warnings_by_code": {"over-length": 1}}, "Valid, with warnings"),
        ({"errors_by_code": {"answer-empty": 1}, "warnings_by_code": {"over-length": 1}}, "Not valid"),
        ({"rows": 0}, "No rows"),
    ],
)
def test_verdict(more, words):
    verdict = next(one for one in Reader(page(facts([CHAT], **more), {}, [], [])).all("p") if "verdict" in one.classes)
    assert verdict.text[2:].startswith(f"{words} ")


@pytest.mark.parametrize("limit", [5, 40, 64, 2048, 6000, None])
def test_lengths_beyond_the_limit_are_told_apart(limit):
    stats = Stats()
    for length in (*range(20, 120), 5000):
        stats.add(CHAT, length, 4)
    read = Reader(page(facts([CHAT] * 101, max_length=limit), stats.as_dict(limit), [], []))
    ranges = [one for one in read.elements if one.tag == "title" and "tokens:" in one.text]
    over = read.all("rect", "over")
    rows = [int(re.search(r": (\d+)", bar.text).group(1)) for bar in ranges]
    assert sum(rows) == 101
    assert bool(over) == (limit is not None and limit < 5000)
    assert ("lies beyond" in read.one("lengths").text) == (limit == 6000)
    if limit in (40, 64, 2048):
        assert sum(rows[-len(over) :]) == 1 + max(0, 119 - limit)
    assert read.one("lengths-d").text.startswith("95 of 100 rows")


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=50), st.integers(1, 10**5))
def test_picture_of_any_lengths_lies_inside_its_frame(lengths, limit):
    counts = {length: lengths.count(length) for length in lengths}
    picture = histogram(bars(counts, edge=limit), [("p50", lengths[0])], limit, "lengths")
    read = Reader(picture)
    places = [float(one.attributes["x"]) for one in read.all("rect") if "x" in one.attributes]
    assert places == sorted(places) and places[0] >= 0 and places[-1] < 1000
    shares = re.findall(r"left:([-\d.]+)%", picture)
    assert all(0 <= float(share) <= 100 for share in shares)


def test_page_without_facts_of_the_whole_set():
    """What inspect knows: a few rows, no statistics, no count of valid ones."""
    told = {
        "rows": views([CHAT]),
        "rows_read": 7,
        "errors_by_code": {},
        "warnings_by_code": {},
        "notes": [],
        "task": "sft",
    }
    read = Reader(page(told, {}, views([CHAT]), []))
    assert [one.attributes["id"] for one in read.all("section")] == ["faults", "mask", "repeats"]
    assert read.all("h1")[0].text == "rows.jsonl" and read.all("dd")[0].text == "7"


@pytest.mark.parametrize(
    ("duplicates", "words"),
    [
        ({"rows": 0, "prompts": 0}, "None were found."),
        ({"rows": 0, "prompts": 3}, "3 rows with the prompt of an earlier one"),
        ({"rows": 1, "prompts": None}, "1 row the same as an earlier one."),
    ],
)
def test_repeats_without_a_code_are_told(duplicates, words):
    read = Reader(page(facts([CHAT], duplicates=duplicates), {}, [], []))
    assert words in read.one("repeats").text


def test_names_and_notes_are_escaped():
    text = page(facts([CHAT], data=[f"{EVIL}.jsonl"], notes=[EVIL], family=EVIL, next=[EVIL]), {}, [], [])
    assert len(Reader(text).all("script")) == 1 and not Reader(text).all("img")


def test_the_same_facts_give_the_same_page(tmp_path):
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, facts([CHAT]), Stats().as_dict(), views([CHAT]), [])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.html", "b.html"]
    with pytest.raises(Failure) as told:
        write_page(tmp_path / "none" / "a.html", facts([]), {}, [], [])
    assert told.value.problem.code == "output-unwritable"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme):
    """WCAG 2.2, 1.4.3: at least 4.5 to 1 for text."""
    blocks = re.findall(r":root \{(.*?)\}", page({}, {}, [], []), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", blocks[0 if scheme == "light" else 1]))
    grounds = [(ink, ground) for ink in ("ink", "soft") for ground in ("paper", "raised", "sunken")]
    grounds += [(name, f"{name}-soft") for name in ("error", "warning", "good")]
    grounds += [("learn-ink", "learn"), ("over", "paper")]
    assert {
        pair: contrast(*(colours[name] for name in pair))
        for pair in grounds
        if contrast(*(colours[n] for n in pair)) < 4.5
    } == {}


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_a_browser_shows_it(browser, tmp_path):  # noqa: F811
    file = tmp_path / "page.html"
    rows = [
        chat(user(EVIL), assistant(EVIL)),
        CHAT,
        SETS["tools"][0],
        chat(user("word " * 9000), assistant("a_long_word" * 60)),
    ]
    codes = {"control-token": 3, "placeholder-without-media": 1234}
    problems = [Problem("control-token", EVIL, "a-rather-long-name-of-a-file.jsonl", line, line) for line in (1, 2, 3)]
    file.write_text(made(rows, problems, tokens=True, errors_by_code=codes, next=["python x " * 9]), "utf-8")
    document, console = browser.document(file)
    assert console == ""
    assert "<title>rows.jsonl</title>" in document  # no text of a row has run
    read = Reader(document.partition("<body>")[2].rpartition("</body>")[0])
    assert "hidden" not in read.all("p", "tools")[0].attributes  # its own script has
    assert EVIL in read.one("mask").text and len(read.all("article")) == 4
    assert read.all("svg") and read.all("rect", "over")
    assert [browser.overflow(file, width) for width in (390, 760, 920)] == [0, 0, 0]
    picture = browser.picture(file, 1280, 2000)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 50_000
