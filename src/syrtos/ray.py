"""The module that `import syrtos.ray` gives: that of the package with the engine."""

from __future__ import annotations

import sys

from syrtos import entry_points

sys.modules[__name__] = entry_points.load(entry_points.NAMES, "ray")
