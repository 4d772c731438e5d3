"""Says its name, and how it reached the function that NEXT names."""

import os

import nearpath


def say(request):
    if not (following := os.environ.get("NEXT")):
        return "python"
    answer = nearpath.call(following, request.body)
    return f"python -{answer.path}-> {bytes(answer.body).decode()}"


nearpath.serve(say)
