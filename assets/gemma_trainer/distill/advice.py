"""What to do about a run whose answers were refused, by the commonest reason."""

from __future__ import annotations

from gemma_trainer.distill.output import Counts, Files
from gemma_trainer.distill.verify import Verifier
from gemma_trainer.rows.problems import Problem

_READ = "Read a few rejects"
FIXES = {
    "cut": "Raise --max-new-tokens; thinking teachers need 8192 and more.",
    "empty": "Raise --max-new-tokens if the teacher thinks; else check the server's chat template.",
    "blocked": f"{_READ}: the service stops these prompts. Change them or take another teacher.",
    "refusal": f"{_READ}: the teacher declines these prompts. Change them or take another teacher.",
    "loop": "Raise --temperature, or take a larger or less quantised teacher; check its chat template.",
    "echo": "Take an instruction-tuned teacher, and a server that applies its chat template.",
    "control-tokens": "Correct the server's chat template or reasoning parser.",
    "language": "Ask for the language in --system.",
    "schema-invalid": "Take a server with grammars (vLLM, llama.cpp), a simpler schema, or more --max-new-tokens.",
    "tool-call-invalid": "Start the server with its tool parser; describe the tools better.",
    "no-tool-call": "Start the server with its tool parser; describe the tools better.",
    "judge-low": f"{_READ} with their details: lower --judge-threshold, or change --judge-rubric or --judge-model.",
    "verifier-failed": f"{_READ} with their details: the verifier may be too strict, or fail itself.",
    "tie": "Raise --temperature or --samples, or take harder prompts.",
    "no-majority": "Raise --temperature or --samples, or take harder prompts.",
    "not-novel": "Give more and other seeds, or --kind evolve.",
    "duplicate": "Take prompts that differ in more than a word, or raise --temperature.",
    "near-duplicate": "Raise --near-duplicates, or 0, if the answers are meant to be alike.",
    "too-long": "Raise --max-length, or ask for shorter answers in --system.",
    "quote": "Take a stronger teacher.",
    "leans-on-passage": "Take a stronger teacher.",
}


def nothing_kept(counts: Counts, files: Files) -> Problem:
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.most_common(5))
    text = f"all {counts.rejects} answers were refused ({reasons})"
    ((commonest, _),) = counts.reasons.most_common(1)
    return Problem("no-answer-kept", text, file=str(files.rejects), fix=FIXES.get(commonest))


def verifier_faults(verifier: Verifier | None) -> list[Problem]:
    """A verifier that fails on every answer is wrong, not the answers."""
    if verifier is None or not verifier.asked or verifier.faults < verifier.asked:
        return []
    text = f"the verifier failed on all {verifier.asked} answers, at last: {verifier.last_fault}"
    return [Problem("verifier-fails", text, file=str(verifier.file))]
