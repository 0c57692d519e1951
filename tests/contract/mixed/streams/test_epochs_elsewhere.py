"""What a real sink's fence, a real group's commits and a real dataset's chain say of epochs."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from millrace.adapters.kafka.groups import KafkaGroups
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.adapters.sinks.fence import FenceReader
from millrace.adapters.sinks.s3.writer import DatasetWriter
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.declaration.pipeline import S3Sink
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError
from millrace.settings import Settings
from millrace.usecases.streams.epochs import newest_elsewhere
from millrace.wiring import open_platform
from support.archive.tees import TeeWorld, Topics
from support.declarations import example_project, s3_instead
from support.sinks.dataset_world import DatasetWorld
from support.sinks.writer import Writer
from support.stack.control_databases import Databases
from support.streams.project import commits_reader
from support.topics.new import create_topics


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
    create_topics(admin, NewTopic(name, 3, 1, {}))
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
    create_topics(admin, NewTopic(name, 3, 1, {}))
    made = [
        TopicPartition(name, partition, 5, BackupMetadata(app, "id", epoch, 5, 3, "ab" * 32).encode())
        for partition, (app, epoch) in enumerate([("a.backup", 40), ("a.backup", 41), ("another.backup", 99)])
    ]
    with closing(commits_reader(settings, f"g-{name}")) as client:
        client.commit(offsets=made, asynchronous=False)
    assert groups.newest_epoch(f"g-{name}", [name], "a.backup") == 41
    assert groups.newest_epoch(f"g-{name}", [name], "a.s") == 0


@pytest.mark.usefixtures("postgres")
def test_the_chain_of_a_dataset_names_the_epoch_that_writes_it(s3: Stack, name: str) -> None:
    world = DatasetWorld(s3, name)
    (newest_epoch,) = open_platform(s3.settings()).sinks.epochs(world.declared).values()
    assert newest_epoch(world.stream) == 0
    for epoch in (40, 41):
        sink = world.sink(epoch)
        sink.take_over()
        sink.close()
        assert newest_epoch(world.stream) == epoch


def test_a_bucket_that_cannot_be_asked_has_not_said_that_there_is_no_chain(s3: Stack) -> None:
    extra = {"endpoint_url": "http://127.0.0.1:1"}
    connection = json.dumps({"conn_type": "aws", "login": "a", "password": "b", "extra": extra})
    settings = replace(s3.settings(), lookup={"millrace_s3": connection}.get)
    epochs = open_platform(settings).sinks.epochs(S3Sink("millrace_s3", "test/nobody"))
    with pytest.raises(UnreachableError):
        epochs["millrace_s3"]("a.s")


def rename_example(root: Path, name: str) -> None:
    """Give the example another name: other tests of this run may have started it."""
    declared = root / "include" / "pipelines" / "shop.yaml"
    renamed = declared.read_text().replace("pipeline: shop", f"pipeline: {name}").replace("shop.", f"{name}.")
    declared.with_name(f"{name}.yaml").write_text(renamed)
    declared.unlink()


def test_a_backup_whose_control_database_was_lost_begins_above_its_chains(
    kafka: Stack, s3: Stack, tmp_path: Path
) -> None:
    """Its group was deleted as well. One start is enough, and an epoch that others wrote is no hindrance."""
    topics = Topics(kafka)
    root = example_project(tmp_path)
    rename_example(root, topics.pipeline)
    platform, app = open_platform(Settings(root, s3.settings().lookup)), f"{topics.pipeline}.backup"
    assert newest_elsewhere(platform, app) == 0
    topic = topics.make("purchases", partitions=1)
    world = TeeWorld(topics, [topic], topics.platform.objects.store())
    for epoch in (7, 50):
        world.epoch = epoch - 1
        world.next_epoch().round()
        assert newest_elsewhere(platform, app) == epoch
    world.group.commits.clear()
    topics.produce(topic, 0, [b"a"])
    world.epoch = newest_elsewhere(platform, app)
    world.archive_all(world.next_epoch())
    assert world.inspect(topic).coverage.verdict is Verdict.PROVEN
    assert platform.unanswered == {}


def test_the_ends_of_chains_in_a_bucket_that_cannot_be_asked_are_not_taken_for_none(s3: Stack) -> None:
    extra = {"endpoint_url": "http://127.0.0.1:1"}
    connection = json.dumps({"conn_type": "aws", "login": "a", "password": "b", "extra": extra})
    settings = replace(s3.settings(), lookup={"millrace_s3": connection}.get)
    with pytest.raises(UnreachableError):
        open_platform(settings).archive.hasty_heads("millrace_s3").newest_epoch([Incarnation("a.t", "A" * 22)])


@pytest.mark.usefixtures("kafka", "postgres")
def test_a_control_database_that_was_restored_learns_from_the_bucket(s3: Stack, name: str, tmp_path: Path) -> None:
    """Its fence knows nothing, the group neither: the chain alone has seen the newest start."""
    root = example_project(tmp_path)
    s3_instead(root, f"{{s3: {{prefix: test/{name}}}}}")
    rename_example(root, name)
    platform, stream = open_platform(Settings(root, s3.settings().lookup)), f"{name}.purchases"
    assert newest_elsewhere(platform, stream) == 0
    world = DatasetWorld(s3, name)
    DatasetWriter(world.plain, world.dataset, Identity(stream, 40, "i")).take_over()
    assert newest_elsewhere(platform, stream) == 40
    assert platform.unanswered == {}
