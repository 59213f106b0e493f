"""Runs a command on a node of Ray, as ssh would: `python -m syrtos_clusters.ray.reach HOST WORDS`.

Without words it prints the hosts of the moment, one to a line. It knows nothing of Ray: it asks the
one process of the run that does, and joins its own standard input, output and error to the
command's.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Sequence

from syrtos.errors import SyrtosError
from syrtos.settings import environment
from syrtos_clusters.ray import agent_socket

_PIECE = 1 << 18


def main(words: Sequence[str]) -> str | int:
    """Does what the words ask for; returns an exit code, or a sentence."""
    path = environment().get(agent_socket.VARIABLE, "")
    try:
        if not words:
            print(*agent_socket.ask(path)[0].split(), sep="\n")
            return 0
        _, (link, complaints) = agent_socket.ask(
            path, host=words[0], command=shlex.split(" ".join(words[1:]))
        )
    except SyrtosError as error:
        return str(error)
    except OSError:
        return (
            "the run has no connection to Ray any more. Give the command with the same --run-dir"
            " again: it goes on from the last snapshot (`syrtos resume` knows no cluster)"
        )
    return _join(link, complaints)


def _join(link: int, complaints: int) -> int:
    """Passes on what comes, until the command's side has ended."""
    told = threading.Thread(target=_copy, args=(complaints, 2), daemon=True)
    told.start()
    threading.Thread(target=_copy, args=(0, link), daemon=True).start()
    _copy(link, 1)
    # A child of the command may hold the pipe for as long as it likes.
    told.join(1.0)
    return 0


def _copy(source: int, target: int) -> None:
    try:
        while piece := os.read(source, _PIECE):
            view = memoryview(piece)
            while view:
                view = view[os.write(target, view) :]
    except OSError:
        return  # either end is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
