"""A batch of raw rows -> a Part: every row judged, measured and handed to the sink of the run."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from gemma_trainer.data.checking import repair
from gemma_trainer.data.checking.check_pairs import answer_text
from gemma_trainer.data.checking.explain import EXPLAINED, explain
from gemma_trainer.data.checking.process import process
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.lengths import guessed_tokens
from gemma_trainer.data.measure import Measure
from gemma_trainer.data.notes import Note, Notes
from gemma_trainer.data.options import Checked, Options, Place
from gemma_trainer.data.reading.raw import REJECT_KEYS, Batch, Lines, RawRow, blocks_of
from gemma_trainer.data.reading.read_lines import rows_of
from gemma_trainer.data.reading.sources import home, shown
from gemma_trainer.data.running.keys import Keys
from gemma_trainer.data.running.part import EXPLAINED_ROWS, Part
from gemma_trainer.data.running.plain import PlainRows
from gemma_trainer.data.running.plain_pairs import PlainPairs
from gemma_trainer.families.family import RenderError
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.problems import Problem

# Said once a file: they hold for every row of it.
ONCE = frozenset({"layout-converted", "text-plain", "text-rendered"})
# Faults of a file that reading it gets over without loss: `convert` has mended them in what it writes.
MENDED = frozenset(
    {
        "encoding-unsupported",
        "lone-carriage-returns",
        "byte-order-mark",
        "not-json-lines",
        "column-renamed",  # blanks around names in the header of a table
        "json-extra-data",
        "json-trailing-comma",  # behind the last row of an array; inside a row it is a fault of that row
    }
)


class Sink(Protocol):
    """What a command makes of the rows of a batch, beside counting them. Results go to `part.taken`."""

    needs_rows: bool  # each row as it was found, plain ones too

    def take(self, checked: Checked, part: Part) -> None: ...

    def take_line(self, line: bytes, row: dict, part: Part) -> bool:
        """A line that is a canonical row as it stands, and that row. False hands it to `take`."""


class Judge:
    """One for a run and process. `keep_faulty` leaves rows with an error their data, for a look at them; without `told`
    repairs are counted only: whoever writes the repaired rows has dealt with them."""

    def __init__(
        self,
        options: Options,
        measure: Measure | None = None,
        sink: Sink | None = None,
        keep_faulty: bool = False,
        told: bool = True,
    ):
        self.options, self.measure, self.sink = options, measure, sink
        self.keep_faulty, self.told = keep_faulty, told
        self.mends = options.asked >= repair.CONVERTING
        self.plain = self._fast_path()
        self.take = self._take if sink or measure else None

    def _fast_path(self) -> PlainRows | PlainPairs | None:
        if self.sink and self.sink.needs_rows:
            return None
        if self.options.task == "sft":
            return PlainRows.for_run(self.options)
        return PlainPairs.for_run(self.options) if self.options.task in ("dpo", "rm") and not self.sink else None

    def part(self, batch: Batch, place: Place, split: str | None = None, drop: dict[int, Note] | None = None) -> Part:
        """`split` is the part of the data that the file belongs to, where that is told; `drop` are rows of the batch,
        counted from 0, that are refused as repeats of others."""
        run = _Run(self, place, split, drop or {})
        if isinstance(batch, list):
            if self.measure:
                self.measure.look_ahead([])
            for item in batch:
                run.item(item)
        for lines in blocks_of(batch, place.file):
            if self.measure:
                self.measure.look_ahead(lines.lines)
            if self.plain is None or split is not None or drop:
                run.lines(lines)
            else:
                self.plain.judge(lines, place.line, run.part, self.take, run.line)
        return run.part

    def _take(self, line: bytes, row: dict, part: Part) -> bool:
        """What is done with a plain line beyond counting it. False when there is something to tell about it."""
        if self.measure and not self.measure.fits(row, part):
            return False
        return self.sink is None or self.sink.take_line(line, row, part)


class _Run:
    """The slow path through one batch: any row, any fault."""

    def __init__(self, judge: Judge, place: Place, split: str | None, drop: dict[int, Note]):
        self.judge, self.part = judge, Part(Keys(judge.options.task))
        self.place, self.split, self.drop = place, split, drop
        self.options = judge.options
        self.file = shown(place.file)
        self.setting = Setting(self.options.family, home(place.file), self.options.shown)
        self.said: set[str] = set()
        self.explained: Counter[str] = Counter()

    def line(self, text: bytes) -> None:
        """The next line of the batch."""
        self.lines(Lines(text))

    def lines(self, lines: Lines) -> None:
        """The next lines of the batch."""
        part, place = self.part, self.place
        for item in rows_of(lines, place.file, place.line + part.lines, place.row + part.rows):
            self.item(item)
        part.lines += len(lines.lines)

    def item(self, item: RawRow | Problem) -> None:
        part = self.part
        if isinstance(item, Problem):
            if item.code in MENDED and self.judge.mends:
                part.repaired[item.code] += 1
            else:
                part.problems.append(item)
            return
        if item.fault:
            part.problems.append(item.fault)
            self._take(Checked(item, None, [item.fault], [], self.file))
        else:
            self._row(item)
        part.rows += 1

    def _row(self, item: RawRow) -> None:
        part, notes = self.part, Notes()
        data, layout = process(unwrapped(item.value), self.options, self.setting, notes)
        if layout:
            part.saw(layout, item.line or item.row)
        if data is not None:
            self._compare(data, item.line or item.row, notes)
            if self.options.max_length and (tokens := guessed_tokens(data)) > self.options.max_length:
                text = f"about {tokens} tokens, over --max-length {self.options.max_length}"
                notes.fault("over-length", text)
            if self.judge.measure and not is_refused(notes):
                self._measure(data, notes)
        self._take(self._judged(item, data, notes))

    def _compare(self, data: dict, line: int, notes: Notes) -> None:
        """What a row is in a set of rows."""
        at = self.part.rows
        if at in self.drop:
            notes.found.append(self.drop[at])
        self.part.keys.put(at, data, self.split)
        self.part.sums.types.add(data, self.file, line)
        expected = self.options.has_margin
        if "chosen" not in data:
            return
        self.part.sums.bias.add(len(answer_text(data["chosen"])), len(answer_text(data["rejected"])))
        if expected is not None and ("margin" in data) != expected:
            this, first = ("no", "one") if expected else ("a", "none")
            notes.fault("margin-missing", f"{this} margin here, {first} in the first valid row", "margin")

    def _measure(self, data: dict, notes: Notes) -> None:
        try:
            self.judge.measure.row(data, self.part, notes)
        except RenderError as error:
            notes.fault(error.code, str(error), error.path)

    def _judged(self, raw: RawRow, data: dict | None, notes: Notes) -> Checked:
        """The row with its problems told to the part."""
        part = self.part
        refused = data is None or is_refused(notes) or part.rows in self.drop
        part.valid += not refused
        problems = [self._problem(note, raw) for note in notes.found]
        tellable = problems + [self._problem(note, raw) for note in notes.repairs] if self.judge.told else problems
        for problem in tellable:
            if problem.code in EXPLAINED and self.explained[problem.code] < EXPLAINED_ROWS:
                self._explain(problem, raw)
            if problem.code not in self.said:
                part.problems.append(problem)
        once = ONCE | {"unknown-columns"} if raw.header else ONCE
        self.said.update(problem.code for problem in tellable if problem.code in once)
        part.once |= self.said
        repairs = [note.code for note in notes.repairs] + notes.silent
        if not refused:
            part.repaired.update(repairs)
        return Checked(raw, None if refused and not self.judge.keep_faulty else data, problems, repairs, self.file)

    def _explain(self, problem: Problem, raw: RawRow) -> None:
        """Note what the schema of rows says of the problem that is told next."""
        self.explained[problem.code] += 1
        if told := explain(unwrapped(raw.value), self.options.task, problem.path):
            self.part.hints[len(self.part.problems)] = told

    def _problem(self, note: Note, raw: RawRow) -> Problem:
        """Unknown columns of a table are a fault of the line that names them."""
        in_header = note.code == "unknown-columns" and raw.header
        return note.problem(self.file, raw.header if in_header else raw.line, raw.row)

    def _take(self, checked: Checked) -> None:
        if self.judge.sink:
            self.judge.sink.take(checked, self.part)


def unwrapped(value: object) -> object:
    """The row inside an entry of a rejects file, so that a corrected one can be converted again."""
    return value["input"] if isinstance(value, dict) and value.keys() == REJECT_KEYS else value


def is_refused(notes: Notes) -> bool:
    """Whether what was found refuses a row."""
    return any(CODES[note.code].severity == "error" for note in notes.found)
