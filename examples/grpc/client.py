"""Calls example.Words through the gateway; one subcommand a method.

    PYTHONPATH=handler/packages python3 client.py shout hello
    PYTHONPATH=handler/packages python3 client.py count 5 --pause 0.5
    PYTHONPATH=handler/packages python3 client.py join a b c
    PYTHONPATH=handler/packages python3 client.py chat one two three
"""

import argparse
import json
import queue
import sys

import grpc

KINDS = {"shout": "unary_unary", "count": "unary_stream", "join": "stream_unary", "chat": "stream_stream"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=KINDS)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--gateway", default="127.0.0.1:8080", help="HOST:PORT")
    parser.add_argument("--function", default="words", help="NAME or NAME.NAMESPACE")
    parser.add_argument("--by-authority", action="store_true", help="name the function in :authority, not in the path")
    parser.add_argument("--pause", type=float, default=0, help="seconds before each number of count")
    parser.add_argument("--timeout", type=float, help="the caller's deadline in seconds")
    return parser.parse_args()


def stub(channel, arguments):
    """The method as a callable. Generated stubs have no prefix: they need --by-authority."""
    prefix = "" if arguments.by_authority else f"/function/{arguments.function}"
    path = f"{prefix}/example.Words/{arguments.method.capitalize()}"
    make = getattr(channel, KINDS[arguments.method])
    call = make(path, request_serializer=lambda message: json.dumps(message).encode(), response_deserializer=json.loads)
    return lambda message: call(message, timeout=arguments.timeout)


def show(message):
    print(json.dumps(message), flush=True)


def chat(call, words):
    """Sends a word after the response to the previous one."""
    messages = queue.SimpleQueue()
    answers = call(iter(messages.get, None))
    for word in words:
        messages.put({"text": word})
        show(next(answers))
    messages.put(None)
    for answer in answers:
        show(answer)


def run_method(call, arguments):
    words = arguments.words
    if arguments.method == "shout":
        show(call({"text": " ".join(words)}))
    elif arguments.method == "count":
        for answer in call({"to": int(words[0]), "pause": arguments.pause}):
            show(answer)
    elif arguments.method == "join":
        show(call({"text": word} for word in words))
    else:
        chat(call, words)


def main():
    arguments = parse()
    options = [("grpc.enable_http_proxy", 0)]
    if arguments.by_authority:
        options.append(("grpc.default_authority", arguments.function))
    with grpc.insecure_channel(arguments.gateway, options) as channel:
        try:
            run_method(stub(channel, arguments), arguments)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")


main()
