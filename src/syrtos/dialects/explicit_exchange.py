"""Common parts of the dialects in which a script says what is exchanged: Horovod's and SMDDP's.

Each worker trains on its own batches, as a process of its own; only what the script asks for is
exchanged.
"""

from __future__ import annotations

import tensorflow as tf

from syrtos import settings
from syrtos.comm import world
from syrtos.dialects import keras2
from syrtos.errors import ConfigurationError
from syrtos.keras import activate
from syrtos.keras.tensorflow import tf_internals
from syrtos.launch import seeds
from syrtos.settings import Options


def begin(name: str) -> None:
    """Joins the world for a script of the dialect ``name``. A second call does nothing.

    Raises:
        ConfigurationError: the run was given flags that mean something only where `fit` splits the
            work, or the script already trains under a strategy.
    """
    session = world.init()
    if world.explicit():
        return
    _check_flags(name, session.options)
    activate.leave_exchange_to_script(name)
    session.rank_aware = True
    if session.world.size > 1:
        _shuffle_apart(session.world.rank)
    keras2.install()


def _check_flags(name: str, options: Options) -> None:
    defaults = Options()
    flags = ("batch", "scale_lr", "sync_batchnorm", "warmup_epochs")
    given = [flag for flag in flags if getattr(options, flag) != getattr(defaults, flag)]
    if given:
        raise ConfigurationError(
            f"This script uses {name}, which says itself what is exchanged and scaled:"
            f" {', '.join('--' + flag.replace('_', '-') for flag in given)} can't be obeyed. Remove"
            " the flag, or do it in the script."
        )


def _shuffle_apart(rank: int) -> None:
    """Makes shuffles that the script did not seed differ by rank."""
    # workers read the same files, and draw their own batches from them
    seed = seeds.part(rank)
    if tf_internals.global_seed() == settings.common_seed():
        tf.random.set_seed(seed)
