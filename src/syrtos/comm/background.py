"""Exchanges that a thread makes while their worker computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """A thread that makes the exchanges of one group one by one, in the order of their submission.

    That order must be the same on all workers, as that of any exchange.

    Attributes:
        ahead: whether exchanges may be going on that nobody waits for.
    """

    def __init__(self) -> None:
        self.ahead = False
        self._asked: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def submit(self, exchange: Callable[[], _T]) -> Future[_T]:
        """Asks for an exchange.

        After an exchange has failed, those that are asked for since fail with its error, until
        `settle` is called.
        """
        if self._thread is None:
            # a daemon: a process that ends by an error does not wait for workers that may never
            # come
            self._thread = threading.Thread(
                target=self._make_all, name="syrtos-exchange", daemon=True
            )
            self._thread.start()
        future: Future[_T] = Future()
        self.ahead = True
        self._asked.put((future, exchange))
        return future

    def settle(self) -> None:
        """Waits until all exchanges have been made, whatever became of them.

        A worker calls this before it makes an exchange itself.
        """
        # An exchange that this thread makes begins with `agree`, which settles: the thread must not
        # wait for itself.
        if self._thread is None or threading.current_thread() is self._thread:
            return
        # A process that was forked has no such thread; the exchange itself refuses it.
        if not self._thread.is_alive():
            return
        # From here on this worker waits, and the seconds count as waiting.
        self.ahead = False
        self._asked.join()
        self._failed = None

    def _make_all(self) -> None:
        while True:
            future, exchange = self._asked.get()
            try:
                # After a failure the workers may not agree on what comes next: what was asked for
                # since would meet something else.
                if self._failed is not None:
                    raise self._failed
                future.set_result(exchange())
            except BaseException as error:
                self._failed = error
                future.set_exception(error)
            # These names would keep alive what they hold while this thread waits.
            del future, exchange
            self._asked.task_done()
