"""The model card of a run."""

from __future__ import annotations

import json
from pathlib import Path

from gemma_trainer.data.output import replacing
from gemma_trainer.plan.plan import answer_lengths

LOAD_ADAPTER = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")"""

LOAD_MODEL = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")"""

GENERATE = """
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "..."}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
output = model.generate(**prompt, max_new_tokens=256)
print(tokenizer.decode(output[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True))"""


def loading_code(full: bool) -> str:
    """Python that loads a tuned model and asks it something; `{folder}` stands for the run directory."""
    return (LOAD_MODEL if full else LOAD_ADAPTER) + GENERATE


def write_card(path: Path, record: dict, code: str, labels: dict[str, str]) -> None:
    """Write README.md of a run directory from its run.json. `code` loads the result, `labels` name its measures."""
    plan, metrics = record["plan"], record["metrics"]
    full = plan["mode"] == "full"
    front = {"base_model": plan["model"], "tags": ["gemma", "gemma-trainer", plan["method"], plan["mode"]]}
    front |= {"library_name": "transformers"} if full else {"library_name": "peft"}
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        f"# {path.parent.resolve().name}",
        "",
        f"{plan['model']} tuned with gemma-trainer ({plan['method'].upper()}, {plan['mode']}). "
        "The terms of the base model apply.",
        "",
        "## Load",
        "```python",
        code.replace("{folder}", "PATH_OF_THIS_FOLDER"),
        "```",
        "",
        "## Results",
        "| measure | before | after |",
        "| --- | --- | --- |",
        *_result_lines(metrics, labels),
        *_unseen_lines(metrics.get("unseen_tables"), labels),
        "",
        "![loss](loss.png)",
        "",
        "## Training",
        *(f"- {name}: {value}" for name, value in _training_facts(plan, record).items()),
        "",
        "`run.json` holds every setting, version and hash of this run.",
        "",
    ]
    with replacing(path) as file:
        file.write("\n".join(lines))


def _result_lines(metrics: dict, labels: dict[str, str]) -> list[str]:
    before, after = metrics.get("before") or {}, metrics.get("after") or {}
    lines = [
        f"| {label} | {_number(before.get(key))} | {_number(after.get(key))} |"
        for key, label in labels.items()
        if after.get(key) is not None
    ]
    return lines or ["| final training loss | | " + _number(metrics.get("train_loss")) + " |"]


def _unseen_lines(unseen: dict | None, labels: dict[str, str]) -> list[str]:
    """The demo's questions about tables that stand nowhere in its training data."""
    if not unseen:
        return []
    return [
        "",
        "On tables never seen in training:",
        "",
        "| measure | before | after |",
        "| --- | --- | --- |",
        *_result_lines(unseen, labels),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _training_facts(plan: dict, record: dict) -> dict:
    data = plan["data"]
    return {
        "rows": f"{data['train_rows']} trained, {data['eval_rows']} held out (data hash `{data['data_hash'][:16]}`)",
        **({"answers": answer_lengths(data)} if "answer_tokens" in data else {}),
        "steps": f"{plan['steps']} of {plan['effective_batch_size']} rows",
        "learning rate": plan["learning_rate"],
        **({"starting adapter": plan["adapter"]["path"]} if plan["adapter"] else {}),
        **{name.replace("_", " "): value for name, value in plan["objective"].items() if value},
        **({"LoRA": f"rank {plan['lora']['rank']}, alpha {plan['lora']['alpha']:g}"} if plan["lora"] else {}),
        "precision": plan["dtype"],
        "chat template": f"{plan['family']}, sha256 `{(plan['template_hash'] or 'none')[:16]}`",
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
    }
