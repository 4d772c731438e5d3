"""Applies a session's retries of urllib3 to responses from shared memory."""

from requests import PreparedRequest, Response, exceptions
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError, ProtocolError, ReadTimeoutError

from . import Error


class Retries:
    """The remaining retries of one request."""

    def __init__(self, adapter: object, request: PreparedRequest) -> None:
        retry = getattr(adapter, "max_retries", None)
        self._retry = retry if isinstance(retry, Retry) else None
        self._request = request

    def should_retry(self, outcome: Response | Error) -> bool:
        """Waits and returns True if the request is to be sent again. Raises the last failure as `requests` does."""
        if self._retry is None:
            return False
        try:
            if isinstance(outcome, Error):
                return self._after_error(self._retry, outcome)
            return self._retry_after_response(self._retry, outcome)
        except MaxRetryError as error:
            if isinstance(outcome, Error):
                raise exceptions.ConnectionError(error, request=self._request) from outcome
            if self._retry.raise_on_status:
                outcome.close()
                raise exceptions.RetryError(error, request=self._request) from None
            return False

    def _retry_after_response(self, retry: Retry, answer: Response) -> bool:
        method, url = self._request.method or "", self._request.url
        if not retry.is_retry(method, answer.status_code, "Retry-After" in answer.headers):
            return False
        self._retry = retry.increment(method, url, response=answer.raw)
        answer.close()
        self._retry.sleep(answer.raw)
        return True

    def _after_error(self, retry: Retry, error: Error) -> bool:
        method, url = self._request.method, self._request.url
        failures = {"timeout": ReadTimeoutError(None, url, str(error)), "died": ProtocolError(str(error), error)}  # type: ignore[arg-type]
        if error.kind not in failures:
            return False
        try:
            self._retry = retry.increment(method, url, error=failures[error.kind])
        except (ReadTimeoutError, ProtocolError):  # the settings permit no retry of reads, or of that method
            return False
        self._retry.sleep()
        return True

    def record(self, answer: Response) -> Response:
        """Records the retries in the response, like urllib3."""
        answer.raw.retries = self._retry
        return answer
