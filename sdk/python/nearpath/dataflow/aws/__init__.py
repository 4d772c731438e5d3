"""Workers on AWS Lambda.

    from nearpath.dataflow import aws

    flow.run(wordcount.job, on=aws.Lambda("wordcount"), rendezvous="wss://…", key="rendezvous.key")

`python -m nearpath.dataflow.aws package` makes the zip of the function, whose handler is `nearpath.dataflow.aws.handler`.
docs/guide/dataflow-lambda.md goes from code to a job.
"""

from ._handler import handler
from ._place import Lambda

__all__ = ["Lambda", "handler"]
