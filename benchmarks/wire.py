"""`make bench-wire`: what each way to exchange costs on slow links, between two hosts with one worker each.

The hosts are network namespaces of this machine, joined by a link with a rate and a delay (needs root, iproute2 and sshd). Prints a table; the
lines behind it go to benchmarks/results/wire-DATE-MACHINE.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "e2e"))

import netns  # noqa: E402 - it is found by the line above

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "NPROC": "1"}
LINKS = {"1 Gbit/s": ("1gbit", 0), "100 Mbit/s": ("100mbit", 0), "100 Mbit/s, 50 ms": ("1e8", 50)}
WAYS: dict[str, list[str]] = {
    "every step": [],
    "bf16": ["--compress", "bf16"],
    "PowerSGD, rank 4": ["--compress", "powersgd:4"],
    "every 32 steps": ["--sync-every", "32"],
    "every 100 steps": ["--sync-every", "100"],
    "every 100 steps, bf16": ["--sync-every", "100", "--compress", "bf16"],
}
# The validation loss of the characters, in nats, to which seconds are counted: that of some hundred steps.
TARGET = 2.4
Line = dict[str, Any]


def fit(hosts: netns.Hosts, way: str, model: str, steps: int, epochs: int) -> list[Line]:
    """The lines that a `fit` on both hosts prints."""
    script = [str(HERE / "wire_fit.py"), model, "--steps", str(steps), "--epochs", str(epochs)]
    options = [
        *hosts.flags(1),
        "--timeout",
        "600",
        "--max-restarts",
        "0",
        "--check-every",
        "0",
        "--run-dir",
        "/tmp/syrtos-bench-wire",
        *WAYS[way],
    ]
    command = [str(Path(sys.executable).parent / "syrtos"), "run", *options, *script]
    done = hosts.run(command, timeout=1200, env=ONE_THREAD)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return lines or [{"error": (done.stderr or done.stdout)[-500:]}]


def characters(hosts: netns.Hosts, link: str, way: str, steps: int) -> Line:
    """Milliseconds of a step, and the validation loss after each hundred: that does not depend on the link."""
    lines = fit(hosts, way, "characters", 100, steps // 100)
    last = lines[-1]
    if "error" in last:
        return {"link": link, "way": way, "model": "characters", **last}
    return {
        "link": link,
        "way": way,
        "model": "characters",
        "step_ms": round(1e3 * last["seconds"] / last["steps"], 1),
        "losses": [round(line["val_loss"], 4) for line in lines],
    }


def mlp(hosts: netns.Hosts, link: str, way: str) -> Line:
    """Milliseconds of a step of the 79M parameters: a whole number of rounds; of parts, as many as come before a meeting of all."""
    steps = 256 if "parts" in way else 100 if "100 steps" in way else 32 if "32" in way else 4
    last = fit(hosts, way, "mlp", steps, 1)[-1]
    if "error" in last:
        return {"link": link, "way": way, "model": "mlp", **last}
    return {
        "link": link,
        "way": way,
        "model": "mlp",
        "step_ms": round(1e3 * last["seconds"] / last["steps"], 1),
    }


def steps_to_target(losses: list[float]) -> float | None:
    """Between two evaluations the loss is taken to fall evenly."""
    if losses and losses[0] <= TARGET:
        return 100.0
    for index, (before, after) in enumerate(itertools.pairwise(losses)):
        if after <= TARGET < before:
            return 100 * (index + 1 + (before - TARGET) / (before - after))
    return None


def table(lines: list[Line]) -> Table:
    """A row for each way, and for each link the milliseconds of a step, or the seconds to the target."""
    shown = Table(
        title=f"characters: seconds to a validation loss of {TARGET} (and of a step); MLP of 79M parameters: of a step"
    )
    shown.add_column("exchange")
    columns = list(dict.fromkeys((line["model"], line["link"]) for line in lines))
    for model, link in columns:
        shown.add_column(f"{model}, {link}", justify="right")
    for way in dict.fromkeys(line["way"] for line in lines):
        found = {(line["model"], line["link"]): line for line in lines if line["way"] == way}
        curve = max((line.get("losses", []) for line in found.values()), key=len)
        shown.add_row(
            way, *(cell(found.get(column, {}), steps_to_target(curve)) for column in columns)
        )
    return shown


def cell(line: Line, steps: float | None) -> str:
    if "step_ms" not in line:
        return "-"
    each = f"{line['step_ms']:.0f} ms"
    if line["model"] == "mlp":
        return each
    return f"{steps * line['step_ms'] / 1e3:.0f} s ({each})" if steps else f"- ({each})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps",
        type=int,
        default=800,
        help="of the characters, on the first link; 100 on the others",
    )
    parser.add_argument("--links", nargs="*", choices=list(LINKS), default=list(LINKS))
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument(
        "--models", nargs="*", choices=["characters", "mlp"], default=["characters", "mlp"]
    )
    chosen = parser.parse_args()
    if reason := netns.missing():
        sys.exit(f"bench-wire {reason}")
    path = (
        HERE
        / "results"
        / f"wire-{time.strftime('%Y-%m-%d')}-{platform.machine()}-{os.cpu_count()}cores.jsonl"
    )
    lines: list[Line] = []
    for number, link in enumerate(chosen.links):
        rate, delay = LINKS[link]
        with netns.two_hosts(rate, delay) as hosts, path.open("a", encoding="utf-8") as file:
            for model in chosen.models:
                for way in chosen.ways:
                    line = (
                        characters(hosts, link, way, 100 if number else chosen.steps)
                        if model == "characters"
                        else mlp(hosts, link, way)
                    )
                    lines.append(line)
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    print(line, file=sys.stderr, flush=True)
    Console().print(table(lines))


if __name__ == "__main__":
    main()
