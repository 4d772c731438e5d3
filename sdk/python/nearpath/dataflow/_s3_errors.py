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

KEYS_ADVICE = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or assign this machine a role"
PERMISSION_ADVICE = "ask the bucket's owner for s3:ListBucket on it, and for s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix"
CHECK_ADVICE = "check that the store runs and that this machine reaches it"
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
        object_error = RuntimeError(f"{error.get('Code')} for {error.get('Key')}: {error.get('Message')}")
        setattr(object_error, "response", {"Error": error})
        raise explain(object_error, place, purpose)


@contextlib.contextmanager
def translated_errors(place: str, purpose: str) -> Iterator[None]:
    """Translates errors of boto3 into those of a store."""
    try:
        yield
    except Exception as error:
        is_boto_error = type(error).__module__.partition(".")[0] in ("botocore", "boto3", "s3transfer", "urllib3")
        if not is_boto_error and not isinstance(error, RecursionError):  # botocore's reaction to a redirect loop
            raise
        raise explain(error, place, purpose) from error


def explain(error: Exception, place: str, purpose: str) -> OSError | ValueError:
    """Returns the error of a store for a failed operation. `place` and `purpose` name the operation."""
    code, kinds = code_of(error), {kind.__name__ for kind in type(error).__mro__}
    text, cause = f"{place} cannot {purpose}", " ".join(str(error).split())
    if kinds & NO_KEYS:
        return PermissionError(f"{text}, there are no credentials ({cause}): {KEYS_ADVICE}")
    if code == "RequestTimeTooSkewed":
        return PermissionError(f"{text}, the clocks of the store and of this machine differ ({cause}): set this machine's clock")
    if code in WRONG_KEYS:
        return PermissionError(f"{text}, the store does not accept the credentials ({cause}): correct or renew them")
    if code in DENIED:
        return PermissionError(f"{text}, the request was refused ({cause}): {PERMISSION_ADVICE}")
    if code == "NoSuchBucket":
        return FileNotFoundError(f"{text}, there is no such bucket: create it, or correct the name")
    if code in MISSING:
        return FileNotFoundError(f"{text}, there is no such object")
    if code in WRONG_REGION or "NoRegionError" in kinds:
        return ValueError(f"{text}, the region is wrong or missing ({cause}): add ?region=… to the URL")
    if "RecursionError" in kinds:
        return ValueError(f"{text}, the store redirects in a loop: correct its endpoint (perhaps https:// instead of http://)")
    if code in BUSY or status_of(error) >= 500 or kinds & UNREACHABLE:
        return ConnectionError(f"{text}, all tries failed ({cause}): {CHECK_ADVICE}")
    return OSError(f"{text}: {cause}")
