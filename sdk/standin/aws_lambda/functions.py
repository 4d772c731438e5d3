"""Functions, and the environments that they run in."""

import base64
import hashlib
import io
import sys
import tempfile
import threading
import time
import uuid
import zipfile

import runtime_api
import signature
from environment import Environment, Invocation
from sandbox import sandbox

ACCOUNT = "123456789012"
UNZIPPED = 250 << 20


class Refusal(Exception):
    """An error as the API tells it."""

    def __init__(self, status, kind, message, **fields):
        super().__init__(message)
        self.status, self.kind, self.fields = (
            status,
            kind,
            {"Type": "User" if status < 500 else "Service", "message": message, **fields},
        )


def unzip(content, folder):
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > UNZIPPED:
                raise Refusal(400, "InvalidParameterValueException", f"Unzipped size must be smaller than {UNZIPPED} bytes")
            archive.extractall(folder)
    except zipfile.BadZipFile:
        message = "Could not unzip uploaded file. Please check your file, then try to upload again."
        raise Refusal(400, "InvalidParameterValueException", message) from None


class Function:
    def __init__(self, spec, region, log):
        self.spec, self.region, self.log = spec, region, log
        self.name = spec["FunctionName"]
        self.arn = f"arn:aws:lambda:{region}:{ACCOUNT}:function:{self.name}"
        self.timeout, self.memory = spec.get("Timeout", 3), spec.get("MemorySize", 128)
        self.place = tempfile.TemporaryDirectory(prefix="lambda-")
        self.concurrency = None
        self._lock, self._idle, self._all = threading.Lock(), [], {}
        self.update(spec["Code"])

    def update(self, code):
        """Other code. Environments that are at work end with what they do; no worker comes to them any more."""
        content = base64.b64decode(code["ZipFile"])
        folder = tempfile.mkdtemp(dir=self.place.name)
        unzip(content, folder)
        with self._lock:
            self.size, self.digest = len(content), base64.b64encode(hashlib.sha256(content).digest()).decode()
            self.folder = folder
            for environment in self._idle:
                environment.kill()
                del self._all[environment.name]
            self._idle.clear()

    def configuration(self):
        return {
            "FunctionName": self.name,
            "FunctionArn": self.arn,
            "Runtime": self.spec.get("Runtime", f"python{sys.version_info[0]}.{sys.version_info[1]}"),
            "Role": self.spec["Role"],
            "Handler": self.spec["Handler"],
            "CodeSize": self.size,
            "CodeSha256": self.digest,
            "Timeout": self.timeout,
            "MemorySize": self.memory,
            "Version": "$LATEST",
            "State": "Active",
            "LastUpdateStatus": "Successful",
            "PackageType": "Zip",
            "Architectures": self.spec.get("Architectures", ["x86_64"]),
            "Environment": self.spec.get("Environment", {"Variables": {}}),
        }

    # Invocations.

    def invoke(self, payload):
        """The outcome, the request's id, and the end of its log."""
        environment = self._take()
        invocation = Invocation(str(uuid.uuid4()), payload, self.timeout, self.arn)
        began = time.monotonic()
        is_good = False
        try:
            outcome, is_good = environment.invoke(invocation)
            return outcome, invocation.id, self._log(environment, invocation, time.monotonic() - began)
        finally:
            self._give_back(environment, is_good)

    def _take(self):
        """A warm one, the last used first, or a new one."""
        with self._lock:
            if self.concurrency is not None and len(self._all) - len(self._idle) >= self.concurrency:
                reason = "ReservedFunctionConcurrentInvocationLimitExceeded"
                raise Refusal(429, "TooManyRequestsException", "Rate Exceeded.", Reason=reason)
            while self._idle:
                environment = self._idle.pop()
                if environment.process.poll() is None:
                    return environment
                del self._all[environment.name]
            name = uuid.uuid4().hex
            self._all[name] = None  # it counts from now on
        try:
            folder = self.folder
            self._all[name] = Environment(
                name, lambda api: sandbox(folder, self._variables(name, api)), runtime_api.serve, self.log
            )
            self._all[name].folder = folder
            return self._all[name]
        except BaseException:
            del self._all[name]
            raise

    def _give_back(self, environment, is_good):
        with self._lock:
            if is_good and environment.folder == self.folder:
                self._idle.append(environment)
            else:
                environment.kill()
                self._all.pop(environment.name, None)

    def _log(self, environment, invocation, seconds):
        milliseconds = f"{seconds * 1000:.2f} ms"
        tail = environment.tail().decode(errors="replace")
        head = f"START RequestId: {invocation.id} Version: $LATEST\n"
        foot = f"END RequestId: {invocation.id}\nREPORT RequestId: {invocation.id}\tDuration: {milliseconds}\tMemory Size: {self.memory} MB\n"
        return f"{head}{tail}{'' if tail.endswith(chr(10)) or not tail else chr(10)}{foot}".encode()[-4096:]

    def _variables(self, name, api):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return {
            **self.spec.get("Environment", {}).get("Variables", {}),
            "_HANDLER": self.spec["Handler"],
            "AWS_ACCESS_KEY_ID": signature.KEY,
            "AWS_SECRET_ACCESS_KEY": signature.SECRET,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python{version}",
            "AWS_LAMBDA_FUNCTION_NAME": self.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.memory),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{self.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": f"{time.strftime('%Y/%m/%d')}/[$LATEST]{name}",
            "AWS_LAMBDA_RUNTIME_API": api,
            "LAMBDA_RUNTIME_DIR": "/var/runtime",
            "LAMBDA_TASK_ROOT": "/var/task",
            "LANG": "en_US.UTF-8",
            "LD_LIBRARY_PATH": "/var/lang/lib:/lib64:/usr/lib64:/var/runtime:/var/runtime/lib:/var/task:/var/task/lib:/opt/lib",
            "PATH": "/var/lang/bin:/usr/local/bin:/usr/bin/:/bin:/opt/bin",
            "PYTHONPATH": "/var/runtime",
            "TZ": ":UTC",
        }

    # For tests, and for the end.

    def environments(self):
        with self._lock:
            there = [environment for environment in self._all.values() if environment is not None]
            return [
                {"id": one.name, "pid": one.process.pid, "invocations": one.invocations, "busy": one not in self._idle}
                for one in there
            ]

    def remove(self):
        with self._lock:
            there = [environment for environment in self._all.values() if environment is not None]
        for environment in there:
            environment.kill()
        for environment in there:
            environment.process.wait()
        self.place.cleanup()
