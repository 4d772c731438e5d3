"""`python -m nearpath.dataflow.aws package`: makes the zip of a function, and says how to make the function."""

import argparse
import pathlib
import shlex
import sys

from . import _package

HANDLER = "nearpath.dataflow.aws.handler"
TIMEOUT_SECONDS = 900
# A function's share of processors grows with its memory; with so much it has one whole one.
MEMORY_MB = 1769


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nearpath.dataflow.aws", description=__doc__)
    package = parser.add_subparsers(required=True).add_parser("package", help="makes the zip of a function that runs workers")
    add = package.add_argument
    add(
        "--code",
        action="append",
        required=True,
        type=pathlib.Path,
        metavar="PATH",
        help="a module's file or a package's folder; again for more",
    )
    add("--out", required=True, type=pathlib.Path, metavar="FILE.zip", help="the zip to write; the function is called like it")
    add(
        "--requirements", type=pathlib.Path, metavar="FILE", help="what pip installs into it, as wheels for the function's system"
    )
    add("--python-version", default="3.13", choices=list(_package.GLIBC), help="the function's Python (3.13)")
    add("--platform", default="x86_64", choices=list(_package.ARCHITECTURES), help="the function's architecture (x86_64)")
    add("--wheel", type=pathlib.Path, metavar="FILE.whl", help="nearpath for that architecture; without it, what this Python has")
    return parser.parse_args()


def main() -> int:
    retry_after = arguments()
    target = _package.Target(retry_after.python_version, retry_after.platform)
    try:
        package = _package.make(retry_after.out, retry_after.code, target, retry_after.requirements, retry_after.wheel)
    except (_package.PackageError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{package.path}: {package.zipped / 2**20:.1f} MB, {package.unzipped / 2**20:.1f} MB unzipped\n\n{advice(package, target)}"
    )
    return 0


def advice(package: _package.Package, target: _package.Target) -> str:
    """Returns the commands that make a function of the package."""
    name, path = shlex.quote(package.path.stem), shlex.quote(str(package.path))
    before, code, other_code = "", f"--zip-file fileb://{path}", f"--zip-file fileb://{path}"
    if not package.is_direct:
        before = f"# More than {_package.MAX_DIRECT_BYTES >> 20} MB go over a bucket of yours:\naws s3 cp {path} s3://BUCKET/{name}.zip\n\n"
        code, other_code = f"--code S3Bucket=BUCKET,S3Key={name}.zip", f"--s3-bucket BUCKET --s3-key {name}.zip"
    return f"""{before}aws lambda create-function --function-name {name} --runtime python{target.python} \\
  --architectures {target.architecture} --handler {HANDLER} --timeout {TIMEOUT_SECONDS} --memory-size {MEMORY_MB} \\
  --role ROLE-ARN {code}

With other code, later: aws lambda update-function-code --function-name {name} {other_code}

ROLE-ARN is a role that Lambda may take, with the policy AWSLambdaBasicExecutionRole (logs), and with s3:GetObject, s3:PutObject,
s3:ListBucket and s3:DeleteObject on the bucket of the job's checkpoints, if it has one.
Who runs the job needs lambda:InvokeFunction and lambda:GetFunctionConfiguration.
No VPC is needed: outside of one the function reaches the rendezvous over the internet. In one, its subnets need a way there (a NAT
gateway, or a rendezvous in the VPC)."""


if __name__ == "__main__":
    sys.exit(main())
