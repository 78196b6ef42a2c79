"""Codes of everything that can be wrong with a data set. Entries are (severity, cause, fix), see codes.py.

A code that names a repair is a warning: training and `convert` use the repaired row.
"""

from __future__ import annotations

ERROR, WARNING = "error", "warning"
Entries = dict[str, tuple[str, str, str]]

READING: Entries = {
    "empty-file": (ERROR, "The file holds no data at all.", "Look at the step that wrote it."),
    "file-unreadable": (ERROR, "The file cannot be opened.", "Check its name and its permissions."),
    "file-not-data": (
        ERROR,
        "The file is an archive, a web page or a Git LFS pointer in the place of data.",
        "Unpack it, or fetch the file itself.",
    ),
    "packed-cut": (ERROR, "The gzip or zstd data stops early or is damaged.", "Copy or pack the file again."),
    "parquet-invalid": (ERROR, "A Parquet or Arrow file is cut or damaged.", "Copy or write the file again."),
    "encoding-unsupported": (
        ERROR,
        "The text is UTF-16 or UTF-32, which trainers do not read.",
        "`convert` writes it as UTF-8.",
    ),
    "lone-carriage-returns": (
        WARNING,
        "Lines end in CR alone; other loaders see one line.",
        "`convert` writes line feeds.",
    ),
    "byte-order-mark": (
        WARNING,
        "UTF-8 text starts with a byte order mark, which other loaders take for data.",
        "`convert` writes the file without it.",
    ),
    "invalid-utf8": (
        ERROR,
        "Bytes are not UTF-8: a file in another encoding, or joined from several.",
        "Convert the file from its real encoding; never ignore the bytes.",
    ),
    "json-invalid": (ERROR, "The text is not JSON.", "Correct the row; write JSON with a JSON library."),
    "json-trailing-comma": (ERROR, "A comma stands before a closing bracket.", "Remove the comma."),
    "json-cut": (
        ERROR,
        "The text ends in the middle of a value: the writer crashed or the disk was full.",
        "Write the row again, or move it away with `convert --rejects`.",
    ),
    "json-extra-data": (
        ERROR,
        "A line goes on behind its JSON value.",
        "Put each row on a line of its own; `convert` does so where the line holds nothing but rows.",
    ),
    "json-not-a-number": (
        ERROR,
        "NaN or Infinity, which Python writes and JSON does not have.",
        "Write null, or leave the row out.",
    ),
    "json-duplicate-key": (
        ERROR,
        "A key stands twice in one object; readers disagree on which one counts.",
        "Keep one of them.",
    ),
    "json-lone-surrogate": (
        ERROR,
        "An escape is half of a surrogate pair, which no UTF-8 text can hold.",
        "Write the whole character, or remove the half.",
    ),
    "json-too-deep": (ERROR, "Objects or lists are nested very deep.", "Flatten the row."),
    "nul-character": (
        WARNING,
        "Text holds a NUL character, on which later tools stop.",
        "`convert --repair strip-nul` removes it.",
    ),
    "replacement-character": (
        WARNING,
        "Text holds U+FFFD, left where a decoder replaced bytes that it could not read.",
        "Export the text again from its real encoding.",
    ),
    "not-json-lines": (
        WARNING,
        "A .jsonl file holds a JSON array, pretty-printed JSON or a table.",
        "`convert` writes one row a line.",
    ),
    "several-lists": (
        ERROR,
        "One object holds several lists of rows, such as train and test.",
        "Write one list a file.",
    ),
    "csv-separator": (
        ERROR,
        "The file is separated by something else than commas.",
        "Pass --delimiter, or save it with commas.",
    ),
    "csv-header": (ERROR, "The first line does not name every column once.", "Correct the header."),
    "csv-cells": (
        ERROR,
        "A row has more or fewer cells than the header.",
        "Put quotes around cells that hold the separator.",
    ),
    "csv-quote": (ERROR, "Quotes do not match.", "Close the quote; write a quote inside a cell twice."),
    "csv-invalid": (ERROR, "A row is not CSV.", "Write the file with a CSV library."),
}

LAYOUT: Entries = {
    "row-not-object": (ERROR, "A row is neither an object nor a list of messages.", "Write each row as an object."),
    "unknown-columns": (ERROR, "The columns are no known layout.", "Name them, e.g. --map prompt=question --map completion=answer."),
    "wrong-task": (ERROR, "The row belongs to another --task.", "Pass the task that is named."),
    "wrong-layout": (ERROR, "The row is not of the layout given with --from.", "Pass --from auto or the right layout."),
    "mixed-layouts": (WARNING, "Rows of one file have different layouts; loaders judge by the first row only.", "`convert` brings them into one, as far as both are conversations."),
    "layout-converted": (WARNING, "A known layout that trainers do not take as it is.", "`convert` writes canonical rows."),
    "mixed-conventions": (WARNING, "One row mixes from/value and role/content.", "`convert` writes role/content."),
    "column-ignored": (WARNING, "A column contradicts the layout in use and would mislead trainers.", "`convert` leaves it out."),
    "columns-ambiguous": (ERROR, "Several columns could be the question, or the answer.", "Name them, e.g. --map prompt=problem completion=solution."),
    "column-renamed": (WARNING, "The name of a column has other letters or blanks than layouts have; trainers do not find it.", "`convert` writes the known name."),
    "thought-redacted": (WARNING, "Thinking is encrypted by the service that wrote it.", "`convert` leaves it out."),
    "answer-undesired": (ERROR, "A label says that the answer is undesirable: it must not be learned.", "Move it away with `convert --rejects`, or pair it with a desirable answer for --task dpo."),
    "label-as-number": (WARNING, "A label is 0, which may mark an undesirable answer; only true and false are read as such.", "Write true or false, or rename the column."),
    "steps-invalid": (ERROR, "Steps and their labels are no two lists of the same length.", "Give each text of completions one label of labels."),
    "steps-not-good": (ERROR, "Some steps are labelled bad: data for process rewards, which no trainer here takes.", "Move the row away with `convert --rejects`; rows whose steps are all good are read as one answer."),
    "scores-invalid": (ERROR, "Responses and their scores are no two lists of the same length, or a score is no number.", "Give each response one finite score."),
    "scores-all-equal": (ERROR, "All responses have the same score: there is no preference.", "Leave the row out, or use --task sft."),
    "segments-invalid": (ERROR, "Segments are no list of {label, text}.", "Write label as true or false and text as text."),
    "segments-raw": (ERROR, "Segments of raw text tell no turns of a conversation.", "Write messages, or input_ids with labels to keep the text as it is."),
    "segments-partial": (ERROR, "Segments put loss on a part of an answer, or on a prompt, which messages cannot say.", "Write input_ids with labels to keep the loss as it is."),
    "rendered-unclear": (ERROR, "Messages that render to this very text cannot be told.", "Use the family it was rendered for, write messages, or leave it as text."),
    "tokens-invalid": (ERROR, "Token ids, labels or masks are no lists of such numbers.", "Write input_ids and labels as lists of whole numbers, masks as lists of 0 and 1."),
    "tokens-length": (ERROR, "Labels or masks have another length than input_ids.", "Write one value for each id."),
    "labels-invalid": (ERROR, "A label is neither the id at its place nor -100.", "Write labels unshifted, with -100 where there is no loss."),
    "tokens-unmasked": (WARNING, "Token ids without labels or a mask of the answers: loss covers the prompts too.", "Add labels, or use messages."),
    "tokens-not-text": (ERROR, "A row of token ids cannot be rendered, shown or trained from here.", "Use the rows it was made of."),
    "tokens-two-bos": (WARNING, "Token ids begin with <bos> twice.", "Encode rendered text without special tokens."),
    "export-impossible": (ERROR, "The form asked for with --to cannot hold what is in the row.", "Choose another --to, or leave the row in the rejects."),
    "export-lossy": (WARNING, "The form asked for with --to, or its readers, drop something of the row.", "Keep the canonical rows as well."),
    "system-column": (WARNING, "System text stands in a column beside the messages.", "`convert` makes it the first message."),
    "text-decoded": (WARNING, "Messages or calls are stored as JSON text.", "`convert` writes them as JSON."),
    "python-literal": (ERROR, "Messages are stored as a printed Python list, which is never evaluated.", "Export the rows as JSON or Parquet."),
    "blank-as-word": (WARNING, "A missing value was written as the word nan or None.", "Export blanks as empty text."),
    "target-missing": (ERROR, "The field that should be learned is absent or null.", "Fill it, or leave the row out."),
    "messages-empty": (ERROR, "The list of messages is empty.", "Leave the row out."),
    "messages-type": (ERROR, "Messages are not a list of objects.", "Write a list of {role, content}."),
    "role-missing": (ERROR, "A message does not say who speaks.", "Add role."),
    "message-ambiguous": (ERROR, "A message gives its role, its text, its reasoning or its calls twice, and differently.", "Keep one of the keys."),
    "role-unknown": (ERROR, "No chat template knows the role; some print it as it is.", "Use system, user, assistant or tool."),
    "role-renamed": (WARNING, "A role has another name, case or blanks; loss masks look for `assistant`.", "`convert` writes the canonical name."),
    "content-missing": (ERROR, "A message has no content.", "Fill it, or leave the row out."),
    "content-type": (ERROR, "Content is neither text nor a list of parts.", "Write text, or parts such as {type: text, text: ...}."),
    "part-invalid": (ERROR, "A part of a content is of no known type or lacks its text.", "Use the types text, image, audio, video."),
    "null-part-keys": (WARNING, "Parts carry null keys, left by Arrow; some processors try to open them.", "`convert` drops them."),
    "parts-joined": (WARNING, "Parts of text that a template prints as a list, cuts to the first, or strips of the blanks between them.", "`convert` joins the texts."),
    "image-url-part": (WARNING, "An OpenAI image_url part, which most Gemma templates skip.", "`convert` writes an image part."),
    "weight-invalid": (ERROR, "The weight of a message is neither 0 nor 1.", "Write 0 to leave a message out of the loss, else 1."),
    "template-kwargs-invalid": (ERROR, "chat_template_kwargs is no object.", "Write an object such as {enable_thinking: true}."),
}  # fmt: skip

CHAT: Entries = {
    "system-not-first": (ERROR, "Gemma 1 to 3n take a system message at the start only.", "Move it to the start."),
    "system-folded": (WARNING, "Gemma 1 and 2 have no system turn.", "`convert` puts the system text in front of the first user text."),
    "system-empty": (WARNING, "A system message says nothing: templates write an empty turn or blank lines for it.", "`convert` drops it."),
    "answer-missing": (ERROR, "No message of the assistant: nothing to learn.", "Add the answer, or use --task prompts."),
    "answer-empty": (ERROR, "An assistant message says nothing: the model would learn to stay silent.", "Fill it, leave the row out, or give the message weight 0."),
    "prompt-empty": (WARNING, "A user message says nothing.", "Fill it, or leave the row out."),
    "ends-with-user": (WARNING, "The last message is a question without an answer; it is not trained.", "`convert --repair drop-dangling` removes it."),
    "ends-with-tool": (WARNING, "The last message is a tool result without an answer.", "Add the answer, or drop the result."),
    "answers-glued": (WARNING, "Gemma 4 joins assistant messages that follow each other, with nothing between the texts.", "`convert --repair merge-turns` joins them with a blank line."),
    "turns-merged": (WARNING, "Neighbours of the same role were joined, as --repair merge-turns asks.", "Nothing is to be done."),
    "parts-glued": (WARNING, "Texts of one message follow each other as parts, and the template puts nothing between them.", "Write them as one text."),
    "train-flag": (WARNING, "A message tells with train, training or loss whether it is learned, which most trainers ignore.", "`convert` writes weight 0 or 1."),
    "control-token": (ERROR, "Text holds a control token of the model, which forges a turn, a call or an end.", "Break it up, e.g. with a blank, or remove it."),
    "special-token": (WARNING, "Text holds a special token such as <mask>, which is no plain text to the tokenizer.", "Break it up if plain text is meant."),
    "foreign-token": (WARNING, "Text holds control tokens of another Gemma family; here they are plain text.", "Remove them, or choose the right --family."),
    "foreign-markup": (WARNING, "Text holds turn marks or tool calls of other models (ChatML, Llama, Mistral, Hermes).", "Convert the rows to messages and tool_calls."),
    "terminator-in-answer": (WARNING, "An answer ends with a terminator of this or another model, and the template adds its own.", "`convert` strips it."),
    "inline-thought": (WARNING, "Thinking stands inside the content, where the template deletes it.", "`convert` moves it into reasoning_content."),
    "empty-thought": (WARNING, "An answer starts with an empty thought block.", "`convert` strips it."),
    "thought-misplaced": (WARNING, "Thinking stands within an answer or behind it, or inside of other thinking, where it cannot be told what it belongs to.", "Write it into reasoning_content, without its marks, or take it out."),
    "thought-unclosed": (ERROR, "A thought never closes: all that follows is thinking, and the answer is missing.", "Close it, or leave the row out."),
    "think-tags": (WARNING, "An answer holds <think> tags, which are plain text to Gemma.", "`convert` moves the thinking into reasoning_content."),
    "think-switch": (WARNING, "System text begins with `<|think|>`, Gemma 4's switch for thinking.", "`convert` writes chat_template_kwargs {enable_thinking: true}, which renders the same."),
    "thinking-unused": (WARNING, "Thinking is switched on, and no answer shows any: the model learns to ignore the switch.", "Add reasoning_content, or drop enable_thinking."),
    "reasoning-lost": (WARNING, "Reasoning is given that the template does not render, so it is not trained.", "Drop it, or give it to an answer behind the last user message and take a template that writes it."),
    "reasoning-template": (WARNING, "Only the newest Gemma 4 template renders the reasoning of a plain answer.", "Pass --model to check the template in use."),
}  # fmt: skip

TOOLS: Entries = {
    "tools-unsupported": (ERROR, "The family or the chat template in use has no tools: they would vanish or break the template.", "Use Gemma 4 or FunctionGemma with its current template."),
    "tools-ignored": (WARNING, "The family's template does not show the declared tools.", "Describe them in the prompt, or use Gemma 4."),
    "tools-invalid": (ERROR, "A tool declaration is no {type: function, function: {name, ...}}.", "Correct the declaration."),
    "tool-wrapped": (WARNING, "A tool or a call is written flat, without its `function` object, or not in a list.", "`convert` wraps it."),
    "tool-schema-lossy": (WARNING, "The template cannot render this part of a tool schema.", "Use plain types; see references/data-formats.md."),
    "tool-name-odd": (WARNING, "A function name has characters that break `call:NAME{...}` for whoever parses the answer.", "Use letters, digits, underscore, dot, hyphen."),
    "tool-repeated": (WARNING, "Two declared tools have the same name.", "Keep one."),
    "null-padded-schema": (WARNING, "A tool schema carries null keys of other tools, left by Arrow.", "`convert` drops them."),
    "tool-call-invalid": (ERROR, "A tool call has no function name or is no object.", "Correct the call."),
    "arguments-invalid": (ERROR, "The arguments of a call are no JSON object.", "Write an object."),
    "arguments-decoded": (WARNING, "The arguments of a call are JSON text, on which the Gemma 4 template fails.", "`convert` writes an object."),
    "function-call-legacy": (WARNING, "The old function_call field.", "`convert` writes tool_calls."),
    "tool-undeclared": (WARNING, "A call names a function that the row does not declare.", "Add it to tools: the model learns to invent tools otherwise."),
    "argument-missing": (WARNING, "A call leaves out a required argument.", "Add it."),
    "argument-undeclared": (WARNING, "A call passes an argument that its tool does not declare.", "Declare or remove it."),
    "argument-type": (WARNING, "An argument has another type than declared, or is none of the declared values.", "Correct the value or the schema."),
    "null-padded-arguments": (WARNING, "A call carries null arguments, or nulls inside of them, that its tool does not declare: Arrow merges the arguments of all calls.", "`convert --repair drop-null-arguments` drops them."),
    "tool-id-unknown": (ERROR, "A tool result answers a call that is not there.", "Correct tool_call_id."),
    "tool-id-repeated": (WARNING, "Two calls of one message have the same id.", "Give each call its own id."),
    "tool-result-orphan": (ERROR, "A tool result follows no tool call; Gemma 4 drops it.", "Put it right behind its call."),
    "tool-result-unnamed": (ERROR, "It cannot be told which of several calls a result answers.", "Add tool_call_id."),
    "tool-result-name": (WARNING, "A tool result has the id of one call and the name of another; which one is rendered differs between families.", "Correct the name or tool_call_id."),
    "tool-result-missing": (WARNING, "The conversation goes on without the results of all calls.", "Add the tool message."),
    "tool-result-repeated": (WARNING, "A call has several results.", "Keep one result a call."),
    "tool-result-empty": (WARNING, "A tool result is empty, and FunctionGemma's template leaves it out.", "Write what the tool gave, such as ok."),
    "tool-linked": (WARNING, "A tool result lacked the name or id of its call, which the row tells.", "`convert` fills it in."),
    "tool-result-encoded": (WARNING, "A tool result is structured, which the template does not take.", "`convert` writes it as JSON text."),
    "text-beside-call": (WARNING, "Gemma 4 moves text that stands beside a call behind its result.", "Put the text into a message of its own."),
}  # fmt: skip

MEDIA: Entries = {
    "modality-unsupported": (ERROR, "The family cannot see or hear this kind of media.", "Choose a family that does, or drop the part."),
    "media-count": (ERROR, "The number of images, audios or videos differs from the number of their places.", "Give each place its file."),
    "media-source-missing": (ERROR, "A media part names no file and no column holds one.", "Add path, url or the images column."),
    "media-missing": (ERROR, "A media file does not exist; paths are relative to the data file.", "Correct the path."),
    "media-broken": (ERROR, "A media file is empty or not what it should be.", "Fetch the file again."),
    "media-lost": (ERROR, "Media stand where the template does not render them.", "Move them into a user message."),
    "media-in-answer": (WARNING, "An answer holds media, which Gemma cannot write; they carry no loss.", "Move them into a user message."),
    "placeholder-without-media": (ERROR, "Text holds a media placeholder, and the row has no media for it.", "Remove the placeholder, or add the media."),
}  # fmt: skip

PREFERENCE: Entries = {
    "prompt-missing": (ERROR, "A pair has no prompt and no shared opening turns.", "Add prompt, or write chosen and rejected as whole conversations."),
    "prompt-repeated": (WARNING, "The answers repeat the prompt.", "`convert` keeps it in prompt only."),
    "prompts-differ": (ERROR, "Chosen and rejected answer different prompts.", "Pair answers to the same prompt."),
    "prompt-last-role": (ERROR, "A prompt must end with the user or a tool result.", "Move the last message into both answers, or drop it."),
    "answer-role": (ERROR, "An answer does not begin with the assistant or holds other speakers.", "Move what comes before into prompt."),
    "pair-identical": (ERROR, "Chosen and rejected are the same.", "Leave the row out."),
    "pair-near-identical": (WARNING, "Chosen and rejected differ in case, blanks or punctuation only.", "Check that the difference is meant."),
    "pair-contradiction": (WARNING, "Another row prefers the opposite: the two cancel out.", "Keep one of them."),
    "number-as-text": (WARNING, "A margin or score is stored as text.", "`convert` writes a number."),
    "margin-invalid": (ERROR, "The margin is no finite number, or beyond a million.", "Write a number; divide all margins of the data by the same one where they are too large."),
    "margin-missing": (ERROR, "Some rows have a margin and others do not.", "Give all rows a margin, or none."),
    "margin-negative": (WARNING, "The margin is negative: rejected is preferred.", "Swap the answers."),
    "scores-inverted": (WARNING, "The chosen answer has the lower score.", "Swap the answers, or leave the row out."),
    "scores-equal": (WARNING, "Both answers have the same score: neither is preferred.", "Leave the row out."),
    "answer-echo": (WARNING, "An answer repeats the question.", "Check that this is meant."),
    "length-bias": (WARNING, "In most pairs the chosen answer is much longer: length alone tells them apart.", "Add pairs in which the shorter answer is better; watch the length of answers while tuning."),
}  # fmt: skip

TEXT: Entries = {
    "text-empty": (ERROR, "The text is empty.", "Leave the row out."),
    "text-plain": (WARNING, "A text column trains as continued pretraining: no turns, loss on everything.", "Use messages to train a chat model."),
    "text-rendered": (WARNING, "Text is rendered already: turn marks are there, but loss covers the prompts too.", "`convert --from rendered` reads it back to messages, which train on answers only."),
    "text-bos": (WARNING, "Text starts with <bos>, and tokenizers add another.", "`convert` strips it."),
    "text-terminator-missing": (WARNING, "The last turn of a rendered text is not closed: the model never learns to stop.", "Add the terminator, or use messages."),
    "text-wrong-family": (ERROR, "Text is rendered for another Gemma family.", "Choose that family, or use messages."),
    "text-role-unknown": (ERROR, "A rendered text opens a turn with a header that the family does not know.", "Write the headers as the template does: the assistant is `model`."),
    "text-turns-differ": (WARNING, "The turns of a rendered text are not laid out as the template does it.", "Write a line break behind each role and each terminator, or use messages."),
    "trailing-blank": (WARNING, "Text ends in a blank, which becomes a token of its own: words carry the blank before them.", "Take it off."),
    "text-instruction-style": (WARNING, "`### Instruction` prompts as text: no turns and nothing that ends the answer.", "Use messages."),
}  # fmt: skip

ACROSS: Entries = {
    "over-length": (WARNING, "The row is longer than --max-length: training drops or cuts it.", "Raise --max-length, or shorten the row."),
    "answer-cut": (WARNING, "The prompt fits into --max-length and the answer does not: cutting would end it in the middle, without a terminator.", "Raise --max-length, or shorten the row."),
    "answer-wholly-cut": (WARNING, "The prompt alone fills --max-length: cutting would leave nothing to learn.", "Raise --max-length, or shorten the prompt."),
    "column-types-differ": (WARNING, "A column is of one type here and of another elsewhere, on which Arrow and older loaders stop.", "Write one type, or JSON text."),
    "duplicate-row": (WARNING, "The same row stands in the data twice.", "`convert --repair drop-duplicates` moves repeats to the rejects."),
    "duplicate-prompt": (WARNING, "The same prompt, case and blanks aside, stands in the data twice.", "`convert --repair drop-duplicates` moves repeats to the rejects."),
    "duplicate-id": (WARNING, "Two rows have the same id.", "Give each row its own id."),
    "split-side-empty": (WARNING, "A side of the split has no row.", "Take another --eval-fraction, or more rows."),
    "split-leak": (WARNING, "The same prompt is in several splits.", "Split by prompt, not by row."),
}  # fmt: skip

TEACHER: Entries = {
    "response-empty": (ERROR, "The teacher said nothing.", "Ask again, or leave the row out."),
    "response-cut": (ERROR, "The teacher ran into its token limit: finish_reason is length.", "Ask again with a larger limit."),
    "response-blocked": (ERROR, "The teacher's service stopped the response, as finish_reason tells.", "Leave the row out."),
    "response-echo": (WARNING, "The response repeats the prompt.", "Ask again, or leave the row out."),
    "response-loop": (WARNING, "The response repeats itself over and over.", "Ask again with other sampling."),
    "response-refusal": (WARNING, "The whole response is a refusal.", "Check it, ask again or leave the row out."),
    "reply-cut": (WARNING, "A reply stops in the middle of a sample; whole samples before it are kept.", "Ask for the missing samples again."),
    "reply-broken": (WARNING, "A sample inside a reply is not JSON; the others are kept.", "Ask for it again."),
}  # fmt: skip

CONVERT: Entries = {
    "rows-refused": (
        WARNING,
        "Rows were refused; each is in the rejects file with its reason.",
        "Correct them there and convert that file.",
    ),
}

DATA_CODES: Entries = {
    **READING, **LAYOUT, **CHAT, **TOOLS, **MEDIA, **PREFERENCE, **TEXT, **ACROSS, **TEACHER, **CONVERT,
}  # fmt: skip
