/* Price is a function that requests the rate from another one and forwards it. */
#include <nearpath.h>
#include <stdio.h>

static void price(np_endpoint *endpoint, const np_request *request, np_answer *answer, void *user) {
    size_t bytes;
    const void *body = np_request_body(request, &bytes);
    np_reply *rate;
    (void)user;
    if (np_call(endpoint, "currency", body, bytes, NULL, &rate) != NP_OK) {
        fprintf(stderr, "%s\n", np_error(endpoint));
        np_answer_status(answer, 502);
        return;
    }
    np_reply_body(rate, &bytes);
    printf("%zu bytes came over %s\n", bytes, np_reply_path(rate));
    fflush(stdout);
    np_answer_reply(answer, rate);
}

int main(void) {
    np_endpoint *endpoint = np_join();
    np_code code = np_serve(endpoint, price, NULL);
    if (code != NP_OK) fprintf(stderr, "%s\n", np_error(endpoint));
    np_leave(endpoint);
    return code;
}
