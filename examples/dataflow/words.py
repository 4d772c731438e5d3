"""Counts each word of a pseudo-random text: `python3 words.py`.

With `--functions` workers are functions of nearpath, see README.md.
"""

import argparse
import os
import random

from nearpath import dataflow as flow

WORDS = [f"word-{number}" for number in range(500)]


def text(number, of, lines=4000):
    """Yields one worker's lines. Some words are frequent, most are rare."""
    for line in range(number, lines, of):
        draw = random.Random(line)
        yield " ".join(WORDS[int(len(WORDS) * draw.random() ** 3)] for _ in range(10))


def graph(workers=2):
    pairs = flow.source(text, workers, name="text") >> flow.flat_map(
        lambda line: ((word, 1) for word in line.split()), workers, name="split"
    )
    return pairs >> flow.reduce_by_key(int.__add__, workers, name="count") >> flow.collect()


def run_on_functions(workers):
    place = flow.Functions(os.environ.get("OPENFAAS_URL", "http://127.0.0.1:8080"), "words")
    rendezvous, key = os.environ.get("RENDEZVOUS", "ws://127.0.0.1:7843"), os.environ.get("RENDEZVOUS_KEY", "rendezvous.key")
    return flow.run(graph, on=place, rendezvous=rendezvous, key=key, arguments={"workers": workers})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Counts words.")
    parser.add_argument("--functions", action="store_true", help="run workers as functions of nearpath")
    parser.add_argument("--workers", type=int, default=2, help="workers of each stage; default %(default)s")
    options = parser.parse_args()
    job = run_on_functions(options.workers) if options.functions else flow.run(graph(options.workers))
    for word, count in sorted(job.results, key=lambda pair: (-pair[1], pair[0]))[:5]:
        print(f"{count:6} {word}")
    print(job.report)
