"""Jobs from Python and from files, with or without a service."""
