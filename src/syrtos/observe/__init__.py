"""Where the time goes: the step ledger and what it adds up to."""
