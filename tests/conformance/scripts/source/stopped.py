"""A script that saves what it has when it is told to end."""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

host = os.environ["SM_CURRENT_HOST"]


def save(_number: int, _frame: FrameType | None) -> None:
    (Path(os.environ["SM_MODEL_DIR"]) / f"{host}.txt").write_text(f"saved by {host}")
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
print(f"{host} is ready", flush=True)
time.sleep(300)
