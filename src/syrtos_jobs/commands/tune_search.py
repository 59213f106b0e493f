"""`syrtos tune SEARCH.yaml`: runs one tuning job, with or without a service."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from syrtos.errors import ConfigurationError
from syrtos.interrupts import exit_code, raise_end_signals
from syrtos.launch.terminal import output

if TYPE_CHECKING:
    from syrtos_jobs.api.service import Service
    from syrtos_jobs.client.search_file import SearchFile
    from syrtos_jobs.store.tunings import TuningRecord
    from syrtos_jobs.tuning.search import Search
    from syrtos_jobs.tuning.trials import SearchTrial

_LOOK = 0.5
_SHOWN = 8  # trials, while they run


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the form's options."""
    made = argparse.ArgumentParser(
        prog="syrtos tune",
        description=(
            "Looks for the best hyperparameters by training jobs. With a running `syrtos serve`"
            " they go through its queue; without one they run here. The same command again goes on"
            " with the trials that have finished, as long as the file and its script are the same."
        ),
    )
    made.add_argument(
        "file",
        metavar="SEARCH.yaml",
        type=Path,
        help="a job as `syrtos submit` takes it, with objective and parameters",
    )
    return made


def main(arguments: list[str]) -> int:
    """Begins the search, or goes on with it, and follows it until it ends."""
    from syrtos_jobs.client import local, search_file
    from syrtos_jobs.store.home import Home

    asked = search_file.read(parser().parse_args(arguments).file)
    raise_end_signals()  # the end of this command ends the search
    with local.running(Home()) as (service, own):
        return _follow(service, own, asked)


def _follow(service: Service, own: bool, asked: SearchFile) -> int:
    from syrtos_jobs.client import local

    name = asked.name
    try:
        _begin(service, asked)
        record = _watch(service, name)
    except KeyboardInterrupt as error:
        if not own:
            output.say(
                f"{name} goes on in the service; the same command shows it, `syrtos stop {name}`"
                " ends it."
            )
            return exit_code(error)
        local.stop_search(service, name)
        output.say(f"stopping {name}")
        _show_results(service, asked)
        output.say(
            "the search was stopped; the same command goes on with the trials that have finished."
        )
        return exit_code(error)
    _show_results(service, asked)
    if record.failure:
        ended = "ended before all trials were begun" if record.status == "Completed" else "failed"
        output.say(f"the search {name} {ended}. {record.failure}")
    return 0 if record.status == "Completed" else 1


def _begin(service: Service, asked: SearchFile) -> None:
    """Creates the tuning job, or goes on with the one that the same file has begun."""
    from syrtos_jobs.tuning.operations import Operations

    operations, name = Operations(service), asked.name
    record = service.tunings.get(name)
    while record is not None and record.status == "Stopping":
        time.sleep(_LOOK)
        record = service.tunings.get(name)
    if record is None:
        _create(service, asked)
    elif record.status in ("Stopped", "Failed") or (record.final and record.failure):
        # The source that was uploaded for the search may be gone.
        _request(service, asked)
        operations.go_on(name)
        failed = "failed before, and " if record.status == "Failed" else ""
        output.say(f"{name} {failed}goes on with the trials that have finished.")
    elif record.status == "InProgress":
        output.say(f"{name} is going on.")
    else:
        output.say(
            f"{name} has finished before: change the file (its seed, for instance) for another"
            " search."
        )


def _request(service: Service, asked: SearchFile) -> dict[str, Any]:
    """Uploads the source, and returns the request for the tuning job."""
    from syrtos_jobs.client.estimator import Estimator

    estimator = Estimator(**{"output_path": "runs", **asked.job})
    return asked.request(estimator.request(service, asked.inputs, asked.name))


def _create(service: Service, asked: SearchFile) -> None:
    from syrtos_jobs.api.service import ApiError
    from syrtos_jobs.tuning.operations import Operations

    request = _request(service, asked)
    try:
        Operations(service).create_hyper_parameter_tuning_job(request)
    except ApiError as error:
        raise ConfigurationError(str(error)) from error
    output.say(f"begins the search {asked.name}{_warm_start_text(service, asked.name)}")


def _warm_start_text(service: Service, name: str) -> str:
    """Returns how many results of earlier searches count.

    The text is the end of a sentence. It is empty if no results are inherited.
    """
    from syrtos_jobs.tuning import warm_start

    record, search, _ = _look(service, name)
    if not record.inherited:
        return ""
    count = len(warm_start.known_trials(service, search, record.inherited))
    return (
        f", which learns from {count} of {len(record.inherited)} trials of"
        f" {' and '.join(search.parents)} (with a result, and in range)"
    )


# -- while it goes on ------------------------------------------------------------------------------


def _watch(service: Service, name: str) -> TuningRecord:
    """Shows the trials until the search has ended.

    On a terminal it shows a picture that changes, elsewhere a line for each trial that has ended.
    """
    console = Console(stderr=True, highlight=False)
    told = {trial.name for trial in _look(service, name)[2] if not trial.active}
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            record, search, trials = _look(service, name)
            if console.is_terminal:
                live.update(_picture(record, search, trials), refresh=True)
            else:
                _tell(search, trials, told)
            if record.final:
                return record
            time.sleep(_LOOK)


def _look(service: Service, name: str) -> tuple[TuningRecord, Search, list[SearchTrial]]:
    from syrtos_jobs.tuning.operations import search_of
    from syrtos_jobs.tuning.trial_rows import trials_of

    record = service.tunings.get(name)
    if record is None:
        raise ConfigurationError(f"The tuning job {name} was deleted.")
    search = search_of(record)
    return record, search, trials_of(service.store, search, record)


def _picture(record: TuningRecord, search: Search, trials: Sequence[SearchTrial]) -> Group:
    ended = sum(not trial.active for trial in trials)
    most = f" of {search.trials}"
    head = (
        f"{search.strategy} search {record.name}: {ended}{most} trials, {len(trials) - ended}"
        " running"
    )
    latest = sorted(trials, key=lambda trial: (trial.active, trial.ended or 0.0, trial.number))[
        -_SHOWN:
    ]
    return Group(Text(head, style="bold"), Text(_best(search, trials)), _table(search, latest))


def _tell(search: Search, trials: Sequence[SearchTrial], told: set[str]) -> None:
    for trial in trials:
        if not trial.active and trial.name not in told:
            told.add(trial.name)
            value = (
                f"{search.metric} {_number(trial.objective)}"
                if trial.has_succeeded
                else trial.status
            )
            more = (
                f"; `syrtos logs {trial.name}` shows its output" if trial.status == "Failed" else ""
            )
            output.say(f"trial {trial.number} of {search.trials}: {value}, {_values(trial)}{more}")


def _best(search: Search, trials: Sequence[SearchTrial]) -> str:
    from syrtos_jobs.tuning.trials import best

    found = best(search, trials)
    return (
        f"best so far: {search.metric} {_number(found.objective)}, {_values(found)}"
        if found
        else "no result yet"
    )


def _table(search: Search, trials: Sequence[SearchTrial]) -> Table:
    names = [parameter.name for parameter in search.space]
    table = Table(
        "trial",
        "status",
        search.metric,
        *names,
        "seconds",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for trial in trials:
        values = [_plain(trial.tuned[name]) for name in names]
        table.add_row(
            str(trial.number), _status(trial), _number(trial.objective), *values, _seconds(trial)
        )
    return table


def _status(trial: SearchTrial) -> str:
    """Returns the status of a trial in a colour, as markup.

    A trial that was stopped early counts with what it had.
    """
    if trial.status == "InProgress":
        return "[cyan]Running[/]" if trial.started else "Waiting"
    return f"[{ {'Completed': 'green', 'Failed': 'red'}.get(trial.status, 'yellow') }]{trial.status}[/]"


def _seconds(trial: SearchTrial) -> str:
    return f"{(trial.ended or time.time()) - trial.started:.0f}" if trial.started else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _values(trial: SearchTrial) -> str:
    return ", ".join(f"{name}={_plain(text)}" for name, text in trial.tuned.items())


def _plain(text: str) -> str:
    """Returns a value without the quotes of JSON, and with as many digits as one reads."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return text.strip('"')


# -- afterwards ------------------------------------------------------------------------------------


def _show_results(service: Service, asked: SearchFile) -> None:
    from syrtos_jobs.tuning.trials import best

    _, search, trials = _look(service, asked.name)
    sign = -1 if search.maximize else 1
    order = sorted(
        trials, key=lambda t: (not t.has_succeeded, sign * (t.objective or 0.0), t.number)
    )
    out = Console(highlight=False)
    if trials:
        out.print(_table(search, order))
    failed = [trial for trial in trials if trial.status == "Failed"]
    if failed:
        output.say(
            f"trial {failed[-1].number}: {failed[-1].failure} `syrtos logs {failed[-1].name}` shows"
            " its output."
        )
        if asked.alone:
            output.say(asked.alone)
    if found := best(search, trials):
        path = _write_best(asked, found)
        out.print(
            f"\nbest: trial {found.number}, {search.metric} {_number(found.objective)}:"
            f" {_values(found)}",
            soft_wrap=True,
        )
        out.print(f"train with them:  syrtos submit {path}", soft_wrap=True)


def _write_best(asked: SearchFile, found: SearchTrial) -> Path:
    """Writes the job with the best hyperparameters to a file, and returns its path.

    The file is one for `syrtos submit`.
    """
    import yaml

    path = Path("runs") / asked.name / "best.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml.safe_dump(asked.with_values(found.tuned), sort_keys=False, allow_unicode=True),
        encoding="utf-8",
    )
    return path
