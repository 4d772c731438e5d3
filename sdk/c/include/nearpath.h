/*
 * nearpath: functions that take calls and make them over the nearest path there is: shared memory on one machine, HTTP through
 * the gateway elsewhere. docs/guide/sdk.md tells what is the same in every language.
 *
 * A party belongs to one thread: use it, and what came through it, there only. A second thread joins as a party of its own; there
 * are no globals. No function throws or longjmps; a handler that does ends the process.
 *
 * Text is UTF-8 and ends with NUL. Pointers that are not called optional must not be NULL; NP_MISUSE says that one is.
 */
#ifndef NEARPATH_H
#define NEARPATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nearpath_paths.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a function of this header ended. The numbers stay. */
typedef enum np_code {
    NP_OK = 0,
    NP_NAME = 1,      /* no function can have that name, or no event that topic */
    NP_HEAD = 2,      /* a header field cannot be sent */
    NP_UNSENT = 3,    /* nobody has seen the call: making it again is safe */
    NP_DIED = 4,      /* the called instance died, or its connection broke: the call may have run */
    NP_TIMEOUT = 5,   /* no answer before the deadline: the call may have run */
    NP_CUT = 6,       /* the answer was broken off or cannot be understood */
    NP_TOO_LARGE = 7, /* the answer is larger than is taken */
    NP_PLATFORM = 8,  /* the platform answered, not the function; np_error tells its status and reason */
    NP_LISTEN = 9,    /* this process cannot listen for HTTP, or has no event loop */
    NP_MISUSE = 10,   /* an argument is NULL or no UTF-8, or np_serve was called in a handler */
    NP_UNWANTED = 11  /* the other side takes no more of this body: there is an answer already, or it has left */
} np_code;

typedef struct np_party np_party;     /* a thread in its domain */
typedef struct np_request np_request; /* a call that came in; lives as long as its handler runs */
typedef struct np_answer np_answer;   /* what a handler answers; lives as long as it runs */
typedef struct np_reply np_reply;     /* an answer that came; np_reply_free */
typedef struct np_pending np_pending; /* a call that is under way; np_wait or np_cancel */
typedef struct np_exchange np_exchange; /* a call whose body goes, and whose answer comes, piece by piece; np_close */
typedef struct np_draft np_draft;     /* a payload that is being written where it goes out */

/* A header field: its value need not end with NUL. */
typedef struct np_field {
    const char *name;
    const void *value;
    size_t bytes;
} np_field;

/* How a call is made. Begin with NP_ASK and set what differs; everything else is 0. */
typedef struct np_ask {
    size_t size;            /* sizeof(np_ask), so that it can grow */
    const char *method;     /* NULL: POST */
    const char *path;       /* what follows the function's name, with the query; NULL: / */
    const np_field *fields; /* header fields */
    size_t field_count;
    uint64_t deadline_ns;   /* from now; 0: as long as the caller of the running handler waits */
    uint32_t flags;         /* NP_IDEMPOTENT, NP_NEAR_ONLY */
} np_ask;

#define NP_ASK { sizeof(np_ask), 0, 0, 0, 0, 0, 0 }
#define NP_IDEMPOTENT 1u /* running it twice does no harm: made once more after NP_DIED */
#define NP_NEAR_ONLY 2u  /* shared memory or NP_UNSENT, never HTTP */

/* Answers a call. Without a word about it the answer is an empty 200. */
typedef void (*np_handler)(np_party *party, const np_request *request, np_answer *answer, void *user);

/* Gives bytes back to who made them. */
typedef void (*np_free)(void *context);

/* ---- this thread ---- */

/* Never NULL. The thread becomes a party of its domain with its first call, or when it serves. */
np_party *np_join(void);
/* Ends it, and the calls that are under way. party may be NULL; not in a handler. */
void np_leave(np_party *party);
/* Serves until the process is told to stop (SIGTERM, SIGINT). Calls from memory and HTTP run one after the other, on this thread. */
np_code np_serve(np_party *party, np_handler handler, void *user);

/* How it serves. Begin with NP_SERVING and set what differs. */
typedef struct np_serving {
    size_t size;      /* sizeof(np_serving), so that it can grow */
    uint32_t threads; /* so many calls run at once, each with an np_party of its thread; handler and user are used by all of them */
    uint32_t flags;   /* NP_STREAM */
} np_serving;

#define NP_SERVING { sizeof(np_serving), 1, 0 }
#define NP_STREAM 1u /* a handler is called when a request begins: np_request_part; np_request_body is what has come */

/* As np_serve; how may be NULL. One process serves once: several threads are np_serving.threads, not several np_serve. */
np_code np_serve_with(np_party *party, const np_serving *how, np_handler handler, void *user);

/* Why the last function of this party failed: which function, which path, why. Valid until the next one; never NULL. */
const char *np_error(const np_party *party);
/* Whether the call that failed last provably did not run. */
bool np_retry_is_safe(const np_party *party);
/* The code's name, the same in every language: "died", "timeout", … */
const char *np_code_name(np_code code);

/* ---- calls: name is NAME or NAME.NAMESPACE, ask may be NULL ---- */

/* Calls and waits. The payload is copied. On NP_OK *reply is to be freed, whatever status it has. */
np_code np_call(np_party *party, const char *name, const void *payload, size_t bytes, const np_ask *ask, np_reply **reply);
/* As np_call without that copy: the bytes stay as they are until release(context) is called, once, perhaps on another thread.
   release may be NULL: for bytes that live as long as the process. It is called when the function fails, too. */
np_code np_call_owned(np_party *party, const char *name, const void *payload, size_t bytes, np_free release, void *context,
                      const np_ask *ask, np_reply **reply);
/* Sends a call without waiting, for several at once. */
np_code np_begin(np_party *party, const char *name, const void *payload, size_t bytes, const np_ask *ask, np_pending **pending);
/* Waits for the answer; pending is gone afterwards. */
np_code np_wait(np_party *party, np_pending *pending, np_reply **reply);
/* Waits for the first of several answers. pending[0…count-1] may be NULL; on return *which says which it was, and that one is NULL.
   The code is that of its outcome; NP_MISUSE when there is none to wait for. */
np_code np_wait_any(np_party *party, np_pending **pending, size_t count, size_t *which, np_reply **reply);
/* Gives a call up: the callee is told. pending may be NULL, and is gone afterwards. */
void np_cancel(np_party *party, np_pending *pending);
/* Sends an event: nobody answers. */
np_code np_notify(np_party *party, const char *name, const void *payload, size_t bytes, const np_ask *ask);

/* ---- a payload that goes out where it lies ---- */

/* So many zeros to write in, at *place: in shared memory where there is a slot, else in private memory; nobody else sees them before
   they are handed over. NULL: no memory. Hand it over once, or np_draft_free it, while its party lives. */
np_draft *np_draft_begin(np_party *party, size_t bytes, void **place);
/* Cuts what was not needed. draft may be NULL. */
void np_draft_cut(np_draft *draft, size_t bytes);
/* Gives it up. draft may be NULL. */
void np_draft_free(np_draft *draft);
/* As np_call, np_begin and np_notify without a copy where shared memory reaches. draft is gone afterwards, whatever they return: from
   then on the memory at *place is the callee's. Writing there is an error that nobody can detect. */
np_code np_call_draft(np_party *party, const char *name, np_draft *draft, const np_ask *ask, np_reply **reply);
np_code np_begin_draft(np_party *party, const char *name, np_draft *draft, const np_ask *ask, np_pending **pending);
np_code np_notify_draft(np_party *party, const char *name, np_draft *draft, const np_ask *ask);

/* Sends an event to one instance of each function of the domain that subscribes to the topic. sent and missed (functions whose
   instances had no room for it) may be NULL. Outside a domain nobody subscribes. */
np_code np_publish(np_party *party, const char *topic, const void *payload, size_t bytes, const np_ask *ask, size_t *sent,
                   size_t *missed);

/* ---- calls piece by piece ---- */

typedef enum np_step {
    NP_ROOM = 0,  /* a piece can be written without waiting */
    NP_BEGUN = 1, /* the answer has begun: np_exchange_reply */
    NP_PART = 2,  /* a part of its body: np_exchange_part */
    NP_END = 3    /* that was all */
} np_step;

/* Begins a call. A deadline is for all of it, to the end of the answer. */
np_code np_open(np_party *party, const char *name, const np_ask *ask, np_exchange **exchange);
/* Writes a piece of the body; copied. Waits while eight parts are unread: a callee that answers as it reads, and is not read, waits
   as well. Who writes much to such a one goes by np_next. NP_UNWANTED: np_next says why. */
np_code np_write(np_party *party, np_exchange *exchange, const void *piece, size_t bytes);
/* The body is complete. Without this the callee gets an error when it reads on after np_close, never an end. */
np_code np_finish(np_party *party, np_exchange *exchange);
/* Waits for what comes next; with writes also for room. An error is the last thing that comes. */
np_code np_next(np_party *party, np_exchange *exchange, bool writes, np_step *step);
/* The answer without its body, after NP_BEGUN; NULL before. Valid until np_close; not to be freed. */
const np_reply *np_exchange_reply(const np_exchange *exchange);
/* The part that np_next told of; valid until the next np_next or np_close. */
const void *np_exchange_part(const np_exchange *exchange, size_t *bytes);
/* Waits for the next part; NULL at the end. Valid as np_exchange_part. */
np_code np_reply_part(np_party *party, np_exchange *exchange, const void **part, size_t *bytes);
/* Ends it; what has not come to its end is given up, and the callee is told. exchange may be NULL. */
void np_close(np_party *party, np_exchange *exchange);

/* ---- an answer that came ---- */

uint16_t np_reply_status(const np_reply *reply);
/* Where the body lies: in shared memory if it came in one piece, without a copy; valid until np_reply_free. */
const void *np_reply_body(const np_reply *reply, size_t *bytes);
/* The first field of that name (in lower case), not ended with NUL; NULL when there is none. */
const char *np_reply_header(const np_reply *reply, const char *name, size_t *bytes);
/* The path that the call took, as the platform reports it: one of NP_PATH_…; empty: none is known. */
const char *np_reply_path(const np_reply *reply);
/* The instance that answered; 0: unknown. */
uint64_t np_reply_instance(const np_reply *reply);
/* reply may be NULL. */
void np_reply_free(np_reply *reply);

/* ---- a call that came in ---- */

/* Where the body lies: in shared memory if it came in one piece; valid while the handler runs. */
const void *np_request_body(const np_request *request, size_t *bytes);
/* These two are not ended with NUL. */
const char *np_request_method(const np_request *request, size_t *bytes);
const char *np_request_path(const np_request *request, size_t *bytes);
const char *np_request_header(const np_request *request, const char *name, size_t *bytes);
/* NAME.NAMESPACE of the function that calls, as the node says, not ended with NUL; NULL: the gateway. */
const char *np_request_caller(const np_request *request, size_t *bytes);
/* "shm" or "http": the way that it came. */
const char *np_request_came_over(const np_request *request);
/* One way: the answer goes nowhere. */
bool np_request_is_event(const np_request *request);
/* The topic of an event that was published, not ended with NUL; NULL for everything else. */
const char *np_request_topic(const np_request *request, size_t *bytes);
/* With NP_STREAM: waits for the next part of the body; NULL at the end. Valid until the next one. NP_CUT: it was broken off. */
np_code np_request_part(np_party *party, const np_request *request, const void **part, size_t *bytes);
/* How long the caller still waits, in nanoseconds; UINT64_MAX: it did not say. */
uint64_t np_request_time_left(const np_request *request);

/* ---- the answer of a handler ---- */

void np_answer_status(np_answer *answer, uint16_t status);
np_code np_answer_header(np_answer *answer, const char *name, const void *value, size_t bytes);
/* The body; copied. */
np_code np_answer_body(np_answer *answer, const void *body, size_t bytes);
/* The body, without that copy; as np_call_owned. */
np_code np_answer_body_owned(np_answer *answer, const void *body, size_t bytes, np_free release, void *context);
/* A body of so many zeros to write in, where it goes out: valid until the handler returns, or np_answer_open. NULL: no memory. */
void *np_answer_begin(np_answer *answer, size_t bytes);
/* The body that was written in a draft; draft is gone afterwards. */
np_code np_answer_draft(np_answer *answer, np_draft *draft);
/* Passes a reply on: status and body, without a copy where it came in one piece. reply is gone afterwards. */
np_code np_answer_reply(np_answer *answer, np_reply *reply);
/* Begins the answer, with status, header and body as they are; more is written. */
np_code np_answer_open(np_party *party, np_answer *answer);
/* Writes a piece; it goes at once. Waits while eight parts are unread. NP_UNWANTED: the caller has left. */
np_code np_answer_write(np_party *party, np_answer *answer, const void *piece, size_t bytes);
/* It is complete. Without this it is broken off when the handler returns: its reader gets an error, never an end. */
np_code np_answer_finish(np_party *party, np_answer *answer);

#ifdef __cplusplus
}
#endif
#endif
