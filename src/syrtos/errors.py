"""The exceptions that syrtos raises on purpose.

    SyrtosError
     ├─ ConfigurationError    options, environment, versions or a script that can't work
     │   ├─ GoneError         a name that the library of today no longer has
     │   └─ ScriptSyntaxError a script that is no Python
     ├─ LaunchError           workers could not be started, or one of them failed
     ├─ WorldError            the world is not the requested one
     ├─ ExchangeError         an exchange between workers can't be completed
     │   ├─ OutOfStepError    workers called different operations, or with different tensors
     │   ├─ StalledError      a worker did not arrive within the watchdog's time
     │   └─ SharedMemoryError the host has too little shared memory
     ├─ DivergenceError       replicas hold different weights
     ├─ NonFiniteError        a gradient is NaN or infinite
     ├─ DataError             workers see different data, or none
     ├─ OutOfReachError       a store of data does not answer, or refuses
     └─ SnapshotError         a snapshot is damaged, or fits another run

Messages say what happened, what was expected, and how to fix it.
"""


class SyrtosError(Exception):
    """Base of all errors raised by syrtos."""


class ConfigurationError(SyrtosError):
    """An option, script or environment that can't work."""


class GoneError(ConfigurationError, AttributeError):
    """A name that the library of today no longer has; `hasattr` is False for it."""


class ScriptSyntaxError(ConfigurationError):
    """A script that Python can't parse; the message is the text that Python prints of it."""


class LaunchError(SyrtosError):
    """Workers could not be started, or a worker failed."""


class WorldError(SyrtosError):
    """The world of workers is not the requested one."""


class ExchangeError(SyrtosError):
    """An exchange between workers can't be completed."""


class OutOfStepError(ExchangeError):
    """Workers called different operations, or the same one with different tensors."""


class StalledError(ExchangeError):
    """A worker did not arrive at an exchange within the watchdog's time."""


class SharedMemoryError(ExchangeError):
    """The host has too little shared memory for the exchange."""


class DivergenceError(SyrtosError):
    """Replicas that must be equal are not."""


class NonFiniteError(SyrtosError):
    """A gradient is NaN or infinite, and was not applied."""


class DataError(SyrtosError):
    """Workers see different data, or no data at all."""


class OutOfReachError(SyrtosError):
    """A store of data does not answer, or refuses; its records are not counted as bad."""


class SnapshotError(SyrtosError):
    """A snapshot is damaged, or is of a run with another script, model or number of workers."""
