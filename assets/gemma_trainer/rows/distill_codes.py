"""Codes of distillation. Entries are (severity, cause, fix), see codes.py."""

from __future__ import annotations

from gemma_trainer.rows.data_codes import ERROR, WARNING, Entries

DISTILL: Entries = {
    "teacher-failed": (
        ERROR,
        "The teacher's server refused or did not answer.",
        "Check --base-url, the model's name and the key, then run the same command again: finished requests are kept.",
    ),
    "budget-spent": (
        ERROR,
        "A budget is spent; what is finished is kept.",
        "Run the same command with a larger budget: it goes on.",
    ),
    "no-answer-kept": (
        ERROR,
        "Every answer was refused, so there is no row.",
        "Read the reasons in the rejects file; another teacher, more --max-new-tokens or a clearer prompt may help.",
    ),
    "run-in-progress": (ERROR, "Another run is writing the same files.", "Wait for it, or name another --out."),
    "teacher-limited": (
        WARNING,
        "The server does not take a part of the request, which is left out.",
        "Use a server that does, or mind what is missing.",
    ),
    "prompts-repeated": (
        WARNING,
        "Prompts differ in case and blanks only.",
        "Nothing to do: each is asked once; --samples asks a prompt several times.",
    ),
    "requests-failed": (
        ERROR,
        "More than 5 % of the requests failed for good; the rows of the others are written.",
        "Remove the cause that the message tells, then run the same command with --retry-failed.",
    ),
    "some-requests-failed": (
        WARNING,
        "Up to 5 % of the requests failed for good.",
        "Run the same command with --retry-failed.",
    ),
    "answers-unused": (
        WARNING,
        "Answers of earlier runs belong to prompts, flags or a count that this command does not have.",
        "Nothing to do if that is meant; else give the prompts, flags or --count of before.",
    ),
    "journal-damaged": (
        WARNING,
        "Lines of the journal or of the failed requests are broken, by a disk or an editor, and are passed over.",
        "Nothing to do: what is missing is asked again.",
    ),
    "stdin-once": (
        WARNING,
        "The input came from stdin, so that no command can be given that goes on.",
        "Store it in a file and name that, or give the same input to the same command again.",
    ),
    "verifier-fails": (
        WARNING,
        "The verifier raised an error, hung or ended on every answer it was asked about.",
        "Try the function on an answer of the rejects file and correct it; then run the same command again: it asks nothing twice.",
    ),
    "schema-broken": (ERROR, "A JSON Schema cannot be read or is none.", "Correct it; $ref may point inside only."),
    "verifier-broken": (
        ERROR,
        "The verifier's file or function cannot be found or loaded.",
        "Give --verifier FILE.py:function, a function of an answer's text and its prompt row.",
    ),
}
