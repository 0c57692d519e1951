"""The kinds of plans, each once. A new kind is one line here."""

from __future__ import annotations

from millrace.domain.plans.plan import Plan
from millrace.usecases.plans.kind import Kind
from millrace.usecases.quarantine.redrive import REDRIVE_KIND
from millrace.usecases.rewind.run import REWIND_KIND
from millrace.usecases.topics.plan import TOPICS_KIND

KINDS = (
    TOPICS_KIND,
    REWIND_KIND,
    REDRIVE_KIND,
)
_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(plan: Plan) -> Kind:
    """Return the kind of a plan."""
    return _BY_NAME[plan.kind]
