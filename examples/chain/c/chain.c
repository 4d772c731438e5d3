/* Returns its name and the path of its call to the function in NEXT. */
#include <nearpath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void handle(np_endpoint *endpoint, const np_request *request, np_answer *answer, void *next) {
    size_t bytes, start;
    const void *body = np_request_body(request, &bytes);
    np_reply *reply;
    char head[32], *out;
    if (next == NULL) {
        np_answer_body(answer, "c", 1);
        return;
    }
    if (np_call(endpoint, next, body, bytes, NULL, &reply) != NP_OK) {
        np_answer_status(answer, 502);
        np_answer_body(answer, np_error(endpoint), strlen(np_error(endpoint)));
        return;
    }
    body = np_reply_body(reply, &bytes);
    start = (size_t)snprintf(head, sizeof head, "c -%s-> ", np_reply_path(reply));
    out = np_answer_begin(answer, start + bytes);
    if (out != NULL) {
        memcpy(out, head, start);
        memcpy(out + start, body, bytes);
    }
    np_reply_free(reply);
}

int main(void) {
    np_endpoint *endpoint = np_join();
    np_code code = np_serve(endpoint, handle, getenv("NEXT"));
    if (code != NP_OK) fprintf(stderr, "%s\n", np_error(endpoint));
    np_leave(endpoint);
    return code;
}
