/* Streamed bodies, several threads and topics, for tests/it/abi.rs: `pieces serve THREADS` and `pieces call PATH`. */
#include <nearpath.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(that) \
    do { if (!(that)) { fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #that); exit(1); } } while (0)

#define THREADS 3
#define PIECE 100000
#define PIECES 60

static pthread_barrier_t together;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char topic[64];

static bool ends(const char *text, size_t bytes, const char *wanted) {
    size_t length = strlen(wanted);
    return text != NULL && bytes >= length && memcmp(text + bytes - length, wanted, length) == 0;
}

static void echo(np_endpoint *endpoint, const np_request *request, np_answer *answer) {
    const void *part;
    size_t bytes;
    np_answer_status(answer, 207);
    CHECK(np_answer_header(answer, "x-by", "c", 1) == NP_OK);
    CHECK(np_answer_open(endpoint, answer) == NP_OK);
    CHECK(np_answer_open(endpoint, answer) == NP_UNWANTED);
    while (np_request_part(endpoint, request, &part, &bytes) == NP_OK) {
        if (part == NULL) {
            CHECK(np_answer_finish(endpoint, answer) == NP_OK);
            return;
        }
        if (np_answer_write(endpoint, answer, part, bytes) != NP_OK) return;
    }
}

static void handler(np_endpoint *endpoint, const np_request *request, np_answer *answer, void *user) {
    size_t length, bytes;
    const char *path = np_request_path(request, &length);
    CHECK(user == &together);
    if (np_request_is_event(request)) {
        const char *own = np_request_topic(request, &bytes);
        pthread_mutex_lock(&lock);
        if (own != NULL) snprintf(topic, sizeof topic, "%.*s", (int)bytes, own);
        pthread_mutex_unlock(&lock);
    } else if (ends(path, length, "/together")) {
        pthread_barrier_wait(&together); /* until all threads run a handler */
        char *place = np_answer_begin(answer, 5000);
        CHECK(place != NULL);
        memset(place, 'd', 5000);
    } else if (ends(path, length, "/topic")) {
        pthread_mutex_lock(&lock);
        CHECK(np_answer_body(answer, topic, strlen(topic)) == NP_OK);
        pthread_mutex_unlock(&lock);
    } else if (ends(path, length, "/echo")) {
        echo(endpoint, request, answer);
    } else if (ends(path, length, "/flood")) {
        CHECK(np_answer_open(endpoint, answer) == NP_OK);
        while (np_answer_write(endpoint, answer, "drop", 4) == NP_OK) {} /* until the caller has gone */
    } else if (ends(path, length, "/broken")) {
        /* A caller that has cancelled at once is gone already. */
        if (np_answer_open(endpoint, answer) == NP_OK) np_answer_write(endpoint, answer, "some", 4);
    }
}

static np_call_options options_for(const char *path, uint32_t flags) {
    np_call_options options = NP_CALL_OPTIONS;
    options.path = path;
    options.deadline_ns = UINT64_C(30000000000);
    options.flags = flags;
    return options;
}

/* Writes and reads at once: many more bytes than the window of either side. */
static void pieces(np_endpoint *endpoint, const np_call_options *options, const char *path) {
    static char piece[PIECE];
    size_t bytes, read = 0, left = PIECES;
    np_exchange *exchange;
    np_step step = NP_WRITABLE;
    CHECK(np_open(endpoint, "listens-orders", options, &exchange) == NP_OK);
    CHECK(np_exchange_reply(exchange) == NULL);
    while (step != NP_END) {
        CHECK(np_next(endpoint, exchange, left > 0, &step) == NP_OK);
        if (step == NP_WRITABLE) {
            CHECK(np_write(endpoint, exchange, piece, PIECE) == NP_OK);
            if (--left == 0) CHECK(np_finish(endpoint, exchange) == NP_OK);
        } else if (step == NP_PART) {
            CHECK(np_exchange_part(exchange, &bytes) != NULL);
            read += bytes;
        }
    }
    CHECK(read == (size_t)PIECE * PIECES);
    const np_reply *reply = np_exchange_reply(exchange);
    CHECK(np_reply_status(reply) == 207 && strcmp(np_reply_path(reply), path) == 0);
    CHECK(ends(np_reply_header(reply, "x-by", &bytes), 1, "c"));
    CHECK(np_write(endpoint, exchange, piece, 1) == NP_UNWANTED);
    np_close(endpoint, exchange);
}

static void broken(np_endpoint *endpoint, const np_call_options *options) {
    np_exchange *exchange;
    const void *part = NULL;
    size_t bytes, read = 0;
    np_code code;
    CHECK(np_open(endpoint, "listens-orders", options, &exchange) == NP_OK && np_finish(endpoint, exchange) == NP_OK);
    while ((code = np_reply_part(endpoint, exchange, &part, &bytes)) == NP_OK) {
        CHECK(part != NULL); /* an error, never an end */
        read += bytes;
    }
    /* Over HTTP an answer may be aborted before its beginning is sent: then there is no answer. */
    CHECK((code == NP_TRUNCATED || (code == NP_DIED && (options->flags & NP_SHM_ONLY) == 0)) && part == NULL && read <= 4);
    np_close(endpoint, exchange);
    CHECK(np_open(endpoint, "listens-orders", options, &exchange) == NP_OK);
    np_close(endpoint, exchange); /* cancels the call */
    np_close(endpoint, NULL);
}

static void at_once(np_endpoint *endpoint, const np_call_options *options) {
    np_pending *pending[THREADS + 1] = { NULL };
    np_reply *reply;
    size_t which = 0, bytes;
    for (int k = 1; k < THREADS; k++) CHECK(np_begin(endpoint, "listens-orders", NULL, 0, options, &pending[k + 1]) == NP_OK);
    void *place;
    np_draft *draft = np_draft_begin(endpoint, 5000, &place);
    CHECK(draft != NULL && np_begin_draft(endpoint, "listens-orders", draft, options, &pending[1]) == NP_OK);
    for (int k = 0; k < THREADS; k++) {
        CHECK(np_wait_any(endpoint, pending, THREADS + 1, &which, &reply) == NP_OK);
        CHECK(which > 0 && pending[which] == NULL && np_reply_status(reply) == 200);
        const char *body = np_reply_body(reply, &bytes);
        CHECK(bytes == 5000 && body[0] == 'd' && body[4999] == 'd');
        np_reply_free(reply);
    }
    CHECK(np_wait_any(endpoint, pending, THREADS + 1, &which, &reply) == NP_MISUSE);
}

static void topics(np_endpoint *endpoint, bool shm) {
    size_t sent = 9, missed = 9, bytes;
    np_reply *reply;
    np_call_options options = options_for("/topic", shm ? NP_SHM_ONLY : 0);
    bool received = false;
    CHECK(np_publish(endpoint, "orders/+", NULL, 0, NULL, &sent, NULL) == NP_NAME && sent == 0);
    CHECK(np_publish(endpoint, "orders", "new", 3, NULL, &sent, &missed) == NP_OK);
    CHECK(sent == (shm ? 1 : 0) && missed == 0);
    while (shm && !received) { /* until the deadline of the test */
        CHECK(np_call(endpoint, "listens-orders", NULL, 0, &options, &reply) == NP_OK);
        const char *body = np_reply_body(reply, &bytes);
        received = bytes == 6 && memcmp(body, "orders", 6) == 0;
        np_reply_free(reply);
    }
}

int main(int count, char **words) {
    np_endpoint *endpoint = np_join();
    CHECK(count > 2);
    if (strcmp(words[1], "serve") == 0) {
        np_serving how = NP_SERVING;
        how.threads = (uint32_t)atoi(words[2]);
        how.flags = NP_STREAM;
        CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
        np_code code = np_serve_with(endpoint, &how, handler, &together);
        if (code != NP_OK) fprintf(stderr, "%s\n", np_error(endpoint));
        np_leave(endpoint);
        return code;
    }
    bool shm = strcmp(words[2], NP_PATH_SHM) == 0;
    np_call_options ready = options_for("/ready", shm ? NP_SHM_ONLY : 0), echoes = options_for("/echo", ready.flags);
    np_call_options breaks = options_for("/broken", ready.flags), waits = options_for("/together", ready.flags);
    np_reply *reply;
    while (np_call(endpoint, "listens-orders", NULL, 0, &ready, &reply) != NP_OK) CHECK(np_retry_is_safe(endpoint));
    np_reply_free(reply);
    pieces(endpoint, &echoes, words[2]);
    broken(endpoint, &breaks);
    at_once(endpoint, &waits);
    topics(endpoint, shm);
    np_leave(endpoint);
    puts("fine");
    return 0;
}
