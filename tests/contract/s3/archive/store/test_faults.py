"""What S3's store makes of lost answers, broken bodies, refusals and stores that are none; each fault did happen."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from millrace.adapters.s3.client import ATTEMPTS
from millrace.adapters.s3.store import S3Store
from millrace.errors import MillraceError, ObjectExistsError, RefusedError, UnreachableError
from millrace.ports.objects import Creation, ObjectInfo
from millrace.settings import S3Settings
from support.stack.faulty_proxy import Fault, FaultyProxy
from support.waiting import Deadline, at_once

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

PART = 5 * 1024 * 1024
DATA = bytes(range(256)) * 8
LARGE = b"".join(number.to_bytes(8, "big") for number in range(PART // 8 + 1))
FOREVER = 10_000
FULL = pytest.mark.full  # the first tier has each kind of fault once, the second one each with each call
WITH_BODY = ("GetObject", "ListObjectsV2", "DeleteObjects")
Call = Callable[[S3Store, str], object]
CALLS: dict[str, Call] = {
    "PutObject": lambda store, key: store.create(key + "-new", DATA),
    "GetObject": lambda store, key: store.get(key),
    "HeadObject": lambda store, key: store.head(key),
    "ListObjectsV2": lambda store, key: [*store.list(key)],
    "DeleteObjects": lambda store, key: store.delete([key]),
}


@pytest.fixture
def key(proxy: FaultyProxy) -> str:
    """The key of an object that is there."""
    key = f"faults-{uuid.uuid4().hex[:8]}/a b"
    proxy.own.put_object(Bucket=proxy.settings.bucket, Key=key, Body=DATA)
    return key


@pytest.fixture
def new(key: str) -> str:
    """A key of no object."""
    return key + "-new"


def uploads(proxy: FaultyProxy, key: str) -> list[str]:
    """The uploads of an object that were neither completed nor aborted."""
    answer = proxy.own.list_multipart_uploads(Bucket=proxy.settings.bucket)
    return [each["UploadId"] for each in answer.get("Uploads", []) if each["Key"] == key]


def test_a_write_whose_answer_was_lost_is_known_by_its_bytes(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    proxy.plan(Fault.LOST, "PutObject")
    assert store.create(new, DATA) is Creation.WAS_THERE
    assert (proxy.content(new), proxy.happened(Fault.LOST, "PutObject"), proxy.requests["PutObject"]) == (DATA, 1, 2)
    proxy.plan(Fault.LOST, "PutObject", 2)
    with pytest.raises(ObjectExistsError, match="a b-new"):
        store.create(new, DATA[::-1])
    assert proxy.content(new) == DATA
    assert proxy.happened(Fault.LOST, "PutObject") == 3


def test_a_write_that_is_refused_by_an_object_that_is_gone_is_tried_again(
    store: S3Store, proxy: FaultyProxy, new: str
) -> None:
    proxy.answer("PutObject", 412, "PreconditionFailed", 2)
    assert store.create(new, DATA) is Creation.CREATED
    assert proxy.requests["PutObject"] == 3


def test_a_write_that_others_contest_is_tried_again_but_not_for_ever(
    store: S3Store, proxy: FaultyProxy, new: str
) -> None:
    proxy.answer("PutObject", 409, "ConditionalRequestConflict", 2)
    assert store.create(new, DATA) is Creation.CREATED
    assert proxy.requests["PutObject"] == 3
    proxy.answer("PutObject", 409, "ConditionalRequestConflict", FOREVER)
    with pytest.raises(UnreachableError, match="ConditionalRequestConflict"):
        store.create(new + "er", DATA)
    assert 3 < proxy.requests["PutObject"] < 20


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        *((operation, fault) for operation in CALLS for fault in (Fault.RESET, Fault.LOST)),
        *(
            (operation, fault)
            for operation in WITH_BODY
            for fault in (Fault.CUT_OFF, Fault.NO_BODY, Fault.RESET_IN_BODY)
        ),
    ],
)
def test_each_call_survives_each_fault(
    store: S3Store, proxy: FaultyProxy, key: str, new: str, operation: str, fault: Fault
) -> None:
    proxy.plan(fault, operation)
    proxy.answer(operation, 500, "InternalError")
    found = CALLS[operation](store, key)
    assert proxy.happened(fault, operation) == 1
    assert proxy.happened(Fault.ANSWERED, operation) == 1
    if operation == "PutObject":
        assert proxy.content(new) == DATA
    else:
        expected = {"GetObject": DATA, "HeadObject": ObjectInfo(key, len(DATA)), "DeleteObjects": {}}
        assert found == expected.get(operation, [ObjectInfo(key, len(DATA))])
    assert (store.get(key) is None) is (operation == "DeleteObjects")


@pytest.mark.parametrize("operation", ["PutObject", pytest.param("GetObject", marks=FULL)])
def test_a_store_that_wants_to_be_left_alone_is_asked_again_and_then_given_up(
    proxy: FaultyProxy, key: str, operation: str
) -> None:
    store = S3Store(proxy.settings, attempts=2)
    proxy.answer(operation, 503, "SlowDown")
    CALLS[operation](store, key)
    assert proxy.requests[operation] == 2
    proxy.answer(operation, 503, "SlowDown", FOREVER)
    with pytest.raises(UnreachableError, match="lower request rate"):
        CALLS[operation](store, key + "-other")
    assert proxy.requests[operation] == 4


@pytest.mark.parametrize(
    "operation", [pytest.param(each, marks=FULL if each != "HeadObject" else ()) for each in CALLS]
)
def test_a_store_that_fails_is_given_up(store: S3Store, proxy: FaultyProxy, key: str, operation: str) -> None:
    proxy.answer(operation, 500, "InternalError", FOREVER)
    with pytest.raises(UnreachableError, match="failed each time") as told:
        CALLS[operation](store, key)
    assert told.value.where == f"{proxy.settings.endpoint_url}/{proxy.settings.bucket}"
    assert proxy.requests[operation] == ATTEMPTS


@pytest.mark.parametrize("fault", [Fault.RESET_IN_BODY, Fault.CUT_OFF, Fault.NO_BODY])
def test_a_body_that_breaks_off_is_never_taken_for_whole(
    store: S3Store, proxy: FaultyProxy, key: str, fault: Fault
) -> None:
    proxy.plan(fault, "GetObject", 2)
    assert store.get(key) == DATA
    proxy.plan(fault, "GetObject", 2)
    assert store.get_range(key, 100, 1000) == DATA[100:1000]
    assert proxy.happened(fault, "GetObject") == 4


def test_a_body_that_always_breaks_off_is_given_up(store: S3Store, proxy: FaultyProxy, key: str) -> None:
    proxy.plan(Fault.CUT_OFF, "GetObject", FOREVER)
    for read in (lambda: store.get(key), lambda: store.get_range(key, 1, 9)):
        with pytest.raises(UnreachableError, match="answer is incomplete"):
            read()
    assert proxy.requests["GetObject"] < 20


def test_a_server_that_knows_no_ranges_gives_the_right_bytes(store: S3Store, proxy: FaultyProxy, key: str) -> None:
    proxy.plan(Fault.RANGE_IGNORED, "GetObject", 3)
    found = [store.get_range(key, *each) for each in ((3, 7), (2040, 9999), (9999, 10_000))]
    assert found == [DATA[3:7], DATA[2040:], b""]
    assert proxy.happened(Fault.RANGE_IGNORED, "GetObject") == 3


def test_what_could_not_be_deleted_is_told_by_key(store: S3Store, proxy: FaultyProxy) -> None:
    error = "<Error><Key>b</Key><Code>AccessDenied</Code><Message>locked</Message></Error>"
    body = f"<DeleteResult><Deleted><Key>a</Key></Deleted>{error}</DeleteResult>"
    proxy.answer("DeleteObjects", 200, "", body=body)
    remain = store.delete(["a", "b", "c"])
    assert remain == {"b": "AccessDenied: locked", "c": "the store did not report the result"}


@pytest.mark.parametrize(
    ("operation", "fault", "came"),
    [
        ("CompleteMultipartUpload", Fault.LOST, {Creation.WAS_THERE, Creation.CREATED}),
        pytest.param("CompleteMultipartUpload", Fault.CUT_OFF, {Creation.WAS_THERE, Creation.CREATED}, marks=FULL),
        pytest.param("CompleteMultipartUpload", Fault.NO_BODY, {Creation.WAS_THERE, Creation.CREATED}, marks=FULL),
        pytest.param("CompleteMultipartUpload", Fault.RESET, {Creation.CREATED}, marks=FULL),
        pytest.param("UploadPart", Fault.LOST, {Creation.CREATED}, marks=FULL),
    ],
)
def test_parts_survive_each_fault(
    store: S3Store, proxy: FaultyProxy, new: str, operation: str, fault: Fault, came: set[Creation]
) -> None:
    proxy.plan(fault, operation)
    assert store.create(new, LARGE) in came
    assert proxy.happened(fault, operation) == 1
    assert proxy.content(new) == LARGE
    assert uploads(proxy, new) == []


@pytest.mark.parametrize(
    ("operation", "status", "code"),
    [
        ("CompleteMultipartUpload", 200, "InternalError"),  # S3 begins its answer before it knows
        ("CompleteMultipartUpload", 409, "ConditionalRequestConflict"),
        ("CompleteMultipartUpload", 404, "NoSuchUpload"),
        pytest.param("UploadPart", 404, "NoSuchUpload", marks=FULL),
        pytest.param("HeadObject", 503, "SlowDown", marks=FULL),
    ],
)
def test_parts_that_are_refused_once_are_sent_again(
    store: S3Store, proxy: FaultyProxy, new: str, operation: str, status: int, code: str
) -> None:
    proxy.answer(operation, status, code)
    assert store.create(new, LARGE) is Creation.CREATED
    assert proxy.happened(Fault.ANSWERED, operation) == 1
    assert proxy.content(new) == LARGE
    assert uploads(proxy, new) == []


def test_a_large_object_that_is_there_is_not_sent_again(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    store.create(new, LARGE)
    assert store.create(new, LARGE) is Creation.WAS_THERE
    with pytest.raises(ObjectExistsError):
        store.create(new, LARGE[::-1])
    assert proxy.requests["CreateMultipartUpload"] == 1


def test_an_upload_that_fails_leaves_nothing_behind(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    for operation in ("UploadPart", "CompleteMultipartUpload"):
        proxy.answer(operation, 403, "AccessDenied")
        with pytest.raises(UnreachableError, match="AccessDenied"):
            store.create(new, LARGE)
        assert proxy.happened(Fault.ANSWERED, operation) == 1
        assert store.head(new) is None
    assert proxy.requests["AbortMultipartUpload"] == 2
    assert uploads(proxy, new) == []


def test_an_abort_that_fails_does_not_hide_why(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    proxy.answer("UploadPart", 403, "AccessDenied")
    proxy.answer("AbortMultipartUpload", 400, "Odd")
    with pytest.raises(UnreachableError, match="AccessDenied") as told:
        store.create(new, LARGE)
    assert "Odd" in str(told.value.__notes__)
    left = uploads(proxy, new)
    assert len(left) == 1
    proxy.own.abort_multipart_upload(Bucket=proxy.settings.bucket, Key=new, UploadId=left[0])


@FULL
def test_of_writers_in_parts_one_wins(store: S3Store, proxy: FaultyProxy, new: str) -> None:
    def outcome(number: int) -> Creation | str:
        try:
            return store.create(new, LARGE + bytes([number]))
        except ObjectExistsError:
            return "exists"

    came = at_once([lambda n=n: outcome(n) for n in range(3)], within=Deadline.COMMAND, what="three creations")  # type: ignore[misc]
    assert sorted(came) == [Creation.CREATED, "exists", "exists"]
    assert proxy.content(new) == LARGE + bytes([came.index(Creation.CREATED)])
    assert uploads(proxy, new) == []


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_a_store_that_ignores_the_condition_is_refused(store: S3Store, proxy: FaultyProxy, operation: str) -> None:
    proxy.plan(Fault.CONDITION_IGNORED, operation, FOREVER)
    with pytest.raises(RefusedError, match="over an object") as told:
        store.prove_create_only()
    assert "conditional writes" in told.value.next_step
    assert proxy.happened(Fault.CONDITION_IGNORED, operation) > 0
    assert list(store.list("millrace-probe/")) == []


@pytest.mark.parametrize("operation", ["PutObject", "CreateMultipartUpload"])
def test_a_store_that_does_not_know_the_condition_is_refused(
    store: S3Store, proxy: FaultyProxy, operation: str
) -> None:
    proxy.answer(operation, 501, "NotImplemented", FOREVER)
    with pytest.raises(RefusedError, match="NotImplemented"):
        store.prove_create_only()
    assert list(store.list("millrace-probe/")) == []


@FULL
def test_the_probe_survives_lost_answers(store: S3Store, proxy: FaultyProxy) -> None:
    for operation in ("PutObject", "CompleteMultipartUpload", "DeleteObjects"):
        proxy.plan(Fault.LOST, operation)
    store.prove_create_only()
    assert len(proxy.injected) == 3
    assert list(store.list("millrace-probe/")) == []


REFUSALS = {
    "AccessDenied": (403, UnreachableError, "rights"),
    "InvalidAccessKeyId": (403, UnreachableError, "access key"),
    "SignatureDoesNotMatch": (403, UnreachableError, "access key"),
    "ExpiredToken": (400, UnreachableError, "aws_session_token"),
    "RequestTimeTooSkewed": (403, UnreachableError, "clock"),
    "NoSuchBucket": (404, UnreachableError, "bucket_name"),
    "AuthorizationHeaderMalformed": (400, UnreachableError, "region_name"),
    "OfSomebodyBefore": (403, UnreachableError, "rights"),
    "KeyTooLongError": (400, MillraceError, "own words"),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_says_what_to_do(store: S3Store, proxy: FaultyProxy, key: str, code: str) -> None:
    status, kind, next_step = REFUSALS[code]
    proxy.answer("GetObject", status, code)
    with pytest.raises(MillraceError) as told:
        store.get(key)
    assert type(told.value) is kind
    assert code in told.value.what
    assert next_step in told.value.next_step
    assert told.value.where == f"{proxy.settings.endpoint_url}/{proxy.settings.bucket}"


@pytest.mark.parametrize("wrong", ["bucket", "secret_key", "access_key"])
def test_a_bucket_that_is_not_there_and_a_wrong_key_are_no_missing_object(s3_settings: S3Settings, wrong: str) -> None:
    for call in CALLS.values():  # a store for each: what one call finds out must not be what saves the next
        store = S3Store(replace(s3_settings, **{wrong: "a-wrong-one"}))
        with pytest.raises(UnreachableError) as told:
            call(store, "a")
        everything = f"{told.value}{told.value!r}{s3_settings}"
        assert s3_settings.secret_key not in everything
        assert "a-wrong-one" not in everything or wrong != "secret_key"


def test_no_answer_brings_the_secret_into_a_message(store: S3Store, proxy: FaultyProxy, key: str) -> None:
    secret = proxy.settings.secret_key
    proxy.answer("GetObject", 400, "", body=f"<Error><Code>Odd</Code><Message>not {secret}</Message></Error>")
    with pytest.raises(MillraceError, match=r"Odd: not \*\*\*") as told:
        store.get(key)
    assert secret not in f"{told.value}{told.value!r}"


def test_the_embedded_connection_names_its_bucket(s3_settings: S3Settings, idle_stack: Stack) -> None:
    extra = idle_stack.settings().connection("millrace_s3").extra
    assert extra["service_config"] == {"s3": {"bucket_name": s3_settings.bucket}}
    assert [*S3Store(s3_settings).list("no-such-prefix/")] == []
