"""Refusals, loops and copies among the answers of teachers, and good answers that look like them."""

import time

import pytest

from gemma_trainer.data.checking.check_teacher import is_echo, is_loop
from gemma_trainer.data.checking.refusals import is_refusal

REFUSALS = [
    "I'm sorry, but I can't assist with that.",
    "I’m sorry, but I can’t help with that.",
    "I'm sorry, I can't do that.",
    "Sorry, I can't help with that.",
    "Sorry, but I cannot fulfill this request.",
    "I apologize, but I cannot provide that information.",
    "I cannot help you with this request.",
    "I can't help with this.",
    "I am unable to assist with that request.",
    "I'm unable to provide instructions on that topic.",
    "I cannot generate content of this kind, as it goes against my guidelines. I cannot create such content.",
    "I won't be able to help with that.",
    "I will not provide any information about this.",
    "Unfortunately, I am not able to complete this task.",
    "Unfortunately, I can't answer that question.",
    "As an AI language model, I cannot provide a translation of this text.",
    "As an AI, I'm not able to help with that.",
    "I'm just an AI assistant, and I can't provide such details.",
    "Sorry, I cannot provide a translation.",
    "I must decline to answer that.",
    "I must respectfully decline to answer this question.",
    "I have to decline this. I cannot support such requests.",
    "I don't feel comfortable writing that.",
    "I'm not comfortable discussing this topic.",
    "I understand you are curious, but I can't help with that.",
    "Thank you for your question. Unfortunately, I cannot answer it.",
    "This request goes against my programming.",
    "That is not something I can help with.",
    "That violates our content policy.",
    "No, I can't help with that.",
    "**I'm sorry, but I can't assist with that.**",
    "I'm afraid I can't do that.",
    "I don't think I can help with that.",
    "I'd rather not discuss this.",
    "Es tut mir leid, aber ich kann dabei nicht helfen.",
    "Leider kann ich dir bei dieser Anfrage nicht behilflich sein. Ich kann dazu keine Auskunft geben.",
    "Je suis désolé, mais je ne peux pas vous aider avec cela.",
    "Lo siento, pero no puedo ayudarte con eso.",
    "Mi dispiace, ma non posso aiutarti con questa richiesta.",
    "Desculpe, mas não posso ajudar com isso.",
    "Het spijt me, maar ik kan je hier niet mee helpen.",
    "Przykro mi, ale nie mogę pomóc w tej sprawie.",
    "Извините, но я не могу помочь с этим запросом.",
    "Üzgünüm, bu konuda yardımcı olamam.",
    "抱歉，我无法协助满足您的请求。",
    "对不起，我不能提供这方面的帮助。",
    "申し訳ありませんが、そのご質問にはお答えできません。",
    "죄송하지만 그 요청은 도와드릴 수 없습니다.",
    "عذراً، لا يمكنني مساعدتك في هذا الطلب.",
    "मुझे खेद है, मैं इसमें आपकी मदद नहीं कर सकता।",
    "Xin lỗi, tôi không thể giúp bạn với yêu cầu này.",
]
ANSWERS = [
    "I'm sorry that your flour arrived late. We have sent a new bag today, free of charge.",
    "Sorry, I cannot come to the harbour tomorrow.",
    "I can't come on Sunday, but I can help on Monday.",
    "I'm sorry, but we can't give you a refund after 30 days.",
    "Sorry, we're closed on Mondays.",
    "I am sorry for your loss.",
    '"I can\'t help with that," said the fox, and went home.',
    "“I can’t do this,” she said.",
    "I can't do this alone.",
    "I think you can't do this with a regular expression alone; use a parser.",
    "I cannot recommend swimming here: the current is strong.",
    "Ich kann nicht schwimmen.",
    "I can't help but smile when the tide comes in.",
    "Unfortunately, the harbour is closed in winter.",
    "Unfortunately, Python can't do that without a loop; use a generator.",
    "You cannot answer that without the time of day.",
    "As an AI language model, I am trained on text, which means I predict the next word.",
    "I can help with that: knead the dough for ten minutes.",
    "I can't answer that for every oven, but here is a rule of thumb: 220 degrees.",
    "The program cannot provide a translation because the file is missing.",
    "He was unable to help with the sails.",
    "The policy violates our terms of service, so the contract is void.",
    "Apologies are due when a promise is broken.",
    "No puedo nadar.",
    "Je ne peux pas venir demain.",
    "我不能去海边。",
    "泳げません。",
    "Ich kann dir helfen: Nimm Roggenmehl.",
    "Ich kann nicht nur backen, ich kann auch nähen; die Hilfe meiner Tante brauche ich dafür schon lange nicht mehr, "
    "denn sie hat mir beides beigebracht, als ich noch klein war, und dann ist sie fortgezogen.",
    "cannot",
    "Sorry",
    "SELECT 1",
]


@pytest.mark.parametrize("text", REFUSALS)
def test_refusal(text):
    assert is_refusal(text)
    assert is_refusal(f"  {text}\n")


@pytest.mark.parametrize("text", ANSWERS)
def test_no_refusal(text):
    assert not is_refusal(text)


@pytest.mark.parametrize(
    ("prompt", "answer", "refuses"),
    [
        ("Translate to German: I'm sorry, I can't help you.", "Es tut mir leid, ich kann dir nicht helfen.", False),
        ("Write a short e-mail that declines an invitation.", "Sorry, I can't help with this.", False),
        ("Write the reply of a clerk who refuses.", "I'm sorry, but I cannot help you with that.", False),
        ("Translate to German: good morning.", "Sorry, I cannot provide a translation.", True),
        ("How do I stop a process that I cannot kill?", "I'm sorry, but I can't assist with that.", True),
    ],
)
def test_a_prompt_can_ask_for_words_of_refusal(prompt, answer, refuses):
    assert is_refusal(answer, prompt) is refuses


STORY = (
    "The boat left the harbour before dawn. Mara counted the ropes twice, as her father had taught her. Nobody spoke. "
    "A gull sat on the mast and watched the water. By noon they had passed the lighthouse, and the wind turned. "
)


@pytest.mark.parametrize(
    "text",
    [
        " To" * 100,
        "no " * 40,
        "a" * 300,
        "ha" * 60,
        "the tide is high and " * 10,
        "row\n" * 20,
        "\n".join(f"{n}. Mix well and wait." for n in range(1, 30)),
        "- Mix well.\n" * 12,
        STORY + "It goes on and on and on, as it did before. " * 8,
        STORY + "and then " * 40,
        STORY + "!?wow" * 60 + " " + STORY,
        "我们去了海边。" * 10,
        "海" * 60,
        "潮が満ちる。" * 12,
        "바다로 갔다. " * 12,
        "ชายหาด" * 80,
        "समुद्र " * 40,
        "море " * 40,
        "<tag></tag>" * 40,
        "0.3333333333333333, " * 60,
        "word\n\n" * 40,
        "Alpha beta gamma. Delta epsilon zeta. " * 10,
        STORY * 6,
        '{"a": 1}, ' * 60,
    ],
)
def test_loop(text):
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        STORY,
        "Rye.",
        "no no no",
        "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream.",
        "| a | b |\n| --- | --- |\n" + "\n".join(f"| {n} | {n * n} |" for n in range(40)),
        "| day | tide |\n| --- | --- |\n" + "\n".join(f"| {n} | {'high' if n % 3 else 'low'} |" for n in range(1, 25)),
        "-" * 80 + "\nHeading\n" + "-" * 80,
        "=" * 500,
        ", ".join(map(str, range(1, 200))),
        "\n".join(f"INSERT INTO tides VALUES ({n}, {n * 7 % 13}, 'station {n}');" for n in range(30)),
        "\n".join(f"{n}. {word} bread" for n, word in enumerate(["rye", "oat", "corn", "flat", "soda"], 1)),
        "def f(n):\n    if n < 2:\n        return n\n    return f(n - 1) + f(n - 2)\n\n\nprint(f(10))\n",
        "潮汐是海水在月球和太阳引力作用下产生的周期性运动。春潮出现在新月和满月时，小潮出现在上弦月和下弦月时。"
        "水手们自古以来就根据潮汐安排出港和入港的时间，因为浅水区在低潮时无法通行。",
        "\n".join(f"- [ ] Day {n}: run {n * 5} minutes, then rest" for n in range(1, 11)),
        "SELECT a, b FROM t WHERE a > 1 AND b > 1 AND c > 1 ORDER BY a, b, c LIMIT 5 OFFSET 1",
    ],
)
def test_no_loop(text):
    assert not is_loop(text)


LONG_PROMPT = "Explain in two sentences why the tide comes in twice a day at most places."


@pytest.mark.parametrize(
    ("answer", "prompt", "copies"),
    [
        ("name a  bread", "Name a bread.", True),
        (LONG_PROMPT.upper(), LONG_PROMPT, True),
        (f'"{LONG_PROMPT}"', LONG_PROMPT, True),
        (f"Question: {LONG_PROMPT}", LONG_PROMPT, True),
        (f"{LONG_PROMPT}\n\nAnswer:", LONG_PROMPT, True),
        (f"{LONG_PROMPT}\n\nThe moon pulls the water on both sides of the earth.", LONG_PROMPT, False),
        ("The bread: rye.", "bread", False),
        ("The tide comes in.", "Correct the spelling: The tide coms in.", False),
        ("???", "!!!", False),
    ],
)
def test_copied_prompt(answer, prompt, copies):
    assert is_echo(answer, prompt) is copies


def test_long_answers_are_judged_quickly():
    started = time.monotonic()
    for text in (STORY * 200, "a" * 100_000, "ab " * 40_000, "[" * 100_000, "x\n" * 50_000, "1234567890" * 10_000):
        is_loop(text)
        is_refusal(text)
        is_refusal("I'm sorry " + text)
    assert time.monotonic() - started < 5
