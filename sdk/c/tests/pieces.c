/* Bodies piece by piece, several threads, topics, for tests/border.rs: `pieces serve THREADS` and `pieces call PATH`. */
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

static void echo(np_party *party, const np_request *request, np_answer *answer) {
    const void *part;
    size_t bytes;
    np_answer_status(answer, 207);
    CHECK(np_answer_header(answer, "x-by", "c", 1) == NP_OK);
    CHECK(np_answer_open(party, answer) == NP_OK);
    CHECK(np_answer_open(party, answer) == NP_UNWANTED);
    while (np_request_part(party, request, &part, &bytes) == NP_OK) {
        if (part == NULL) {
            CHECK(np_answer_finish(party, answer) == NP_OK);
            return;
        }
        if (np_answer_write(party, answer, part, bytes) != NP_OK) return;
    }
}

static void handler(np_party *party, const np_request *request, np_answer *answer, void *user) {
    size_t length, bytes;
    const char *path = np_request_path(request, &length);
    CHECK(user == &together);
    if (np_request_is_event(request)) {
        const char *own = np_request_topic(request, &bytes);
        pthread_mutex_lock(&lock);
        if (own != NULL) snprintf(topic, sizeof topic, "%.*s", (int)bytes, own);
        pthread_mutex_unlock(&lock);
    } else if (ends(path, length, "/together")) {
        pthread_barrier_wait(&together); /* nobody gets on before all are here */
        char *place = np_answer_begin(answer, 5000);
        CHECK(place != NULL);
        memset(place, 'd', 5000);
    } else if (ends(path, length, "/topic")) {
        pthread_mutex_lock(&lock);
        CHECK(np_answer_body(answer, topic, strlen(topic)) == NP_OK);
        pthread_mutex_unlock(&lock);
    } else if (ends(path, length, "/echo")) {
        echo(party, request, answer);
    } else if (ends(path, length, "/flood")) {
        CHECK(np_answer_open(party, answer) == NP_OK);
        while (np_answer_write(party, answer, "drop", 4) == NP_OK) {} /* until the caller has gone */
    } else if (ends(path, length, "/broken")) {
        /* Who gave up at once is gone by now. */
        if (np_answer_open(party, answer) == NP_OK) np_answer_write(party, answer, "some", 4);
    }
}

static np_ask asking(const char *path, uint32_t flags) {
    np_ask ask = NP_ASK;
    ask.path = path;
    ask.deadline_ns = UINT64_C(30000000000);
    ask.flags = flags;
    return ask;
}

/* Writes and reads at once: far more than either side may have unread. */
static void pieces(np_party *party, const np_ask *ask, const char *path) {
    static char piece[PIECE];
    size_t bytes, read = 0, left = PIECES;
    np_exchange *exchange;
    np_step step = NP_ROOM;
    CHECK(np_open(party, "listens-orders", ask, &exchange) == NP_OK);
    CHECK(np_exchange_reply(exchange) == NULL);
    while (step != NP_END) {
        CHECK(np_next(party, exchange, left > 0, &step) == NP_OK);
        if (step == NP_ROOM) {
            CHECK(np_write(party, exchange, piece, PIECE) == NP_OK);
            if (--left == 0) CHECK(np_finish(party, exchange) == NP_OK);
        } else if (step == NP_PART) {
            CHECK(np_exchange_part(exchange, &bytes) != NULL);
            read += bytes;
        }
    }
    CHECK(read == (size_t)PIECE * PIECES);
    const np_reply *reply = np_exchange_reply(exchange);
    CHECK(np_reply_status(reply) == 207 && strcmp(np_reply_path(reply), path) == 0);
    CHECK(ends(np_reply_header(reply, "x-by", &bytes), 1, "c"));
    CHECK(np_write(party, exchange, piece, 1) == NP_UNWANTED);
    np_close(party, exchange);
}

static void broken(np_party *party, const np_ask *ask) {
    np_exchange *exchange;
    const void *part = NULL;
    size_t bytes, read = 0;
    np_code code;
    CHECK(np_open(party, "listens-orders", ask, &exchange) == NP_OK && np_finish(party, exchange) == NP_OK);
    while ((code = np_reply_part(party, exchange, &part, &bytes)) == NP_OK) {
        CHECK(part != NULL); /* an error, never an end */
        read += bytes;
    }
    /* Over HTTP the beginning may not have gone when it is broken off: then there is no answer at all. */
    CHECK((code == NP_CUT || (code == NP_DIED && (ask->flags & NP_NEAR_ONLY) == 0)) && part == NULL && read <= 4);
    np_close(party, exchange);
    CHECK(np_open(party, "listens-orders", ask, &exchange) == NP_OK);
    np_close(party, exchange); /* given up */
    np_close(party, NULL);
}

static void at_once(np_party *party, const np_ask *ask) {
    np_pending *pending[THREADS + 1] = { NULL };
    np_reply *reply;
    size_t which = 0, bytes;
    for (int k = 1; k < THREADS; k++) CHECK(np_begin(party, "listens-orders", NULL, 0, ask, &pending[k + 1]) == NP_OK);
    void *place;
    np_draft *draft = np_draft_begin(party, 5000, &place);
    CHECK(draft != NULL && np_begin_draft(party, "listens-orders", draft, ask, &pending[1]) == NP_OK);
    for (int k = 0; k < THREADS; k++) {
        CHECK(np_wait_any(party, pending, THREADS + 1, &which, &reply) == NP_OK);
        CHECK(which > 0 && pending[which] == NULL && np_reply_status(reply) == 200);
        const char *body = np_reply_body(reply, &bytes);
        CHECK(bytes == 5000 && body[0] == 'd' && body[4999] == 'd');
        np_reply_free(reply);
    }
    CHECK(np_wait_any(party, pending, THREADS + 1, &which, &reply) == NP_MISUSE);
}

static void topics(np_party *party, bool near) {
    size_t sent = 9, missed = 9, bytes;
    np_reply *reply;
    np_ask ask = asking("/topic", near ? NP_NEAR_ONLY : 0);
    bool told = false;
    CHECK(np_publish(party, "orders/+", NULL, 0, NULL, &sent, NULL) == NP_NAME && sent == 0);
    CHECK(np_publish(party, "orders", "new", 3, NULL, &sent, &missed) == NP_OK);
    CHECK(sent == (near ? 1 : 0) && missed == 0);
    while (near && !told) { /* until the deadline of the test */
        CHECK(np_call(party, "listens-orders", NULL, 0, &ask, &reply) == NP_OK);
        const char *body = np_reply_body(reply, &bytes);
        told = bytes == 6 && memcmp(body, "orders", 6) == 0;
        np_reply_free(reply);
    }
}

int main(int count, char **words) {
    np_party *party = np_join();
    CHECK(count > 2);
    if (strcmp(words[1], "serve") == 0) {
        np_serving how = NP_SERVING;
        how.threads = (uint32_t)atoi(words[2]);
        how.flags = NP_STREAM;
        CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
        np_code code = np_serve_with(party, &how, handler, &together);
        if (code != NP_OK) fprintf(stderr, "%s\n", np_error(party));
        np_leave(party);
        return code;
    }
    bool near = strcmp(words[2], NP_PATH_SHM) == 0;
    np_ask ready = asking("/ready", near ? NP_NEAR_ONLY : 0), echoes = asking("/echo", ready.flags);
    np_ask breaks = asking("/broken", ready.flags), waits = asking("/together", ready.flags);
    np_reply *reply;
    while (np_call(party, "listens-orders", NULL, 0, &ready, &reply) != NP_OK) CHECK(np_retry_is_safe(party));
    np_reply_free(reply);
    pieces(party, &echoes, words[2]);
    broken(party, &breaks);
    at_once(party, &waits);
    topics(party, near);
    np_leave(party);
    puts("fine");
    return 0;
}
