"""What went wrong, where, and what fixes it: the one shape of every error and warning."""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass

from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.visible import visible

OK = 0
INTERNAL = 1
USAGE = 2
DATA_INVALID = 3
DEPENDENCY_MISSING = 4
UNSUPPORTED = 5
STOPPED = 6
REMOTE_FAILED = 7

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what the system says of a full disk
# What libraries make of it: Python, Rust, and torch, which finds its file shorter than it wrote.
FULL = ("No space left", "Disk quota exceeded", *(f"os error {each})" for each in NO_SPACE), "PytorchStreamWriter failed writing", "unexpected pos ", "iostream error")  # fmt: skip
# What torch, bitsandbytes and the systems say when memory runs out, where they have no class of its own.
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `line` counts physical lines of the file from 1, `row` counts records from 1.

    `path` points into the row, such as `messages[2].content`. `code` is a key of `CODES`, which
    also gives the severity and, where the caller has nothing more exact, the fix.
    """

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    row: int | None = None
    path: str | None = None
    fix: str | None = None

    @property
    def severity(self) -> str:
        return CODES[self.code].severity

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    def as_dict(self) -> dict:
        return {**asdict(self), "fix": self.fix or CODES[self.code].fix}

    def __str__(self) -> str:
        row = f"row {self.row}" if self.row and not self.line else self.line
        where = ":".join(str(part) for part in (self.file, row) if part is not None)
        path = f" ({self.path})" if self.path else ""
        fix = self.fix or CODES[self.code].fix
        text = f"{where + ': ' if where else ''}{self.code}: {self.message}{path}" + (f" | fix: {fix}" if fix else "")
        return visible(text)


class Failure(Exception):
    """Ends a command with an exit code and plain messages instead of a traceback."""

    def __init__(self, exit_code: int, code: str, message: str, fix: str | None = None, **where):
        super().__init__(message)
        self.exit_code = exit_code
        self.problem = Problem(code, message, fix=fix, **where)
        self.details: list[Problem] = []  # what the problem consists of, row by row
        self.result: dict = {}  # what there is all the same
        self.next: list[str] = []


def missing(package: str, purpose: str, extra: str | None = None) -> Failure:
    """A Failure (exit 4) whose one line holds the install command."""
    install = f"python -m pip install {package}"
    note = f" (or the `{extra}` extra of pyproject.toml)" if extra else ""
    return Failure(DEPENDENCY_MISSING, "dependency-missing", f"{purpose} needs {package}: {install}{note}", fix=install)


def is_disk_full(error: BaseException) -> bool:
    """Whether it says, or was caused by what says, that a disk is full."""
    texts = " ".join(str(each) for each in _causes(error))
    return any(isinstance(each, OSError) and each.errno in NO_SPACE for each in _causes(error)) or any(
        text in texts for text in FULL
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that main memory or that of a GPU ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    known = isinstance(error, RuntimeError | OSError)
    return known and any(text.lower() in str(error).lower() for text in NO_MEMORY)


def _causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
