"""Faults of tools, calls, results and media, one by one, for the families where they matter."""

from __future__ import annotations

import base64

import pytest

from judging import CASES, IMAGE, ROUND, TEXT, judge, judged_as, noted, tool_row
from preparing import GOOD, TOOLS, assistant, call, chat, result, user

OTHER = {"type": "function", "function": {"name": "other"}}
PICTURE = (CASES / "media" / "dot.png").read_bytes()


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
        # tools
        ("gemma4", chat(*ROUND, tools=TOOLS), set()),
        ("gemma4", chat(*ROUND), {"tool-undeclared"}),
        ("gemma3", chat(*ROUND, tools=TOOLS), {"tools-unsupported", "tools-ignored"}),
        ("gemma3", {**GOOD, "tools": TOOLS}, {"tools-ignored"}),
        ("functiongemma", chat(*ROUND, tools=TOOLS), {"tool-linked"}),
        ("gemma4", chat(*ROUND[:2], tools=TOOLS), set()),
        ("gemma4", chat(*ROUND[:3], tools=TOOLS), {"ends-with-tool"}),
        ("gemma4", chat(*ROUND[:2], user("b"), assistant("c"), tools=TOOLS), {"tool-result-missing"}),
        ("gemma4", chat(user("a"), result(name="f"), assistant("b"), tools=TOOLS), {"tool-result-orphan"}),
        ("gemma4", chat(*ROUND[:2], result(tool_call_id="c9"), ROUND[3], tools=TOOLS), {"tool-id-unknown"}),
        ("gemma4", chat(*ROUND[:2], result(), ROUND[3], tools=TOOLS), {"tool-linked"}),
        ("gemma4", chat(*ROUND[:2], result(name="other"), ROUND[3], tools=TOOLS), {"tool-id-unknown"}),
        ("gemma4", chat(*ROUND[:2], result(tool_call_id="c1", name="other"), ROUND[3], tools=TOOLS), {"tool-result-name"}),
        ("functiongemma", chat(*ROUND[:2], result(tool_call_id="c1", name="other"), ROUND[3], tools=TOOLS), {"tool-result-name"}),
        ("gemma4", chat(*ROUND[:2], result(tool_call_id="c1", name="get_tide"), ROUND[3], tools=TOOLS), set()),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call("other", {}, id="y")]), result(tool_call_id="x", name="other"),
                        result(tool_call_id="y", name="get_tide"), assistant("b"), tools=[*TOOLS, OTHER]), {"tool-result-name"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]), result(), assistant("b"), tools=TOOLS),
         {"tool-result-unnamed", "tool-result-missing"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(), call()]), result(tool_call_id="c1"), assistant("b"), tools=TOOLS),
         {"tool-id-repeated", "tool-result-missing"}),
        ("gemma4", chat(*ROUND[:3], ROUND[2], ROUND[3], tools=TOOLS), {"tool-result-repeated"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]), result(tool_call_id="x"), assistant("b"), tools=TOOLS),
         {"tool-result-missing"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]),
                        result(tool_call_id="x"), result(tool_call_id="x"), assistant("b"), tools=TOOLS), {"tool-result-repeated"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]),
                        result(tool_call_id="y"), result(tool_call_id="x"), assistant("b"), tools=TOOLS), set()),
        ("gemma4", chat(user("a"), assistant("Let me look.", tool_calls=[call()]), *ROUND[2:], tools=TOOLS), {"text-beside-call"}),
        ("gemma4", chat(*ROUND[:2], result({"metres": 3.2}, tool_call_id="c1"), ROUND[3], tools=TOOLS), {"tool-result-encoded"}),
        ("functiongemma", chat(*ROUND[:2], result({"metres": 3.2}, name="get_tide"), ROUND[3], tools=TOOLS), set()),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"hour": 6})]), tools=TOOLS), {"argument-missing"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "N", "x": 1})]), tools=TOOLS),
         {"argument-undeclared"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "N", "x": None})]), tools=TOOLS),
         {"null-padded-arguments"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": 5})]), tools=TOOLS), {"argument-type"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "<turn|>"})]), tools=TOOLS), {"control-token"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments='{"station": "N"}')]), tools=TOOLS), {"arguments-decoded"}),
        ("gemma4", {**GOOD, "tools": [*TOOLS, *TOOLS]}, {"tool-repeated"}),
        ("gemma4", {**GOOD, "tools": [TOOLS[0]["function"]]}, {"tool-wrapped"}),
        ("gemma4", tool_row({"x": {"type": "string"}, "y": None}), {"null-padded-schema"}),
        ("gemma4", tool_row({"x": {"anyOf": [{"type": "string"}]}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": ["string", "null"]}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": "integer", "enum": [1, 2]}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": "string", "enum": ["a"]}}), set()),
        ("gemma4", tool_row({"x": {"type": "string"}}, type=None), {"null-padded-schema", "tool-schema-lossy"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call("get tide{}", {})])), {"tool-name-odd", "tool-undeclared"}),
        ("gemma4", tool_row({"x": {"type": "string"}}, name="a b"), {"tool-name-odd"}),
        ("gemma4", tool_row({"x": {"type": "string"}}, name="get-tide.now_2"), set()),
        ("gemma4", tool_row({"x": {"description": "d"}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": "array", "items": {"type": "object", "properties": {"y": {"anyOf": []}}}}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"type": {"type": "string"}}), set()),
        ("functiongemma", tool_row({"type": {"type": "string"}}), {"tool-schema-lossy"}),
        ("gemma3", {**GOOD, "tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, {"tools-invalid", "tools-ignored"}),
        ("gemma4", chat(*ROUND[:2], result("x", tool_call_id="c1", name="<turn|>"), ROUND[3], tools=TOOLS), {"control-token", "tool-result-name"}),
        ("functiongemma", chat(*ROUND[:2], result("", name="get_tide"), ROUND[3], tools=TOOLS), {"tool-result-empty"}),
        ("functiongemma", chat(*ROUND[:2], result([TEXT], name="get_tide"), ROUND[3], tools=TOOLS), {"parts-joined"}),
        ("functiongemma", chat(*ROUND[:2], result([IMAGE], name="get_tide"), ROUND[3], tools=TOOLS), {"media-lost"}),
        ("gemma4", chat(*ROUND[:2], result([TEXT, IMAGE], tool_call_id="c1"), ROUND[3], tools=TOOLS), set()),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call()], tool_responses=[{"name": "get_tide", "response": {"m": 3}}]),
                        user("b"), assistant("c"), tools=TOOLS), set()),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call()], tool_responses=[{"name": "get_tide", "response": "<turn|>"}]),
                        tools=TOOLS), {"control-token"}),
        ("functiongemma", chat(user("a"), assistant("", tool_calls=[call()], tool_responses=[{"response": 1}]), tools=TOOLS),
         {"tools-unsupported"}),
    ],
)  # fmt: skip
def test_tools(family, row, expected):
    judged_as(row, family, expected)


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
        # media
        ("gemma4", chat(user([IMAGE, TEXT]), assistant("Red.")), set()),
        ("gemma4", chat(user([{"type": "image"}, TEXT]), assistant("Red."), images=["media/dot.png"]), set()),
        ("gemma3", chat(user([{"type": "image"}, TEXT]), assistant("Red."), images=["media/dot.png"] * 2), {"media-count"}),
        ("gemma3", chat(user("<start_of_image>What?"), assistant("Red."), images=["media/dot.png"]), set()),
        ("gemma3", chat(user("<start_of_image>What?"), assistant("Red.")), {"placeholder-without-media"}),
        ("gemma4", chat(user([{"type": "image"}, TEXT]), assistant("Red.")), {"media-source-missing"}),
        ("gemma4", chat(user([{"type": "image", "image": "media/no.png"}, TEXT]), assistant("Red.")), {"media-missing"}),
        ("gemma4", chat(user([{"type": "image", "image": "media/hum.wav"}, TEXT]), assistant("Red.")), {"media-broken"}),
        ("gemma4", chat(user([{"type": "image", "url": "https://example.org/x.png"}, TEXT]), assistant("Red.")), set()),
        ("gemma3", chat(user([{"type": "audio", "audio": "media/hum.wav"}, TEXT]), assistant("Hum.")), {"modality-unsupported"}),
        ("gemma3n", chat(user([{"type": "audio", "audio": "media/hum.wav"}, TEXT]), assistant("Hum.")), set()),
        ("gemma2", chat(user([IMAGE, TEXT]), assistant("Red.")), {"modality-unsupported"}),
    ],
)  # fmt: skip
def test_media(family, row, expected):
    judged_as(row, family, expected)


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("image", PICTURE, None),
        ("image", PICTURE[:30], "media-broken"),  # a cut header
        ("image", PICTURE[:16] + bytes(8) + PICTURE[24:], "media-broken"),  # no width
        ("image", b"", "media-broken"),
        ("image", b"\xff\xd8\xff\xe0 jpeg", None),
        ("image", b"RIFF\0\0\0\0WEBPVP8 ", None),
        ("image", b"RIFF\0\0\0\0WAVEfmt ", "media-broken"),
        ("image", b"\0\0\0 ftypavif", None),
        ("image", b"\0\0\0 ftypmp42", "media-broken"),
        ("image", b"BMore text than a picture", "media-broken"),
        ("image", b"version https://git-lfs.github.com/spec/v1", "media-broken"),
        ("image", b"<!DOCTYPE html><html>", "media-broken"),
        ("audio", b"RIFF\0\0\0\0WAVEfmt ", None),
        ("audio", b"\xff\xfb\x90\0", None),
        ("audio", b"\xff\xd8\xff\xe0 jpeg", "media-broken"),
        ("video", b"\0\0\0 ftypmp42", None),
        ("video", b"\0\0\0 ftypavif", "media-broken"),
        ("video", b"G" + bytes(187) + b"G", None),
        ("video", b"Good day", "media-broken"),
    ],
)
def test_first_bytes_of_media(tmp_path, kind, data, code):
    (tmp_path / "a.bin").write_bytes(data)
    digits = base64.b64encode(data).decode()
    forms = [{"path": "a.bin"}, {"base64": digits}, {kind: f"data:{kind}/x;base64,{digits}"}]
    for source in forms:
        row = chat(user([{"type": kind, **source}, TEXT]), assistant("b"))
        assert [note.code for note in noted(row, folder=tmp_path)[1].found] == ([code] if code else []), source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"image": "data:image/png;base64,no!"}, {"media-broken"}),
        ({"image": {"bytes": PICTURE, "path": None}}, set()),
        ({"image": {"bytes": b"x", "path": None}}, {"media-broken"}),
        ({"image": {"path": "media/no.png"}}, {"media-missing"}),
        ({"image": {"path": None}}, {"null-part-keys", "media-source-missing"}),
        ({"image": {"url": "https://example.org/x.png"}}, set()),
    ],
)
def test_forms_of_media(source, expected):
    told = judge(chat(user([{"type": "image", **source}, TEXT]), assistant("b")))[1]
    assert told - {"null-part-keys"} == expected - {"null-part-keys"}
