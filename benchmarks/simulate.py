"""`make bench-simulate`: what a step would take on many hosts, and how far such a forecast is from what two hosts take here.

A model is trained on one host, and the forecast of `syrtos forecast` for the same workers on two is compared with what they take on two network
namespaces, joined by 1 Gbit/s whose latency and bandwidth are measured (needs root, iproute2 and sshd). More workers than cores take turns, on one host and on
two alike. Then it prints the forecast for 8 to 1024 workers. The lines behind it go to benchmarks/results/simulate-DATE-MACHINE.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "e2e"))

import netns  # noqa: E402 - it is found by the line above

from syrtos.report import forecast  # noqa: E402
from syrtos.report.forecast import Layout, Link  # noqa: E402
from syrtos.report.summary import summarize  # noqa: E402

SYRTOS = str(Path(sys.executable).parent / "syrtos")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "NPROC": "1"}
PLAIN = ["--max-restarts", "0", "--check-every", "0", "--timeout", "900"]
STEPS = {"mlp": 10, "characters": 60}
Line = dict[str, Any]


def script(model: str) -> list[str]:
    return [str(HERE / "wire_fit.py"), model, "--steps", str(STEPS[model])]


def on_one_host(model: str, workers: int, run_dir: str) -> forecast.MeasuredStep:
    command = [
        SYRTOS,
        "run",
        "-n",
        str(workers),
        "--oversubscribe",
        *PLAIN,
        "--run-dir",
        run_dir,
        *script(model),
    ]
    subprocess.run(command, env={**os.environ, **ONE_THREAD}, check=True, capture_output=True)
    return forecast.measured_step(Path(run_dir))


def on_hosts(hosts: netns.Hosts, workers: int, run_dir: str, *words: str) -> str:
    """What the run printed; ``words`` are its script and arguments."""
    command = [
        SYRTOS,
        "run",
        *hosts.flags(workers // 2),
        "--oversubscribe",
        *PLAIN,
        "--run-dir",
        run_dir,
        *words,
    ]
    done = hosts.run(command, timeout=1200, env=ONE_THREAD)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def link_between(hosts: netns.Hosts, folder: str) -> Link:
    """As a pair of workers measures it."""
    printed = on_hosts(hosts, 2, f"{folder}/link", str(HERE / "link.py"))
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return Link(**found)


def compare(hosts: netns.Hosts, link: Link, model: str, workers: int, folder: str) -> Line:
    step = on_one_host(model, workers, f"{folder}/one-{model}-{workers}")
    on_hosts(hosts, workers, f"{folder}/two-{model}-{workers}", *script(model))
    expected = 1e3 * forecast.hierarchical(step, Layout(workers, 2, link))
    found = summarize(Path(f"{folder}/two-{model}-{workers}")).step_ms
    one = 1e3 * (step.own + step.inside)
    return {
        "model": model,
        "workers": workers,
        "one_host_ms": one,
        "forecast_ms": expected,
        "measured_ms": found,
        "error": expected / found - 1,
    }


def table(lines: list[Line], link: Link) -> Table:
    shown = Table(
        title=f"milliseconds of a step on two hosts; the link: {1e6 * link.latency:.0f} µs, {8e-9 * link.bandwidth:.2f} Gbit/s"
    )
    for name in ("model", "workers", "one host", "forecast", "measured", "error"):
        shown.add_column(name, justify="right")
    for line in lines:
        times = [f"{line[name]:,.0f}" for name in ("one_host_ms", "forecast_ms", "measured_ms")]
        shown.add_row(line["model"], str(line["workers"]), *times, f"{line['error']:+.0%}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=list(STEPS), default=list(STEPS))
    parser.add_argument(
        "--workers", nargs="*", type=int, default=[2, 4, 8], help="on both hosts together"
    )
    chosen = parser.parse_args()
    if reason := netns.missing():
        sys.exit(f"bench-simulate {reason}")
    path = (
        HERE
        / "results"
        / f"simulate-{time.strftime('%Y-%m-%d')}-{platform.machine()}-{os.cpu_count()}cores.jsonl"
    )
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder, netns.two_hosts("1gbit") as hosts:
        link = link_between(hosts, folder)
        for model in chosen.models:
            for workers in chosen.workers:
                lines.append(compare(hosts, link, model, workers, folder))
                print(lines[-1], file=sys.stderr, flush=True)
        path.write_text(
            "".join(
                json.dumps(line | {"latency": link.latency, "bandwidth": link.bandwidth}) + "\n"
                for line in lines
            )
        )
        Console().print(table(lines, link))
        for model in chosen.models:
            print(f"\n{model}:", flush=True)
            many = [
                "-n",
                "8",
                "16",
                "32",
                "64",
                "128",
                "256",
                "512",
                "1024",
                "--gbit",
                "1",
                "10",
                "100",
                "400",
            ]
            subprocess.run(
                [SYRTOS, "forecast", f"{folder}/one-{model}-{min(chosen.workers)}", *many],
                check=True,
            )


if __name__ == "__main__":
    main()
