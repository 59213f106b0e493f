"""Says where a run's time went and what to change, from its files: see `syrtos.report.facts`."""
