"""How often each word is there: `python3 words.py`. The text is drawn at random, always the same."""

import random

from nearpath import dataflow as flow

WORDS = [f"word-{number}" for number in range(500)]


def text(number, of, lines=4000):
    """Each worker makes its share of the lines. Some words are frequent, most are rare."""
    for line in range(number, lines, of):
        draw = random.Random(line)
        yield " ".join(WORDS[int(len(WORDS) * draw.random() ** 3)] for _ in range(10))


def graph(workers=2):
    pairs = flow.source(text, workers, name="text") >> flow.flat_map(
        lambda line: ((word, 1) for word in line.split()), workers, name="split"
    )
    return pairs >> flow.reduce_by_key(int.__add__, workers, name="count") >> flow.collect()


if __name__ == "__main__":
    job = flow.run(graph())
    for word, count in sorted(job.results, key=lambda pair: (-pair[1], pair[0]))[:5]:
        print(f"{count:6} {word}")
    print(job.report)
