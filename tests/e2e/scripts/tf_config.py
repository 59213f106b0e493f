"""What a worker of a TF_CONFIG world sees: ``tf_config.py FOLDER [CODE]``; writes FOLDER/RANK, and ends with CODE."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import syrtos

total = float(syrtos.allreduce(np.ones(1), syrtos.ReduceOp.SUM)[0])
seen = {
    "size": syrtos.size(),
    "total": total,
    "task": json.loads(os.environ["TF_CONFIG"])["task"],
    "host": os.uname().nodename,
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "own": os.environ.get("OF_THIS_TASK"),
}
(Path(sys.argv[1]) / str(syrtos.rank())).write_text(json.dumps(seen))
syrtos.barrier()
if sys.argv[2:] == ["wait"]:
    time.sleep(300)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
