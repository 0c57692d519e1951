"""What a real sink's fence and a real group's commits say of epochs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from millrace.adapters.kafka_groups import KafkaGroups
from millrace.adapters.kafka_topics import KafkaTopicAdmin
from millrace.adapters.postgres_fence import FenceReader
from millrace.domain.groups import BackupMetadata, CommitMetadata
from millrace.domain.topics import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError
from support.control_databases import Databases
from support.sink_writer import Writer
from support.streams_project import commits_reader
from support.waiting import Deadline, eventually


def test_a_fence_is_read_where_there_is_one(database, name, admin, control_databases: Databases) -> None:
    fences = FenceReader(database)
    Writer(database, name, 40).sink.take_over()
    assert fences.epoch(f"{name}.s") == 40
    assert fences.epoch("nobody.s") == 0
    assert FenceReader(control_databases.create().owner).epoch(f"{name}.s") == 0


def test_a_sink_that_cannot_be_asked_has_not_said_that_there_is_no_fence(
    database, name, control_databases: Databases
) -> None:
    Writer(database, name, 1).sink.take_over()
    stranger = replace(control_databases.create().owner, database=database.database)
    for settings in (stranger, replace(database, port=1)):
        with pytest.raises(UnreachableError):
            FenceReader(settings).epoch(f"{name}.s")


def test_the_commits_of_a_group_name_the_epochs_that_made_them(kafka: Stack, name: str) -> None:
    settings = kafka.settings().kafka()
    admin, groups = KafkaTopicAdmin(settings), KafkaGroups(settings)
    assert admin.create([NewTopic(name, 3, 1, {})]) == {name: None}
    eventually(lambda: admin.observe([name]), within=Deadline.METADATA, what="the new topic")
    assert groups.newest_epoch(f"g-{name}", [name], "a.s") == 0
    made = [
        TopicPartition(name, 0, 5, CommitMetadata("a.s", "id", 1, 41, 5).encode()),
        TopicPartition(name, 1, 7, CommitMetadata("another.s", "id", 1, 99, 7).encode()),
        TopicPartition(name, 2, 9, "somebody's own words"),
    ]
    with closing(commits_reader(settings, f"g-{name}")) as client:
        client.commit(offsets=made, asynchronous=False)
    assert groups.newest_epoch(f"g-{name}", [name], "a.s") == 41
    assert groups.newest_epoch(f"g-{name}", ["not-there"], "a.s") == 0


def test_the_commits_of_a_backup_name_the_epochs_that_made_them(kafka: Stack, name: str) -> None:
    settings = kafka.settings().kafka()
    admin, groups = KafkaTopicAdmin(settings), KafkaGroups(settings)
    assert admin.create([NewTopic(name, 3, 1, {})]) == {name: None}
    eventually(lambda: admin.observe([name]), within=Deadline.METADATA, what="the new topic")
    made = [
        TopicPartition(name, partition, 5, BackupMetadata(app, "id", epoch, 5, 3, "ab" * 32).encode())
        for partition, (app, epoch) in enumerate([("a.backup", 40), ("a.backup", 41), ("another.backup", 99)])
    ]
    with closing(commits_reader(settings, f"g-{name}")) as client:
        client.commit(offsets=made, asynchronous=False)
    assert groups.newest_epoch(f"g-{name}", [name], "a.backup") == 41
    assert groups.newest_epoch(f"g-{name}", [name], "a.s") == 0
