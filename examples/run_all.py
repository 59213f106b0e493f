"""Runs all examples on two workers, and prints one line for each: ``python examples/run_all.py [NAME ...]``. Exit code 1 if one fails."""

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = {"parameter_server": ["--ps", "1"]}


def main() -> int:
    """Runs the examples named on the command line, or all."""
    scripts = [path for path in sorted(HERE.glob("**/*.py")) if path != Path(__file__)]
    unknown = set(sys.argv[1:]) - {path.stem for path in scripts}
    if unknown:
        print(
            f"There is no example {', '.join(sorted(unknown))}. There are {', '.join(path.stem for path in scripts)}."
        )
        return 2
    return max([run(path) for path in scripts if path.stem in sys.argv[1:] or not sys.argv[1:]])


def run(script: Path) -> int:
    """Runs one example; 0 if it succeeded, else 1."""
    name = script.relative_to(HERE).with_suffix("").as_posix()
    run_dir = HERE.parent / "runs" / "examples" / name
    flags = ["--oversubscribe", "--run-dir", str(run_dir), *FLAGS.get(script.stem, [])]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "syrtos", "run", "-n", "2", *flags, str(script)],
        capture_output=True,
        text=True,
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    output = run_dir / "output.txt"
    output.write_text(done.stdout + done.stderr)
    result = "ok    " if done.returncode == 0 else f"FAILED (exit code {done.returncode})"
    print(f"{result} {name:35} {time.monotonic() - started:6.0f} s  {output}", flush=True)
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
