/* Both sides of a conversation, for tests/border.rs: `conversation serve` and `conversation call NEAR`. */
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

/* Answers by path: /echo, /begin and /draft (written in place), /owned, /slow (waits for nothing), /how (how it came). */
static void handler(np_party *party, const np_request *request, np_answer *answer, void *user) {
    size_t bytes, length;
    const char *path = np_request_path(request, &length);
    const void *body = np_request_body(request, &bytes);
    CHECK(*(int *)user == 42);
    CHECK(np_serve(party, handler, user) == NP_MISUSE);
    if (is(path, length, "/begin")) {
        memset(np_answer_begin(answer, bytes), 'x', bytes);
    } else if (is(path, length, "/draft")) {
        void *place;
        np_draft *draft = np_draft_begin(party, bytes + 7, &place);
        CHECK(draft != NULL && place != NULL);
        memcpy(place, body, bytes);
        np_draft_cut(draft, bytes);
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
        if (strcmp(np_request_came_over(request), NP_PATH_SHM) == 0) {
            CHECK(is(field, fields, "caller.openfaas-fn"));
        } else {
            CHECK(field == NULL);
        }
        CHECK(np_answer_header(answer, "X-By", "c", 1) == NP_OK);
        CHECK(np_answer_header(answer, "no name", "c", 1) == NP_HEAD);
        np_answer_status(answer, 203);
        CHECK(np_answer_body(answer, np_request_came_over(request), strlen(np_request_came_over(request))) == NP_OK);
    } else {
        CHECK(np_answer_body(answer, body, bytes) == NP_OK);
    }
}

static np_reply *call(np_party *party, const char *path, const void *payload, size_t bytes, uint32_t flags) {
    np_field field = { "X-One", "1", 1 };
    np_ask ask = NP_ASK;
    np_reply *reply;
    ask.method = "PUT";
    ask.path = path;
    ask.fields = &field;
    ask.field_count = 1;
    ask.deadline_ns = UINT64_C(30000000000);
    ask.flags = flags;
    if (np_call(party, "callee", payload, bytes, &ask, &reply) != NP_OK) {
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

static void speaks(np_party *party, const char *near, uint32_t flags) {
    size_t bytes, large = 3 << 20;
    char *much = malloc(large);
    np_reply *reply;
    while ((reply = call(party, "/how", NULL, 0, flags)) == NULL) CHECK(np_retry_is_safe(party)); /* it is still on its way */
    CHECK(np_reply_status(reply) == 203 && strcmp(np_reply_path(reply), near) == 0);
    const char *by = np_reply_header(reply, "x-by", &bytes);
    CHECK(is(by, bytes, "c"));
    CHECK(np_reply_header(reply, "x-none", NULL) == NULL);
    same(reply, near, strlen(near));
    same(call(party, "/echo", "hello", 5, flags), "hello", 5);
    same(call(party, "/echo", NULL, 0, flags), NULL, 0);
    same(call(party, "/begin", "hello", 5, flags), "xxxxx", 5);
    same(call(party, "/owned", "hello", 5, flags), "hello", 5);
    CHECK(much != NULL);
    memset(much, 'm', large);
    same(call(party, "/echo", much, large, flags), much, large);
    CHECK(np_call_owned(party, "callee", much, large, release, much, NULL, &reply) == NP_OK);
    np_reply_free(reply);
}

/* A draft with so many bytes of one letter. */
static np_draft *drafted(np_party *party, size_t bytes, char letter) {
    void *place;
    np_draft *draft = np_draft_begin(party, bytes, &place);
    CHECK(draft != NULL && place != NULL);
    for (size_t at = 0; at < bytes; at++) CHECK(((char *)place)[at] == 0);
    memset(place, letter, bytes);
    return draft;
}

static void drafts(np_party *party) {
    size_t sizes[] = { 0, 1, 5000, 500000, 3 << 20 };
    np_ask ask = NP_ASK;
    np_pending *pending;
    np_reply *reply;
    ask.path = "/draft";
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        size_t bytes = sizes[at];
        char *wanted = malloc(bytes + 1);
        CHECK(wanted != NULL);
        memset(wanted, 'd', bytes);
        CHECK(np_call_draft(party, "callee", drafted(party, bytes, 'd'), &ask, &reply) == NP_OK);
        same(reply, wanted, bytes);
        CHECK(np_begin_draft(party, "callee", drafted(party, bytes, 'd'), &ask, &pending) == NP_OK);
        CHECK(np_wait(party, pending, &reply) == NP_OK);
        same(reply, wanted, bytes);
        free(wanted);
    }
    for (int at = 0; at < 1000; at++) np_draft_free(drafted(party, 100000, 'f')); /* far more than there are slots */
    CHECK(np_call_draft(party, "No Name", drafted(party, 5, 'x'), NULL, &reply) == NP_NAME && reply == NULL);
    CHECK(np_call_draft(party, "callee", NULL, NULL, &reply) == NP_MISUSE && reply == NULL);
    CHECK(np_notify_draft(NULL, "callee", drafted(party, 5, 'x'), NULL) == NP_MISUSE);
    CHECK(np_draft_begin(party, 5, NULL) == NULL);
    np_draft_free(NULL);
    np_draft_cut(NULL, 1);
}

static void at_once(np_party *party) {
    np_pending *first, *second, *third;
    np_reply *reply;
    CHECK(np_begin(party, "callee", "1", 1, NULL, &first) == NP_OK);
    CHECK(np_begin(party, "callee", "2", 1, NULL, &second) == NP_OK);
    CHECK(np_begin(party, "callee", "3", 1, NULL, &third) == NP_OK);
    np_cancel(party, third);
    CHECK(np_wait(party, second, &reply) == NP_OK);
    same(reply, "2", 1);
    CHECK(np_wait(party, first, &reply) == NP_OK);
    same(reply, "1", 1);
}

static void errors(np_party *party) {
    np_ask ask = NP_ASK;
    np_reply *reply;
    CHECK(np_call(party, "No Name", NULL, 0, NULL, &reply) == NP_NAME && reply == NULL);
    CHECK(strstr(np_error(party), "No Name") != NULL && !np_retry_is_safe(party));
    ask.flags = NP_NEAR_ONLY;
    CHECK(np_call(party, "stranger", NULL, 0, &ask, &reply) == NP_UNSENT && np_retry_is_safe(party));
    CHECK(np_call(party, NULL, NULL, 0, NULL, &reply) == NP_MISUSE);
    CHECK(np_call(NULL, "callee", NULL, 0, NULL, &reply) == NP_MISUSE);
    CHECK(np_call(party, "callee", NULL, 1, NULL, &reply) == NP_MISUSE);
    ask.size = 1;
    CHECK(np_notify(party, "callee", NULL, 0, &ask) == NP_MISUSE);
    CHECK(strcmp(np_code_name(NP_DIED), "died") == 0 && strcmp(np_code_name(NP_MISUSE), "misuse") == 0);
}

int main(int count, char **words) {
    np_party *party = np_join();
    CHECK(count > 1);
    if (strcmp(words[1], "serve") == 0) {
        int user = 42;
        np_code code = np_serve(party, handler, &user);
        if (code != NP_OK) fprintf(stderr, "%s\n", np_error(party));
        np_leave(party);
        return code;
    }
    speaks(party, words[2], strcmp(words[2], NP_PATH_SHM) == 0 ? NP_NEAR_ONLY : 0);
    drafts(party);
    at_once(party);
    errors(party);
    CHECK(np_notify(party, "callee", "event", 5, NULL) == NP_OK || strcmp(words[2], NP_PATH_HTTP) == 0);
    CHECK(np_notify_draft(party, "callee", drafted(party, 5, 'e'), NULL) == NP_OK || strcmp(words[2], NP_PATH_HTTP) == 0);
    np_leave(party);
    np_leave(NULL);
    CHECK(released == 1);
    puts("fine");
    return 0;
}
