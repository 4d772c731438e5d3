"""A gRPC service with a method of every kind: example.Words.

Messages are JSON, so no generated code is needed: gRPC permits any encoding. With generated code only the two serializers
differ.
"""

import json
import os
import time
from concurrent import futures

import grpc

CALLS = 16  # as `max_inflight` in stack.yml


def shout(request, context):
    """Returns one message for one message."""
    if not request.get("text"):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "text is missing")
    return {"text": request["text"].upper()}


def count(request, context):
    """Streams 1, 2, 3 … with a pause in seconds before each."""
    for number in range(1, request["to"] + 1):
        time.sleep(request.get("pause", 0))
        if not context.is_active():
            return  # the caller has disconnected, or its deadline has passed
        yield {"number": number}


def join(requests, _context):
    """Returns one message for many messages."""
    return {"text": " ".join(request["text"] for request in requests)}


def chat(requests, context):
    """Streams one message for each received message."""
    for request in requests:
        yield shout(request, context)


def method(kind, behaviour):
    return kind(behaviour, request_deserializer=json.loads, response_serializer=lambda message: json.dumps(message).encode())


METHODS = {
    "Shout": method(grpc.unary_unary_rpc_method_handler, shout),
    "Count": method(grpc.unary_stream_rpc_method_handler, count),
    "Join": method(grpc.stream_unary_rpc_method_handler, join),
    "Chat": method(grpc.stream_stream_rpc_method_handler, chat),
}

server = grpc.server(futures.ThreadPoolExecutor(max_workers=CALLS))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("example.Words", METHODS)])
server.add_insecure_port(f"127.0.0.1:{os.environ.get('PORT', '5000')}")
server.start()
server.wait_for_termination()
