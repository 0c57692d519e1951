"""What Spark's failures mean, told by their text: it has no better name for them."""

from __future__ import annotations

# Source: Spark's KafkaExceptions and KafkaSourceProvider, the client's OffsetOutOfRangeException.
_SIGNS_OF_LOSS = ("data may have been lost", "OffsetOutOfRangeException", "failOnDataLoss")


def means_loss(failure: Exception) -> bool:
    """Whether records that were planned to be read were not there."""
    text = str(failure)
    return any(sign in text for sign in _SIGNS_OF_LOSS)


def message(failure: Exception) -> str:
    """A Java failure's text without its stack."""
    lines = (line.strip() for line in str(failure).splitlines() if not line.startswith("\tat "))
    return " ".join(lines)[:1500]
