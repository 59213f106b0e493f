#!/bin/sh
# The line that makes a world of all instances. PYTHONPATH: the toolkit has an environment of its own in these tests.
exec env -u PYTHONPATH python -m syrtos run --on placed --run-dir /opt/ml/checkpoints/syrtos digits.py "$@"
