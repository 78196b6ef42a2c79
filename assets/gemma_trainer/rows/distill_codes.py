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
    "requests-failed": (WARNING, "Some requests failed for good.", "Run the same command with --retry-failed."),
    "schema-broken": (ERROR, "A JSON Schema cannot be read or is none.", "Correct it; $ref may point inside only."),
    "verifier-broken": (
        ERROR,
        "The verifier's file or function cannot be found or loaded.",
        "Give --verifier FILE.py:function, a function of an answer's text and its prompt row.",
    ),
}
