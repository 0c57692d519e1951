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
    WatchTask.STOPPED: "The stream is stopped as desired. Skipped if it is not.",
    WatchTask.BACKING_OFF: "The app ended by itself and will be restarted. The log has the time and the reason.",
    WatchTask.GIVEN_UP: "The app is not restarted until an operator starts it. The log has the reason.",
}
BACKUP_DOC = (
    " `backup` is the app that copies topics to the archive. After a topic is recreated it has nothing to accept."
)


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
        description=f"Keep {kind} {name} in its desired state, and watch it.",
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
        doc_md="The app is alive. Success: it stopped as requested, or is stuck. Failed: it died; the log says why.",
        dag=dag,
    )
    stuck = WatchStuck(
        task_id=WatchTask.STUCK.value,
        stream=name,
        doc_md="The app is alive but makes no progress; the log says what it waits for. Success: it moves again.",
        dag=dag,
    )
    waiting >> running >> stuck
    return dag


def _stream_doc(stream: Stream) -> str:
    reads = ", ".join(f"`{topic}`" for topic in stream.reads)
    return (
        f"A run watches one start of **{stream.qualified_name}**. The stream reads {reads} and writes "
        f"{stream.sink.named}. The deferred task shows the state of the stream; its log has the reason.\n\n"
        + _tasks_doc(stream, "stream", ", or accepts a recreated topic")
    )


def _backup_doc(backup: BackupApp) -> str:
    rows = "\n".join(f"| `{topic.name}` | {_kept(topic)} |" for topic in backup.topics)
    return (
        f"A run watches one start of **{backup.qualified_name}**. The backup copies every record of these topics to "
        "the archive, once. The deferred task shows the state of the backup; its log has the reason.\n\n"
        f"| topic | kept in the archive |\n|---|---|\n{rows}\n\n" + _tasks_doc(backup, "backup", "")
    )


def _kept(topic: Topic) -> str:
    keep = topic.backup.keep if topic.backup else None
    return f"for {spell_duration(keep)} at least" if keep else "for ever"


def _tasks_doc(app: App, kind: str, or_else: str) -> str:
    return (
        f"| task | the {kind} |\n|---|---|\n"
        "| `stopped` | is stopped as desired, or belongs to another host |\n"
        "| `backing_off` | ended by itself and is restarted after a pause |\n"
        f"| `given_up` | is not restarted until an operator starts it{or_else} |\n"
        "| `running` | has an app that is alive; failed: the app died |\n"
        "| `stuck` | has an app that is alive but makes no progress |\n\n"
        "You may clear, fail, mark or delete anything here, or pause this DAG. The app neither stops nor runs twice. "
        f"To start or stop the app, use the form of DAG `{app.pipeline}.operate`, or "
        f"`millrace streams start|stop {app.qualified_name} --reason ...`."
    )


def operate_dag(pipeline: Pipeline) -> DAG:
    """Return the form that starts, stops, accepts and adopts streams."""
    dag = DAG(
        dag_id=names.operate(pipeline),
        description=f"Start, stop, accept or adopt a stream of {pipeline.name}: press Trigger and fill in the form.",
        doc_md=(
            "Press **Trigger**. `start` also forgets past failures. `stop` lets the app finish its batch. "
            "`accept-recreated` lets the next start read a topic that was deleted and created again. `adopt` takes "
            "over a stream whose host is lost, or that is stopped on its host. The action log keeps the user, the "
            "action and the reason: `millrace log`." + (BACKUP_DOC if pipeline.backup else "")
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
        doc_md="Runs the action of the form in the name of the user who triggered it.",
        dag=dag,
        **RETRIED,
    )
    return dag


def supervise_dag() -> DAG:
    """Return `millrace.supervise`."""
    dag = DAG(
        dag_id=names.SUPERVISE,
        description="Bring every stream to its desired state, every five minutes.",
        doc_md=(
            "The DAG of each stream supervises it within seconds. This DAG supervises all streams, even if such a DAG "
            "is paused, deleted or broken. It also calls the notifiers for alarms that `millrace.alarms` has not "
            "delivered in time."
        ),
        **every_five_minutes(PLATFORM, ["supervise"]),
    )
    SuperviseStreams(task_id="supervise", doc_md="Writes one log line for each stream.", dag=dag, **RETRIED)
    TellAlarms(
        task_id="overdue_alarms",
        only_overdue=True,
        doc_md="Calls the notifiers and fails if an alarm waited for over two minutes: the triggerer may be down.",
        dag=dag,
        **RETRIED,
    )
    return dag
