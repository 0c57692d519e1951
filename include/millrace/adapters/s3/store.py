"""An `ObjectStore` over one bucket of S3, or of a server that speaks as S3 does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from millrace.adapters.s3.client import ATTEMPTS, CONNECTIONS, READ_SECONDS, AnswerError, Bucket
from millrace.adapters.s3.probe import Meet, Probe
from millrace.adapters.s3.reading import Range, read
from millrace.adapters.s3.writing import ContestedError, LookError, contested, put, upload
from millrace.errors import Code, MillraceError, ObjectExistsError, RefusedError
from millrace.ports.objects import Creation, ObjectInfo
from millrace.settings import S3Settings

MIB = 1024 * 1024
PART_SIZE = 16 * MIB
LARGEST_PUT = 32 * MIB
SMALLEST_PART = 5 * MIB  # S3's own bound, for all parts but the last
_COMPARED_AT_ONCE = 8 * MIB
_DELETED_AT_ONCE = 1000  # S3's own bound
_ABORT_ATTEMPTS = 2
_ABORT_READ_SECONDS = 10
_ABORT_CONNECTIONS = 8
_WRITES = 6  # tries of one creation that others contest
_PAUSE = wait_random_exponential(multiplier=0.05, max=2)


class S3Store:
    """The bucket of one `aws` Connection. Connects on first use; safe for threads.

    Args:
        settings: where it is, and by which key.
        part_size: bytes of one part of a large object, 5 MiB at least.
        largest_put: bytes up to which an object is written by one request.
        attempts: how often a request without an answer is sent at most; 1 is never again.
        read_seconds: how long the server may be silent within an answer.
        connections: kept open at most.
    """

    def __init__(
        self,
        settings: S3Settings,
        *,
        part_size: int = PART_SIZE,
        largest_put: int = LARGEST_PUT,
        attempts: int = ATTEMPTS,
        read_seconds: float = READ_SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        if part_size < SMALLEST_PART:
            raise ValueError(f"a part has {SMALLEST_PART} bytes at least, not {part_size}")
        self._bucket = Bucket(settings, attempts=attempts, read_seconds=read_seconds, connections=connections)
        # Of little patience, and opened by the first upload that fails.
        self._aborts = Bucket(
            settings, attempts=_ABORT_ATTEMPTS, read_seconds=_ABORT_READ_SECONDS, connections=_ABORT_CONNECTIONS
        )
        self._part_size = part_size
        self._largest_put = largest_put
        self._bucket_is_there = False

    def create(self, key: str, data: bytes) -> Creation:
        """Write an object where none is; the store itself refuses to write over another one.

        Raises:
            ObjectExistsError: there is one, with other bytes. It was left alone.
            UnreachableError: as the port says; a write may have happened.
        """
        if len(data) <= self._largest_put:
            return self._create(key, data, partial(put, self._bucket))
        tries = self._tries()
        return tries(self._create_large, key, data)

    def _create_large(self, key: str, data: bytes) -> Creation:
        # A look first: a repetition would upload everything only to be refused.
        return self._compared(key, data) or self._create_once(key, data, self._upload)

    def _upload(self, key: str, data: bytes, before_last: Meet = lambda: None) -> None:
        upload(self._bucket, key, data, part_size=self._part_size, hasty=self._aborts, before_last=before_last)

    def _create(self, key: str, data: bytes, write: Callable[[str, bytes], None]) -> Creation:
        return self._tries()(self._create_once, key, data, write)

    def _create_once(self, key: str, data: bytes, write: Callable[[str, bytes], None]) -> Creation:
        try:
            write(key, data)
        except LookError as error:
            if found := self._compared(key, data):
                return found
            raise contested(self._bucket, key, f"{error}, and afterwards no object exists") from error
        return Creation.CREATED

    @staticmethod
    def _tries() -> Retrying:
        contest = retry_if_exception_type(ContestedError)
        return Retrying(retry=contest, stop=stop_after_attempt(_WRITES), wait=_PAUSE, reraise=True)

    def _compared(self, key: str, data: bytes) -> Creation | None:
        """WAS_THERE for an object of these bytes, None where there is none. Takes no second copy of them.

        Raises:
            ObjectExistsError: it has others.
        """
        there = self.head(key)
        if there is None:
            return None
        if there.size_bytes != len(data):
            raise self._other(key, f"{there.size_bytes} bytes exist, {len(data)} should be written")
        for first in range(0, len(data), _COMPARED_AT_ONCE):
            wanted = data[first : first + _COMPARED_AT_ONCE]
            found = read(self._bucket, key, Range(first, first + len(wanted)))
            if found is None:
                return None
            if found != wanted:
                raise self._other(key, f"{there.size_bytes} bytes exist: the right number, but other bytes")
        return Creation.WAS_THERE

    def _other(self, key: str, why: str) -> ObjectExistsError:
        return ObjectExistsError(
            f"the object {key} exists with other bytes: {why}",
            where=self._bucket.where,
            next_step="find out who wrote it before you do anything else; the object was not overwritten",
        )

    def get(self, key: str) -> bytes | None:
        """An object's bytes, whole; None where there is none."""
        return read(self._bucket, key)

    def get_range(self, key: str, first: int, next: int) -> bytes | None:
        """The bytes `first <= position < next`, fewer where the object ends earlier; None where there is none."""
        if first >= next:
            return b"" if self.head(key) else None
        return read(self._bucket, key, Range(first, next))

    def head(self, key: str) -> ObjectInfo | None:
        """An object's size in bytes; None where there is none."""
        try:
            answer = self._bucket.call("head_object", unless=("404", "NoSuchKey"), needs=("ContentLength",), Key=key)
        except AnswerError:
            self._see_bucket()
            return None
        return ObjectInfo(key, int(answer["ContentLength"]), answer.get("LastModified"))

    def _see_bucket(self) -> None:
        """Tell a bucket that is missing from an object that is, once: a HEAD gets the same answer for both."""
        if not self._bucket_is_there:
            self._bucket.call("list_objects_v2", needs=("IsTruncated",), MaxKeys=1)
            self._bucket_is_there = True

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix` and lies beyond `after`, in order, in pages as they are needed.

        Raises:
            RefusedError: the store lists in another order, so a listing from a key on would miss some.
        """
        last = after
        start = {"StartAfter": last} if last else {}
        while True:
            page = self._page(prefix, MaxKeys=page_size, **start)
            found = page.get("Contents", [])
            for each in found:
                if last and each["Key"].encode() <= last.encode():
                    raise self._out_of_order(last, each["Key"])
                last = each["Key"]
                yield ObjectInfo(last, int(each["Size"]), each.get("LastModified"))
            if not page["IsTruncated"]:
                return
            start = {"StartAfter": last} if found else self._onward(prefix, page, start)

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows `prefix` up to and without the next slash, in order, once each."""
        token: dict[str, str] = {}
        last: str | None = None
        while True:
            page = self._page(prefix, Delimiter="/", **token)
            for each in page.get("CommonPrefixes", []):
                name = each["Prefix"][len(prefix) : -1]
                if name == last:
                    continue  # some stores begin a page with the folder that ended the one before
                if last is not None and each["Prefix"].encode() <= f"{prefix}{last}/".encode():
                    raise self._out_of_order(last, name)
                last = name
                yield name
            if not page["IsTruncated"]:
                return
            token = self._onward(prefix, page, token)

    def _onward(self, prefix: str, page: Mapping[str, Any], before: Mapping[str, str]) -> dict[str, str]:
        """By what to ask for the page after this one, which was asked for by `before`."""
        token = page.get("NextContinuationToken")
        if not token or token == before.get("ContinuationToken"):
            raise self._never_ends(prefix)
        return {"ContinuationToken": token}

    def _page(self, prefix: str, **more: Any) -> dict[str, Any]:
        return self._bucket.call("list_objects_v2", needs=("IsTruncated",), Prefix=prefix, **more)

    def _out_of_order(self, one: str, other: str) -> RefusedError:
        return RefusedError(
            f"the store lists {other!r} after {one!r}, not in the order of the keys' bytes",
            where=self._bucket.where,
            next_step="use a general purpose bucket. Directory buckets (S3 Express) list in no order. The embedded "
            "store puts characters beyond U+FFFF before those from U+E000 on",
            code=Code.UNSUPPORTED,
        )

    def _never_ends(self, prefix: str) -> MillraceError:
        return MillraceError(
            f"the store reports more keys below {prefix!r}, but lists none",
            where=self._bucket.where,
            next_step="check the store: this is not an answer of S3",
            code=Code.STORE_REFUSED,
        )

    def delete(self, keys: Collection[str]) -> Mapping[str, str]:
        """Delete objects; one that is not there counts as deleted. Returns why, by key, others remain."""
        remain: dict[str, str] = {}
        wanted = [*dict.fromkeys(keys)]
        if wanted:
            self._see_bucket()  # s3proxy says of a bucket that is missing that all its objects are deleted
        for first in range(0, len(wanted), _DELETED_AT_ONCE):
            remain |= self._delete_batch(wanted[first : first + _DELETED_AT_ONCE])
        return remain

    def _delete_batch(self, keys: Collection[str]) -> Mapping[str, str]:
        named = {"Objects": [{"Key": key} for key in keys]}
        answer = self._bucket.call("delete_objects", Delete=named)
        failed = {each["Key"]: f"{each.get('Code')}: {each.get('Message', '')}" for each in answer.get("Errors", [])}
        deleted = {each["Key"] for each in answer.get("Deleted", [])}
        silent = {key: "the store did not report the result" for key in keys if key not in deleted}
        return {
            key: why for key, why in (silent | failed).items() if failed.get(key, "").partition(":")[0] != "NoSuchKey"
        }

    def prove_create_only(self) -> None:
        """Try on a few objects of its own, deleted again, that of many writers one writes, by either way of writing.

        Evidence, no proof: each address of the store must lead to one atomic store.

        Raises:
            RefusedError: the store ignores the condition; a chain of manifests would have two heads.
            MillraceError: an object could not be deleted again.
        """
        ways = {"put": self._put_after, "multipart upload": self._upload}
        Probe(self._bucket.where, ways, self._create, self.get, self.delete).prove()

    def _put_after(self, key: str, data: bytes, before_last: Meet) -> None:
        before_last()
        put(self._bucket, key, data)
