"""Registered kinds of sinks: declarations and wiring name the same, and each says of itself what it is."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from millrace.declarations.sink_kind import SinkKind
from millrace.declarations.sinks import KINDS
from millrace.domain.sinks.capabilities import Capability
from millrace.wiring.sinks import OPENERS


def test_each_kind_that_can_be_declared_can_be_opened() -> None:
    assert [kind.word for kind in KINDS] == [*OPENERS]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
def test_a_sink_gives_itself_as_what_its_capabilities_say(kind: SinkKind[Any, Any]) -> None:
    sink = kind.build(kind.document.model_validate(YAML(typ="safe", pure=True).load(kind.example)))

    assert sink.kind == kind.word
    assert sink.as_table is (sink if Capability.TABLE in sink.capabilities else None)
    assert sink.as_dataset is (sink if Capability.FILES in sink.capabilities else None)
