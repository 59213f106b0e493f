"""The class that users pass to SDK v3's ``ModelTrainer(distributed=...)``.

This file alone imports the SDK.
"""

from __future__ import annotations

from typing import Literal

from sagemaker.train.distributed import DistributedConfig  # pyright: ignore[reportMissingImports]

from syrtos._version import __version__
from syrtos.errors import ConfigurationError
from syrtos.sagemaker import folder

# Options of `syrtos run` that the driver gives, or that choose hosts, which SageMaker does.
_NOT_HERE = (
    "-n",
    "--hosts",
    "--hostfile",
    "--discover",
    "--on",
    "--with",
    "--run-dir",
    "--detach",
    "--dry-run",
    "-m",
)


class Syrtos(DistributedConfig):
    """Trains an unchanged Keras script on all instances of a SageMaker training job, as one world.

    Attributes:
        workers_per_host: the number of workers on each instance; None: one for each of its GPUs, or
            one.
        options: options of `syrtos run`, e.g. ``["--batch", "per-worker"]``.
        wheels: whether wheels of syrtos and of what it needs travel with the job; else its
            container has syrtos, or installs it from the index that its pip knows.
        python: the version of the container's Python, as ``"3.12"``, for which wheels are chosen;
            empty: that of this Python.
        engine: marks the driver among those that a job may have.
        version: the version of syrtos that the job installs.
    """

    workers_per_host: int | None = None
    options: list[str] = []
    wheels: bool = False
    python: str = ""
    engine: Literal["syrtos"] = "syrtos"
    version: str = __version__

    def model_post_init(self, context: object, /) -> None:
        """Checks what pydantic can't.

        Raises:
            ConfigurationError: there are fewer workers than one, or an option is not for a job.
        """
        super().model_post_init(context)
        if self.workers_per_host is not None and self.workers_per_host < 1:
            raise ConfigurationError(
                "`workers_per_host` is 1 or more, or None: one for each GPU. Received:"
                f" {self.workers_per_host}."
            )
        if wrong := [word for word in self.options if word.partition("=")[0] in _NOT_HERE]:
            raise ConfigurationError(
                f"`options` can't have {wrong[0]}: SageMaker chooses the hosts, and the run"
                " directory is where the job's checkpoints are. Say how many workers by"
                " workers_per_host=..., and how many hosts by Compute(instance_count=...)."
            )

    @property
    def driver_dir(self) -> str:
        """A new folder with the driver, wheels if they were asked for, and a secret.

        The SDK asks for it once for each job.
        """
        return str(folder.make(self.wheels, self.python))

    @property
    def driver_script(self) -> str:
        """The name of the script that SageMaker's container runs on each instance."""
        return folder.DRIVER
