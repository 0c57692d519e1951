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

from millrace.errors import MillraceError, RefusedError, UnreachableError, UsageError
from millrace.settings import S3Settings

_SHORTEST_SECRET = 4  # a shorter one would black out ordinary words


class BrokenBodyError(UnreachableError):
    """An object, or the answer that there is none, broke off on the way."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    codes: frozenset[str]
    what: str
    next_step: str


_SILENT = "see that the store runs and that endpoint_url of the connection is its address; `./millrace doctor` tries it"
_CREDENTIALS = (
    "put an access key into login and password of the connection, or leave both empty where the machine has a role"
)
_PROFILE = "let AWS_PROFILE name a profile of this machine's ~/.aws/config, or unset it"
_BROKEN = "do the same again; if it stays so, look at the network and the proxies between here and the store"
_DENIED = _Meaning(
    frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "401", "403"}),
    "does not let this key do that",
    "give it the rights on the bucket and its objects that docs/reference/connections.md lists",
)
_SLOW = _Meaning(
    frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled"})
    | {"BandwidthLimitExceeded", "TooManyRequests", "TooManyRequestsException", "429"},
    "asked to slow down each time",
    "try again later, or with fewer writers at the same time",
)
# HEAD answers have no body, so their codes are numbers: 400 is what a wrong region and a token that expired get.
_MEANINGS = (
    _DENIED,
    _SLOW,
    _Meaning(
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "NotSignedUp"}),
        "does not know this key or its secret",
        "put the store's own access key and secret into login and password of the connection",
    ),
    _Meaning(
        frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}),
        "no longer takes this session token",
        "renew aws_session_token in the connection's extra with its key and secret, or let the machine's role do it",
    ),
    _Meaning(
        frozenset({"RequestTimeTooSkewed", "RequestExpired"}),
        "has another time of day",
        "set this machine's clock",
    ),
    _Meaning(
        frozenset({"NoSuchBucket", "InvalidBucketName"}),
        "has no such bucket",
        'make the bucket, or name another in the connection\'s extra: {"service_config": {"s3": {"bucket_name": ...}}}',
    ),
    _Meaning(
        frozenset({"PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"})
        | {"AuthorizationHeaderMalformed", "301", "302", "307", "400"},
        "will not take this request from here: another region, or a session token that expired",
        "let region_name in the connection's extra be the bucket's region, and renew aws_session_token if there is one",
    ),
    _Meaning(
        frozenset({"BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody", "RequestTimeout"}),
        "did not get the bytes that were sent",
        _BROKEN,
    ),
    _Meaning(
        frozenset({"InvalidObjectState"}),
        "keeps this object in a class of storage from which it cannot be read at once",
        "restore the object, and let no lifecycle rule of the bucket move any there (Glacier, Deep Archive)",
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
            f"the object store cannot do what is asked of it ({told})",
            where=where(settings),
            next_step="use a store that has conditional writes and multipart uploads as S3 has them",
        )
    if status in (401, 403):
        return _unreachable(settings, _DENIED, told)
    if status == 429:
        return _unreachable(settings, _SLOW, told)
    if status >= 500 or status == 407:
        return UnreachableError(
            f"the object store, or a proxy before it, failed each time ({told})",
            where=where(settings),
            next_step="try again later; the store's own log says what it misses",
        )
    return MillraceError(
        f"the object store refused the request ({told})",
        where=where(settings),
        next_step="the store's own words say what it misses",
    )


def _unreachable(settings: S3Settings, meaning: _Meaning, told: str) -> UnreachableError:
    return UnreachableError(
        f"the object store {meaning.what} ({told})", where=where(settings), next_step=meaning.next_step
    )


def no_answer(settings: S3Settings, error: Exception, doing: str) -> MillraceError:
    """The error to raise for a request that got no answer, or was never sent."""
    cause = getattr(error, "kwargs", {}).get("error") or error
    told = _without_secrets(settings, f"{doing}: {cause}")
    if isinstance(error, ProfileNotFound):
        what, next_step = "there is no access key for the object store", _PROFILE
    elif isinstance(error, _NO_KEY_HERE):
        what, next_step = "there is no access key for the object store", _CREDENTIALS
    elif isinstance(error, ProxyConnectionError):
        what = "the proxy before the object store does not answer"
        next_step = "see HTTP_PROXY and HTTPS_PROXY, or name the store's host in NO_PROXY"
    elif isinstance(error, SSLError):
        what = "no trusted connection to the object store"
        next_step = "name the file of its certificate authority in AWS_CA_BUNDLE, or write the endpoint with http"
    elif isinstance(error, ConnectionError | HTTPClientError):
        what, next_step = "the object store does not answer", _SILENT
    else:
        kind = "could not be sent" if isinstance(error, BotoCoreError) else "got an answer that is not S3's"
        return MillraceError(
            f"a request to the object store {kind} ({told})",
            where=where(settings),
            next_step="see the connection's endpoint_url, region_name and bucket, and this process's AWS_ variables",
        )
    return UnreachableError(f"{what} ({told})", where=where(settings), next_step=next_step)


def broken(settings: S3Settings, why: str) -> BrokenBodyError:
    """The error to raise for bytes that did not come whole."""
    return BrokenBodyError(
        f"the object store's answer did not come whole ({_without_secrets(settings, why)})",
        where=where(settings),
        next_step=_BROKEN,
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
