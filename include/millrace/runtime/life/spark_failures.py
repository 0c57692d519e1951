"""The meaning of Spark's failures, told by their text: it has no better name for them."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

# Source: Spark's KafkaExceptions and KafkaSourceProvider, the client's OffsetOutOfRangeException.
_SIGNS_OF_LOSS = ("data may have been lost", "OffsetOutOfRangeException", "failOnDataLoss")
_SIGNS_OF_THE_MACHINE = (
    "OutOfMemoryError",
    "No space left on device",
    "Too many open files",
    "SparkContext was shut down",
    "stopped SparkContext",
)
_SIGN_OF_NEW_PARTITIONS = "you must specify all TopicPartitions"
_ADVICE = re.compile(r" (If necessary set|Use `try_|To (return|tolerate)).*?(?= SQLSTATE|$)", re.DOTALL)
_REASON_SHOWN = 300


def means_loss(failure: Exception) -> bool:
    """Return whether records that were planned to be read were not there."""
    text = str(failure)
    return any(sign in text for sign in _SIGNS_OF_LOSS)


def lacks_partitions(failure: Exception) -> bool:
    """Return whether a query's start offsets do not name every partition. Source: Spark's KafkaOffsetReader."""
    return _SIGN_OF_NEW_PARTITIONS in str(failure)


def is_of_the_machine(failure: Exception) -> bool:
    """Return whether memory, disk or the session itself failed, whatever records were at hand."""
    text = str(failure)
    return means_loss(failure) or any(sign in text for sign in _SIGNS_OF_THE_MACHINE)


def message(failure: Exception) -> str:
    """Return a Java failure's text without its stack."""
    lines = (line.strip() for line in str(failure).splitlines() if not line.startswith("\tat "))
    return " ".join(lines)[:1500]


def reason(failure: Exception) -> str:
    """Return why a task failed, on one line: Spark's error class and words, or a Python worker's last line.

    Spark's advice on its own settings is left out: a stream's session is ANSI.
    """
    if isinstance(failure, Py4JJavaError):
        cause = failure.java_exception
        while (deeper := cause.getCause()) is not None:
            cause = deeper
        text = str(cause.toString())
        if "Python worker exited" in str(failure):
            text = "the Python worker exited unexpectedly"
    elif isinstance(failure, PySparkException):
        traceback = (failure.getMessageParameters() or {}).get("traceback", "").strip().splitlines()
        code = max((at for at, line in enumerate(traceback) if line.startswith(" ")), default=-1)
        text = " ".join(traceback[code + 1 :]) or _ADVICE.sub("", str(failure.getMessage()))
    else:
        text = str(failure)
    return " ".join(text.split())[:_REASON_SHOWN]
