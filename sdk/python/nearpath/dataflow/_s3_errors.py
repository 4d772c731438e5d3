"""What an object store's errors mean to who runs a job: what happened, and who can put it right."""

import contextlib
from collections.abc import Iterator
from typing import Any

WRONG_KEYS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "XAdminUserNotFound",  # versitygw's
}  # fmt: skip
DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403"}
MISSING = {"NoSuchKey", "404"}
ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
BUSY = {
    "SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ConditionalRequestConflict",
    "InternalError", "ServiceUnavailable",
}  # fmt: skip

SET_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
ASK = "ask the bucket's owner for s3:ListBucket on it, and for s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix"
LOOK = "see whether the store runs, and whether this machine reaches it"
# Classes of botocore and s3transfer, and what derives from them.
AWAY = {"HTTPClientError", "ConnectionError", "RetriesExceededError", "IncompleteReadError", "ResponseStreamingError"}
NO_KEYS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}


def code_of(error: BaseException) -> str:
    """What the store called it; "" where nothing came from the store."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def status_of(error: BaseException) -> int:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def refused(answer: dict[str, Any], place: str, purpose: str) -> None:
    """Raises what an answer says of single objects, though it is a good one as a whole."""
    for error in answer.get("Errors", ()):
        told = RuntimeError(f"{error.get('Code')} for {error.get('Key')}: {error.get('Message')}")
        setattr(told, "response", {"Error": error})
        raise explain(told, place, purpose)


@contextlib.contextmanager
def told(place: str, purpose: str) -> Iterator[None]:
    """Errors of boto3 become those that a store raises."""
    try:
        yield
    except Exception as error:
        is_theirs = type(error).__module__.partition(".")[0] in ("botocore", "boto3", "s3transfer", "urllib3")
        if not is_theirs and not isinstance(error, RecursionError):  # botocore, of an endpoint that redirects to another one
            raise
        raise explain(error, place, purpose) from error


def explain(error: Exception, place: str, purpose: str) -> OSError | ValueError:
    """`place` was `purpose`, and this came of it."""
    code, kinds = code_of(error), {kind.__name__ for kind in type(error).__mro__}
    what, why = f"{place} was {purpose}", " ".join(str(error).split())
    if kinds & NO_KEYS:
        return PermissionError(f"{what}, and there are no credentials ({why}): {SET_KEYS}")
    if code == "RequestTimeTooSkewed":
        return PermissionError(f"{what}, and the clocks of the store and of this machine differ ({why}): set this machine's")
    if code in WRONG_KEYS:
        return PermissionError(f"{what}, and the store does not accept the credentials ({why}): correct or renew them")
    if code in DENIED:
        return PermissionError(f"{what}, and that was refused ({why}): {ASK}")
    if code == "NoSuchBucket":
        return FileNotFoundError(f"{what}, and there is no such bucket: make it, or correct the name")
    if code in MISSING:
        return FileNotFoundError(f"{what}, and there is no such object")
    if code in ELSEWHERE or "NoRegionError" in kinds:
        return ValueError(f"{what}, and the region is wrong or missing ({why}): add ?region=… to the URL")
    if "RecursionError" in kinds:
        return ValueError(f"{what}, and the store redirects elsewhere: correct its endpoint (https:// for http://, perhaps)")
    if code in BUSY or status_of(error) >= 500 or kinds & AWAY:
        return ConnectionError(f"{what}, and no good answer came though it was tried several times ({why}): {LOOK}")
    return OSError(f"{what}, and that failed ({why})")
