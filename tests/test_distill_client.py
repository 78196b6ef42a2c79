"""The client against servers that refuse, break, push back, and say things in their own way."""

import asyncio
import json
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import aiohttp
import pytest

from gemma_trainer.distill.client import RemoteTeacher, Settings, Transient, read_reply, retry_after
from gemma_trainer.distill.probe import Listing
from gemma_trainer.distill.request import Request, Sampling, Usage
from gemma_trainer.distill.work import RequestFailed
from gemma_trainer.rows.problems import REMOTE_FAILED, Failure
from mock_teacher import MockTeacher, plain_answer, serving

ASKED = Request("m", [{"role": "user", "content": "Why?"}], Sampling())
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def ask(teacher: MockTeacher, *requests: Request, **settings):
    """The replies or errors, and the client."""

    async def story():
        client = RemoteTeacher(Settings(teacher.base_url, **settings), jitter=lambda: 0.01)
        async with client:
            return await asyncio.gather(*map(client.ask, requests), return_exceptions=True), client

    return asyncio.run(asyncio.wait_for(story(), 60))


def completion(message: dict, finish: str | None = "stop", **more) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], **more}).encode()


@pytest.mark.parametrize("fault", ["429", "500", "drop", "garbage", "cut"])
def test_every_fault_is_tried_again(fault):
    requests = [replace(ASKED, sample=n) for n in range(40)]
    with serving(fault_rate=0.3, faults=(fault,)) as teacher:
        replies, client = ask(teacher, *requests)
    assert [reply.id for reply in replies] == [request.id for request in requests]
    assert teacher.counts["answered"] == 40 and client.retried == teacher.counts[fault] > 3


def test_tries_are_bounded_and_the_last_reason_is_told():
    broken = replace(ASKED, sample=1)
    with serving(answer=lambda body: (500, {}) if body["seed"] == broken.seed else plain_answer(body)) as teacher:
        (failed,), _ = ask(teacher, broken, retries=3)
        assert teacher.counts["requests"] == 4
    assert isinstance(failed, RequestFailed) and failed.request_id == broken.id and "500" in failed.reason


def test_a_request_that_is_refused_is_not_tried_again():
    with serving(answer=lambda body: (400, {"error": {"message": "the context is too short"}})) as teacher:
        (failed,), _ = ask(teacher, ASKED)
        assert isinstance(failed, RequestFailed) and "context is too short" in failed.reason
        assert teacher.counts["requests"] == 1


@pytest.mark.parametrize(
    "status, body", [(401, {}), (402, {}), (403, {}), (404, {}), (429, {"error": {"code": "insufficient_quota"}})]
)
def test_what_is_true_of_every_request_stops_the_run(status, body):
    with serving(answer=lambda _: (status, body)) as teacher:
        (failure,), _ = ask(teacher, ASKED)
        assert isinstance(failure, Failure) and failure.exit_code == REMOTE_FAILED and str(status) in str(failure)
        assert teacher.counts["requests"] == 1


def test_nobody_there_stops_the_run():
    (failure,), client = ask(MockTeacher(base_url="http://127.0.0.1:9/v1"), ASKED, retries=2)
    assert isinstance(failure, Failure) and failure.exit_code == REMOTE_FAILED and client.retried == 2


def test_a_server_that_nobody_reaches_is_told_from_one_that_is_slow(monkeypatch):
    def gone(*words, **more):
        raise aiohttp.ConnectionTimeoutError

    monkeypatch.setattr(aiohttp.ClientSession, "request", gone)
    (failure,), _ = ask(MockTeacher(base_url="http://127.0.0.1:9/v1"), ASKED, retries=0)
    assert isinstance(failure, Failure) and "no connection within 30 s" in str(failure)


def test_one_try_ends_after_its_time():
    slow = replace(ASKED, sample=1)

    def answer(body):
        time.sleep(0.3 * (body["seed"] == slow.seed))
        return plain_answer(body)

    with serving(answer=answer) as teacher:
        (failed,), _ = ask(teacher, slow, timeout=0.1, retries=1)
    assert isinstance(failed, RequestFailed) and "--timeout" in failed.reason


def test_retry_after_holds_the_request_back():
    pushes = iter([True])
    answers = []

    def answer(body):
        answers.append(time.monotonic())
        return (429, {}) if next(pushes, False) else plain_answer(body)

    with serving(fault_rate=1.0, faults=("429",), retry_after=0.4) as teacher:
        started = time.monotonic()
        ask(teacher, ASKED, retries=1)
        assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize(
    "text, seconds", [("3", 3), ("0.5", 0.5), ("-2", 0), (None, 0), ("soon", 0), ("1e9", 600), ("nan", 0)]
)
def test_retry_after_in_seconds(text, seconds):
    assert retry_after(text) == seconds


def test_retry_after_as_a_date():
    soon = datetime.now(timezone.utc) + timedelta(seconds=30)
    assert 25 < retry_after(format_datetime(soon, usegmt=True)) <= 30
    assert retry_after(format_datetime(soon - timedelta(hours=1), usegmt=True)) == 0


def test_in_flight_stays_within_the_concurrency_asked_for():
    with serving(latency=0.02) as teacher:
        ask(teacher, *(replace(ASKED, sample=n) for n in range(40)), concurrency=5)
        assert teacher.counts["most_in_flight"] == 5


@pytest.mark.parametrize("key", ["response_format", "seed", "top_p"])
def test_a_key_that_is_refused_is_left_out_from_then_on(key):
    requests = [replace(ASKED, sample=n, schema={"type": "object"}) for n in range(20)]
    with serving(refused=(key,)) as teacher:
        replies, client = ask(teacher, *requests)
    assert all(reply.content for reply in replies)
    assert teacher.counts["answered"] == 20 and key in client.notes[0]
    assert key not in teacher.bodies[-1] and "messages" in teacher.bodies[-1]


def test_a_complaint_that_quotes_the_request_costs_the_others_nothing():
    requests = [replace(ASKED, sample=n) for n in range(20)]
    bad = {request.seed for request in requests[::5]}
    seen = set()

    def answer(body):
        seen.add(body.get("seed"))
        if body.get("seed") in bad or "temperature" not in body:
            return 400, {"error": {"message": f"the context is too short: {json.dumps(body)}"}}
        return plain_answer(body)

    with serving(answer=answer) as teacher:
        replies, client = ask(teacher, *requests, concurrency=1)
        later, _ = ask(teacher, replace(ASKED, sample=30))
    assert [isinstance(reply, RequestFailed) for reply in replies] == [n % 5 == 0 for n in range(20)]
    assert client.notes == [] and later[0].content and {"seed", "temperature", "top_p"} <= teacher.bodies[-1].keys()


def test_a_long_wait_is_told_at_once_and_once(capsys):
    with serving(fault_rate=1.0, faults=("429",), retry_after=5) as teacher, pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(_ask_all(teacher, 8), 0.5))
    assert capsys.readouterr().err == "the server asks to wait 5 s\n"


async def _ask_all(teacher: MockTeacher, count: int) -> None:
    async with RemoteTeacher(Settings(teacher.base_url)) as client:
        await asyncio.gather(*(client.ask(replace(ASKED, sample=n)) for n in range(count)))


def test_the_older_name_of_the_limit_gives_way_to_the_newer():
    def answer(body):
        if "max_tokens" in body:
            told = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return 400, {"error": {"message": told, "param": "max_tokens"}}
        return plain_answer(body)

    with serving(answer=answer) as teacher:
        (reply,), _ = ask(teacher, ASKED)
        assert reply.content and teacher.bodies[-1]["max_completion_tokens"] == 2048


def test_a_schema_goes_with_the_request_and_in_words():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    with serving() as teacher:
        ask(teacher, replace(ASKED, schema=schema))
    body = teacher.bodies[0]
    assert body["response_format"]["json_schema"]["schema"] == schema and "city" in str(body["messages"])


@pytest.mark.parametrize("way", ["chat_template_kwargs", "reasoning_effort", None])
def test_thinking_is_switched_the_way_the_server_knows(way):
    def answer(body):
        wanted = way in body and body[way] in ({"enable_thinking": True}, "medium")
        return {**plain_answer(body), **({"reasoning_content": "Hm."} if wanted else {})}

    requests = [replace(ASKED, sample=n, sampling=Sampling(thinking=True)) for n in range(5)]
    with serving(answer=answer) as teacher:
        replies, client = ask(teacher, *requests)
    assert [bool(reply.reasoning_content) for reply in replies] == [way is not None] * 5
    assert bool(client.notes) == (way is None)
    assert teacher.counts["requests"] == 5 + {"chat_template_kwargs": 1}.get(way, 2)


def test_messages_go_out_as_servers_take_them():
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "ü"}}}
    messages = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "tool_calls": [call], "weight": 0},
        {"role": "tool", "content": "a tree", "name": "look"},
    ]
    with serving() as teacher:
        ask(teacher, replace(ASKED, messages=messages, tools=TOOLS))
    sent = teacher.bodies[0]["messages"][1]
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"at": "ü"} and sent["tool_calls"][0]["id"]
    assert "weight" not in sent and teacher.bodies[0]["tools"] == TOOLS


def read(message: dict, request: Request = ASKED, finish: str | None = "stop", **more):
    return read_reply(request, completion(message, finish, **more), 1.0)


def test_tool_calls_get_objects_as_arguments_and_broken_ones_stay_text():
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    broken = {"id": "2", "type": "function", "function": {"name": "look", "arguments": '{"at": '}}
    reply = read({"content": None, "tool_calls": [call, broken]}, replace(ASKED, tools=TOOLS))
    assert [made["function"]["arguments"] for made in reply.tool_calls] == [{"at": "x"}, '{"at": ']
    assert reply.finish_reason == "tool_calls" and reply.content == ""


def test_calls_that_a_server_left_in_the_text_are_found():
    text = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
    reply = read({"content": text}, replace(ASKED, tools=TOOLS))
    assert reply.tool_calls[0]["function"] == {"name": "look", "arguments": {"at": "x"}} and reply.content == ""


def test_usage_parts_refusals_and_halves_of_characters():
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    reply = read({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\ud83d"}]}, usage=usage)
    assert reply.content == "ab\ufffd" and vars(reply.usage) == {
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "reasoning_tokens": 4,
    }
    assert read({"content": None, "refusal": "No."}).finish_reason == "content_filter"
    assert read({"content": "x"}, usage=None).usage.completion_tokens == 0


@pytest.mark.parametrize(
    "usage",
    [
        *(None, [], "many", 5, {"prompt_tokens": "ten", "completion_tokens": -5}),
        {"prompt_tokens": float("inf"), "completion_tokens": float("nan"), "completion_tokens_details": [1]},
        {"prompt_tokens": None, "completion_tokens": 1e300, "completion_tokens_details": {"reasoning_tokens": {}}},
    ],
)
def test_usage_that_cannot_be_read_counts_as_not_told(usage):
    reply = read({"content": "Paid for."}, usage=usage)
    assert reply.content == "Paid for." and reply.usage == Usage()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"choices": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"choices": [{"message": {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": '
        + b'{"a":' * 300
        + b"1"
        + b"}" * 300
        + b"}}]}}]}",
        *(b"", b"<html>", b"[]", b"3", b"{}", b'{"choices": []}', b'{"error": "busy"}'),
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"content": "", "tool_calls": [1]}}]}',
    ],
)
def test_what_is_no_completion_is_tried_again(content):
    with pytest.raises(Transient):
        read_reply(ASKED, content, 1.0)


def test_lists_of_models_in_several_forms():
    vllm = {"data": [{"id": "m", "max_model_len": 4096}]}
    llama = {"data": [{"id": "m", "meta": {"n_ctx_train": 32768}}]}
    assert Listing.of(vllm, "m").context == 4096 and Listing.of(llama, "m").context == 32768
    assert Listing.of({"data": [{"id": "x"}, 3]}, "m") == Listing(["x"]) and Listing.of([], "m").models == []
