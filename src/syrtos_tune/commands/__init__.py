"""The command `syrtos tune`, which `syrtos` finds by an entry point of `syrtos.commands`."""
