"""Conversion of one script, whose result is shown as a diff or written."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import os
import shutil
import tokenize
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import libcst as cst
from libcst import matchers as m

from syrtos.doctor import diagnosis
from syrtos.doctor.finding import Severity
from syrtos.doctor.program import ScriptProgram
from syrtos.doctor.script import NotParsed, parse, read, with_local_modules
from syrtos.errors import ConfigurationError
from syrtos_migrate import conversion_checks
from syrtos_migrate.estimator import Estimators
from syrtos_migrate.multi_gpu import MultiGpu
from syrtos_migrate.per_worker import PerWorker
from syrtos_migrate.spellings import Spellings
from syrtos_migrate.transformer import Conversion, code, convert

_ADDED = ("WORKERS", "LearningRateSchedule(", "LearningRateWarmup(", "syrtos.rank()")
_CONVERSIONS: Sequence[type[Conversion]] = (PerWorker, MultiGpu, Estimators, Spellings)

# Findings that a script has in every spelling; names that the conversion itself loses are looked
# for by themselves.
_OTHER_TROUBLES = frozenset({"missing-package", "absent-backend", "undefined-name"})


@dataclasses.dataclass(frozen=True)
class Result:
    """A script before and after its conversion.

    Attributes:
        path: the path of the script.
        before: its text.
        after: the converted text.
        notes: pairs of a line of the script and a change of what it does, in words.
        left: pairs of a line, or 0, and what has to be done by hand.
    """

    path: Path
    before: str
    after: str
    notes: Sequence[tuple[int, str]]
    left: Sequence[tuple[int, str]]

    @property
    def is_changed(self) -> bool:
        """Returns whether the conversion changes anything."""
        return self.before != self.after

    @property
    def diff(self) -> str:
        """The changes in the unified format."""
        lines = difflib.unified_diff(
            self.before.splitlines(True),
            self.after.splitlines(True),
            str(self.path),
            f"{self.path} (plain Keras 3)",
        )
        return "".join(lines)


def convert_script(path: Path, workers: int) -> Result:
    """Converts a script to plain Keras 3 with the mathematics that it had on ``workers`` workers.

    A script in which something would have to be guessed is left as it is, with the reasons in
    `Result.left`.

    Raises:
        ConfigurationError: the script can't be read or parsed, or the conversion does not
            understand it.
    """
    script = read(path)
    text = script.text
    guessed = conversion_checks.problems(script)
    others = [
        each.path for each in with_local_modules(script)[1:] if conversion_checks.speaks(each)
    ]
    if others and conversion_checks.speaks(script):
        guessed = [
            *guessed,
            (
                0,
                (
                    f"{others[0].name}, which the script imports, belongs to the same training: put"
                    " both into one file"
                ),
            ),
        ]
    # A conversion that had to guess would be another training.
    if guessed:
        return Result(path, text, text, (), guessed)
    try:
        return _convert_text(path, text, workers)
    except (cst.CSTValidationError, cst.ParserSyntaxError, NotParsed, RecursionError) as error:
        raise ConfigurationError(
            f"{path} can't be converted: the conversion does not understand something in it"
            f" ({error}). The script itself may be right."
        ) from error


def _convert_text(path: Path, text: str, workers: int) -> Result:
    module = cst.parse_module(text)
    notes, left, wants = [], [], set()
    # Each conversion is given what the one before has made: lines are counted back to the script's
    # own.
    for kind in _CONVERSIONS:
        conversion, seen = kind(workers), module.code
        if not any(word in seen for word in kind.WORDS):
            continue
        module = convert(module, conversion)
        notes += [(_line_before(text, seen, line), says) for line, says in conversion.notes]
        left += [(_line_before(text, seen, line), says) for line, says in conversion.left]
        wants |= conversion.wants
    after = _with_wanted(module, wants, workers).code if wants else module.code
    left += [] if after == text else _find_remaining(path, text, after)
    return Result(path, text, after, sorted(set(notes)), sorted(set(left)))


def _line_before(before: str, after: str, number: int) -> int:
    """Returns the number that a line of a changed text had before the change."""
    if before == after:
        return number
    # Without `autojunk`, which leaves lines that come often in a long file out of the comparison.
    changes = difflib.SequenceMatcher(
        None, before.splitlines(), after.splitlines(), autojunk=False
    ).get_opcodes()
    return next(min(i + number - j, end) for _, i, end, j, last in changes if number <= last)


def _find_remaining(path: Path, before: str, after: str) -> list[tuple[int, str]]:
    """Returns what would still break, each with a text that names the line of the converted script.

    That is names that nothing gives a value any more, and those findings of the doctor that end a
    run.
    """
    script = parse(path, after)
    lost = _bound_names(parse(path, before).tree) - _bound_names(script.tree)
    used = {
        node.id: node.lineno
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Name) and node.id in lost
    }
    found = [
        (
            0,
            (
                f"line {line} of the converted script: `{script.line(line).strip()}` still needs"
                f" `{name}`"
            ),
        )
        for name, line in used.items()
    ]
    worst = [
        each
        for each in diagnosis.findings(ScriptProgram([script]))
        if each.severity is Severity.BREAKS and each.rule not in _OTHER_TROUBLES
    ]
    return found + [
        (0, f"line {each.line} of the converted script: {each.says}: {each.fix}") for each in worst
    ]


def _bound_names(tree: ast.Module) -> set[str]:
    """Returns the names that assignments, parameters and imports in a file give a value."""
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    imports = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    ]
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return stored | arguments | {name.asname or name.name.partition(".")[0] for name in imports}


def _with_wanted(module: cst.Module, wants: set[str], workers: int) -> cst.Module:
    """Adds the definitions that the converted code refers to, after the imports."""
    lines: list[str] = []
    if "syrtos" in wants:
        lines += ["import syrtos", "", "syrtos.init()"]
    if wants & {"keras", "learning_rate_callbacks"} and not _imports_keras(module):
        lines += (
            ["import keras"]
            if "import tensorflow as tf" not in module.code
            else ["keras = tf.keras"]
        )
    if wants & {"WORKERS", "learning_rate_callbacks"}:
        lines += [
            "",
            (
                f"WORKERS = {workers}  # a step trains on the batches of so many workers, however"
                " many processes there are"
            ),
        ]
    if "learning_rate_callbacks" in wants:
        lines += [
            "",
            "",
            resources.files("syrtos_migrate").joinpath("learning_rate_callbacks.txt").read_text(),
        ]
    if not lines:
        return module
    added = list(cst.parse_module("\n".join(lines) + "\n").body)
    added[:1] = [
        first.with_changes(leading_lines=[cst.EmptyLine(indent=False)]) for first in added[:1]
    ]
    place = _insertion_index(module)
    rest = list(module.body[place:])
    if rest and isinstance(first := rest[0], cst.SimpleStatementLine | cst.BaseCompoundStatement):
        blank = (
            []
            if any(line.comment is None for line in first.leading_lines)
            else [cst.EmptyLine(indent=False)]
        )
        rest[0] = first.with_changes(leading_lines=[*blank, *first.leading_lines])
    return module.with_changes(body=[*module.body[:place], *added, *rest])


def _insertion_index(module: cst.Module) -> int:
    """Returns the index in the body after the imports, but before lines that need what is added."""
    body = module.body
    imports = 1 + max((number for number, line in enumerate(body) if _is_import(line)), default=-1)
    first = 1 if body and module.get_docstring() is not None else 0
    needs = next(
        (number for number, line in enumerate(body) if any(word in code(line) for word in _ADDED)),
        len(body),
    )
    return max(min(imports, needs), first)


def _is_import(line: cst.CSTNode) -> bool:
    return m.matches(line, m.SimpleStatementLine([m.Import() | m.ImportFrom()]))


def _imports_keras(module: cst.Module) -> bool:
    return (
        any(
            code(alias) in ("keras", "tensorflow.keras as keras")
            for alias in m.findall(module, m.ImportAlias())
        )
        or "from tensorflow import keras" in module.code
    )


def fix(path: Path, workers: int, is_written: bool) -> int:
    """Shows a script in today's Keras as a diff, and writes it where that is asked for.

    Returns:
        The exit code of `syrtos doctor --fix`: 1 where something has to be done by hand.

    Raises:
        ConfigurationError: the script can't be read, parsed or written.
    """
    result = convert_script(path, workers)
    show(result)
    if is_written and (result.is_changed or result.left):
        write(result)
    return int(bool(result.left))


def show(result: Result) -> None:
    """Prints the diff, the notes, and what has to be done by hand."""
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(highlight=False, soft_wrap=True)
    if not result.is_changed:
        words = (
            "nothing is changed"
            if result.left
            else (
                "nothing to change: it has no old API (files, data and rates are for you to change)"
            )
        )
        console.print(f"{result.path}: {words}.")
    elif console.is_terminal:
        console.print(Syntax(result.diff, "diff", background_color="default", word_wrap=True))
    else:
        print(result.diff, end="")
    for line, text in result.notes:
        console.print(f"note, line {line}: {text}.")
    for line, text in result.left:
        console.print(f"by hand{f', line {line}' if line else ''}: {text}.")


def write(result: Result) -> None:
    """Replaces the script, and keeps the original beside it under the name with ``.before`` added.

    Raises:
        ConfigurationError: a file of that name exists, something has to be done by hand, or a file
            can't be written.
    """
    path = Path(os.path.realpath(result.path))
    kept = path.with_name(f"{path.name}.before")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    if result.left:
        raise ConfigurationError(
            f"{result.path} is left as it is: what has to be done by hand comes first, see above."
        )
    if kept.exists():
        raise ConfigurationError(
            f"{kept} exists, and would be overwritten by today's {result.path.name}. Remove or"
            " rename it first."
        )
    original = result.path.read_bytes()
    # The script keeps its encoding, its ends of lines and its rights.
    encoding, _ = tokenize.detect_encoding(iter(original.splitlines(True)).__next__)
    end = next((end for end in ("\r\n", "\n", "\r") if end.encode() in original), "\n")
    try:
        draft.write_text(result.after, encoding, newline=end)
        shutil.copymode(path, draft)
        # The original is there at any moment.
        shutil.copy2(path, kept)
        draft.replace(path)
    except OSError as error:
        for made in (draft, kept):
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{result.path} is left as it is: {error.filename or kept} can't be written"
            f" ({error.strerror})."
        ) from error
    print(f"{result.path} is written; what it was is in {kept}.")
