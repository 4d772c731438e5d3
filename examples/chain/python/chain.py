"""Returns its name and the path of its call to the function in NEXT."""

import os

import nearpath


def handle_request(request):
    if not (next_function := os.environ.get("NEXT")):
        return "python"
    response = nearpath.call(next_function, request.body)
    return f"python -{response.path}-> {bytes(response.body).decode()}"


nearpath.serve(handle_request)
