"""One look at a whole cluster, in a number of requests that grows with brokers and hardly with topics or groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any

from kafka.errors import IncompatibleBrokerVersion, KafkaError

from millrace.adapters.kafka.cluster import answers as read
from millrace.adapters.kafka.cluster import messages
from millrace.adapters.kafka.cluster.answers import Answers, BrokerSaid, Layout
from millrace.adapters.kafka.cluster.conversation import Conversation, reason
from millrace.adapters.kafka.settings.python import for_kafka_python
from millrace.domain.groups.snapshots import GroupType, Snapshot
from millrace.domain.retention.settings import KEYS
from millrace.errors import Code, UnreachableError, UsageError
from millrace.settings import KafkaSettings

DESCRIBED_TOGETHER = 500
FETCHED_TOGETHER = 100
SETTINGS_TOGETHER = 1_000
_CONFIGURATION_EVERY_SECONDS = 3600.0
_SETTINGS_EVERY_SECONDS = 300.0


class ClusterReader:
    """Takes snapshots of one cluster; changes nothing, and keeps its connections from one to the next.

    A snapshot costs one request for the topics and, of each broker: five for bounds, one for sizes, one for the list
    of groups, one for the members of 500 groups, one for the commits of 100. Every five minutes, and of new topics,
    one asks for the settings of 1,000 topics, and once an hour one for a broker's. `Snapshot.requests` counts all of
    these that were sent; what opening a connection takes is not counted.

    Args:
        settings: the cluster's Connection.
        client_id: how the broker's own tools name this client.
        timeout: how long the topics may take, then all about groups, and then all about logs.
        clock: the time of day, UTC.

    Guarantees: a broker that does not answer costs one time-out, and only what it alone knows is missing. A call after
    any failure begins anew, with the addresses that were known last and those of the Connection.

    Does not guarantee: that all of it is of one moment. A partition whose leader has just moved may be unknown until
    the next snapshot. Groups that only a broker knows that does not answer are missing; a fault says so.

    Raises:
        UsageError: no client can be made of the Connection's properties.

    Source: KIP-79, KIP-98 (bounds), KIP-709 (commits of many groups), KIP-848 (groups of type consumer).
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str = "millrace.snapshots",
        timeout: timedelta = timedelta(seconds=10),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._where = settings.bootstrap_servers
        self._bootstrap = [address.strip() for address in self._where.split(",") if address.strip()]
        self._configuration = for_kafka_python(settings)
        self._client_id = client_id
        self._timeout = timeout.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._known: list[str] = []
        self._talk: Conversation | None = None
        self._said = BrokerSaid()
        self._configuration_due = 0.0
        self._settings: dict[tuple[str, str], dict[str, str]] = {}  # by topic and its id
        self._settings_due = 0.0
        self._asked = set[str]()  # the topics whose settings were asked for in this look

    def __enter__(self) -> ClusterReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the next `take` opens them again."""
        with self._lock:
            self._hang_up()

    def take(self) -> Snapshot:
        """What the cluster is now. Two threads wait for each other.

        Raises:
            UnreachableError: no broker answers.
            UsageError: the addresses of the Connection cannot be read.
        """
        with self._lock:
            talk = self._talk = self._talk or self._open()
            done = False
            try:
                snapshot: Snapshot = talk.run(partial(self._look, talk))
                done = True
                return snapshot
            except KafkaError as error:
                raise UnreachableError(
                    f"no broker answers: {reason(error)}",
                    where=self._where,
                    next_step="check that the brokers run and this connection may read; `./millrace doctor` "
                    "tests each connection",
                    code=Code.KAFKA_UNREACHABLE,
                ) from error
            finally:
                self._known = talk.addresses or self._known
                if talk.hung or not done:
                    self._hang_up()

    def _open(self) -> Conversation:
        try:
            addresses = list(dict.fromkeys([*self._known, *self._bootstrap]))
            return Conversation(addresses, self._configuration, self._client_id)
        except (ValueError, KafkaError) as error:
            raise UsageError(
                f"a Kafka client cannot be created from the connection's properties: {error}",
                where=self._where,
                next_step="correct bootstrap.servers in its extra",
                code=Code.WRONG_CONNECTION,
            ) from error

    def _hang_up(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    async def _look(self, talk: Conversation) -> Snapshot:
        at, began, sent, self._asked = self._clock(), time.monotonic(), talk.requests, set[str]()
        metadata = await talk.topics(began + self._timeout)
        layout = read.layout_of(metadata)
        answers = {broker.node_id: Answers() for broker in metadata.brokers}
        failures: dict[int, str] = {}
        for part in (self._ask_groups, self._ask_logs):  # all groups first: no end is older than a commit beside it
            deadline = time.monotonic() + self._timeout
            looks = [_BrokerLook(talk, node, deadline, answers[node]) for node in answers if node not in failures]
            works: dict[int, Callable[[], Awaitable[None]]] = {look.node: partial(part, look, layout) for look in looks}
            failures |= {node: reason(error) for node, error in (await talk.each(works, deadline)).items()}
        return Snapshot(
            at=at,
            cluster_id=metadata.cluster_id or "",
            topics=read.topics_seen(layout, answers, self._known_settings(layout)),
            groups=read.groups_seen((answers[node], failures.get(node, "")) for node in sorted(answers)),
            requests=talk.requests - sent,
            seconds=time.monotonic() - began,
            offsets_kept=self._said.offsets_kept,
            faults=tuple(self._faults(layout, answers, failures)),
            check_every=self._said.check_every,
            disks=tuple(disk for node in sorted(answers) for disk in answers[node].disks),
        )

    async def _ask_groups(self, look: _BrokerLook, layout: Layout) -> None:
        """The groups that one broker coordinates."""
        await look.groups()

    async def _ask_logs(self, look: _BrokerLook, layout: Layout) -> None:
        """The logs that one broker leads, and what it is set to."""
        await look.logs(layout.led_by(look.node))
        if time.monotonic() >= self._configuration_due:
            self._configuration_due = time.monotonic() + _CONFIGURATION_EVERY_SECONDS  # no other broker is asked too
            try:
                answer = await look.ask(messages.broker_settings(look.node), "configuration")
            except KafkaError:
                self._configuration_due = 0.0
                raise
            self._said = read.read_broker(answer) if answer is not None else BrokerSaid(fault="not known to the broker")
        await self._ask_settings(look, layout)

    async def _ask_settings(self, look: _BrokerLook, layout: Layout) -> None:
        """The settings of those topics of which they are not known, or of all when they are old."""
        due = time.monotonic() >= self._settings_due
        asked = sorted(key[0] for key in layout.ids.items() if due or key not in self._settings)
        asked = [name for name in asked if name not in self._asked]
        if not asked:
            return
        self._asked.update(asked)  # no other broker is asked too
        if due:
            self._settings_due = time.monotonic() + _SETTINGS_EVERY_SECONDS
        try:
            for names in _parts(asked, SETTINGS_TOGETHER):
                found = await look.settings(names)
                self._settings.update({(name, layout.ids[name]): found[name] for name in names if name in found})
        except KafkaError:
            self._settings_due = 0.0
            raise

    def _known_settings(self, layout: Layout) -> dict[str, dict[str, str]]:
        self._settings = {key: self._settings[key] for key in layout.ids.items() if key in self._settings}
        return {name: settings for (name, _), settings in self._settings.items()}

    def _faults(self, layout: Layout, answers: dict[int, Answers], failures: dict[int, str]) -> Iterator[str]:
        yield from layout.faults
        for node, why in sorted(failures.items()):
            yield f"broker {node}: {why}; what only it knows, groups too, is missing"
        for node in sorted(answers):
            yield from answers[node].faults
        if self._said.fault:
            yield f"{messages.OFFSETS_KEPT}: {self._said.fault}"


class _BrokerLook:
    """One broker's part of a look, one request after the other: it would answer them in this order anyway."""

    def __init__(self, talk: Conversation, node: int, deadline: float, answers: Answers) -> None:
        self.node = node
        self._talk = talk
        self._deadline = deadline
        self._answers = answers
        self._where = f"broker {node}"

    async def ask(self, request: Any, what: str) -> Any | None:
        """The answer, or None and a fault where the broker is too old for the question."""
        try:
            return await self._talk.ask(self.node, request, self._deadline)
        except IncompatibleBrokerVersion:
            self._answers.faults.append(f"{self._where}: {what}: it does not know this request")
            return None

    async def groups(self) -> None:
        """The groups that it coordinates."""
        found = self._answers
        listing = await self.ask(messages.listed_groups(), "groups")
        if listing is None:
            return
        read.read_listing(listing, found, self._where)
        classic = sorted(name for name, each in found.listed.items() if each.type is GroupType.CLASSIC)
        consumer = sorted(name for name, each in found.listed.items() if each.type is GroupType.CONSUMER)
        for names in _parts(classic, DESCRIBED_TOGETHER):
            if (answer := await self.ask(messages.classic_groups(names), "members")) is not None:
                read.read_classic(answer, found)
        for names in _parts(consumer, DESCRIBED_TOGETHER):
            if (answer := await self.ask(messages.consumer_groups(names), "members")) is not None:
                read.read_consumer(answer, found)
        for names in _parts(sorted([*classic, *consumer]), FETCHED_TOGETHER):
            if (answer := await self.ask(messages.commits(names), "commits")) is not None:
                read.read_commits(answer, found)

    async def logs(self, led: dict[str, list[int]]) -> None:
        """Bounds and sizes of the partitions that it leads."""
        if not led:
            return
        for bound in messages.Bound:
            left_ms = max(1, int((self._deadline - time.monotonic()) * 1000))
            if (answer := await self.ask(messages.bounds(led, bound, left_ms), "bounds")) is not None:
                read.read_bounds(answer, bound, self._answers, self._where)
        if (answer := await self.ask(messages.log_folders(), "log folders")) is not None:
            read.read_sizes(answer, self._answers, self.node)

    async def settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Those of these topics."""
        found: dict[str, dict[str, str]] = {}
        if (answer := await self.ask(messages.topic_settings(names, KEYS), "settings of topics")) is not None:
            self._answers.faults += read.read_settings(answer, found)
        return found


def _parts(names: Sequence[str], together: int) -> Iterator[Sequence[str]]:
    return (names[at : at + together] for at in range(0, len(names), together))
