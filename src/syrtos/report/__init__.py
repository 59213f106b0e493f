"""Reads what a run has left behind, and says where its time went and what to change: see `syrtos.report.facts`."""
