"""The process that forks: a script without an answer and a process that has ended are named."""

from __future__ import annotations

import os

import pytest

from support.ui.forks_of_airflow import forks_of_airflow
from support.waiting import Deadline, DeadlinePassedError

ANSWERS = 'import sys\nfor line in sys.stdin: print(\'noise\\nanswer:{"error": "", "answer": 3}\', flush=True)'
SILENT = "import time; time.sleep(60)"


def test_an_answer_is_returned() -> None:
    with forks_of_airflow(os.environ, ANSWERS) as forks:
        assert [forks.run(""), forks.run("")] == [3, 3]


def test_a_process_that_has_ended_is_named_with_its_exit_code() -> None:
    with forks_of_airflow(os.environ, "import sys; sys.exit(7)") as forks:
        for script in ("", "#" * 1_000_000):  # more than a pipe holds
            with pytest.raises(AssertionError, match="the process that forks has ended with exit code 7"):
                forks.run(script)


def test_a_script_without_an_answer_ends_the_wait_and_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadline.AIRFLOW, "seconds", 0.05)
    with forks_of_airflow(os.environ, SILENT) as forks:
        with pytest.raises(DeadlinePassedError, match=r"\(AIRFLOW\) for the answer of a script in a fork of Airflow"):
            forks.run("")
        monkeypatch.undo()
        with pytest.raises(AssertionError, match="has ended with exit code -9"):
            forks.run("")
