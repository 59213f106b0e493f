"""`syrtos tune lr`: a learning-rate range test of an unchanged script."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from syrtos.cli.execution import this_machine
from syrtos.cli.parsing import number
from syrtos.errors import ConfigurationError
from syrtos.launch.terminal import output
from syrtos.settings import TuneTrial
from syrtos_tune import rates, runner, text
from syrtos_tune.commands import tuning
from syrtos_tune.rates import Rates
from syrtos_tune.runner import TrialError
from syrtos_tune.terminal import chart

_FROM, _TO, _STEPS, _LEAST = 1e-6, 1.0, 100, 20


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the form's options."""
    made = tuning.parser(
        "lr",
        "Find a learning rate: it rises from batch to batch, until the loss diverges, in the first"
        " `fit` of an unchanged script.",
    )
    made.add_argument(
        "--from",
        type=number,
        default=_FROM,
        dest="first",
        metavar="RATE",
        help="of the first batch (default: %(default)s)",
    )
    made.add_argument(
        "--to",
        type=number,
        default=_TO,
        dest="last",
        metavar="RATE",
        help="of the last batch (default: %(default)s)",
    )
    made.add_argument(
        "--steps",
        type=int,
        default=_STEPS,
        metavar="S",
        help="batches over which the rate rises (default: %(default)s)",
    )
    tuning.add_script(made)
    return made


def main(arguments: list[str]) -> int:
    """Tests, prints, and returns the exit code: 1 where no rate can be recommended."""
    chosen = parser().parse_args(arguments)
    if not 0 < chosen.first < chosen.last < float("inf") or chosen.steps < _LEAST:
        raise ConfigurationError(
            f"The rate rises from more than 0 (`--from`) to a higher one (`--to`), over {_LEAST}"
            f" batches or more (`--steps`). Received: {chosen.first}, {chosen.last} and"
            f" {chosen.steps}."
        )
    spec, run_dir = tuning.spec_of(chosen), tuning.run_dir_of(chosen)
    trial = TuneTrial(kind="lr", steps=chosen.steps, first_rate=chosen.first, last_rate=chosen.last)
    output.say(
        f"the trial runs {spec.program.name} up to its first `fit`, and {chosen.steps} batches of"
        f" it; results in {run_dir}"
    )
    try:
        ran = runner.run(spec, this_machine(), trial, run_dir / "trial")
        runner.check_has_trained(ran)
    except TrialError as error:
        return tuning.print_end(error)
    found = rates.conclude(ran.found["rates"], ran.found["losses"], chosen.steps)
    tuning.finish(chosen, run_dir, text.rate_facts(ran.found, found))
    if not chosen.json:
        _print(found, ran.found)
        print(f"\npicture: {run_dir / tuning.PAGE}")
    return 0 if found.recommended else 1


def _print(found: Rates, measured: Mapping[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    tested: list[float] = measured["rates"][: len(found.smoothed)]
    if tested:
        marked = (
            None
            if found.recommended is None
            else min(
                range(len(tested)), key=lambda k: abs(tested[k] / (found.recommended or 1) - 1)
            )
        )
        console.print("smoothed loss")
        for line in chart(found.smoothed, marked=marked):
            console.print(line)
        console.print(
            f"{'':11}learning rate {tested[0]:.3g} to {tested[-1]:.3g}, each batch by the same"
            " factor"
        )
    for sentence in text.of_rates(found, measured["rate"], max(measured["rates"])):
        console.print(f"\n{sentence}")
