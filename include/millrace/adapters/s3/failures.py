"""What it means when an object store, or the way to it, says no.

A store that cannot be used for a reason outside the request (silent, overloaded, a wrong key, no bucket) is
unreachable: waiting or somebody's hand mends it, and the same call is right afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from millrace.errors import Code, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.settings import S3Settings

_SHORTEST_SECRET = 4  # a shorter one would black out ordinary words


class BrokenBodyError(UnreachableError):
    """An object, or the answer that there is none, broke off on the way."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    codes: frozenset[str]
    what: str
    next_step: str
    code: Code


_SILENT = (
    "check that the store runs and that endpoint_url of the connection is its address; `./millrace doctor` tests it"
)
_CREDENTIALS = (
    "put an access key into login and password of the connection, or leave both empty where the machine has a role"
)
_NO_KEY = "the access key for the object store is missing"
_PROFILE = "let AWS_PROFILE name a profile of this machine's ~/.aws/config, or unset it"
_BROKEN = "retry; if it fails again, check the network and the proxies between this machine and the store"
_DENIED = _Meaning(
    frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "401", "403"}),
    "does not give this key the right for this request",
    "grant it the rights on the bucket and its objects that docs/reference/connections.md lists",
    Code.MISSING_RIGHT,
)
_SLOW = _Meaning(
    frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled"})
    | {"BandwidthLimitExceeded", "TooManyRequests", "TooManyRequestsException", "429"},
    "asked for a lower request rate each time",
    "retry later, or with fewer writers at the same time",
    Code.STORE_UNREACHABLE,
)
# HEAD answers have no body, so their codes are numbers: 400 is what a wrong region and a token that expired get.
_MEANINGS = (
    _DENIED,
    _SLOW,
    _Meaning(
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "NotSignedUp"}),
        "does not know this key or its secret",
        "put the store's own access key and secret into login and password of the connection",
        Code.WRONG_CONNECTION,
    ),
    _Meaning(
        frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}),
        "no longer accepts this session token",
        "renew aws_session_token in the connection's extra with its key and secret, or let the machine's role do it",
        Code.WRONG_CONNECTION,
    ),
    _Meaning(
        frozenset({"RequestTimeTooSkewed", "RequestExpired"}),
        "has another time than this machine",
        "set this machine's clock",
        Code.STORE_REFUSED,
    ),
    _Meaning(
        frozenset({"NoSuchBucket", "InvalidBucketName"}),
        "has no bucket of this name",
        "create the bucket, or name another in the connection's extra: "
        '{"service_config": {"s3": {"bucket_name": ...}}}',
        Code.STORE_REFUSED,
    ),
    _Meaning(
        frozenset({"PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"})
        | {"AuthorizationHeaderMalformed", "301", "302", "307", "400"},
        "refuses this request: the region is wrong, or a session token expired",
        "set region_name in the connection's extra to the bucket's region, and renew aws_session_token if it has one",
        Code.WRONG_CONNECTION,
    ),
    _Meaning(
        frozenset({"BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody", "RequestTimeout"}),
        "did not get the bytes that were sent",
        _BROKEN,
        Code.STORE_UNREACHABLE,
    ),
    _Meaning(
        frozenset({"InvalidObjectState"}),
        "keeps this object in a storage class that cannot be read at once",
        "restore the object, and remove lifecycle rules of the bucket that move objects there (Glacier, Deep Archive)",
        Code.STORE_REFUSED,
    ),
)
_NO_KEY_HERE = (
    CredentialRetrievalError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)


def address_of(settings: S3Settings) -> SplitResult:
    """The parts of the endpoint's address; all empty where it is the provider's own.

    Raises:
        UsageError: it is no address, or holds a user or a password, which would get into logs and messages.
    """
    if not settings.endpoint_url:
        return urlsplit("")
    try:
        address = urlsplit(settings.endpoint_url)
        is_one = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise _unusable("the endpoint of the object store is not the address of a server")
    if "@" in address.netloc:
        raise _unusable("the endpoint of the object store holds a user or a password")
    return address


def _unusable(what: str) -> UsageError:
    return UsageError(
        what,
        where="endpoint_url of the aws connection",
        next_step="write it as http://HOST:PORT or https://HOST, and the key and its secret into login and password",
        code=Code.WRONG_CONNECTION,
    )


def where(settings: S3Settings) -> str:
    """`endpoint/bucket`, or the bucket and its region at the provider's own endpoint."""
    if not settings.endpoint_url:
        return f"s3://{settings.bucket}" + (f" ({settings.region})" if settings.region else "")
    return f"{settings.endpoint_url.rstrip('/')}/{settings.bucket}"


def code_of(error: ClientError) -> str:
    """The store's word for what is wrong; of an answer without a body its status tells, or is the code itself."""
    code = str(error.response.get("Error", {}).get("Code") or status_of(error))
    return {"412": "PreconditionFailed", "416": "InvalidRange"}.get(code, code)


def status_of(error: ClientError) -> int:
    """The status of the answer; 0 where there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def refusal(settings: S3Settings, error: ClientError, doing: str) -> MillraceError:
    """The error to raise for an answer that says no, after botocore's own tries."""
    code, status = code_of(error), status_of(error)
    message = error.response.get("Error", {}).get("Message") or f"status {status}"
    told = _without_secrets(settings, f"{doing}: {code}: {message}")
    for meaning in _MEANINGS:
        if code in meaning.codes:
            return _unreachable(settings, meaning, told)
    if code == "NotImplemented" or status == 501:
        return RefusedError(
            f"the object store does not support this request ({told})",
            where=where(settings),
            next_step="use a store with the conditional writes and multipart uploads of S3",
            code=Code.UNSUPPORTED,
        )
    if status in (401, 403):
        return _unreachable(settings, _DENIED, told)
    if status == 429:
        return _unreachable(settings, _SLOW, told)
    if status >= 500 or status == 407:
        return UnreachableError(
            f"the object store, or a proxy before it, failed each time ({told})",
            where=where(settings),
            next_step="retry later; the store's own log has the reason",
            code=Code.STORE_UNREACHABLE,
        )
    return MillraceError(
        f"the object store refused the request ({told})",
        where=where(settings),
        next_step="correct the fault that the store's own words name",
        code=Code.STORE_REFUSED,
    )


def _unreachable(settings: S3Settings, meaning: _Meaning, told: str) -> UnreachableError:
    code = meaning.code
    return UnreachableError(
        f"the object store {meaning.what} ({told})",
        where=where(settings),
        next_step=meaning.next_step,
        code=code,
    )


def no_answer(settings: S3Settings, error: Exception, doing: str) -> MillraceError:
    """The error to raise for a request that got no answer, or was never sent."""
    cause = getattr(error, "kwargs", {}).get("error") or error
    told, code = _without_secrets(settings, f"{doing}: {cause}"), Code.STORE_UNREACHABLE
    if isinstance(error, ProfileNotFound):
        what, next_step, code = _NO_KEY, _PROFILE, Code.WRONG_CONNECTION
    elif isinstance(error, _NO_KEY_HERE):
        what, next_step, code = _NO_KEY, _CREDENTIALS, Code.WRONG_CONNECTION
    elif isinstance(error, ProxyConnectionError):
        what = "the proxy before the object store does not answer"
        next_step = "check HTTP_PROXY and HTTPS_PROXY, or name the store's host in NO_PROXY"
    elif isinstance(error, SSLError):
        what = "the object store's TLS connection is not trusted"
        next_step = "name the file of its certificate authority in AWS_CA_BUNDLE, or write the endpoint with http"
    elif isinstance(error, ConnectionError | HTTPClientError):
        what, next_step = "the object store does not answer", _SILENT
    else:
        kind = "could not be sent" if isinstance(error, BotoCoreError) else "got an answer that is not of S3"
        return MillraceError(
            f"a request to the object store {kind} ({told})",
            where=where(settings),
            next_step="check the connection's endpoint_url, region_name and bucket, and this process's AWS_ variables",
            code=Code.WRONG_CONNECTION,
        )
    return UnreachableError(f"{what} ({told})", where=where(settings), next_step=next_step, code=code)


def broken(settings: S3Settings, why: str) -> BrokenBodyError:
    """The error to raise for bytes that did not come whole."""
    return BrokenBodyError(
        f"the object store's answer is incomplete ({_without_secrets(settings, why)})",
        where=where(settings),
        next_step=_BROKEN,
        code=Code.STORE_UNREACHABLE,
    )


def open_cause(settings: S3Settings, error: BaseException) -> BaseException | None:
    """The error as the cause to raise another one from; None where its text, or that of its causes, holds a secret."""
    each: BaseException | None = error
    while each is not None:
        if any(secret in f"{each}{each!r}{each.__dict__}" for secret in _secrets(settings)):
            return None
        each = each.__cause__ or each.__context__
    return error


def _secrets(settings: S3Settings) -> list[str]:
    return [each for each in (settings.secret_key, settings.session_token) if len(each) >= _SHORTEST_SECRET]


def _without_secrets(settings: S3Settings, text: str) -> str:
    for secret in _secrets(settings):
        text = text.replace(secret, "***")
    return text
