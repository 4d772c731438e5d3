/* Callee and caller for tests/it/abi.rs: `conversation serve` and `conversation call PATH`. */
#include <nearpath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(that) \
    do { if (!(that)) { fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #that); exit(1); } } while (0)

static int released;
static void release(void *context) { released++; free(context); }

static bool is(const char *text, size_t bytes, const char *wanted) {
    return text != NULL && bytes == strlen(wanted) && memcmp(text, wanted, bytes) == 0;
}

/* Answers by path: /begin and /draft (written in place), /owned, /how (the path of the call), others: the request's body. */
static void handler(np_endpoint *endpoint, const np_request *request, np_answer *answer, void *user) {
    size_t bytes, length;
    const char *path = np_request_path(request, &length);
    const void *body = np_request_body(request, &bytes);
    CHECK(*(int *)user == 42);
    CHECK(np_serve(endpoint, handler, user) == NP_MISUSE);
    if (is(path, length, "/begin")) {
        memset(np_answer_begin(answer, bytes), 'x', bytes);
    } else if (is(path, length, "/draft")) {
        void *place;
        np_draft *draft = np_draft_begin(endpoint, bytes + 7, &place);
        CHECK(draft != NULL && place != NULL);
        memcpy(place, body, bytes);
        np_draft_truncate(draft, bytes);
        CHECK(np_answer_draft(answer, draft) == NP_OK);
        CHECK(np_answer_draft(answer, NULL) == NP_MISUSE);
    } else if (is(path, length, "/owned")) {
        char *own = malloc(bytes);
        CHECK(own != NULL);
        memcpy(own, body, bytes);
        CHECK(np_answer_body_owned(answer, own, bytes, release, own) == NP_OK);
    } else if (is(path, length, "/how")) {
        size_t fields;
        const char *field = np_request_header(request, "x-one", &fields);
        const char *method = np_request_method(request, &length);
        CHECK(is(field, fields, "1") && is(method, length, "PUT"));
        CHECK(np_request_header(request, "x-two", &fields) == NULL && fields == 0);
        CHECK(!np_request_is_event(request));
        CHECK(np_request_time_left(request) < UINT64_C(60000000000)); /* over HTTP, too: X-Timeout */
        field = np_request_caller(request, &fields);
        if (strcmp(np_request_arrival_path(request), NP_PATH_SHM) == 0) {
            CHECK(is(field, fields, "caller.openfaas-fn"));
        } else {
            CHECK(field == NULL);
        }
        CHECK(np_answer_header(answer, "X-By", "c", 1) == NP_OK);
        CHECK(np_answer_header(answer, "no name", "c", 1) == NP_HEAD);
        np_answer_status(answer, 203);
        CHECK(np_answer_body(answer, np_request_arrival_path(request), strlen(np_request_arrival_path(request))) == NP_OK);
    } else {
        CHECK(np_answer_body(answer, body, bytes) == NP_OK);
    }
}

static np_reply *call(np_endpoint *endpoint, const char *path, const void *payload, size_t bytes, uint32_t flags) {
    np_field field = { "X-One", "1", 1 };
    np_call_options options = NP_CALL_OPTIONS;
    np_reply *reply;
    options.method = "PUT";
    options.path = path;
    options.fields = &field;
    options.field_count = 1;
    options.deadline_ns = UINT64_C(30000000000);
    options.flags = flags;
    if (np_call(endpoint, "callee", payload, bytes, &options, &reply) != NP_OK) {
        CHECK(reply == NULL);
        return NULL;
    }
    return reply;
}

static void same(np_reply *reply, const void *wanted, size_t length) {
    size_t bytes;
    CHECK(reply != NULL);
    const void *body = np_reply_body(reply, &bytes);
    CHECK(bytes == length && (length == 0 || memcmp(body, wanted, length) == 0));
    np_reply_free(reply);
}

static void check_calls(np_endpoint *endpoint, const char *path, uint32_t flags) {
    size_t bytes, large = 3 << 20;
    char *much = malloc(large);
    np_reply *reply;
    while ((reply = call(endpoint, "/how", NULL, 0, flags)) == NULL) CHECK(np_retry_is_safe(endpoint)); /* until the callee has joined */
    CHECK(np_reply_status(reply) == 203 && strcmp(np_reply_path(reply), path) == 0);
    const char *by = np_reply_header(reply, "x-by", &bytes);
    CHECK(is(by, bytes, "c"));
    CHECK(np_reply_header(reply, "x-none", NULL) == NULL);
    same(reply, path, strlen(path));
    same(call(endpoint, "/echo", "hello", 5, flags), "hello", 5);
    same(call(endpoint, "/echo", NULL, 0, flags), NULL, 0);
    same(call(endpoint, "/begin", "hello", 5, flags), "xxxxx", 5);
    same(call(endpoint, "/owned", "hello", 5, flags), "hello", 5);
    CHECK(much != NULL);
    memset(much, 'm', large);
    same(call(endpoint, "/echo", much, large, flags), much, large);
    CHECK(np_call_owned(endpoint, "callee", much, large, release, much, NULL, &reply) == NP_OK);
    np_reply_free(reply);
}

/* Makes a draft filled with one letter. */
static np_draft *drafted(np_endpoint *endpoint, size_t bytes, char letter) {
    void *place;
    np_draft *draft = np_draft_begin(endpoint, bytes, &place);
    CHECK(draft != NULL && place != NULL);
    for (size_t at = 0; at < bytes; at++) CHECK(((char *)place)[at] == 0);
    memset(place, letter, bytes);
    return draft;
}

static void drafts(np_endpoint *endpoint) {
    size_t sizes[] = { 0, 1, 5000, 500000, 3 << 20 };
    np_call_options options = NP_CALL_OPTIONS;
    np_pending *pending;
    np_reply *reply;
    options.path = "/draft";
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        size_t bytes = sizes[at];
        char *wanted = malloc(bytes + 1);
        CHECK(wanted != NULL);
        memset(wanted, 'd', bytes);
        CHECK(np_call_draft(endpoint, "callee", drafted(endpoint, bytes, 'd'), &options, &reply) == NP_OK);
        same(reply, wanted, bytes);
        CHECK(np_begin_draft(endpoint, "callee", drafted(endpoint, bytes, 'd'), &options, &pending) == NP_OK);
        CHECK(np_wait(endpoint, pending, &reply) == NP_OK);
        same(reply, wanted, bytes);
        free(wanted);
    }
    for (int at = 0; at < 1000; at++) np_draft_free(drafted(endpoint, 100000, 'f')); /* many more than the pool has slots */
    CHECK(np_call_draft(endpoint, "No Name", drafted(endpoint, 5, 'x'), NULL, &reply) == NP_NAME && reply == NULL);
    CHECK(np_call_draft(endpoint, "callee", NULL, NULL, &reply) == NP_MISUSE && reply == NULL);
    CHECK(np_notify_draft(NULL, "callee", drafted(endpoint, 5, 'x'), NULL) == NP_MISUSE);
    CHECK(np_draft_begin(endpoint, 5, NULL) == NULL);
    np_draft_free(NULL);
    np_draft_truncate(NULL, 1);
}

static void at_once(np_endpoint *endpoint) {
    np_pending *first, *second, *third;
    np_reply *reply;
    CHECK(np_begin(endpoint, "callee", "1", 1, NULL, &first) == NP_OK);
    CHECK(np_begin(endpoint, "callee", "2", 1, NULL, &second) == NP_OK);
    CHECK(np_begin(endpoint, "callee", "3", 1, NULL, &third) == NP_OK);
    np_cancel(endpoint, third);
    CHECK(np_wait(endpoint, second, &reply) == NP_OK);
    same(reply, "2", 1);
    CHECK(np_wait(endpoint, first, &reply) == NP_OK);
    same(reply, "1", 1);
}

static void errors(np_endpoint *endpoint) {
    np_call_options options = NP_CALL_OPTIONS;
    np_reply *reply;
    CHECK(np_call(endpoint, "No Name", NULL, 0, NULL, &reply) == NP_NAME && reply == NULL);
    CHECK(strstr(np_error(endpoint), "No Name") != NULL && !np_retry_is_safe(endpoint));
    options.flags = NP_SHM_ONLY;
    CHECK(np_call(endpoint, "unknown", NULL, 0, &options, &reply) == NP_UNSENT && np_retry_is_safe(endpoint));
    CHECK(np_call(endpoint, NULL, NULL, 0, NULL, &reply) == NP_MISUSE);
    CHECK(np_call(NULL, "callee", NULL, 0, NULL, &reply) == NP_MISUSE);
    CHECK(np_call(endpoint, "callee", NULL, 1, NULL, &reply) == NP_MISUSE);
    options.size = 1;
    CHECK(np_notify(endpoint, "callee", NULL, 0, &options) == NP_MISUSE);
    CHECK(strcmp(np_code_name(NP_DIED), "died") == 0 && strcmp(np_code_name(NP_MISUSE), "misuse") == 0);
}

int main(int count, char **words) {
    np_endpoint *endpoint = np_join();
    CHECK(count > 1);
    if (strcmp(words[1], "serve") == 0) {
        int user = 42;
        np_code code = np_serve(endpoint, handler, &user);
        if (code != NP_OK) fprintf(stderr, "%s\n", np_error(endpoint));
        np_leave(endpoint);
        return code;
    }
    check_calls(endpoint, words[2], strcmp(words[2], NP_PATH_SHM) == 0 ? NP_SHM_ONLY : 0);
    drafts(endpoint);
    at_once(endpoint);
    errors(endpoint);
    CHECK(np_notify(endpoint, "callee", "event", 5, NULL) == NP_OK || strcmp(words[2], NP_PATH_HTTP) == 0);
    CHECK(np_notify_draft(endpoint, "callee", drafted(endpoint, 5, 'e'), NULL) == NP_OK || strcmp(words[2], NP_PATH_HTTP) == 0);
    np_leave(endpoint);
    np_leave(NULL);
    CHECK(released == 1);
    puts("fine");
    return 0;
}
