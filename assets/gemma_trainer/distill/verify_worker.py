"""One process of a verifier: python verify_worker.py FILE.py FUNCTION; a line of JSON in, a line of JSON out."""

import json
import math
import os
import runpy
import signal
import sys
from pathlib import Path


def load(file: str, name: str):
    """The function, or why there is none."""
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        function = runpy.run_path(file).get(name)
    except BaseException as error:
        return None, f"the file does not load: {reason(error)}"
    return (function, None) if callable(function) else (None, "there is no such function")


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def judged(function, question: dict) -> dict:
    try:
        value = function(question["answer"], question["row"])
        score = float(value)
    except BaseException as error:
        return {"fault": reason(error)}
    return {"score": score} if math.isfinite(score) else {"fault": f"the score is {score}"}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    questions, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what the function reads and prints is neither question nor result
    os.dup2(2, 1)
    function, fault = load(sys.argv[1], sys.argv[2])
    print(json.dumps({"number": 0, **({"fault": fault} if fault else {})}), file=out)
    if function:
        for line in questions:
            question = json.loads(line)
            print(json.dumps({"number": question["number"], **judged(function, question)}), file=out)


if __name__ == "__main__":
    main()
