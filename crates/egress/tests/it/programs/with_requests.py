"""The library `requests`: `with_requests.py HOST PORT`."""
import sys

import requests

base = f"http://{sys.argv[1]}:{sys.argv[2]}"
for number in range(5):
    print(requests.post(f"{base}/requests/{number}", data=b"x" * number, timeout=20).text.strip())
with requests.Session() as session:
    for number in range(5):
        print(session.get(f"{base}/session/{number}").text.strip())
