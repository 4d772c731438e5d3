"""A Lambda of one's own machine: AWS's API in front, AWS's runtime interface client behind, nothing of either is faked but the cloud.

    POST   /2015-03-31/functions                       CreateFunction, from a zip
    GET    /2015-03-31/functions/NAME[/configuration]  GetFunction, GetFunctionConfiguration
    PUT    /2015-03-31/functions/NAME/code             UpdateFunctionCode
    DELETE /2015-03-31/functions/NAME                  DeleteFunction
    POST   /2015-03-31/functions/NAME/invocations      Invoke: RequestResponse, Event (without its retries), DryRun
    PUT    /2017-10-31/functions/NAME/concurrency      PutFunctionConcurrency

It prints what to set in the environment so that boto3 and the `aws` command speak to it, and serves until its standard input ends.
Who asks, and functions, have the keys that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are, or keys of its own.
Needs bubblewrap, and from PyPI boto3 and awslambdaric. Functions run on the Python that this runs on, whatever runtime they name. Not
there: limits of memory and processor, and isolation from this machine's network.
`GET /standin/environments` is the tests' own.
"""

import argparse
import base64
import contextlib
import http.server
import json
import sys
import threading
import urllib.parse
import uuid

import signature
from functions import ACCOUNT, Function, Refusal

LARGEST = {"RequestResponse": 6 << 20, "Event": 1 << 20, "DryRun": 6 << 20}
# A zip of 50 MB in base64.
UPLOAD = 70_167_211


class Cloud:
    """All functions."""

    def __init__(self, log, denied):
        self.functions, self.log, self.denied = {}, log, denied

    def create(self, spec, region):
        if spec["FunctionName"] in self.functions:
            raise Refusal(409, "ResourceConflictException", f"Function already exist: {spec['FunctionName']}")
        function = self.functions[spec["FunctionName"]] = Function(spec, region, self.log)
        return function

    def find(self, name, region):
        """By name or ARN."""
        plain = name.rpartition(":function:")[2].partition(":")[0]
        if plain not in self.functions:
            raise Refusal(
                404, "ResourceNotFoundException", f"Function not found: arn:aws:lambda:{region}:{ACCOUNT}:function:{plain}"
            )
        return self.functions[plain]

    def remove(self, name):
        self.functions.pop(name).remove()


class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    cloud: Cloud

    def route(self):
        self.request_id = str(uuid.uuid4())
        length = int(self.headers.get("Content-Length") or 0)
        if length > UPLOAD:
            self.close_connection = True
            return self.refuse(
                Refusal(
                    413,
                    "RequestEntityTooLargeException",
                    f"Request must be smaller than {UPLOAD} bytes for the CreateFunction operation",
                )
            )
        body = self.rfile.read(length)
        try:
            self.act(urllib.parse.urlsplit(self.path), body)
        except Refusal as refusal:
            self.refuse(refusal)

    do_GET = do_POST = do_PUT = do_DELETE = route

    def act(self, url, body):
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if parts == ["standin", "environments"]:
            return self.reply_json(200, {name: function.environments() for name, function in self.cloud.functions.items()})
        region = signature.region(self.command, f"http://{self.headers['Host']}{self.path}", self.headers, body)
        if region is None:
            raise Refusal(
                403, "InvalidSignatureException", "The request signature we calculated does not match the signature you provided."
            )
        match [self.command, *parts]:
            case ["POST", "2015-03-31", "functions"]:
                self.reply_json(201, self.cloud.create(json.loads(body), region).configuration())
            case ["GET", "2015-03-31", "functions", name]:
                self.reply_json(200, {"Configuration": self.allowed("GetFunction", name, region).configuration()})
            case ["GET", "2015-03-31", "functions", name, "configuration"]:
                self.reply_json(200, self.allowed("GetFunctionConfiguration", name, region).configuration())
            case ["PUT", "2015-03-31", "functions", name, "code"]:
                function = self.allowed("UpdateFunctionCode", name, region)
                function.update(json.loads(body))
                self.reply_json(200, function.configuration())
            case ["DELETE", "2015-03-31", "functions", name]:
                self.cloud.remove(self.allowed("DeleteFunction", name, region).name)
                self.answer(204, b"", {})
            case ["PUT", "2017-10-31", "functions", name, "concurrency"]:
                spec = json.loads(body)
                self.allowed("PutFunctionConcurrency", name, region).concurrency = spec["ReservedConcurrentExecutions"]
                self.reply_json(200, spec)
            case ["POST", "2015-03-31", "functions", name, "invocations"]:
                self.invoke(self.allowed("InvokeFunction", name, region), body)
            case _:
                raise Refusal(404, "UnknownOperationException", f"the stand-in has no {self.command} {url.path}")

    def allowed(self, action, name, region):
        if action in self.cloud.denied:
            who = f"arn:aws:iam::{ACCOUNT}:user/standin"
            raise Refusal(
                403, "AccessDeniedException", f"User: {who} is not authorized to perform: lambda:{action} on resource: {name}"
            )
        return self.cloud.find(name, region)

    def invoke(self, function, payload):
        kind = self.headers.get("X-Amz-Invocation-Type", "RequestResponse")
        if len(payload) > LARGEST[kind]:
            match = f"{len(payload)} byte payload is too large for the {kind} invocation type (limit {LARGEST[kind]} bytes)"
            raise Refusal(413, "RequestTooLargeException", match)
        try:
            json.loads(payload or b"{}")
        except ValueError as error:
            raise Refusal(400, "InvalidRequestContentException", f"Could not parse request body into json: {error}") from None
        if kind == "DryRun":
            return self.answer(204, b"", {})
        if kind == "Event":
            threading.Thread(target=function.invoke, args=(payload or b"{}",), daemon=True).start()
            return self.answer(202, b"", {})
        outcome, self.request_id, log = function.invoke(payload or b"{}")
        headers = {"X-Amz-Executed-Version": "$LATEST"}
        if outcome.error:
            headers["X-Amz-Function-Error"] = outcome.error
        if self.headers.get("X-Amz-Log-Type") == "Tail":
            headers["X-Amz-Log-Result"] = base64.b64encode(log).decode()
        self.answer(200, outcome.body, headers)

    def refuse(self, refusal):
        self.reply_json(refusal.status, refusal.fields, {"X-Amzn-ErrorType": refusal.kind})

    def reply_json(self, status, value, headers=None):
        self.answer(status, json.dumps(value).encode(), headers or {})

    def answer(self, status, body, headers):
        with contextlib.suppress(ConnectionError):  # the client has gone; the action is done
            self.send_response(status)
            own = {"Content-Type": "application/json", "Content-Length": str(len(body)), "x-amzn-RequestId": self.request_id}
            for name, value in {**own, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 1024


def main():
    parser = argparse.ArgumentParser(prog="aws_lambda", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; a free one")
    parser.add_argument("--log", type=argparse.FileType("ab"), default=sys.stderr.buffer, help="where functions' logs go; stderr")
    parser.add_argument(
        "--deny",
        action="append",
        default=[],
        metavar="ACTION",
        help="an action that IAM does not allow, GetFunctionConfiguration for example",
    )
    options = parser.parse_args()
    Requests.cloud = Cloud(options.log, set(options.deny))
    with Server(("127.0.0.1", options.port), Requests) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        print(
            f"export AWS_ENDPOINT_URL_LAMBDA=http://127.0.0.1:{server.server_address[1]} AWS_DEFAULT_REGION=eu-central-1", end=" "
        )
        print(f"AWS_ACCESS_KEY_ID={signature.KEY} AWS_SECRET_ACCESS_KEY={signature.SECRET}", flush=True)
        try:
            sys.stdin.read()
        except KeyboardInterrupt:
            pass
        for name in list(Requests.cloud.functions):
            Requests.cloud.remove(name)


main()
