"""What declarations name is found by its name; a name that none of them has is refused, with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.declarations import InvalidDeclarationError
from millrace.errors import UsageError
from millrace.settings import KAFKA
from millrace.usecases.declaration.lookup import (
    all_pipelines,
    cluster_of,
    declared_app,
    declared_groups,
    declared_stream,
    declared_topic,
    declared_topics,
    find_app,
    find_topic,
)
from support.declarations import SHOP, example_project, remove_backup, replace_once

STREAM, BACKUP, TOPIC = "shop.purchases", "shop.backup", "shop.purchases"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return example_project(tmp_path)


def break_shop(root: Path) -> None:
    (root / SHOP).write_text("pipeline: [broken\n", encoding="utf-8")


def elsewhere(root: Path) -> None:
    replace_once(root / SHOP, "kafka: millrace_kafka\n", "kafka: other_kafka\n")


def test_streams_and_backups_are_found_with_their_pipeline(root: Path) -> None:
    for name in (STREAM, BACKUP):
        pipeline, app = declared_app(root, name)
        assert (pipeline.name, app.qualified_name) == ("shop", name)
        assert find_app(root, name) == (pipeline, app)
    assert declared_stream(root, STREAM).name == STREAM


@pytest.mark.parametrize(
    ("name", "what", "step"),
    [
        ("shop", "`shop` is not the full name of a stream", "write PIPELINE.STREAM"),
        ("shop.nobody", "pipeline shop has no stream nobody", f"choose one of: {STREAM}"),
        ("shopp.nobody", "pipeline `shopp` does not exist", "did you mean `shop`?"),
    ],
)
def test_an_unknown_stream_is_refused_in_the_same_words_everywhere(root: Path, name: str, what: str, step: str) -> None:
    for find in (declared_app, declared_stream):
        with pytest.raises(UsageError) as caught:
            find(root, name)
        assert caught.value.what == what
        assert caught.value.next_step.startswith(step)
    assert find_app(root, name) is None


def test_a_backup_is_no_stream(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        declared_stream(root, BACKUP, backup="has no rows", step="name a stream")
    assert (caught.value.what, caught.value.next_step) == (f"{BACKUP} has no rows", "name a stream")
    with pytest.raises(UsageError, match="is a backup, not a stream"):
        declared_stream(root, BACKUP)
    remove_backup(root)
    with pytest.raises(UsageError, match="pipeline shop has no backup"):
        declared_stream(root, BACKUP)


def test_a_declaration_with_errors_is_refused_and_never_unknown(root: Path) -> None:
    break_shop(root)
    for find in (find_app, declared_app, declared_stream):
        with pytest.raises(InvalidDeclarationError):
            find(root, STREAM)
    with pytest.raises(InvalidDeclarationError):
        all_pipelines(root)


def test_topics_are_found_by_name(root: Path) -> None:
    pipeline, topic = declared_topic(root, TOPIC)
    assert (pipeline.name, topic.name) == ("shop", TOPIC)
    assert find_topic(root, TOPIC) == (pipeline, topic)
    with pytest.raises(UsageError) as caught:
        declared_topic(root, "shop.purchase")
    assert caught.value.what == "topic `shop.purchase` is unknown: no valid declaration has it"
    assert caught.value.next_step == f"did you mean `{TOPIC}`?"
    assert find_topic(root, "shop.purchase") is None


def test_topics_and_groups_are_of_their_own_cluster_alone(root: Path) -> None:
    assert TOPIC in declared_topics(root, KAFKA)
    assert {app.qualified_name for app in declared_groups(root, KAFKA).values()} >= {STREAM, BACKUP}
    elsewhere(root)
    assert TOPIC not in declared_topics(root, KAFKA)
    assert TOPIC in declared_topics(root, "other_kafka")
    assert STREAM not in {app.qualified_name for app in declared_groups(root, KAFKA).values()}
    assert STREAM in {app.qualified_name for app in declared_groups(root, "other_kafka").values()}


def test_the_cluster_is_that_of_the_pipeline_that_declares_the_topic(root: Path) -> None:
    elsewhere(root)
    assert cluster_of(root, TOPIC) == "other_kafka"
    assert cluster_of(root, "elsewhere") == KAFKA


def test_what_a_broken_file_declares_is_not_among_what_is_sound(root: Path) -> None:
    break_shop(root)
    assert find_topic(root, TOPIC) is None
    assert TOPIC not in declared_topics(root, KAFKA)
