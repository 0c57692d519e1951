"""Read the chain of a topic's archive into its proof, from a summary or from its beginning."""

from __future__ import annotations

from collections.abc import Callable

from millrace.adapters.chain.documents import decode, sha256_of
from millrace.adapters.chain.links import Link, links
from millrace.domain.archive.manifest import Manifest
from millrace.domain.archive.proof.tiling import Tiling
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore


def add(tiling: Tiling, link: Link) -> Manifest | None:
    """Take a manifest, or the fault of one, into a tiling; return the manifest where it can be read."""
    if link.data is None:
        before = tiling.head.sequence
        several = f"manifests {before + 1} to {link.sequence} are missing"
        tiling.pass_over(link.sequence, "", "it is missing" if link.sequence == before + 1 else several)
        return None
    try:
        manifest = decode(link.data, Manifest, link.key)
    except CorruptArchiveError as error:
        tiling.pass_over(link.sequence, sha256_of(link.data), error.what)
        return None
    if manifest.sequence != link.sequence:
        tiling.pass_over(link.sequence, sha256_of(link.data), f"its content is manifest {manifest.sequence}")
        return None
    tiling.add(manifest, sha256_of(link.data))
    return manifest


def read_on(store: ObjectStore, tiling: Tiling, tell: Callable[[Manifest], object] = lambda manifest: None) -> None:
    """Read the rest of a chain into a tiling, to its head, and tell each manifest that can be read."""
    for link in links(store, tiling.incarnation, tiling.head.sequence):
        if (manifest := add(tiling, link)) is not None:
            tell(manifest)
