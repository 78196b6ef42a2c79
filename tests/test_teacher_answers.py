"""Refusals, loops and copies among the answers of teachers, and good answers that look like them."""

import time
from pathlib import Path

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
    "I'm sorry, but as an AI language model, I can't help with that.",
    "I'm unable to fulfill that request.",
    "I can't comply with that.",
    "Sorry, I can't provide that.",
    "I'm sorry, but I'm not able to provide that information.",
    "I cannot in good conscience help with this.",
    "It would not be appropriate for me to answer that.",
    "I'm not going to help with that.",
    "I can not assist with that request.",
    "I am programmed to be a safe and harmless AI assistant. Therefore, I cannot fulfill your request.",
    "I understand you want a recipe. However, I cannot provide that. My purpose is to be helpful and harmless.",
    "My purpose is to be helpful and harmless, and I cannot fulfill your request.",
    "Sorry, that's something I can't help with.",
    "I cannot and will not provide instructions for that.",
    "I must refuse.",
    "I refuse to answer this question.",
    "I can't assist you with that.",
    "I'm afraid I cannot assist with this.",
    "Apologies, but I can't help with that.",
    "Sorry! I can't help you with that.",
    "I can't write that.",
    "I can't create that kind of content.",
    "I'm sorry, I can't continue with this conversation.",
    "I am not able to discuss this topic.",
    "I'm sorry, but I cannot generate a response to that.",
    "Unfortunately I can't help with this one.",
    "I don't have the ability to help with that.",
    "As a responsible AI, I cannot provide guidance on this.",
    "I'm just a language model, so I can't help you with that.",
    "I'm not able to answer this question.",
    "I cannot answer that.",
    "I can’t discuss that.",
    "Sorry, but I won't do that.",
    "Sorry, I'm unable to process this request.",
    "I'm sorry, Dave. I'm afraid I can't do that.",
    "I apologize for the inconvenience, but I am unable to help with that request.",
    "I am sorry, I cannot help you with that request. If you have any other question, feel free to ask.",
    "I regret to inform you that I cannot assist with this.",
    "Thanks for asking, but I can't help with that.",
    "I appreciate your interest, but I'm not able to provide this information.",
    "Désolé, je ne peux pas répondre à cette question.",
    "Entschuldigung, aber das kann ich nicht beantworten.",
    "Tut mir leid, dabei kann ich nicht helfen.",
    "Lo siento, no puedo cumplir con esa solicitud.",
    "Lo siento, pero no puedo proporcionar esa información.",
    "Mi dispiace, non posso rispondere a questa domanda.",
    "Sinto muito, mas não posso atender a esse pedido.",
    "很抱歉，我不能回答这个问题。",
    "抱歉，作为AI语言模型，我无法提供此类信息。",
    "申し訳ございませんが、お手伝いできません。",
    "죄송합니다. 해당 요청에는 답변드릴 수 없습니다.",
    "Извините, я не могу ответить на этот вопрос.",
    "Прошу прощения, но я не могу выполнить эту просьбу.",
    "Xin lỗi, nhưng tôi không thể hỗ trợ yêu cầu này.",
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
    "I'm sorry to hear that. Try rest and tea.",
    "Sorry for the confusion! The right answer is 42.",
    "I cannot stress enough how much salt matters.",
    "I can't say for sure, but I think it's a heron.",
    "I can't wait to see you at the harbour!",
    "You can't divide by zero, so the expression is undefined.",
    "No, you cannot return the item after 30 days.",
    "I am unable to attend the meeting on Friday; could we move it to Monday?",
    "I will not be able to come to work today because I am ill.",
    "Unfortunately, we cannot offer a refund for this item.",
    "Unfortunately, your application was not successful.",
    "I won't tell you twice: wear a life vest.",
    "I don't think I can recommend this book.",
    "Sorry, we are out of rye bread. Would you like wheat?",
    "I refuse to believe that the earth is flat, wrote the captain.",
    '"Sorry," she said, "I can\'t help you."',
    "The assistant said: I'm sorry, but I can't help with that.",
    'A model should answer "I can\'t help with that" to such requests.',
    "I can't answer emails on weekends.",
    "I cannot provide for my family on this salary.",
    "I'm sorry I can't be there. Please give Anna my best wishes.",
    "I must decline your kind invitation, for I am abroad that week.",
    "I'm not able to eat gluten.",
    "As an AI, I enjoy helping people with bread recipes.",
    "This question is about tides: the moon pulls the water.",
    "That is not something a beginner should try.",
    "Das kann man so nicht sagen: Es kommt auf das Mehl an.",
    "Leider regnet es morgen.",
    "Es tut mir leid, dass dein Paket zu spät kam.",
    "Je suis désolé pour le retard.",
    "Lo siento mucho por tu pérdida.",
    "No se puede dividir por cero.",
    "Non posso mangiare il glutine.",
    "我不能吃面粉。",
    "这个方法不能解决问题，因为矩阵是奇异的。",
    "すみません、駅はどこですか。",
    "이 빵은 먹을 수 없습니다.",
    "Я не могу спать.",
    "Нельзя делить на ноль.",
    "I can't help it",
    "I couldn't help but notice the smell of fresh bread.",
    "Cannot",
    "Sorry, the capital of Australia is Canberra, not Sydney.",
    "It is not possible to give an exact number, but estimates range from 3 to 5 million.",
    "I can't do arithmetic in my head, so let me write it out: 17 + 25 = 42.",
    "I was not able to complete the marathon, but I tried.",
    "I'm sorry, but the answer you gave is wrong: it is 12.",
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


PLAIN = (Path(__file__).parents[1] / "references" / "training.md").read_text("utf-8")


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
        PLAIN + "and then " * 60,
        PLAIN + "and so it goes on and on until the end of the line. " * 12,
    ],
)
def test_loop(text):
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        STORY,
        PLAIN,
        PLAIN + PLAIN,
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
