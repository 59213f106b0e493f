"""The version of syrtos, for all rooms: they do not import the package's front door."""

__version__ = "0.1.0"
