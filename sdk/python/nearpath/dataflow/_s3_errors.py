"""Translates an object store's errors into their cause and the remedy."""

import contextlib
from collections.abc import Iterator
from typing import Any

WRONG_KEYS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "XAdminUserNotFound",  # versitygw's
}  # fmt: skip
DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403"}
MISSING = {"NoSuchKey", "404"}
WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
BUSY = {
    "SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ConditionalRequestConflict",
    "InternalError", "ServiceUnavailable",
}  # fmt: skip

KEYS_ADVICE = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
PERMISSION_ADVICE = "ask the bucket's owner for s3:ListBucket on it, and for s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix"
CHECK_ADVICE = "see whether the store runs, and whether this machine reaches it"
# Classes of botocore and s3transfer, and what derives from them.
UNREACHABLE = {"HTTPClientError", "ConnectionError", "RetriesExceededError", "IncompleteReadError", "ResponseStreamingError"}
NO_KEYS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}


def code_of(error: BaseException) -> str:
    """Returns the store's error code; "" for errors of another origin."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def status_of(error: BaseException) -> int:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def raise_object_errors(answer: dict[str, Any], place: str, purpose: str) -> None:
    """Raises the first error of single objects in a successful response."""
    for error in answer.get("Errors", ()):
        translated_errors = RuntimeError(f"{error.get('Code')} for {error.get('Key')}: {error.get('Message')}")
        setattr(translated_errors, "response", {"Error": error})
        raise explain(translated_errors, place, purpose)


@contextlib.contextmanager
def translated_errors(place: str, purpose: str) -> Iterator[None]:
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
        return PermissionError(f"{what}, and there are no credentials ({why}): {KEYS_ADVICE}")
    if code == "RequestTimeTooSkewed":
        return PermissionError(f"{what}, and the clocks of the store and of this machine differ ({why}): set this machine's")
    if code in WRONG_KEYS:
        return PermissionError(f"{what}, and the store does not accept the credentials ({why}): correct or renew them")
    if code in DENIED:
        return PermissionError(f"{what}, and that was refused ({why}): {PERMISSION_ADVICE}")
    if code == "NoSuchBucket":
        return FileNotFoundError(f"{what}, and there is no such bucket: make it, or correct the name")
    if code in MISSING:
        return FileNotFoundError(f"{what}, and there is no such object")
    if code in WRONG_REGION or "NoRegionError" in kinds:
        return ValueError(f"{what}, and the region is wrong or missing ({why}): add ?region=… to the URL")
    if "RecursionError" in kinds:
        return ValueError(f"{what}, and the store redirects elsewhere: correct its endpoint (https:// for http://, perhaps)")
    if code in BUSY or status_of(error) >= 500 or kinds & UNREACHABLE:
        return ConnectionError(f"{what}, and no good answer came though it was tried several times ({why}): {CHECK_ADVICE}")
    return OSError(f"{what}, and that failed ({why})")
