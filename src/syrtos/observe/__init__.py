"""Where the time goes: the clock, the ledger, and the report that adds ledgers up."""
