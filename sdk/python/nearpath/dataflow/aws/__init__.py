"""Workers on AWS Lambda.

    from nearpath.dataflow import aws

    flow.run(wordcount.job, on=aws.Lambda("wordcount"), rendezvous="wss://…", key="rendezvous.key")

`python -m nearpath.dataflow.aws package` makes the function's zip. Its handler is `nearpath.dataflow.aws.handler`.
See docs/guide/dataflow-lambda.md.
"""

from ._handler import handler
from ._place import Lambda

__all__ = ["Lambda", "handler"]
