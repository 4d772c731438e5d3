"""Local jobs that several test files run."""

from jobs_remote import sums

from nearpath import dataflow as flow

__all__ = ["numbers", "summing", "sums"]


def numbers(count, workers=2):
    def make(number, of):
        yield from range(number, count, of)

    return flow.source(make, workers=workers, total=count)


def summing(count, keys, change=lambda number: number):
    """A job whose every item passes `change`, proxy two streams."""
    pairs = numbers(count) >> flow.map(lambda number: (change(number) % keys, number), workers=2)
    return pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect()
