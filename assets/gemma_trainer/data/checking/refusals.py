"""Whether a whole answer is a refusal. A false alarm throws a good answer away, so what is unclear passes."""

from __future__ import annotations

import re

from gemma_trainer.rows.content import fold

LONG = 300  # characters; a real answer that opens with an apology goes on
_START = r"^[^\w\"'“‘«]*(?:(?:no|well|hello|hi)[,.!] )?"  # not in quotes: somebody else's words
_LEAD = (
    r"(?:(?:i['’]m|i am) (?:really |very |so |truly |deeply )?(?:sorry|afraid)|sorry|(?:my (?:sincere )?)?apologies"
    r"|i (?:sincerely )?apologi[sz]e|unfortunately|regrettably|thank(?:s| you) for [^.,!]{0,60}"
    r"|i (?:understand|appreciate|know|see|realize|regret)\b[^.!?]{0,80}"
    r"|(?:i(?:['’]m| am) (?:programmed|designed|trained)|my purpose is)\b[^.!?]{0,80}"
    r"|(?:as|i['’]m|i am) (?:just |only )?an? (?:responsible )?(?:ai|artificial intelligence|large language|language)\b"
    r"[^.,]{0,40})"
)
_SELF = r"\bi(?:['’]m|['’]d| am| would)?(?: \w+ly| just| also)? "
_UNABLE = (
    r"(?:can(?:['’]?t|not| not)(?: and (?:will not|won['’]t))?|not going to|refuse to|(?:do not|don['’]t) have the "
    r"ability to|could(?:n['’]t| not)|(?:un|not )able to|won['’]t|will not|(?:must|have to|need to) (?:\w+ly )?"
    r"(?:decline|refuse)(?: to)?|(?:do not|don['’]t) feel comfortable|not comfortable"
    r"|not (?:allowed|permitted|programmed|designed) to|(?:do not|don['’]t) (?:think|believe) i can"
    r"|(?:rather|prefer) not(?: to)?)(?: be able to| in good conscience)?(?: \w+ly)? "
)
_HELP = r"(?:help|assist|helping|assisting)(?: you)?(?: with\b| in\b| there\b|[.,;!]|\s*$)"
# Not "a refund": what is denied has to be the answer itself, not something that the answer is about.
_THING = (
    r"(?:this|that|these|those|such|it\b|your (?:request|question|prompt|query)|the (?:request|question|prompt|query)"
    r"|any(?: \w+)? (?:information|help|assistance|content|instructions|guidance|advice|details|answer|response)"
    r"|(?:specific |detailed |further |more )?"
    r"(?:information|help|assistance|content|instructions|guidance|advice|material)\b"
    r"|an? (?:\w+ )?(?:translation|summary|answer|response|story|poem|essay|script|opinion|text)\b)"
)
_SERVE = (
    r"(?:(?:provid|complet|fulfil|answer|generat|creat|writ|produc|translat|discuss|shar|continu|engag|support|respond"
    r"|comply|giv|offer|participat|process|accommodat|tell)(?:e|l|ing|y)?\b"
    rf"(?: you)?(?: (?:to|in|with|on))? {_THING})"
)
_DECLINE = (
    r"(?:must|have to|need to|will have to) (?:\w+ly )?(?:decline|refuse)"
    r"(?:[.,;!]|$| (?:this|that)\b| your (?:request|question)\b)"
)
_REQUEST = (
    r"(?:this|that|it|your \w+|(?:the|this|that|such a?) ?(?:request|question|prompt|topic|content|task))(?:['’]s)?"
)
_POLICY = (
    r"(?:(?:goes|is) against|violates?|conflicts? with|not (?:in line|consistent) with) (?:my|our|the|openai['’]s"
    r"|google['’]s) (?:\w+ ){0,2}(?:guidelines|polic\w+|programming|principles|values|terms)"
    r"|(?:is )?not something (?:that )?i(?:['’]m| am)? (?:can|could|able|will|comfortable|willing)\b"
)
_REFUSAL = re.compile(
    rf"{_START}(?:(?:{_LEAD}.{{0,80}}?)?{_SELF}{_UNABLE}(?:{_HELP}|{_SERVE})"
    rf"|{_LEAD}[,.;:]? ?(?:but |however,? )?{_UNABLE}(?:{_HELP}|{_SERVE}|do {_THING})"
    rf"|{_LEAD}.{{0,80}}?{_SELF}{_UNABLE}do {_THING}|(?:{_LEAD}.{{0,80}}?)?{_SELF}{_DECLINE}"
    rf"|(?:{_LEAD}.{{0,80}}?)?\bit (?:would|is) not (?:be )?appropriate for me to (?:{_HELP}|{_SERVE})"
    rf"|{_REQUEST} ?(?:{_POLICY}))",
    re.IGNORECASE | re.DOTALL,
)
_GOES_ON = re.compile(r"\bhere(?:['’]s| is| are)\b|:\s*\n|```")  # an answer after all
# Said of the request itself it stays a refusal, whatever consolation follows.
_PLAIN = re.compile(
    rf"{_START}(?:{_LEAD}.{{0,80}}?)?{_SELF}{_UNABLE}"
    r"(?:(?:help|assist)(?: you)? with|fulfil+|comply with|complete|answer) (?:this|that|your)(?: \w+)?[.,;!]",
    re.IGNORECASE | re.DOTALL,
)
# The same in other languages: unable or unwilling, and serving this very request.
_ELSEWHERE = {
    "de": r"\b(?:ich (?:kann|darf|werde|möchte)|(?:kann|darf|werde|möchte) ich)\b.{0,60}?\b(?:nicht|keine?n?)\b"
    r".{0,60}?\b(?:helfen|behilflich|weiterhelfen"
    r"|unterstützen|beantworten|erfüllen|nachkommen|bereitstellen|(?:hilfe|unterstützung|auskunft|anleitung)\w*)",
    "fr": r"\bje (?:ne (?:peux|puis|suis)|refuse)\b.{0,60}?\b(?:aider|assister|répondre à (?:cette|votre)"
    r"|(?:fournir|donner) (?:cette|ces|ce|d['’]|une? (?:traduction|réponse))|satisfaire|donner suite)",
    "es": r"\bno (?:puedo|podré|podría|soy capaz)\b.{0,40}?\b(?:ayudar(?:te|le|lo)?|asistir(?:te|le)?"
    r"|(?:responder|cumplir|atender|proporcionar|completar)(?:te|le)? (?:a |con )?"
    r"(?:es[oae]|est[aeo]|tu|su|una traducción|información|instrucciones))",
    "it": r"\bnon (?:posso|sono in grado)\b.{0,40}?\b(?:aiutart[ie]|aiutarl[ao]|assistert[ie]|(?:rispondere|soddisfare"
    r"|fornire|completare) (?:a )?(?:quest|la tua|la sua|informazioni|istruzioni|una traduzione))",
    "pt": r"\bnão (?:posso|consigo|sou capaz|poderei)\b.{0,40}?\b(?:ajudar|ajudá-l[oa]|auxiliar|(?:responder|atender"
    r"|fornecer|completar) (?:a |à )?(?:ess|est|isso|isto|seu|sua|informaç|instruç|uma tradução))",
    "nl": r"\bik (?:kan|mag|ben niet)\b.{0,60}?\b(?:niet|geen)\b.{0,40}?\b(?:helpen|assisteren|beantwoorden|voldoen"
    r"|hulp|informatie geven)",
    "pl": r"\bnie (?:mogę|jestem w stanie)\b.{0,40}?\b(?:pomóc|odpowiedzieć na (?:to|t[eę])|spełnić|udzielić)",
    "ru": r"\bне (?:могу|смогу|в состоянии)\b.{0,40}?\b(?:помочь|ответить на (?:этот|ваш)|выполнить (?:эт|ваш)"
    r"|предоставить (?:эт|так|информаци|перевод))",
    "uk": r"\bне (?:можу|зможу)\b.{0,40}?\b(?:допомогти|відповісти на (?:це|ваш)|виконати (?:ц|ваш)|надати)",
    "tr": r"(?:yardımcı olam|yardım edem|cevap verem|yerine getirem|sağlayamam|sağlayamıyorum)",
    "id": r"\b(?:saya )?tidak (?:bisa|dapat)\b.{0,40}?"
    r"\b(?:membantu|memenuhi permintaan|menjawab pertanyaan ini|memberikan informasi)",
    "vi": r"không thể.{0,30}?(?:giúp|hỗ trợ|đáp ứng yêu cầu|trả lời câu hỏi này|cung cấp)",
    "zh": r"(?:我|很抱歉|抱歉|对不起|對不起).{0,30}?(?:无法|無法|不能|没办法|沒辦法|不便).{0,12}?(?:帮助|幫助|协助|協助|提供|回答|满足|滿足|完成这|回应|讨论|帮你|帮您|幫您)",
    "ja": r"(?:お手伝い|お答え|回答|対応|お応え|ご提供|提供|支援|お力になること).{0,12}?(?:できません|できかねます|いたしかねます|致しかねます)",
    "ko": r"(?:도와\s?드릴|도움을? 드릴|답변해? ?드릴|제공해? ?드릴|제공할|답변할|대답할|응답할|도울).{0,6}?수(?:가|는)? 없",
    "ar": r"(?:لا (?:يمكنني|أستطيع|استطيع)|لن أتمكن من|لست قادر).{0,30}?(?:مساعد|المساعدة|تقديم|الإجابة|تلبية|تنفيذ)",
    "hi": r"(?:मदद|सहायता|उत्तर|जवाब|प्रदान).{0,20}?(?:नहीं कर सकत|नहीं दे सकत|करने में असमर्थ|देने में असमर्थ)",
    "th": r"ไม่สามารถ.{0,20}?(?:ช่วย|ให้ข้อมูล|ตอบคำถาม|ทำตามคำขอ)",
}
_FOREIGN = re.compile("|".join(_ELSEWHERE.values()), re.IGNORECASE | re.DOTALL)
_FOREIGN_LONG = 160  # characters; and no more than two sentences
# Prompts that want such words said: then they are the answer.
_WORDS_OF_REFUSAL = re.compile(
    r"\b(?:can(?:['’]t|not)|unable|sorry|apolog\w+|declin\w+|refus\w+|reject\w*|turn(?:ing)? down|not able"
    r"|nicht|désolé|puedo|absag\w*|say(?:ing)? no)\b",
    re.IGNORECASE,
)
_WORDS_WANTED = re.compile(
    r"\b(?:translat|writ|draft|rewrit|repl[iy]|paraphras|say|phras|quot|example|respond|compos|complet|continu|repeat"
    r"|email|e-mail|letter|message|note|dialog|script|übersetz|tradu|schreib)\w*",
    re.IGNORECASE,
)


def is_refusal(text: str, prompt: str = "") -> bool:
    """Whether a text does nothing but refuse to answer. A prompt that asks for such words is no refusal's."""
    if _WORDS_OF_REFUSAL.search(prompt) and _WORDS_WANTED.search(prompt):
        return False
    text = text.strip()
    if _PLAIN.match(text) or (len(text) <= LONG and _REFUSAL.match(text) and not _GOES_ON.search(text)):
        return True
    found = _FOREIGN.search(text) if len(text) <= _FOREIGN_LONG else None
    return bool(found) and found.start() <= 80 and fold(found.group()) not in fold(prompt)
