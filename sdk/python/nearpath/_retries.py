"""Retries that a session was given, as urllib3 makes them, for answers that came through memory."""

from requests import PreparedRequest, Response, exceptions
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError, ProtocolError, ReadTimeoutError

from . import Error


class Retries:
    """What is left of them. `again` tells whether a request is to be sent once more, and waits until it should be."""

    def __init__(self, adapter: object, request: PreparedRequest) -> None:
        left = getattr(adapter, "max_retries", None)
        self._left = left if isinstance(left, Retry) else None
        self._request = request

    def again(self, outcome: Response | Error) -> bool:
        """Whether to; a last failure is raised as `requests` does."""
        if self._left is None:
            return False
        try:
            if isinstance(outcome, Error):
                return self._after_error(self._left, outcome)
            return self._after_answer(self._left, outcome)
        except MaxRetryError as error:
            if isinstance(outcome, Error):
                raise exceptions.ConnectionError(error, request=self._request) from outcome
            if self._left.raise_on_status:
                outcome.close()
                raise exceptions.RetryError(error, request=self._request) from None
            return False

    def _after_answer(self, left: Retry, answer: Response) -> bool:
        method, url = self._request.method or "", self._request.url
        if not left.is_retry(method, answer.status_code, "Retry-After" in answer.headers):
            return False
        self._left = left.increment(method, url, response=answer.raw)
        answer.close()
        self._left.sleep(answer.raw)
        return True

    def _after_error(self, left: Retry, error: Error) -> bool:
        method, url = self._request.method, self._request.url
        failures = {"timeout": ReadTimeoutError(None, url, str(error)), "died": ProtocolError(str(error), error)}  # type: ignore[arg-type]
        if error.kind not in failures:
            return False
        try:
            self._left = left.increment(method, url, error=failures[error.kind])
        except (ReadTimeoutError, ProtocolError):  # reads are not made again, or not with that method
            return False
        self._left.sleep()
        return True

    def note(self, answer: Response) -> Response:
        """Leaves on an answer what became of them, where urllib3 does."""
        answer.raw.retries = self._left
        return answer
