"""Codes of models, training and evaluation. Entries are (severity, cause, fix), see codes.py."""

from __future__ import annotations

from gemma_trainer.rows.data_codes import ERROR, WARNING, Entries

TRAINING: Entries = {
    "packing-leaks": (
        ERROR,
        "Rows that are packed into one sequence would see each other in this model or engine.",
        "Drop --packing.",
    ),
    "packing-few-steps": (
        WARNING,
        "Batches count packed sequences, and there are few of them, so the model learns in few steps.",
        "Lower --effective-batch-size, or drop --packing.",
    ),
    "model-unreadable": (
        ERROR,
        "The model folder or file is damaged or not of a kind that is known.",
        "Download it again, or give another model.",
    ),
    "weights-missing": (
        ERROR,
        "The checkpoint does not fill the model class, so weights would stay random.",
        "Use the model's own checkpoint; report it if this is an official one.",
    ),
    "adapter-unreadable": (
        ERROR,
        "The adapter folder is damaged or belongs to another model.",
        "Give the run directory and the base model of one run.",
    ),
    "adapter-other-base": (
        WARNING,
        "The adapter was trained on another model than the one that is given for it; it fits by shape alone.",
        "Give the base model of the adapter, or leave --model out.",
    ),
    "reward-model-given": (
        ERROR,
        "A reward model scores answers and writes none; training starts from a model that writes.",
        "Give the SFT run that it began with, or make one: sft_train.py.",
    ),
    "run-unfinished": (
        ERROR,
        "The run directory to start from holds a run that did not finish.",
        "Finish it, or give one of its checkpoints.",
    ),
    "reward-model-expected": (
        ERROR,
        "The folder holds no reward model, and rewards are asked of it.",
        "Give a run directory of rm_train.py, or to evaluate.py one of dpo_train.py.",
    ),
    "reference-missing": (
        ERROR,
        "The adapter or model that a DPO run began with is gone, and its rewards are measured against it.",
        "Put it back where it was.",
    ),
    "reference-changed": (
        ERROR,
        "The adapter that a DPO run began with was written again since, and its rewards are measured against it.",
        "Put back the adapter of then, or run dpo_train.py again from the new one.",
    ),
    "start-untuned": (
        WARNING,
        "Preferences are trained on a base model that never learned to answer: it learns to avoid, not to speak.",
        "Start from an instruction-tuned (-it) model, or from an SFT run of yours: sft_train.py first, then --adapter.",
    ),
    "chosen-collapsed": (
        WARNING,
        "The model gives its chosen answers far less probability than before; it may have unlearned to write them.",
        "Add --sft-weight 0.2, raise --beta, halve --learning-rate, or train fewer --epochs.",
    ),
    "answer-lengths-differ": (
        WARNING,
        "One side's answers are much longer, so that length alone tells the sides apart and is what is learned.",
        "Compare answers of like length, or look at the lengths of what the tuned model writes.",
    ),
    "beta-small": (
        WARNING,
        "With a beta this small the reference hardly holds the model, which drifts into odd text.",
        "Use 0.1, or 0.01 at least.",
    ),
    "backend-unsupported": (
        ERROR,
        "The engine that is asked for cannot train this way, or not on this hardware.",
        "Pass --backend trl, or leave the choice to --backend auto.",
    ),
    "nothing-trainable": (ERROR, "No parameter would be trained.", "Check --mode and the model."),
    "tower-trainable": (
        ERROR,
        "Text training would change a vision or audio tower.",
        "Report it: towers are meant to be frozen.",
    ),
    "no-rows": (
        ERROR,
        "No usable row is left to train on or to measure.",
        "Look at the data with dataset_prep.py inspect.",
    ),
    "data-refused": (
        ERROR,
        "Rows of the data have errors, which follow.",
        "Convert the data with --rejects, or correct the rows.",
    ),
    "family-unknown": (
        ERROR,
        "The model is no Gemma that is known, or nothing in it tells its family.",
        "Give a Gemma; pass --family if its files do not tell.",
    ),
    "media-unsupported": (
        ERROR,
        "A row holds images, audio or video; training and evaluation read text only.",
        "Leave these rows out.",
    ),
    "experts-untrained": (
        WARNING,
        "The expert layers of a mixture-of-experts model get no adapters.",
        "Use --mode full to train them.",
    ),
    "no-trained-token": (
        ERROR,
        "Not one token would carry loss.",
        "Look at the loss mask with dataset_prep.py inspect.",
    ),
    "no-held-out-row": (
        WARNING,
        "No row was held out, so the run cannot tell whether it learned or memorised.",
        "Pass --eval-data, or a larger --eval-fraction.",
    ),
    "rows-overlong": (WARNING, "Rows are longer than --max-length.", "Raise --max-length, or shorten the rows."),
    "overlong-refused": (
        ERROR,
        "Rows are longer than --max-length and --overlong is `error`.",
        "Raise --max-length, or pass --overlong drop or truncate.",
    ),
    "rows-not-renderable": (
        ERROR,
        "The model's chat template refuses rows.",
        "Correct them, see dataset_prep.py validate --model.",
    ),
    "template-missing": (
        WARNING,
        "The model has no chat template, so its family's plain one is used and saved.",
        "Start from the instruction-tuned (-it) model when you can.",
    ),
    "dtype-unsupported": (ERROR, "The hardware does not compute in this number format.", "Pass --dtype float32."),
    "mode-unverified": (
        WARNING,
        "This combination has not been run by the project.",
        "Start with a short run: --max-steps 2.",
    ),
    "saved-model-differs": (
        ERROR,
        "What was saved does not behave like what was trained.",
        "Keep the run directory and report it.",
    ),
    "run-damaged": (
        ERROR,
        "run.json of a run directory is damaged or missing, or --overwrite was stopped while it removed the run.",
        "Pass --overwrite to begin anew, or go on from a whole checkpoint in another --output-dir.",
    ),
    "checkpoint-damaged": (
        WARNING,
        "A checkpoint has lost files, or parts of them, since it was written; the run goes on from an older one, or begins anew.",
        "Look after the disk. The result is that of an undisturbed run.",
    ),
    "metrics-incomplete": (
        WARNING,
        "Lines of metrics.jsonl are damaged or missing; the curve and the measures of the run lack them.",
        "Nothing needs to be done: the training itself is not touched by it.",
    ),
    "run-in-use": (
        ERROR,
        "Another process is writing to the run directory.",
        "Wait for it, or choose another --output-dir.",
    ),
    "disk-full": (
        ERROR,
        "The disk is full; what was whole before is kept, of a training run the newest checkpoint.",
        "Make room, then run the same command again; training and --records go on from what is kept.",
    ),
    "output-unwritable": (
        ERROR,
        "The file or folder of an output cannot be written.",
        "Write to another place, or mend its permissions.",
    ),
    "checkpoint-incomplete": (
        ERROR,
        "The checkpoint was not written to its end.",
        "Pass --resume auto, which takes the newest whole one.",
    ),
    "resume-mismatch": (
        ERROR,
        "The run was begun with other data, model, settings or versions of packages.",
        "Give the same ones, or choose another --output-dir.",
    ),
    "loss-not-finite": (
        ERROR,
        "The loss, its gradient or a measure is no number any more; checkpoints from then on are removed.",
        "Lower --learning-rate; use --dtype float32.",
    ),
    "adapter-untrained": (
        ERROR,
        "A LoRA layer gets no gradient, so that it would not learn; or all steps were so small that the adapter changes nothing.",
        "Report it with the model and the versions of run.json; --backend trl or --mode lora may do.",
    ),
    "loss-exploded": (
        ERROR,
        "Each of the last ten logged losses is more than twice as high as the first five: the run learns no more. Checkpoints from "
        "then on are removed.",
        "Lower --learning-rate; look at the rows that are named.",
    ),
    "out-of-memory": (
        ERROR,
        "Memory ran out, though the run was predicted to fit, or because something else takes it too.",
        "Take one of the ways that are named, free memory, or pass --auto-recover to a training script.",
    ),
    "memory-recovered": (
        WARNING,
        "Memory ran out, and the run went on with fewer rows a forward pass and the same rows a step.",
        "Nothing to do; a smaller --micro-batch-size from the start avoids the lost time.",
    ),
    "start-not-finite": (
        ERROR,
        "The loss is no number before anything is trained: it is so because of the starting weights or adapter, or of huge "
        "values in the rows or flags.",
        "Give another model or adapter, or smaller margins and --beta.",
    ),
    "stopped": (
        ERROR,
        "A signal stopped the run after a saved step.",
        "Run the same command again, without --overwrite: it resumes.",
    ),
    "gpus-unused": (
        WARNING,
        "Not all GPUs are used.",
        "Take a batch that they can share evenly, or set CUDA_VISIBLE_DEVICES to choose which are used.",
    ),
    "processes-too-many": (
        ERROR,
        "More processes are asked for than there are GPUs.",
        "Drop --processes: the default is one on each GPU.",
    ),
    "processes-differ": (
        ERROR,
        "The processes of a run see other files, settings or numbers of processes.",
        "Give all nodes the same command and the same files, and launch as many processes as are planned.",
    ),
    "process-lost": (
        ERROR,
        "A process of the run was killed, often by the system when memory ran out.",
        "Run the same command again: it goes on from the newest checkpoint. If it happens again, lower --max-length or --micro-batch-size.",
    ),
    "parallel-unsupported": (
        ERROR,
        "The model cannot be split among the processes on this hardware.",
        "Pass --parallel ddp, or another --mode.",
    ),
    "version-clash": (
        WARNING,
        "Installed versions are known to fail or were not tested.",
        "Install the version that is named.",
    ),
    "torch-build": (WARNING, "The installed PyTorch does not fit the machine.", "Install the build for this machine."),
    "sql-schema-missing": (
        ERROR,
        "--metric sql needs a `schema` column with the SQL that makes the tables.",
        "Add it, or choose other metrics.",
    ),
    "gold-sql-broken": (
        WARNING,
        "Right answers of some rows do not run on their own schema; the rows are left out of sql_match.",
        "Correct them.",
    ),
    "sql-both-empty": (
        WARNING,
        "Both queries of some rows return nothing, which proves nothing; the rows are left out of sql_match.",
        "Put rows into the schema's tables that the right answer finds.",
    ),
}
