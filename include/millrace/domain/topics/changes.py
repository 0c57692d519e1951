"""Topics: what a cluster has, what the declaration wants, and the changes between the two.

A plan never deletes a topic. Topics and settings that no declaration names are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from millrace.domain.declaration.pipeline import Manage, Topic
from millrace.domain.plans.plan import Change, Facts, Refusal, Standing, facts

CREATE = "topic.create"
ADD_PARTITIONS = "topic.add_partitions"
SET_CONFIG = "topic.set_config"

BROKER_DEFAULT = -1  # Kafka's own word for it in CreateTopics, since KIP-464
CONFIG = "config."
_EXISTS, _TOPIC_ID, _PARTITIONS, _REPLICATION = "exists", "topic_id", "partitions", "replication"
_UNLIMITED = Decimal(-1)
_POLICY = "cleanup.policy"
_LISTS = frozenset(
    {"cleanup.policy", "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """A topic as the cluster has it.

    `config` holds the values set on the topic itself; what is absent follows the broker's default in `defaults`.
    """

    name: str
    topic_id: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    defaults: Mapping[str, str]

    def setting(self, key: str) -> str:
        """The value in force; empty where the broker does not know the key."""
        return self.config.get(key, self.defaults.get(key, ""))


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created. `partitions` and `replication` -1 mean the broker's default."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicDifference:
    """What stands between declaration and cluster: what can be changed, and what no plan will."""

    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]


def plan_topics(
    declared: Iterable[Topic],
    observed: Mapping[str, ObservedTopic],
    unreadable: Mapping[str, str] | None = None,
    *,
    least: Mapping[str, Mapping[str, str]] | None = None,
    no_cuts: str = "",
    names: Collection[str] = (),
) -> TopicDifference:
    """The changes that make the observed topics as declared.

    Args:
        declared: topics as declared.
        observed: the topics that exist, by name.
        unreadable: topics that the cluster would not describe, with its reason.
        least: limits that held topics keep at least, by name: a declared one that is longer counts.
        no_cuts: why no topic may be made to keep less; empty where it may.
        names: all topics that the cluster is known to have, declared or not: none is made beside one that is alike.

    Guarantees: independent of the order of its input; once its changes are made, planning again gives none;
    nothing is ever deleted, and what the declaration does not name is not touched.
    """
    unreadable = unreadable or {}
    changes: list[Change] = []
    refusals: list[Refusal] = []
    for topic in declared:
        if topic.name in unreadable:
            refusals.append(
                Refusal(
                    topic.name,
                    f"the cluster does not describe it: {unreadable[topic.name]}",
                    "grant Describe and DescribeConfigs on it to the user of this connection",
                )
            )
        elif topic.name not in observed:
            _missing(topic, changes, refusals)
        elif topic.manage is Manage.FULL:
            refusals += _refusals(topic, observed[topic.name])
            wanted = _held(wanted_config(topic), observed[topic.name], (least or {}).get(topic.name))
            if no_cuts and (cuts := _cuts(wanted, observed[topic.name])):
                refusals.append(_uncut(topic, cuts, no_cuts))
                wanted = {key: value for key, value in wanted.items() if key not in cuts}
            changes += _differences(topic, wanted, observed[topic.name])
    changes, alike = _without_collisions(changes, {*names, *observed})
    refusals += alike
    return TopicDifference(
        tuple(sorted(changes, key=lambda change: (change.subject, change.action, change.after))),
        tuple(sorted(refusals, key=lambda refusal: (refusal.subject, refusal.what))),
    )


def may_collide(name: str) -> bool:
    """Whether Kafka may refuse a topic for a name that is alike: it takes `.` and `_` for the same in its metrics.

    Source: org.apache.kafka.common.internals.Topic#hasCollision.
    """
    return "." in name or "_" in name


def _without_collisions(changes: Sequence[Change], names: Collection[str]) -> tuple[list[Change], list[Refusal]]:
    """Take out the topics that Kafka would not make; of two new ones that are alike the first by name is made."""
    taken = {_metric_name(name): name for name in sorted(names, reverse=True) if may_collide(name)}
    made: list[Change] = []
    refused: list[Refusal] = []
    for change in sorted(changes, key=lambda each: each.subject):
        other = change.subject
        if change.action == CREATE:
            other = taken.setdefault(_metric_name(change.subject), change.subject)
        if other == change.subject:
            made.append(change)
        else:
            there = "exists" if other in names else "would be created too"
            what = f"the name collides with the topic {other}, which {there}: Kafka treats `.` and `_` as equal"
            refused.append(Refusal(change.subject, what, "give it another name in the declaration"))
    return made, refused


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def wanted_config(topic: Topic) -> dict[str, str]:
    """The declared settings of a topic by their Kafka names. A limit declared as none is Kafka's -1."""
    config = dict(topic.config)
    if topic.cleanup is not None:
        config["cleanup.policy"] = topic.cleanup.value
    if (limits := topic.retention) is not None:
        milliseconds = None if limits.time is None else int(limits.time.total_seconds() * 1000)
        config["retention.ms"] = _limit(milliseconds)
        config["retention.bytes"] = _limit(limits.size_per_partition_bytes)
    return config


def same_setting(key: str, one: str, other: str) -> bool:
    """Whether two spellings of a setting mean the same: `0.50` and `0.5`, `compact, delete` and `delete,compact`."""
    return _meaning(key, one) == _meaning(key, other)


def longer_limit(one: str, other: str) -> str:
    """The longer of two limits as Kafka spells them, where -1 is without limit; the first where one is no number."""
    first, second = _meaning("retention.ms", one), _meaning("retention.ms", other)
    if not isinstance(first, Decimal) or not isinstance(second, Decimal) or first == second:
        return one
    return one if first < 0 or (second >= 0 and first > second) else other


def standing(change: Change, observed: ObservedTopic | None) -> Standing:
    """How a change of a plan meets the topic as it is now."""
    if dict(change.before).get(_TOPIC_ID) != (observed.topic_id if observed else None) and change.action != CREATE:
        return Standing.MOVED
    if _holds(change.before, observed):
        return Standing.PENDING
    return Standing.DONE if _holds(change.after, observed) else Standing.MOVED


def new_topic(change: Change) -> NewTopic:
    """The topic a `topic.create` change creates."""
    after = dict(change.after)
    partitions, replication = (int(after.get(name, BROKER_DEFAULT)) for name in (_PARTITIONS, _REPLICATION))
    return NewTopic(change.subject, partitions, replication, settings_of(change.after))


def partition_count(change: Change) -> int:
    """How many partitions a topic has after a `topic.add_partitions` change."""
    return int(dict(change.after)[_PARTITIONS])


def settings_of(values: Facts) -> dict[str, str]:
    """The broker settings among facts, by their Kafka names."""
    return {name.removeprefix(CONFIG): value for name, value in values if name.startswith(CONFIG)}


def _limit(value: int | None) -> str:
    return "-1" if value is None else str(value)


def _meaning(key: str, value: str) -> object:
    text = value.strip()
    if key in _LISTS:
        return frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    return text.lower() if text.lower() in {"true", "false"} else text


def _missing(topic: Topic, changes: list[Change], refusals: list[Refusal]) -> None:
    if topic.manage is Manage.NONE:
        refusals.append(
            Refusal(
                topic.name,
                "the topic does not exist, and is declared with `manage: none`",
                "ask its owner to create it, correct its name, or declare `manage: full`",
            )
        )
        return
    after: dict[str, object] = {CONFIG + key: value for key, value in wanted_config(topic).items()}
    if topic.partitions is not None:
        after[_PARTITIONS] = topic.partitions
    if topic.replication is not None:
        after[_REPLICATION] = topic.replication
    changes.append(Change(CREATE, topic.name, facts({_EXISTS: "no"}), facts(after | {_EXISTS: "yes"})))


def _refusals(topic: Topic, observed: ObservedTopic) -> Iterator[Refusal]:
    if topic.partitions is not None and topic.partitions < observed.partitions:
        yield Refusal(
            topic.name,
            f"the topic has {observed.partitions} partitions, and {topic.partitions} are declared: "
            "Kafka cannot remove partitions",
            f"declare `partitions: {observed.partitions}`, or move to a new topic with fewer",
        )
    if topic.replication is not None and topic.replication != observed.replication:
        yield Refusal(
            topic.name,
            f"the topic has replication {observed.replication}, and {topic.replication} is declared: "
            "Millrace does not move replicas between brokers",
            f"declare `replication: {observed.replication}`, or reassign with kafka-reassign-partitions",
        )
    for key in sorted(wanted_config(topic)):
        if not _is_known(key, observed):
            yield Refusal(
                topic.name,
                f"topic setting {key} is unknown to the cluster",
                "correct its name in the declaration, or remove it",
            )


def _differences(topic: Topic, wanted: Mapping[str, str], observed: ObservedTopic) -> Iterator[Change]:
    if topic.partitions is not None and topic.partitions > observed.partitions:
        yield Change(
            ADD_PARTITIONS,
            topic.name,
            facts({_TOPIC_ID: observed.topic_id, _PARTITIONS: observed.partitions}),
            facts({_PARTITIONS: topic.partitions}),
            "keys move: new records of a key may go to another partition, so their order with earlier records is "
            "lost; Kafka cannot remove partitions",
        )
    reasons = {
        key: (value, _danger(key, observed.setting(key), value))
        for key, value in wanted.items()
        if _is_known(key, observed) and not same_setting(key, observed.setting(key), value)
    }
    for dangerous in (False, True):
        chosen = {key: value for key, (value, reason) in reasons.items() if bool(reason) is dangerous}
        if chosen:
            before = {CONFIG + key: observed.setting(key) for key in chosen} | {_TOPIC_ID: observed.topic_id}
            unsafe = "; ".join(sorted(reasons[key][1] for key in chosen)) if dangerous else ""
            after = facts({CONFIG + key: value for key, value in chosen.items()})
            yield Change(SET_CONFIG, topic.name, facts(before), after, unsafe)


def _held(wanted: dict[str, str], observed: ObservedTopic, least: Mapping[str, str] | None) -> dict[str, str]:
    """What is wanted of a topic while it is held: no shorter limits, and no policy that begins to delete."""
    if least is None:
        return wanted
    held = {key: longer_limit(wanted.get(key, value), value) for key, value in least.items()}
    held = {key: value for key, value in held.items() if key in wanted or _is_shorter(observed.setting(key), value)}
    return {key: value for key, value in (wanted | held).items() if key != _POLICY or not _begins(observed, value)}


def _is_shorter(one: str, other: str) -> bool:
    return not same_setting("retention.ms", one, other) and longer_limit(one, other) == other


def _begins(observed: ObservedTopic, policy: str) -> bool:
    """Whether a topic deletes by this policy and does not now."""
    return "delete" in policy and "delete" not in observed.setting(_POLICY)


def _cuts(wanted: Mapping[str, str], observed: ObservedTopic) -> list[str]:
    """The settings that make a topic keep less, or may."""
    different = (key for key, value in wanted.items() if not same_setting(key, observed.setting(key), value))
    return sorted(key for key in different if _danger(key, observed.setting(key), wanted[key]))


def _uncut(topic: Topic, keys: Sequence[str], why: str) -> Refusal:
    return Refusal(
        topic.name,
        f"its {' and '.join(keys)} cannot be reduced now: the holds of the topic are unknown ({why})",
        "make a new plan when the control database answers",
    )


def _is_known(key: str, observed: ObservedTopic) -> bool:
    """Whether the cluster knows this setting: it lists every one, set on the topic or not."""
    return key in observed.config or key in observed.defaults


def _danger(key: str, now: str, wanted: str) -> str:
    """Why a person has to look at this change of a setting; empty where records cannot be lost by it."""
    if key == "cleanup.policy":
        return f"cleanup.policy from {now or 'unknown'} to {wanted} decides which records are deleted"
    if key not in {"retention.ms", "retention.bytes"}:
        return ""
    old, new = _meaning(key, now), _meaning(key, wanted)
    if new == _UNLIMITED or (isinstance(old, Decimal) and isinstance(new, Decimal) and _UNLIMITED != old <= new):
        return ""
    return f"{key} from {now or 'unknown'} to {wanted} deletes records at the next sweep"


def _holds(values: Facts, observed: ObservedTopic | None) -> bool:
    """Whether all these facts are so."""
    if observed is None:
        return (_EXISTS, "no") in values
    actual = {
        _EXISTS: "yes",
        _TOPIC_ID: observed.topic_id,
        _PARTITIONS: str(observed.partitions),
        _REPLICATION: str(observed.replication),
    }
    return all(
        same_setting(name.removeprefix(CONFIG), observed.setting(name.removeprefix(CONFIG)), value)
        if name.startswith(CONFIG)
        else actual[name] == value
        for name, value in values
    )
