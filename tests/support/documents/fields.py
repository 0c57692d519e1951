"""The kept list of fields whose values differ from run to run, and of lists that hold more than the example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from support.documents.masks import Distinct, Mask, Only, Place, Rules, Shape


def _masks(shape: Shape, reason: str, places: Mapping[str, Sequence[str]]) -> Iterator[Mask]:
    """Yield a mask for each path of each call, by calls with a bar between them."""
    for calls, paths in places.items():
        yield from (Mask(Place(one, path), shape, reason) for one in calls.split(" | ") for path in paths)


TIMES = (
    "at began began_at changed_at created ended ended_at expires finished_at first_at last_at looked_since "
    "made_at quarantined_at since submitted_at until"
)
PROGRAMS = "document.parts[].programs[]"
MASKS = (
    *_masks(
        Shape.TIME,
        "when the example ran, or when the command was called",
        {"*": [f"document.**.{key}" for key in TIMES.split()]},
    ),
    *_masks(
        Shape.STAMP,
        "when the example ran, or when the command was called",
        {
            "log *": ["document.actions[].reason"],
            "plans run *": ["error[]"],
            "streams show *": ["document.attempts[].detail"],
        },
    ),
    *_masks(
        Shape.SHA256,
        "of a plan, with the time at which it was made",
        {
            "topics plan*": ["document.plans[].hash"],
            "streams rewind *": ["document.hash"],
            "plans list": ["document.plans[].hash"],
            "plans *": ["document.hash"],
        },
    ),
    *_masks(
        Shape.PLAN,
        "the beginning of the plan's hash",
        {"plans list": ["document.plans[].id"], "log *": ["document.actions[].reason"]},
    ),
    *(
        mask
        for shape in (Shape.DURATION, Shape.RATE)
        for mask in _masks(
            shape,
            "by the pace of the last batch",
            {"streams rewind *": ["document.about.expected"], "plans *": ["document.**.about.expected"]},
        )
    ),
    *_masks(
        Shape.INT,
        "other tests on this stack count too, and what Airflow does every hour",
        {
            "log *": ["document.actions[].identity"],
            "topics hold*": ["document.**.identity"],
            "quality *": ["document.**.check"],
            "quality reconcile *": ["document.runs[].run"],
        },
    ),
    *_masks(Shape.EARLIER_MARKS, "Airflow checks every hour", {"quality show *": ["document.marks.*"]}),
    *_masks(
        Shape.INSTANCE,
        "random, for each process",
        {"streams show *": ["document.attempts[].instance", "document.attempts[].handle"]},
    ),
    *_masks(Shape.UUID, "random, for each member", {"groups show *": ["document.member_list[].member_id"]}),
    *_masks(Shape.KAFKA_ID, "of a topic that is made anew", {"backup restore *": ["document.into_topic_id"]}),
    *_masks(
        Shape.SHA256,
        "of a manifest, with ids and times",
        {"backup *": ["document.audits[].**.sha256", "document.audits[].**.furthest_sha256"]},
    ),
    *_masks(
        Shape.MOMENT,
        "evidence is named by its time and a random number",
        {
            "backup audit *": [f"document.audits[].{key}" for key in ("evidence", "page", "audit.remembers[]")],
            "backup coverage *": ["document.audits[].remembers[]"],
            "quality *": ["document.**.evidence[]"],
            "up": ["document.example.backup.evidence", "text[]"],
        },
    ),
    *_masks(
        Shape.DEPTH,
        "Airflow audits every hour, once a day in depth: it may have come first, or since",
        {
            "backup audit *": ["document.audits[].audit.remembers[]"],
            "backup coverage *": ["document.audits[].remembers[]"],
            "up": ["document.example.backup.evidence", "text[]"],
        },
    ),
    *_masks(
        Shape.FLOAT,
        "how long something took",
        {
            "streams *": ["document.**.progress.batch_seconds"],
            "backup *": ["document.audits[].**.took_seconds"],
            "doctor": ["document.checks[].seconds"],
            "up": ["document.own_seconds", "document.download_seconds"],
        },
    ),
    *_masks(
        Shape.INT,
        "how records share batches depends on the pace of the source",
        {
            "topics sizing": [
                f"document.topics[].{key}" for key in ("size_bytes", "partitions[].size_bytes", "forecast.size_bytes")
            ],
            "topics skew *": [
                f"document.{key}" for key in ("size_bytes", "partitions[].size_bytes", "hottest.size_bytes")
            ],
        },
    ),
    *_masks(
        Shape.FLOAT,
        "how records share batches depends on the pace of the source",
        {"topics sizing": ["document.topics[].offset_bytes"]},
    ),
    *_masks(
        Shape.FLOAT,
        "the snapshots that Airflow takes may have seen the source at work",
        {
            "topics sizing": [
                "document.topics[].bytes_per_second",
                "document.topics[].partitions[].flow.bytes_per_second",
                "document.topics[].partitions[].flow.most_bytes_per_second",
            ]
        },
    ),
    *_masks(
        Shape.SIZE,
        "how records share batches depends on the pace of the source",
        {"up": ["document.example.kept", "text[]"]},
    ),
    *_masks(
        Shape.FLOAT,
        "it grows with the clock",
        {
            "topics sizing": [
                "document.topics[].oldest_seconds",
                "document.topics[].partitions[].oldest_seconds",
                "document.topics[].partitions[].flow.measured_over_seconds",
            ],
            "up | status": [f"{PROGRAMS}.uptime_seconds"],
        },
    ),
    *_masks(Shape.DURATION, "it grows with the clock", {"up | status": [f"{PROGRAMS}.message"]}),
    *_masks(
        Shape.INT,
        "chosen when the stack starts",
        {"up | status": ["document.parts[].ports.*", f"{PROGRAMS}.pid"]},
    ),
    *_masks(Shape.PID, "chosen when the stack starts", {"up | status": [f"{PROGRAMS}.message"]}),
    *_masks(Shape.HELD, "other tests make their own", {"up | status": ["document.parts[].detail"]}),
    *_masks(Shape.STATE, "Airflow may be at work on a run", {"up": ["document.example.dags[][]", "text[]"]}),
    *_masks(
        Shape.INT,
        "the machine's disk",
        {"topics sizing": ["document.disks[].total_bytes", "document.disks[].usable_bytes"]},
    ),
    *(
        mask
        for shape in (Shape.SIZE, Shape.CORES, Shape.JAVA)
        for mask in _masks(shape, "the machine's", {"doctor": ["document.checks[].found"]})
    ),
    *_masks(Shape.ORIGIN_OF_JAVA, "the machine's", {"doctor": ["document.checks[].origin"]}),
    *_masks(Shape.VERSION, "requirements.txt has them", {"doctor": ["document.checks[].found"]}),
    *_masks(Shape.FILES, "other tests have files of their own", {"doctor": ["document.checks[].found"]}),
)
_OTHERS = "other tests on this stack have their own"
ONLY = (
    Only(Place("alarms list *", "document.alarms"), "subject", ("shop",), _OTHERS),
    Only(Place("groups lag *", "document.partitions"), "group", ("millrace.shop.",), _OTHERS),
    Only(Place("groups list *", "document.groups"), "group", ("millrace.shop.",), _OTHERS),
    Only(Place("plans list", "document.plans"), "target", ("shop",), _OTHERS),
    Only(Place("quarantine list", "document.counts"), "stream", ("shop.",), _OTHERS),
    Only(Place("streams list", "document.streams"), "stream", ("shop.",), "activity.groups reads all tests' commits"),
    Only(Place("topics headroom", "document.readers"), "group", ("millrace.shop.",), _OTHERS),
    Only(Place("topics hold", "document.holds"), "topic", ("shop.",), _OTHERS),
    Only(Place("topics sizing", "document.topics"), "topic", ("shop.",), _OTHERS),
)
_HOURLY = "Airflow audits every hour"
DISTINCT = (
    Distinct(Place("backup audit *", "document.audits[].audit.remembers"), _HOURLY),
    Distinct(Place("backup coverage *", "document.audits[].remembers"), _HOURLY),
)
RULES = Rules(MASKS, ONLY, DISTINCT)
