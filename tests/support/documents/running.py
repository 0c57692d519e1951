"""Call commands as a terminal does, in this process, and mask what they print."""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import structlog
from confluent_kafka.admin import AdminClient
from rich.console import Console

from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.cli.example.run import print_report
from millrace.cli.main import main
from millrace.cli.terminal import output
from millrace.cli.terminal.actor import actor
from millrace.domain.topics.changes import NewTopic
from millrace.embedded import ports
from millrace.embedded.layout import cache_folder
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError, UnreachableError
from millrace.usecases.example.run import ExampleReport
from support.documents.calls import LEARNED
from support.documents.fields import RULES
from support.topics.declared import make_project
from support.topics.new import create_topics

Entry = dict[str, object]
"""How a call ended: its exit code, and its document, or the lines of its error where it printed none."""


def call(arguments: Sequence[str], root: Path) -> Entry:
    """Call a command with `--json` in the project at `root`.

    Raises:
        UnreachableError: the command ended because a server does not answer.
    """
    out, errors = StringIO(), list[MillraceError]()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(StringIO()):
        patch.setenv("MILLRACE_ROOT", str(root))
        patch.setattr(sys, "argv", ["millrace", *arguments, "--json"])
        patch.setattr(output, "show_error", errors.append)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            structlog.reset_defaults()
    for error in errors:
        if isinstance(error, UnreachableError):
            raise error
    entry: Entry = {"exit": ended.value.code or 0}
    if out.getvalue():
        return {**entry, "document": json.loads(out.getvalue())}
    return {**entry, "error": [line for error in errors for line in error.lines]}


def words_of(root: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the texts of this machine and run that documents contain, by what stands for each."""
    return {"project": str(root), "cache": str(cache_folder()), "cli user": actor(), **(more or {})}


def words_of_stack(stack: Stack, topic_id: str) -> dict[str, str]:
    """Return the texts of a stack that documents contain: ids of the cluster and of the example's topic, addresses."""
    client = AdminClient(dict(stack.settings().kafka().librdkafka))
    cluster = client.describe_cluster().result()
    addresses = {f"address of {name}": f"127.0.0.1:{port}" for name, port in ports.read(stack.layout).items()}
    return words_of(stack.root, {"cluster id": cluster.cluster_id, "topic id": topic_id, **addresses})


def text_of(report: ExampleReport) -> list[str]:
    """Return the lines that `up` prints of the example for people."""
    text = StringIO()
    print_report(Console(file=text), report)
    return text.getvalue().splitlines()


@contextmanager
def topic_for_a_restore(stack: Stack) -> Iterator[str]:
    """Make a topic that takes archived records, and delete it afterwards."""
    name = f"restored.{uuid.uuid4().hex}"
    settings = stack.settings().kafka()
    keeps_all = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    create_topics(KafkaTopicAdmin(settings), NewTopic(name, 2, 1, keeps_all))
    yield name
    client = AdminClient(dict(settings.librdkafka))
    client.delete_topics([name])[name].result()


@contextmanager
def project_beside(folder: Path, stack: Stack) -> Iterator[Path]:
    """Make a project whose pipeline `beside` has a topic that is not there yet; delete the topic afterwards."""
    yield make_project(folder, stack, "beside")
    client = AdminClient(dict(stack.settings().kafka().librdkafka))
    client.delete_topics(["beside.a"])["beside.a"].result()


class Caller:
    """Calls commands one after the other in one project; what one says, a later one may name.

    Args:
        root: the project.
        words: texts of this run, by what stands for each.
    """

    def __init__(self, root: Path, words: Mapping[str, str]) -> None:
        self._root = root
        self._words = dict(words)
        self._learned: dict[str, str] = {}
        self._made: dict[str, Entry] = {}

    def inside(self, root: Path) -> Caller:
        """Return one that calls commands in another project on the same servers."""
        return Caller(root, {**self._words, "project": str(root)})

    def learn(self, word: str, text: str) -> None:
        """Let calls name this text by a word in braces; documents have the word in its place."""
        self._learned[word] = text
        if not text.isdigit():
            self._words[word] = text

    def call(self, name: str) -> Entry:
        """Return how a command ended, masked. It is called once: a test that is repeated sees the same again."""
        if name in self._made:
            return self._made[name]
        ended = call(shlex.split(name.format(**self._learned)), self._root)
        if name in LEARNED:
            word, path = LEARNED[name]
            self.learn(word, _text(ended["document"], path))
        self._made[name] = self.masked(name, ended)
        return self._made[name]

    def masked(self, name: str, ended: Entry) -> Entry:
        """Return how a call ended without what differs from run to run."""
        masked = RULES.apply(name, ended, self._words)
        assert isinstance(masked, dict)
        return masked


def _text(document: object, path: str) -> str:
    for key in path.split("."):
        document = document[0] if isinstance(document, list) else document
        assert isinstance(document, dict)
        document = document[key]
    return str(document)
