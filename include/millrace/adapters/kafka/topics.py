"""Topics of a Kafka cluster, through librdkafka's admin client.

One request carries many topics: librdkafka sends describes, alterations and creations of topics whole, to one
broker (only resources of type broker need a request each).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as KafkaNewTopic

from millrace.adapters.kafka.admin_client import ANSWER_MARGIN_SECONDS, SharedAdminClient
from millrace.adapters.kafka.ids import topic_id_text
from millrace.adapters.kafka.silence import SILENT
from millrace.domain.topics.changes import NewTopic, ObservedTopic
from millrace.errors import Code, TopicAccessError, UnreachableError
from millrace.settings import KafkaSettings

REQUEST_TIMEOUT_SECONDS = 15.0
DESCRIBE_BATCH = 500  # topics a request: some 35 settings come back for each
WRITE_LIMIT = 9_000  # the controller refuses a request of more than 10,000 (QuorumController.MAX_RECORDS_PER_USER_OP)
_SECOND_TRY_SECONDS = 5.0
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART})
_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")


class KafkaTopicAdmin:
    """A `TopicAdmin` of a real cluster. Connects on first use."""

    def __init__(self, settings: KafkaSettings, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> None:
        self._address = settings.bootstrap_servers
        self._timeout = timeout_seconds
        self._last_error = ""
        self._settings = settings
        self._shared = SharedAdminClient(self._open_client)

    def _open_client(self) -> AdminClient:
        configuration = {
            **self._settings.librdkafka,
            "socket.connection.setup.timeout.ms": 5_000,
            "error_cb": self._remember,
        }
        return AdminClient(configuration, logger=_LOG)

    @property
    def _client(self) -> AdminClient:
        return self._shared.present

    def cluster_id(self) -> str:
        """The cluster's own id."""
        return str(self._answer(self._client.describe_cluster(request_timeout=self._timeout)).cluster_id)

    def observe(self, names: Collection[str]) -> Mapping[str, ObservedTopic]:
        """The topics that exist among `names`: two requests for each 500 of them."""
        second_try = min(_SECOND_TRY_SECONDS, self._timeout / 2)
        return self._shared.ask(partial(self._observe, names), self._timeout - second_try, second_try)

    def _observe(self, names: Collection[str], client: AdminClient, seconds: float) -> Mapping[str, ObservedTopic]:
        found: dict[str, ObservedTopic] = {}
        failures: dict[str, str] = {}
        for batch in _batches(sorted(names), lambda _: 1, DESCRIBE_BATCH):
            described = client.describe_topics(TopicCollection(batch), request_timeout=seconds)
            present = self._split(described, failures)
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in present]
            if not resources:
                continue
            futures = client.describe_configs(resources, request_timeout=seconds)
            settings = self._split({resource.name: future for resource, future in futures.items()}, failures)
            for name, entries in settings.items():
                found[name] = _observed(name, present[name], entries.values())
        if failures:
            raise TopicAccessError(failures, where=self._address)
        return found

    def names(self) -> Collection[str]:
        """Return the names of all topics that this user may see."""
        try:
            return set(self._client.list_topics(timeout=self._timeout).topics)
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from error

    def create(self, topics: Sequence[NewTopic]) -> Mapping[str, str | None]:
        """Create topics; per topic None, or why it failed. One that exists already is a failure."""
        outcome: dict[str, str | None] = {}
        for batch in _batches(topics, _record_count, WRITE_LIMIT):
            wanted = [
                KafkaNewTopic(
                    topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication,
                    config=dict(topic.config),
                )
                for topic in batch
            ]
            futures = self._client.create_topics(wanted, request_timeout=self._timeout, operation_timeout=self._timeout)
            outcome |= self._outcomes(futures)
        return outcome

    def add_partitions(self, totals: Mapping[str, int]) -> Mapping[str, str | None]:
        """Grow topics to these partition counts; per topic None, or why it failed."""
        outcome: dict[str, str | None] = {}
        for batch in _batches(sorted(totals.items()), lambda item: item[1], WRITE_LIMIT):
            futures = self._client.create_partitions(
                [NewPartitions(name, total) for name, total in batch],
                request_timeout=self._timeout,
                operation_timeout=self._timeout,
            )
            outcome |= self._outcomes(futures)
        return outcome

    def set_config(self, changes: Mapping[str, Mapping[str, str | None]]) -> Mapping[str, str | None]:
        """Set these keys of these topics and leave every other key alone; per topic None, or why it failed.

        A key without a value follows the broker's default again.
        """
        outcome: dict[str, str | None] = {}
        for batch in _batches(sorted(changes.items()), lambda item: 1 + len(item[1]), WRITE_LIMIT):
            resources = [
                ConfigResource(
                    ResourceType.TOPIC,
                    name,
                    incremental_configs=[_entry(key, value) for key, value in sorted(values.items())],
                )
                for name, values in batch
            ]
            futures = self._client.incremental_alter_configs(resources, request_timeout=self._timeout)
            outcome |= self._outcomes({resource.name: future for resource, future in futures.items()})
        return outcome

    def _remember(self, error: KafkaError) -> None:
        self._last_error = error.str()

    def _answer(self, future: Future[Item]) -> Item:
        try:
            return future.result(self._timeout + ANSWER_MARGIN_SECONDS)
        except TimeoutError:
            raise self._unreachable("no answer") from None
        except KafkaException as error:
            if error.args[0].code() in SILENT:
                raise self._unreachable(error.args[0].str()) from error
            raise

    def _unreachable(self, reason: str) -> UnreachableError:
        while self._client.poll(0):  # lets librdkafka tell `_remember` why
            pass
        detail = f"{reason} ({self._last_error})" if self._last_error and self._last_error != reason else reason
        return UnreachableError(
            f"the Kafka cluster does not answer: {detail}",
            where=self._address,
            next_step="run `millrace doctor` to check the cluster and the connection",
            code=Code.KAFKA_UNREACHABLE,
        )

    def _split(self, futures: Mapping[str, Future[Item]], failures: dict[str, str]) -> dict[str, Item]:
        """Answers by topic: an absent topic has none, one that is refused goes to `failures`."""
        answers: dict[str, Item] = {}
        for name, future in futures.items():
            try:
                answers[name] = self._answer(future)
            except KafkaException as error:
                if error.args[0].code() not in _ABSENT:
                    failures[name] = _reason(error)
        return answers

    def _outcomes(self, futures: Mapping[str, Future[None]]) -> dict[str, str | None]:
        outcome: dict[str, str | None] = {}
        for name, future in futures.items():
            try:
                self._answer(future)
                outcome[name] = None
            except KafkaException as error:
                outcome[name] = _reason(error)
        return outcome


def _reason(error: KafkaException) -> str:
    cause = error.args[0]
    return f"{cause.name()}: {cause.str()}"


def _observed(name: str, description: object, entries: Collection[ConfigEntry]) -> ObservedTopic:
    partitions = description.partitions  # type: ignore[attr-defined]
    own = {entry.name: entry for entry in entries if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
    return ObservedTopic(
        name=name,
        topic_id=topic_id_text(description.topic_id),  # type: ignore[attr-defined]
        partitions=len(partitions),
        replication=max((len(partition.replicas) for partition in partitions), default=0),
        config={key: entry.value or "" for key, entry in own.items()},
        defaults={entry.name: entry.value or "" for entry in entries if entry.name not in own},
    )


def _entry(key: str, value: str | None) -> ConfigEntry:
    operation = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
    return ConfigEntry(key, value, incremental_operation=operation)


def _record_count(topic: NewTopic) -> int:
    return 1 + max(topic.partitions, 1) + len(topic.config)


def _batches(items: Sequence[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Items in batches whose sizes add up to the limit at most; one that is larger alone goes alone."""
    batch: list[Item] = []
    total = 0
    for item in items:
        if batch and total + size(item) > limit:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch
