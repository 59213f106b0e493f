"""Training on SageMaker's own hosts: `Syrtos` for ``ModelTrainer(distributed=...)`` of its SDK v3.

    from syrtos.sagemaker import Syrtos

    ModelTrainer(..., distributed=Syrtos(workers_per_host=4)).train()

The SDK is imported when `Syrtos` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syrtos.errors import ConfigurationError

if TYPE_CHECKING:
    from syrtos.sagemaker.distributed import Syrtos

__all__ = ["Syrtos"]


def __getattr__(name: str) -> type[Syrtos]:
    if name != "Syrtos":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from syrtos.sagemaker.distributed import Syrtos
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sagemaker":
            raise
        raise ConfigurationError(
            "`syrtos.sagemaker.Syrtos` extends SageMaker's SDK v3, and this Python has no module"
            f" {error.name}: `pip install 'sagemaker>=3'`. SDK v2 needs no class: docs/sagemaker.md"
            " has its line."
        ) from error
    return Syrtos
