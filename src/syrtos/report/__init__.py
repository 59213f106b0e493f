"""Reads the files of a run, and says where its time went and what to change: see `syrtos.report.facts`."""
