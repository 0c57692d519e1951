"""What S3's store makes of answers that are not a store's, of stores that race, and of pages, ranges and headers."""

from __future__ import annotations

import base64
import hashlib
import traceback
import uuid
from typing import TYPE_CHECKING

import pytest

from millrace.adapters.s3.client import Bucket
from millrace.adapters.s3.store import S3Store
from millrace.errors import MillraceError, ObjectExistsError, RefusedError, UnreachableError
from millrace.ports.objects import Creation, ObjectInfo
from support.stack.faulty_proxy import Fault, FaultyProxy

if TYPE_CHECKING:
    pass

PART = 5 * 1024 * 1024
DATA = bytes(range(256)) * 8
LARGE = b"".join(number.to_bytes(8, "big") for number in range(PART // 8 + 1))
FOREVER = 10_000
PAGE = "<html/>"
LOGIN = "<html><head><meta charset=utf-8></head><br>log in"  # no XML, of which botocore makes a failure of the server
FULL = pytest.mark.full  # the first tier has each kind once, the second one each with each way of writing
WRITES = {"PutObject": DATA, "CompleteMultipartUpload": LARGE}


@pytest.fixture
def new() -> str:
    """A key of no object."""
    return f"answers-{uuid.uuid4().hex[:8]}/a b"


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("PutObject", LOGIN),
        ("CompleteMultipartUpload", PAGE),
        pytest.param("PutObject", PAGE, marks=FULL),
        pytest.param("CompleteMultipartUpload", LOGIN, marks=FULL),
    ],
)
def test_a_page_that_answers_for_the_store_is_no_written_object(
    store: S3Store, proxy: FaultyProxy, new: str, operation: str, body: str
) -> None:
    proxy.answer(operation, 200, "", body=body)
    assert store.create(new, WRITES[operation]) is Creation.CREATED
    assert proxy.content(new) == WRITES[operation]
    assert (proxy.happened(Fault.ANSWERED, operation), proxy.requests[operation]) == (1, 2)


@pytest.mark.parametrize("operation", ["PutObject", pytest.param("CompleteMultipartUpload", marks=FULL)])
def test_where_only_a_page_answers_nothing_is_written_and_an_error_says_so(
    store: S3Store, proxy: FaultyProxy, new: str, operation: str
) -> None:
    proxy.answer(operation, 200, "", FOREVER, body=PAGE)
    with pytest.raises(UnreachableError, match="an answer without ETag"):
        store.create(new, WRITES[operation])
    assert store.head(new) is None
    assert 1 < proxy.requests[operation] < 20


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("CompleteMultipartUpload", Fault.NO_LENGTH),
        pytest.param("CompleteMultipartUpload", Fault.CHUNKS_CUT_OFF, marks=FULL),
        pytest.param("PutObject", Fault.CHUNKS_CUT_OFF, marks=FULL),
    ],
)
def test_a_write_whose_answer_breaks_off_is_known_by_its_bytes(
    store: S3Store, proxy: FaultyProxy, new: str, operation: str, fault: Fault
) -> None:
    proxy.plan(fault, operation)
    assert store.create(new, WRITES[operation]) in (Creation.WAS_THERE, Creation.CREATED)
    assert proxy.content(new) == WRITES[operation]
    assert proxy.happened(fault, operation) == 1


@pytest.mark.parametrize(
    ("operation", "status", "code"),
    [
        ("PutObject", 412, "AWordOfItsOwn"),
        pytest.param("PutObject", 409, "AWordOfItsOwn", marks=FULL),
        pytest.param("CompleteMultipartUpload", 412, "AWordOfItsOwn", marks=FULL),
        pytest.param("CompleteMultipartUpload", 409, "AWordOfItsOwn", marks=FULL),
        ("CompleteMultipartUpload", 400, "InvalidPart"),
        pytest.param("CompleteMultipartUpload", 404, "NoSuchKey", marks=FULL),
    ],
)
def test_a_write_that_is_refused_in_other_words_is_judged_by_what_is_there(
    store: S3Store, proxy: FaultyProxy, new: str, operation: str, status: int, code: str
) -> None:
    proxy.answer(operation, status, code)
    assert store.create(new, WRITES[operation]) is Creation.CREATED
    assert proxy.content(new) == WRITES[operation]
    assert proxy.happened(Fault.ANSWERED, operation) == 1
    if operation == "PutObject":
        proxy.answer(operation, status, code)
        with pytest.raises(ObjectExistsError):
            store.create(new, DATA[::-1])


def test_a_store_that_looks_first_and_writes_then_is_refused(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.plan(Fault.LOOKED_FIRST, "PutObject", FOREVER)
    with pytest.raises(RefusedError, match="two writers at the same time both wr"):
        store.prove_create_only()
    assert proxy.happened(Fault.LOOKED_FIRST, "PutObject") > 1
    assert list(store.list("millrace-probe/")) == []


def ranged(proxy: FaultyProxy, times: int, *headers: tuple[str, str], status: int = 206, body: str = "3456") -> None:
    proxy.answer("GetObject", status, "", times, body=body, headers=(("ETag", '"it"'), *headers))


def test_part_of_an_object_is_what_was_asked_for(store: S3Store, proxy: FaultyProxy) -> None:
    ranged(proxy, 1)  # does not say which part it is
    ranged(proxy, 1, ("Content-Range", "bytes 3-6/*"), body="345")
    ranged(proxy, 1, ("Content-Range", "bytes 3-5/*"), body="345")  # an object may not end where nobody says so
    ranged(proxy, 1, ("Content-Range", "bytes 3-6/*"))
    assert store.get_range("a", 3, 7) == b"3456"
    assert proxy.requests["GetObject"] == 4
    ranged(proxy, 1, status=200, body="0123456789")
    assert store.get_range("a", 3, 7) == b"3456"
    ranged(proxy, FOREVER)
    for read in (lambda: store.get_range("a", 3, 7), lambda: store.get("a")):
        with pytest.raises(UnreachableError, match="answer is incomplete"):
            read()


def test_the_checksum_of_the_whole_object_is_not_held_against_a_part(store: S3Store, proxy: FaultyProxy) -> None:
    ranged(proxy, 1, ("Content-Range", "bytes 3-6/10"), ("x-amz-checksum-crc32", "AAAAAA=="))
    assert store.get_range("a", 3, 7) == b"3456"


def test_a_refusal_that_breaks_off_is_asked_for_again(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    proxy.plan(Fault.CHUNKS_CUT_OFF, "GetObject")
    assert store.get(new) is None
    assert proxy.happened(Fault.CHUNKS_CUT_OFF, "GetObject") == 1
    proxy.plan(Fault.CHUNKS_CUT_OFF, "GetObject", FOREVER)
    for read in (lambda: store.get(new), lambda: store.get_range(new, 1, 9)):
        with pytest.raises(UnreachableError, match="answer is incomplete"):
            read()
    assert proxy.requests["GetObject"] < 20


def test_what_is_written_has_an_md5(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    store.create(new, DATA)
    store.create(new + "-large", LARGE)
    expected = [(DATA, "PutObject"), (LARGE[PART:], "UploadPart")]
    for data, operation in expected:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        assert proxy.headers[operation]["Content-MD5"] == digest


def listing(*keys: str, token: str = "") -> str:
    found = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return f"<ListBucketResult><IsTruncated>true</IsTruncated>{more}{found}</ListBucketResult>"


def test_a_page_without_objects_is_not_the_end(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    last = listing("d").replace("true", "false")
    for page in (listing("a", token="1"), listing(token="2"), listing(token="3"), listing("c", token="4"), last):
        proxy.answer("ListObjectsV2", 200, "", body=page)
    assert list(store.list("")) == [ObjectInfo(key, 1) for key in ("a", "c", "d")]
    assert proxy.requests["ListObjectsV2"] == 5


@pytest.mark.parametrize("token", ["", "1"])
def test_pages_that_lead_nowhere_are_an_error(store: S3Store, proxy: FaultyProxy, token: str) -> None:
    proxy.answer("ListObjectsV2", 200, "", FOREVER, body=listing(token=token))
    with pytest.raises(MillraceError, match="lists none"):
        list(store.list("a"))
    assert proxy.requests["ListObjectsV2"] < 3


def test_uploads_that_fail_share_one_more_client(proxy: FaultyProxy, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Bucket] = []
    opening = Bucket._open
    monkeypatch.setattr(Bucket, "_open", lambda bucket: (opened.append(bucket), opening(bucket))[1])
    store = S3Store(proxy.settings, part_size=PART, largest_put=1)
    proxy.answer("UploadPart", 403, "AccessDenied", 3)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            store.create(new, DATA)
    assert (len(opened), proxy.requests["AbortMultipartUpload"]) == (2, 3)


def test_no_cause_of_an_error_brings_the_secret_along(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    secret = proxy.settings.secret_key
    body = f"<Error><Code>Odd</Code><Message>not {secret}</Message></Error>"
    for operation, status in (("GetObject", 400), ("PutObject", 400), ("PutObject", 412)):
        proxy.answer(operation, status, "", FOREVER, body=body)
        with pytest.raises(MillraceError) as told:
            store.get(new) if operation == "GetObject" else store.create(new, DATA)
        assert secret not in "".join(traceback.format_exception(told.value))
        proxy.forget()


def test_an_object_in_an_archive_class_says_what_to_do(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.answer("GetObject", 403, "InvalidObjectState")
    with pytest.raises(UnreachableError, match="storage class") as told:
        store.get("a")
    assert "restore" in told.value.next_step
