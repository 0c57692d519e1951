"""Whether a store writes nothing over what is there: tried on objects of its own, which are deleted again.

That is evidence, no proof: a store that keeps the condition most of the time, or behind another address only, passes.
So the address of a store must lead to one atomic store, as its documentation has to say.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Barrier, BrokenBarrierError

from millrace.errors import Code, MillraceError, ObjectExistsError, RefusedError
from millrace.ports.objects import Creation

PROBE_PREFIX = "millrace-probe/"
WRITERS = 8  # of one race
_TOGETHER_SECONDS = 30  # that the first writer waits for the last one before it goes on alone

Meet = Callable[[], object]
Write = Callable[[str, bytes, Meet], None]  # calls the third right before the request that makes the object


@dataclass(frozen=True, slots=True)
class Probe:
    """The calls of a store that are tried.

    Attributes:
        where: the store, for people.
        ways: how an object is written, by name.
        create: write an object where none is, in one of the ways.
    """

    where: str
    ways: Mapping[str, Write]
    create: Callable[[str, bytes, Callable[[str, bytes], None]], Creation]
    get: Callable[[str], bytes | None]
    delete: Callable[[Collection[str]], Mapping[str, str]]

    def prove(self) -> None:
        """Write after somebody, and at the same time as others, in each of the ways.

        Raises:
            RefusedError: the store ignores the condition, or looks first and writes then.
            MillraceError: the objects could not be deleted again.
        """
        # Each way against itself, where the requests are most alike in time, then all of them mixed.
        races = [*((write,) for write in self.ways.values()), tuple(self.ways.values())]
        keys = [f"{PROBE_PREFIX}{uuid.uuid4().hex}" for _ in range(1 + len(races))]
        try:
            self._one_after_another(keys[0])
            for key, writes in zip(keys[1:], races, strict=True):
                self._at_once(key, writes)
        except BaseException as error:
            self._forget(keys, error)
            raise
        self._forget(keys, None)

    def _one_after_another(self, key: str) -> None:
        first, second = b"first", b"second"
        alone = {way: partial(_written, write, _nobody) for way, write in self.ways.items()}
        self.create(key, first, next(iter(alone.values())))
        for way, write in alone.items():
            with suppress(ObjectExistsError):  # as it must be
                self.create(key, second, write)
                raise self._ignored(f"let a {way} write over an object")
            if self.get(key) != first:
                raise self._ignored(f"let a {way} write over an object")

    def _at_once(self, key: str, writes: Sequence[Write]) -> None:
        barrier = Barrier(WRITERS)
        with ThreadPoolExecutor(WRITERS) as threads:
            came = [
                threads.submit(self._race, key, b"writer %d" % number, writes[number % len(writes)], barrier)
                for number in range(WRITERS)
            ]
        won = [number for number, each in enumerate(came) if each.exception() is None and each.result()]
        if len(won) > 1:
            raise self._ignored("let two writers at the same time both write")
        for each in came:
            each.result()  # raises what went wrong for a writer
        if not won or self.get(key) != b"writer %d" % won[0]:
            raise self._ignored("let two writers at the same time both write, but reported a refusal to one")

    def _race(self, key: str, data: bytes, write: Write, barrier: Barrier) -> bool:
        """Whether this writer's bytes came to be the object's, as far as it was told."""
        first = iter([partial(barrier.wait, _TOGETHER_SECONDS)])  # a repetition waits for nobody

        def meet() -> None:
            with suppress(BrokenBarrierError):
                next(first, _nobody)()

        try:
            self.create(key, data, partial(_written, write, meet))
        except ObjectExistsError:
            return False
        except BaseException:
            barrier.abort()
            raise
        return True

    def _ignored(self, what: str) -> RefusedError:
        return RefusedError(
            f"the store {what} in spite of `If-None-Match: *`",
            where=self.where,
            next_step="use a store that documents conditional writes for puts and completed multipart uploads, and "
            "reach it by one address. AWS S3 and the embedded s3proxy keep them. With other stores it depends on the "
            "version",
            code=Code.UNSUPPORTED,
        )

    def _forget(self, keys: Collection[str], first: BaseException | None) -> None:
        try:
            remain = self.delete(keys)
        except MillraceError as error:
            remain = {PROBE_PREFIX: error.what}
            if first is None:
                raise
        if remain and first is not None:
            first.add_note(f"the probe remains in {self.where}: {remain}")
        elif remain:
            key, why = next(iter(remain.items()))
            raise MillraceError(
                f"the probe could not be deleted: {why}",
                where=f"{self.where}/{key}",
                next_step="grant the key the right to delete objects; the archive needs it too",
                code=Code.MISSING_RIGHT,
            )


def _nobody() -> None:
    """Wait for nobody."""


def _written(write: Write, meet: Meet, key: str, data: bytes) -> None:
    write(key, data, meet)
