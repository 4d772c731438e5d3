"""Checks request signatures of AWS (Signature Version 4), with a single key."""

import os
import re

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

KEY, SECRET = os.environ.get("AWS_ACCESS_KEY_ID", "standin"), os.environ.get("AWS_SECRET_ACCESS_KEY", "standin")
FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/lambda/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


def region(method, url, headers, body):
    """Returns the region of a valid signature; otherwise None."""
    match = FORM.fullmatch(headers.get("Authorization", ""))
    if match is None or match[1] != KEY:
        return None
    signed = {name: headers.get(name, "") for name in match[4].split(";")}
    request = AWSRequest(method, url, headers=signed, data=body)
    request.context["timestamp"] = headers.get("X-Amz-Date", "")
    auth = SigV4Auth(Credentials(KEY, SECRET), "lambda", match[3])
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return match[3] if auth.signature(text, request) == match[5] else None
