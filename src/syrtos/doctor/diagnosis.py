"""The list of all rules, and their findings on one script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from syrtos.doctor.finding import Finding
from syrtos.doctor.program import ScriptProgram
from syrtos.doctor.rules import (
    data,
    files,
    horovod,
    loops,
    names,
    needs,
    rates,
    undefined,
    values,
)

RULES: Sequence[Callable[[ScriptProgram], Iterator[Finding]]] = (
    files.files, data.own_randomness, data.seeded_by_rank, data.same_batches, data.uneven_batches, rates.rates,
    rates.steps, horovod.find_unwrapped, horovod.broadcast,
    horovod.wrapped_twice, horovod.one_rank_alone, horovod.old_callbacks, horovod.other_frameworks, loops.own_loop, loops.compiled_updates,
    loops.servers, loops.processes,
    loops.inputs, names.dead_names, names.old_words, values.unsupported_values, names.sessions, names.refused_estimators,
    names.renamed_metrics, needs.missing_imports, needs.hidden_needs, needs.absent_backend, undefined.undefined_names,
)  # fmt: skip


def findings(program: ScriptProgram) -> list[Finding]:
    """Returns all rules' findings, the most severe first. Equal ones in one line appear once."""
    found = {
        (each.path, each.line, each.rule, each.says): each
        for rule in RULES
        for each in rule(program)
    }
    return sorted(found.values())
