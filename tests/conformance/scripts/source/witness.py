"""Writes down what a script is given: arguments, variables, files, names. It needs nothing but Python."""

import json
import os
import socket
import sys
from pathlib import Path

hosts = json.loads(os.environ["SM_HOSTS"])
config = Path(os.environ["SM_INPUT_CONFIG_DIR"])
data = Path(os.environ["SM_INPUT_DIR"]) / "data"
model = Path(os.environ["SM_MODEL_DIR"])
seen = {
    "arguments": sys.argv[1:],
    "variables": {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("SM_", "SAGEMAKER_", "TF_"))
    },
    "folder": os.getcwd(),
    "host": socket.gethostname(),
    "addresses": {host: socket.gethostbyname(host) for host in hosts},
    "config": {path.name: json.loads(path.read_text()) for path in sorted(config.glob("*.json"))},
    "data": sorted(path.relative_to(data).as_posix() for path in data.rglob("*.npz")),
}
(model / f"{os.environ['SM_CURRENT_HOST']}.json").write_text(json.dumps(seen))
(Path(os.environ["SM_OUTPUT_DATA_DIR"]) / f"{os.environ['SM_CURRENT_HOST']}.txt").write_text("data")
print(f"{os.environ['SM_CURRENT_HOST']} has seen {sys.argv[1:]}; score={len(hosts)}.5")
