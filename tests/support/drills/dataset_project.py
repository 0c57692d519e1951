"""A drill's stream that writes a dataset: its chain is its record of work, and its rows are read by our reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from millrace.adapters.s3.store import S3Store
from millrace.adapters.sinks.s3.chain import read_chain
from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.domain.sinks.dataset.history import History
from millrace.domain.sinks.dataset.names import Dataset
from millrace.domain.streams.supervision import ExitReason
from millrace.domain.topics.offsets import Source
from support.drills.crashes import Drill, Order, freeze, thaw
from support.drills.points import BEFORE_SINK
from support.streams.project import StreamProject, committed
from support.waiting import result_of

GONE = {ExitReason.FENCED, ExitReason.MEMBERSHIP_LOST}


@dataclass
class DatasetProject(StreamProject):
    """Writes a dataset by the records' own dates."""

    _history: list[History] = field(default_factory=list)

    @property
    def dataset(self) -> Dataset:
        return Dataset(f"drills/{self.name}")

    @property
    def writes(self) -> str:
        return f"{{s3: {{prefix: {self.dataset.prefix}}}}}"

    @cached_property
    def store(self) -> S3Store:
        return S3Store(self.settings.s3())

    @property
    def history(self) -> History:
        """The chain as it is now; what is known of it is not read again."""
        if not self._history:
            self._history.append(History(self.stream))
        read_chain(self.store, self.dataset, self._history[0])
        return self._history[0]

    def record_of_work(self) -> dict[int, int]:
        done = self.history.record().next_offsets
        return {partition.partition: offset for partition, offset in done.items()}

    def rows(self) -> tuple[Counter[Source], dict[int, int]]:
        """The source of every row that counts, and how far the work was done when it was looked at."""
        reader = DatasetReader(self.store, self.dataset)
        snapshot = reader.snapshot()
        if snapshot is None:
            return Counter(), {}
        names = ("_topic_id", "_partition", "_offset")
        tables = reader.rows(snapshot)
        found = Counter(
            source for table in tables for source in zip(*(table[name].to_pylist() for name in names), strict=True)
        )
        done = {partition.partition: at for partition, at in snapshot.history.record().next_offsets.items()}
        return found, done

    def sink_sources(self) -> Counter[Source]:
        return self.rows()[0] + self.set_aside()

    def drop(self) -> None:
        result_of(self.admin.delete_topics([self.topic])[self.topic], what="the end of the topic")


class DatasetDrill(Drill):
    """Holds what a dataset and its quarantine have against its chain."""

    project: DatasetProject

    def rows_against_record(self) -> list[str]:
        """Sources that are on record and are not there, or that are there twice, or are there and not on record."""
        rows, done = self.project.rows()
        id_, bad = self.project.topic_id(), self.project.set_aside()  # which may be ahead of the chain, by a batch
        missing = [(n, at) for n, end in done.items() for at in range(end) if rows[id_, n, at] + bad[id_, n, at] == 0]
        twice = [source for source in rows if rows[source] + bad[source] > 1]
        ahead = [source for source in rows if source[2] >= done.get(source[1], 0)]
        wrong = missing or twice or ahead
        return [f"missing {missing[:5]}, twice {twice[:5]}, ahead {ahead[:5]}, done {done}"] if wrong else []

    def stopped_and_woken(self, new: DatasetDrill) -> list[str]:
        """SIGSTOP a driver that has written its objects, let the next epoch do all there is, SIGCONT; what is wrong."""
        epoch = self.running_alone().epoch
        held = Order(BEFORE_SINK)
        self.order(held)
        self.project.produce(2 * self.project.batch, first=self.done())
        self.reached(held, supervising=False)
        victims = freeze(self.project, epoch)
        self.order()
        new.start()
        new.eventually(lambda: new.project.history.head.epoch > epoch, what="the takeover")
        new.eventually(new.settled, what="the new epoch to do all there is")
        before, group = new.state(), committed(new.project)
        self.go_on(held)
        thaw(victims)
        self.eventually(lambda: self.exit_code(epoch) is not None, what=f"the end of epoch {epoch}", supervising=False)
        after, code = new.state(), self.exit_code(epoch)
        wrong = [] if after == before and committed(new.project) == group else [f"{before} became {after}"]
        return wrong + ([] if code in GONE else [f"the older driver ended with {code}"])

    def state(self) -> Any:
        """All that a writer could have changed."""
        return self.project.history.head, self.project.rows(), self.project.set_aside()
