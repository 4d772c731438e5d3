"""Runs `python -m nearpath.dataflow.aws package`: makes a function's zip and prints the command that creates the function."""

import argparse
import pathlib
import shlex
import sys

from . import _package

HANDLER = "nearpath.dataflow.aws.handler"
TIMEOUT_SECONDS = 900
# Memory with one full processor: a function's share of processors grows with its memory.
MEMORY_MB = 1769


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nearpath.dataflow.aws", description=__doc__)
    package = parser.add_subparsers(required=True).add_parser("package", help="make the zip of a function that runs workers")
    add = package.add_argument
    add(
        "--code",
        action="append",
        required=True,
        type=pathlib.Path,
        metavar="PATH",
        help="file of a module or folder of a package; repeatable",
    )
    add("--out", required=True, type=pathlib.Path, metavar="FILE.zip", help="zip to write; also the function's name")
    add(
        "--requirements", type=pathlib.Path, metavar="FILE", help="requirements that pip installs, as wheels for the function's system"
    )
    add("--python-version", default="3.13", choices=list(_package.GLIBC), help="the function's Python (3.13)")
    add("--platform", default="x86_64", choices=list(_package.ARCHITECTURES), help="the function's architecture (x86_64)")
    add("--wheel", type=pathlib.Path, metavar="FILE.whl", help="nearpath for that architecture; default: this Python's installation")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    target = _package.Target(options.python_version, options.platform)
    try:
        package = _package.make(options.out, options.code, target, options.requirements, options.wheel)
    except (_package.PackageError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{package.path}: {package.zipped / 2**20:.1f} MB, {package.unzipped / 2**20:.1f} MB unzipped\n\n{advice(package, target)}"
    )
    return 0


def advice(package: _package.Package, target: _package.Target) -> str:
    """Returns the commands that create a function from the package."""
    name, path = shlex.quote(package.path.stem), shlex.quote(str(package.path))
    upload, code, updated_code = "", f"--zip-file fileb://{path}", f"--zip-file fileb://{path}"
    if not package.is_direct:
        upload = f"# Packages above {_package.MAX_DIRECT_BYTES >> 20} MB are uploaded to your bucket first:\naws s3 cp {path} s3://BUCKET/{name}.zip\n\n"
        code, updated_code = f"--code S3Bucket=BUCKET,S3Key={name}.zip", f"--s3-bucket BUCKET --s3-key {name}.zip"
    return f"""{upload}aws lambda create-function --function-name {name} --runtime python{target.python} \\
  --architectures {target.architecture} --handler {HANDLER} --timeout {TIMEOUT_SECONDS} --memory-size {MEMORY_MB} \\
  --role ROLE-ARN {code}

To update the code: aws lambda update-function-code --function-name {name} {updated_code}

ROLE-ARN is a role that Lambda can assume, with the policy AWSLambdaBasicExecutionRole (logs). For checkpoints it also needs
s3:GetObject, s3:PutObject, s3:ListBucket and s3:DeleteObject on the bucket.
The job's user needs lambda:InvokeFunction and lambda:GetFunctionConfiguration.
Without a VPC the function reaches the rendezvous over the internet. In a VPC its subnets need a route to the rendezvous (a NAT
gateway, or a rendezvous in the VPC)."""


if __name__ == "__main__":
    sys.exit(main())
