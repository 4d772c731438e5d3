"""Makes attempts for tests of a job's decisions. Their number is 1."""

from nearpath.dataflow._attempt import Attempt


def attempt(*names, done=(), checkpoint=0):
    return Attempt(1, checkpoint, done, [*names, *done], now=0.0)


def report(attempt, name, now=0.0, **state):
    attempt.receive(name, {"attempt": 1, **state}, now)
