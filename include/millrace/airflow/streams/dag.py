"""The DAGs that watch the apps of a pipeline, its backup among them, supervise all, and operate one by a form."""

from __future__ import annotations

from airflow.sdk import DAG, Param, TriggerRule

from millrace.airflow.alarms.operators import TellAlarms
from millrace.airflow.plans.form import reason_param, stream_param
from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import PLATFORM, RETRIED, continuous, every_five_minutes, form
from millrace.airflow.streams.operators import OperateStream, SuperviseStreams, WatchRunning, WatchStuck, WatchWaiting
from millrace.declarations.spelling import spell_duration
from millrace.domain.declaration.pipeline import App, BackupApp, Pipeline, Stream, Topic
from millrace.domain.streams.watch import WAITING, WatchTask

ACTIONS = ("start", "stop", "accept-recreated", "adopt")
WAITING_DOCS = {
    WatchTask.STOPPED: "Stopped as wanted. Skipped where it is not.",
    WatchTask.BACKING_OFF: "It ended by itself and is started again; the log says when, and why it ended.",
    WatchTask.GIVEN_UP: "It is not started again until an operator does; the log says why.",
}
BACKUP_DOC = " `backup` is what copies topics to the archive; of a topic that was made again it has nothing to accept."


def stream_dag(pipeline: Pipeline, stream: Stream) -> DAG:
    """Return the DAG that watches a stream."""
    return _watch_dag(pipeline, stream, "stream", _stream_doc(stream))


def backup_dag(pipeline: Pipeline, backup: BackupApp) -> DAG:
    """Return the DAG that watches the app of a backup."""
    return _watch_dag(pipeline, backup, "backup", _backup_doc(backup))


def _watch_dag(pipeline: Pipeline, app: App, kind: str, doc: str) -> DAG:
    """Return a DAG; each run of it is one watch of one epoch.

    Args:
        pipeline: whose app it is.
        app: what is watched.
        kind: what people call it, and its tag: stream or backup.
        doc: about it.
    """
    name = app.qualified_name
    dag = DAG(
        dag_id=names.app(app),
        description=f"Keep {kind} {name} as wanted, and watch it.",
        doc_md=doc,
        **continuous(pipeline.owner, [pipeline.name, kind]),
    )
    waiting = [
        WatchWaiting(task_id=task.value, waiting=task.value, stream=name, doc_md=WAITING_DOCS[task], dag=dag)
        for task in WAITING
    ]
    running = WatchRunning(
        task_id=WatchTask.RUNNING.value,
        stream=name,
        trigger_rule=TriggerRule.NONE_FAILED,  # of the three before it at least two are skipped
        inlets=[topic_asset(pipeline.kafka, topic) for topic in app.reads],
        doc_md="Its app lives. Success: it stopped as asked, or is stuck. Failed: it died; the log says why.",
        dag=dag,
    )
    stuck = WatchStuck(
        task_id=WatchTask.STUCK.value,
        stream=name,
        doc_md="Its app lives and does not move; the log says what it waits for. Success: it moves again.",
        dag=dag,
    )
    waiting >> running >> stuck
    return dag


def _stream_doc(stream: Stream) -> str:
    reads = ", ".join(f"`{topic}`" for topic in stream.reads)
    return (
        f"A run is one watch of one start of **{stream.qualified_name}**, which reads {reads} and writes "
        f"{stream.sink.named}. The task that is deferred says how the stream is; its log says why.\n\n"
        + _tasks_doc(stream, "stream", ", or accepts a recreated topic")
    )


def _backup_doc(backup: BackupApp) -> str:
    rows = "\n".join(f"| `{topic.name}` | {_kept(topic)} |" for topic in backup.topics)
    return (
        f"A run is one watch of one start of **{backup.qualified_name}**, which copies every record of these topics to "
        "the archive, once. The task that is deferred says how the backup is; its log says why.\n\n"
        f"| topic | kept in the archive |\n|---|---|\n{rows}\n\n" + _tasks_doc(backup, "backup", "")
    )


def _kept(topic: Topic) -> str:
    keep = topic.backup.keep if topic.backup else None
    return f"for {spell_duration(keep)} at least" if keep else "for ever"


def _tasks_doc(app: App, kind: str, or_else: str) -> str:
    return (
        f"| task | the {kind} |\n|---|---|\n"
        "| `stopped` | is stopped as wanted, or belongs to another host |\n"
        "| `backing_off` | ended by itself and is started again when its time has come |\n"
        f"| `given_up` | is not started again until an operator starts it{or_else} |\n"
        "| `running` | has a living app; failed: the app died |\n"
        "| `stuck` | has a living app that does not move |\n\n"
        "Clearing, failing, marking or deleting anything here, or pausing this DAG, neither stops nor doubles the "
        f"app. To start or stop it use the form of DAG `{app.pipeline}.operate`, or "
        f"`millrace streams start|stop {app.qualified_name} --reason ...`."
    )


def operate_dag(pipeline: Pipeline) -> DAG:
    """Return the form that starts, stops, accepts and adopts streams."""
    dag = DAG(
        dag_id=names.operate(pipeline),
        description=f"Start, stop, accept or adopt a stream of {pipeline.name}: press Trigger and fill in the form.",
        doc_md=(
            "Press **Trigger**. `start` also forgets past failures; `stop` lets the app finish its batch; "
            "`accept-recreated` lets the next start read a topic that was deleted and made again; `adopt` takes over a "
            "stream whose host is lost, or that is stopped there. Who, what and why "
            "goes to the action log: `millrace log`." + (BACKUP_DOC if pipeline.backup else "")
        ),
        params={
            "stream": stream_param(pipeline.apps),
            "action": Param(
                type="string",
                enum=list(ACTIONS),
                title="Action",
                description="start also forgets past failures; stop lets the app finish its batch.",
            ),
            "reason": reason_param(),
        },
        **form(pipeline.owner, [pipeline.name, "operate"], at_once=4),
    )
    OperateStream(
        task_id="operate",
        pipeline=pipeline.name,
        doc_md="Does what the form says, in the name of who triggered the run.",
        dag=dag,
        **RETRIED,
    )
    return dag


def supervise_dag() -> DAG:
    """Return `millrace.supervise`."""
    dag = DAG(
        dag_id=names.SUPERVISE,
        description="Every five minutes, bring every stream to what is wanted of it.",
        doc_md=(
            "Each stream is supervised by its own DAG within seconds; this one does it for all, also where that DAG "
            "is paused, deleted or broken, and tells alarms that `millrace.alarms` has not told in time."
        ),
        **every_five_minutes(PLATFORM, ["supervise"]),
    )
    SuperviseStreams(task_id="supervise", doc_md="One log line a stream.", dag=dag, **RETRIED)
    TellAlarms(
        task_id="overdue_alarms",
        only_overdue=True,
        doc_md="Fails, and tells, when an alarm waited for more than two minutes: the triggerer may be down.",
        dag=dag,
        **RETRIED,
    )
    return dag
