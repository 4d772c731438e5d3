"""Parts of demo-nodes.sh: places functions on nodes, checks the shop, and prints the paths of edges."""

import collections
import glob
import json
import os
import re
import sys
import urllib.request

# Functions with data in their memory, and those that clients call, are not on the node that is killed.
PLACES = {"frontend": "a", "checkout": "a", "cart": "c", "payment": "c"}
OTHERS = "b, c"


def place(stack, target):
    """Writes the stack file with `nodes:` for each function."""
    with open(stack) as file:
        text = file.read()
    functions, rest = text.split("\nchains:")
    pattern = r"^(  ([a-z]+):\n)(    handler:)"
    placed = re.sub(
        pattern,
        lambda found: f"{found[1]}    nodes: [{PLACES.get(found[2], OTHERS)}]\n{found[3]}",
        functions,
        flags=re.MULTILINE,
    )
    with open(target, "w") as file:
        file.write(placed + "\nchains:" + rest)


def check(url):
    """Exits with 1 unless the shop's page is complete."""
    try:
        with urllib.request.urlopen(url + "/product/OLJCESPC7Z", timeout=10) as answer:
            sys.exit(0 if b'"recommendations"' in answer.read() else 1)
    except OSError:
        sys.exit(1)


def access_lines(folder):
    """Returns the node and the line of each request."""
    for path in sorted(glob.glob(os.path.join(folder, "access-*"))):
        node = os.path.basename(path).split("-")[1]
        with open(path) as file:
            for line in file:
                try:
                    yield node, json.loads(line)
                except ValueError:
                    pass  # the last line of a killed node


def short(name):
    return name.removesuffix(".openfaas-fn") if name else "(client)"


def table(folder, addresses):
    """Prints paths and failures of each edge, as the calling nodes saw them."""
    paths, failures = collections.Counter(), collections.Counter()
    for at, line in access_lines(folder):
        # The calling node has logged these, too.
        if line["client"] in addresses or line["function"].startswith("/"):
            continue
        edge = f"{short(line.get('caller'))} -> {short(line['function'])}"
        if line["status"] >= 500:
            failures[edge, at, f"{line['status']} {line.get('reason', '')}"] += 1
        else:
            via = f"{line['via']}; {line.get('obstacle', 'none')}"
            paths[edge, f"{at} -> {line.get('node', at)}", via] += 1
    print(f"{'edge':32} {'nodes':8} {'path; obstacle':24} {'calls':>6}")
    for (edge, nodes, via), count in sorted(paths.items()):
        print(f"{edge:32} {nodes:8} {via:24} {count:6}")
    print()
    if not failures:
        return print("failures: none")
    print(f"{'failures of edge':32} {'at':8} {'status and reason':24} {'calls':>6}")
    for (edge, at, why), count in sorted(failures.items()):
        print(f"{edge:32} {at:8} {why:24} {count:6}")


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "table":
        table(arguments[0], arguments[1:])
    else:
        {"place": place, "check": check}[command](*arguments)
