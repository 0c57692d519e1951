"""Streams as people want them and as they are, and what to do about the difference."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class DesiredState(StrEnum):
    """What an operator wants of a stream. A new stream is stopped until it is first started."""

    RUNNING = "running"
    STOPPED = "stopped"


class ExitReason(IntEnum):
    """The exit codes of a stream's driver: why it ended."""

    STOPPED = 0  # as asked: the batch finished, its offsets committed
    FAILED = 1  # anything not listed here; starting again may help
    CLAIM_LOST = 10  # another instance has this epoch
    FENCED = 11  # a newer epoch has taken over
    MEMBERSHIP_LOST = 12  # the consumer group no longer counts this driver as its member
    RECREATED = 13  # a topic of the same name, but another id, until an operator accepts it
    REFUSED = 14  # the start position may not be chosen by the machine
    DATA_LOSS = 15  # records on the way to being read are gone
    DECLARATION = 16  # declaration or app are wrong; starting again cannot help
    UNREACHABLE = 17  # a server did not answer
