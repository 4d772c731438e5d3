/* Says its name, and how it reached the function that NEXT names. */
#include <nearpath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(np_party *party, const np_request *request, np_answer *answer, void *next) {
    size_t bytes, start;
    const void *body = np_request_body(request, &bytes);
    np_reply *reply;
    char head[32], *out;
    if (next == NULL) {
        np_answer_body(answer, "c", 1);
        return;
    }
    if (np_call(party, next, body, bytes, NULL, &reply) != NP_OK) {
        np_answer_status(answer, 502);
        np_answer_body(answer, np_error(party), strlen(np_error(party)));
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
    np_party *party = np_join();
    np_code code = np_serve(party, say, getenv("NEXT"));
    if (code != NP_OK) fprintf(stderr, "%s\n", np_error(party));
    np_leave(party);
    return code;
}
