"""Python for the model card of a reward model, with public libraries only."""

from __future__ import annotations

from gemma_trainer.models.resolve import resolve_model
from gemma_trainer.plan.plan import Plan

OWN_CLASS = """from transformers import {config}
from transformers.modeling_layers import GenericForSequenceClassification
from {module} import {parent}

class RewardModel(GenericForSequenceClassification, {parent}):
    config_class = {config}
"""
QUANTIZED = """BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="{dtype}"
)"""
KEPT_FLOAT = "model.score.float().register_forward_pre_hook(lambda module, inputs: inputs[0].float())"
SCORE = """
tokenizer = AutoTokenizer.from_pretrained("{folder}")
conversation = [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]
ids = tokenizer.apply_chat_template(conversation, return_dict=False, return_tensors="pt")
print(model(input_ids=ids).logits.item())"""


def loading_code(plan: Plan) -> str:
    """Python that loads the reward model of a run and scores a conversation; `{folder}` stands for its directory."""
    adapter, quantized = plan.mode != "full", plan.mode == "qlora"
    own = _own_class(plan.model)
    names = ["AutoTokenizer", *([] if own else ["AutoModelForSequenceClassification"])]
    names += ["BitsAndBytesConfig"] if quantized else []
    lines = ["from peft import PeftModel"] if adapter else []
    lines += [f"from transformers import {', '.join(sorted(names))}", own]
    options = f'num_labels=1, dtype="{plan.dtype}"'
    if plan.family == "gemma2":
        options += ', attn_implementation="eager"'
    if quantized:
        lines.append(f"quantization = {QUANTIZED.format(dtype=plan.dtype)}")
        options += ", quantization_config=quantization"
    lines += ['# "newly initialized: score.weight" is harmless here: the adapter brings the head'] * adapter
    source = resolve_model(plan.model) if adapter else "{folder}"
    reader = "RewardModel" if own else "AutoModelForSequenceClassification"
    lines.append(f'model = {reader}.from_pretrained("{source}", {options})')
    if adapter:
        lines += [KEPT_FLOAT] * (plan.dtype != "float32")
        lines.append('model = PeftModel.from_pretrained(model, "{folder}").eval()')
    return "\n".join(line for line in lines if line) + SCORE


def _own_class(model: str) -> str:
    """Code of a class as models.reward makes it; empty where the library has one."""
    from transformers import AutoConfig

    from gemma_trainer.models.reward import pretrained_class, reward_class

    kind = type(AutoConfig.from_pretrained(resolve_model(model)))
    if reward_class(kind()).__module__.startswith("transformers."):
        return ""
    parent = pretrained_class(kind)
    return OWN_CLASS.format(config=kind.__name__, module=parent.__module__, parent=parent.__name__)
