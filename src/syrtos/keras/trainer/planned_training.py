"""The planned data set of a `fit`, if it has one: where it begins, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from syrtos.comm import world
from syrtos.comm.communicator import Communicator
from syrtos.comm.world import Session
from syrtos.data.loader import Position
from syrtos.keras import fitting
from syrtos.keras.datasets.streams import stream_of
from syrtos.keras.features.feature import Record

if TYPE_CHECKING:  # the first two import Keras 3, and this serves Keras 2 too
    from syrtos.keras.datasets.planned import Stream
    from syrtos.keras.protocols import CallbackList, EpochIterator, Model, TrainingParams
    from syrtos.keras.recovery.replay import Protection
    from syrtos.keras.recovery.resume import SavedPosition


class PlannedTraining:
    """The stream of one `fit`; for other data each call does nothing."""

    def __init__(self, everyone: CallbackList, session: Session) -> None:
        """Must be called before a callback can evaluate, which goes through another iterator."""
        self._everyone, self._session = everyone, session
        # It may be None, which has no stream: then nothing below looks at it.
        self._iterator = cast("EpochIterator", fitting.iterator_in_use())
        self._stream: Stream | None = None
        self._script_counts_steps = self._endless = False

    def begin(self, model: Model, steps_in_call: int, protection: Protection | None) -> None:
        """Begins where the model's earlier training on the data has come to, or at its beginning.

        The place is known from this process, from the file that the model was loaded from, or from
        a snapshot.
        """
        self._stream = stream = stream_of(self._iterator)
        if stream is None:
            return
        self._script_counts_steps = self._iterator.steps_per_epoch is not None
        position, number = self._find_place(model, stream, protection)
        # Where records may be left out, so may be a batch of them, and an epoch then has fewer
        # steps than are counted here.
        complete = stream.dataset.loader.policy.on_bad_record == "fail"
        endless = self._script_counts_steps or (complete and steps_in_call == 1)
        self._endless = endless and not self._session.options.asynchronous
        stream.begin(position, number, self._endless, self._session)

    def _find_place(
        self, model: Model, stream: Stream, protection: Protection | None
    ) -> tuple[Position | None, int | None]:
        """Returns where training begins, and the number of the model on this data.

        A place of None is the beginning of the data; a number of None stands for a new one.
        """
        from syrtos.keras.recovery import resume

        position, number = resume.trained_before(model, stream.dataset)
        saved = self._workers().broadcast_object(_as_list(resume.saved_of(model)))
        if saved and saved[0] == stream.dataset.name:
            position, number = Position(saved[1], saved[2]), saved[4]
            if model._initial_epoch is not None and not self._script_counts_steps:
                model._initial_epoch = saved[1] + saved[3]
        if protection:
            now = position or Position()
            began = (now.epoch, now.place, stream.dataset.trainings if number is None else number)
            *place, number = protection.data_begins(began)
            position = Position(*place)
        return position, number

    def _workers(self) -> Communicator:
        # All workers have shares of the data, also where the script says itself what is exchanged.
        at_own_pace = self._session.options.asynchronous
        return self._session.comm if at_own_pace else world.current().comm

    def epoch_begins(self, model: Model, epoch: int, params: TrainingParams) -> None:
        """Begins an epoch, and tells Keras how many steps it has.

        An epoch that goes on in its middle has fewer than the others.
        """
        if self._stream is None:
            return
        from syrtos.keras.recovery import resume

        resume.trains_on(
            model, resume.TrainedData(self._stream, epoch - self._stream.position.epoch)
        )
        steps = self._stream.epoch_begins()
        if self._script_counts_steps:
            self._iterator._num_batches = None
            return
        if self._endless:
            self._iterator._num_batches, self._iterator.steps_per_epoch = None, steps
        else:
            self._iterator._num_batches = steps
        if params.get("steps") != steps:
            self._everyone.set_params({**params, "steps": steps})

    def records_of(self, steps: int) -> Callable[[], Sequence[Record]]:
        """Returns a function that gives the records of this worker's shares of the next steps.

        The records are known once they have been drawn.
        """
        stream = self._stream
        return (lambda: stream.records(steps)) if stream else list

    def step_is_over(self, steps: int) -> None:
        """Notes that the batches of a call of the training function have been trained on."""
        if self._stream:
            self._stream.note_trained(steps)

    def epoch_ends(self, stopped: bool) -> None:
        """Notes that an epoch ends; ``stopped``: a callback has ended training within it."""
        if self._stream:
            self._stream.end_epoch(self._session, stopped)

    def end(self) -> None:
        """Ends training at the last step."""
        if self._stream:
            self._stream.close()


def _as_list(saved: SavedPosition | None) -> list[object] | None:
    # Plain data, as it travels to the other workers.
    return (
        [saved.name, saved.position.epoch, saved.position.place, saved.offset, saved.number]
        if saved
        else None
    )
