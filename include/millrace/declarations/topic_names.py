"""Names of topics in the tree of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.declarations.fields import is_topic_name
from millrace.declarations.findings import Place
from millrace.declarations.reader import Mapping, Node, Scalar, Sequence


def read_topics(tree: Mapping) -> list[tuple[Place, str]]:
    """Return the topics that a stream's tree says it reads, as far as they can be names; `reads` is a list."""
    node = tree.get("reads")
    return [*names_in(node)] if isinstance(node, Sequence) else []


def names_in(node: Node | None) -> Iterator[tuple[Place, str]]:
    """Return the names of topics in a list, or the one that stands there by itself."""
    for item in node.items if isinstance(node, Sequence) else (node,):
        if isinstance(item, Scalar) and isinstance(item.value, str) and is_topic_name(item.value):
            yield item.place, item.value
