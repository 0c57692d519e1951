"""What the fields of one pipeline file mean to each other."""

from __future__ import annotations

from pathlib import Path

from millrace.declarations.draft import SECTIONS, Draft
from millrace.declarations.fields import KAFKAS_OWN, PIPELINE_NAME, nearest
from millrace.declarations.findings import WHOLE_FILE, Place
from millrace.declarations.name_list import repeated
from millrace.declarations.reader import Mapping, Sequence
from millrace.declarations.sinks import KINDS
from millrace.declarations.spelling import spell_duration
from millrace.declarations.topic_document import TopicDocument
from millrace.declarations.validate import EXAMPLES, Part
from millrace.domain.declaration.pipeline import (
    BYTES_COLUMNS,
    Cleanup,
    ColumnType,
    Manage,
    Tombstones,
    ValueFormat,
)
from millrace.domain.formats.printable import shown

PIPELINES = "include/pipelines"
_ONLY_MANAGED = ("partitions", "replication", "cleanup", "retention", "config")
OWN_FIELDS = {
    "retention.ms": "retention.time",
    "retention.bytes": "retention.size_per_partition",
    "cleanup.policy": "cleanup",
    "num.partitions": "partitions",
    "replication.factor": "replication",
}
"""Settings of Kafka that have a field of their own, and that field."""


def check_pipeline(draft: Draft, root: Path) -> None:
    """Add what is wrong inside one file to its findings.

    Args:
        draft: the pipeline as read.
        root: the project's root, where apps and source programs are looked for.
    """
    _header(draft)
    for topic in draft.topics.values():
        _managed(draft, topic)
        _value(draft, topic)
        _key(draft, topic)
        _tombstones(draft, topic)
        _retention(draft, topic)
        _config(draft, topic)
        _backup(draft, topic)
        _expect(draft, topic)
    _colliding(draft)
    for stream in draft.streams:
        _stream(draft, stream, root)
    for source in draft.sources.values():
        program = source.document.program
        if program and not (root / "sources" / f"{program}.py").is_file():
            what = f"the file sources/{program}.py does not exist"
            draft.say(source.place("program"), what, f"write sources/{program}.py with a function `records()`")


def _header(draft: Draft) -> None:
    whole = Place(draft.file, 1, WHOLE_FILE)
    name = draft.header.document.pipeline
    if not PIPELINE_NAME.fullmatch(draft.name):
        what = f"the file's name `{shown(draft.name)}` is not a pipeline's name"
        draft.say(whole, what, "name the file like the pipeline: a lower-case letter, then up to 23 of a-z, 0-9, _")
    elif name and name != draft.name:
        what = f"the pipeline `{name}` is not named like its file {draft.name}.yaml"
        step = f"write `pipeline: {draft.name}`, or rename the file to {name}.yaml"
        draft.say(draft.header.place("pipeline"), what, step)
    if not any(section in draft.tree.entries for section in SECTIONS) and draft.sound:
        draft.say(whole, "the pipeline declares nothing", "add `topics`, `streams` or `sources`")


def _managed(draft: Draft, topic: Part[TopicDocument]) -> None:
    document = topic.document
    if topic.name.startswith(KAFKAS_OWN) and document.manage is not Manage.NONE and "manage" not in topic.wrong:
        what = f"`{shown(topic.name)}` is reserved: Kafka's own topics start with `{KAFKAS_OWN}`"
        draft.say(topic.tree.place, what, "drop the underscores, or write `manage: none`, to read what Kafka writes")
    if document.manage is Manage.NONE:
        for name in _ONLY_MANAGED:
            if name in topic.tree.entries:
                what = f"`{name}` has no effect on a topic with `manage: none`, which Millrace never changes"
                draft.say(topic.place(name), what, f"remove `{name}`, or write `manage: full`")
    elif document.partitions is None and not {"partitions", "manage"} & topic.wrong:
        what = "`partitions` is missing"
        draft.say(topic.place("partitions"), what, "add `partitions: 4`, or write `manage: none`")


def _value(draft: Draft, topic: Part[TopicDocument]) -> None:
    value = topic.document.value
    if value is None:
        return
    given = topic.tree.get("value", "schema") is not None
    if value.format is ValueFormat.BYTES and given:
        what = "records of the format `bytes` are not decoded, so they have no `schema`"
        draft.say(topic.place("value", "schema"), what, "remove `schema`: the columns are `key` and `value`")
    elif value.format is ValueFormat.JSON and not given:
        draft.say(topic.place("value", "schema"), "`schema` is missing", f"add `schema: {EXAMPLES['schema']}`")


def _key(draft: Draft, topic: Part[TopicDocument]) -> None:
    document = topic.document
    if document.cleanup in (Cleanup.COMPACT, Cleanup.COMPACT_DELETE) and "key" not in topic.tree.entries:
        what = "a compacted topic keeps the last record of each key, and this one declares no key"
        draft.say(topic.place("cleanup"), what, "add `key: {field: COLUMN}`, or write `cleanup: delete`")
    if document.key is None or "value" in topic.wrong:
        return
    if document.value is None:
        what = f"the column `{document.key.field}` is unknown, because the topic declares no `value`"
        draft.say(topic.place("key", "field"), what, "add `value: {schema: ...}`, or remove `key`")
        return
    columns = BYTES_COLUMNS if document.value.format is ValueFormat.BYTES else document.value.columns
    names = [column.name for column in columns]
    if not names:
        return  # the schema is missing, which is said already
    if document.key.field not in names:
        what = f"`{document.key.field}` is not a column of the topic's schema"
        draft.say(topic.place("key", "field"), what, nearest(document.key.field, names))


def _tombstones(draft: Draft, topic: Part[TopicDocument]) -> None:
    """Only where the key is the text of a column can a record without a value say what it deletes."""
    value, key = topic.document.value, topic.document.key
    if value is None or topic.tree.get("value", "tombstones") is None:
        return
    place = topic.place("value", "tombstones")
    if value.format is ValueFormat.BYTES:
        what = "records of the format `bytes` are not decoded, and a record without a value is valid"
        draft.say(place, what, "remove `tombstones`: the column `value` of such a record is null")
    elif value.tombstones is Tombstones.QUARANTINE:
        return
    elif key is None:
        if "key" not in topic.wrong:
            what = "a record without a value deletes its key, and this topic declares no key"
            draft.say(place, what, "add `key: {field: COLUMN}`, or write `tombstones: quarantine`")
    else:
        column = next((each for each in value.columns if each.name == key.field), None)
        if column is not None and column.type is not ColumnType.STRING:
            what = f"a record without a value has its key as text, and the key `{column.name}` is {column.sql_type}"
            draft.say(place, what, f"declare `{column.name}` as STRING, or write `tombstones: quarantine`")


def _retention(draft: Draft, topic: Part[TopicDocument]) -> None:
    document = topic.document
    if document.cleanup is Cleanup.COMPACT and document.retention is not None:
        limit = "time" if document.retention.time is not None else "size_per_partition"
        limit = limit if topic.tree.get("retention", limit) is not None else "time"
        what = "retention has no effect with `cleanup: compact`"
        draft.say(topic.place("retention", limit), what, "remove `retention`, or write `cleanup: compact,delete`")


def _config(draft: Draft, topic: Part[TopicDocument]) -> None:
    for key in topic.tree.mapping("config").entries:
        if key in OWN_FIELDS:
            step = f"remove it and write `{OWN_FIELDS[key]}`"
            place = topic.tree.mapping("config").entries[key].place
            draft.say(place, f"`{key}` has a field of its own", step)


def _backup(draft: Draft, topic: Part[TopicDocument]) -> None:
    backup, retention = topic.document.backup, topic.document.retention
    if backup is None:
        return
    if backup.max_lag < 2 * backup.every:
        lag, every = spell_duration(backup.max_lag), spell_duration(backup.every)
        what = (
            f"`max_lag` ({lag}) is less than twice `every` ({every}): "
            "records would be older than it before an object may be written"
        )
        step = f"write `max_lag: {spell_duration(2 * backup.every)}` or more, or a shorter `every`"
        draft.say(topic.place("backup", "max_lag"), what, step)
    if retention is not None and retention.time is not None and retention.time < 2 * backup.max_lag:
        what = (
            f"{spell_duration(retention.time)} is less than twice the backup's `max_lag` "
            f"({spell_duration(backup.max_lag)}): records could be deleted before they must be in the archive"
        )
        step = f"write `time: {spell_duration(2 * backup.max_lag)}` or more, or a shorter `max_lag`"
        draft.say(topic.place("retention", "time"), what, step)


def _expect(draft: Draft, topic: Part[TopicDocument]) -> None:
    expect = topic.document.expect
    if expect is not None and expect.rate is None and expect.record is None and expect.growth is None:
        step = "write the known values, like `{rate: 500/s, record: 250B, growth: 5%/month}`, or remove `expect`"
        draft.say(topic.place("expect"), "`expect` says nothing", step)


def _colliding(draft: Draft) -> None:
    """Kafka refuses to create two topics that differ only in `.` and `_`: their metrics would have one name."""
    seen: dict[str, str] = {}
    for name, entry in draft.tree.mapping("topics").entries.items():
        other = seen.setdefault(name.replace(".", "_"), name)
        if other != name:
            what = f"Kafka cannot hold `{shown(name)}` beside `{shown(other)}`: it takes `.` and `_` for the same"
            draft.say(entry.place, what, "rename one of them")


def _stream(draft: Draft, name: str, root: Path) -> None:
    stream = draft.streams[name]
    app = stream.document.app
    if app and not (root / "spark_apps" / app / "transform.py").is_file():
        what = f"the file spark_apps/{app}/transform.py does not exist"
        draft.say(stream.place("app"), what, f"write spark_apps/{app}/transform.py with `transform(inputs, tables)`")
    group = stream.document.group
    if group and group.startswith("millrace.") and group != f"millrace.{draft.name}.{name}":
        what = f"the group `{group}` is reserved: `millrace.` begins the groups Millrace names itself"
        draft.say(stream.place("group"), what, "remove `group`, or choose a name that begins otherwise")
    _sinks(draft, stream.tree, stream.place("writes"))
    kinds = [kind for kind in KINDS if stream.tree.get("writes", kind.word) is not None]
    for kind in kinds:
        writes = stream.document.writes
        kind.check(draft.say, stream, writes.part(kind) if writes else None)
    services = [kind.service for kind in kinds if not kind.tabular]
    if services and "quality" in stream.tree.entries:
        what = f"quality rules need a table, and this stream writes to {' and '.join(services)}"
        step = "remove `quality`, or declare a second stream that writes the rows to a table"
        draft.say(stream.place("quality"), what, step)
    _reads(draft, stream.tree, stream.place("reads"))


def _sinks(draft: Draft, tree: Mapping, place: Place) -> None:
    sinks = list(tree.mapping("writes").entries)
    if len(sinks) > 1:
        what = f"the stream has {len(sinks)} sinks: {', '.join(shown(each) for each in sinks)}"
        draft.say(place, what, "keep one, and declare a second stream for the other")
    if isinstance(tree.get("writes"), Mapping) and not set(sinks) & {kind.word for kind in KINDS}:
        what = "the stream has no sink that exists yet" if sinks else "the stream has no sink"
        *first, last = [f"`{kind.word}: {kind.example}`" for kind in KINDS]
        draft.say(place, what, f"write {', '.join(first)}, or {last}")


def _reads(draft: Draft, tree: Mapping, place: Place) -> None:
    reads = tree.get("reads")
    if not isinstance(reads, Sequence):
        return
    if not reads.items:
        draft.say(place, "the stream reads no topic", "name at least one, like [shop.purchases]")
    for item in repeated(reads):
        draft.say(item.place, f"the topic `{shown(item.value)}` is read twice", "remove one of them")
