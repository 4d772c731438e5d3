/*
 * nearpath: functions that serve and make calls over the nearest path: shared memory on one machine, HTTP through the gateway
 * elsewhere. docs/guide/sdk.md describes the parts common to all languages.
 *
 * An endpoint and all its objects belong to one thread: use them there only. A second thread joins with its own endpoint; there are
 * no globals. No function throws or longjmps; a handler that does ends the process.
 *
 * Text is UTF-8 and ends with NUL. Pointers must not be NULL unless their function permits it; else it returns NP_MISUSE.
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

/* The result of a function of this header. The numbers are stable. */
typedef enum np_code {
    NP_OK = 0,
    NP_NAME = 1,      /* the function's name or the topic is invalid */
    NP_HEAD = 2,      /* a header field is invalid */
    NP_UNSENT = 3,    /* the call was not sent: a retry is safe */
    NP_DIED = 4,      /* the called instance died, or its connection broke: the call may have run */
    NP_TIMEOUT = 5,   /* no answer before the deadline: the call may have run */
    NP_TRUNCATED = 6, /* the answer was aborted or is invalid */
    NP_TOO_LARGE = 7, /* the answer is larger than the maximum */
    NP_PLATFORM = 8,  /* the platform answered, not the function; np_error returns its status and reason */
    NP_LISTEN = 9,    /* this process cannot listen for HTTP, or has no event loop */
    NP_MISUSE = 10,   /* an argument is NULL or not UTF-8, or a handler called np_serve */
    NP_UNWANTED = 11  /* the receiver takes no more of this body: it has answered already, or has disconnected */
} np_code;

typedef struct np_endpoint np_endpoint; /* a thread's membership in its domain */
typedef struct np_request np_request;   /* a received call; valid while its handler runs */
typedef struct np_answer np_answer;     /* the answer of a handler; valid while the handler runs */
typedef struct np_reply np_reply;       /* a received answer; np_reply_free */
typedef struct np_pending np_pending;   /* an open call; np_wait or np_cancel */
typedef struct np_exchange np_exchange; /* a call with streamed body and answer; np_close */
typedef struct np_draft np_draft;       /* a payload that is written in place, before it is sent */

/* A header field: its value need not end with NUL. */
typedef struct np_field {
    const char *name;
    const void *value;
    size_t bytes;
} np_field;

/* The options of a call. Initialize with NP_CALL_OPTIONS, which sets all but size to 0. */
typedef struct np_call_options {
    size_t size;            /* sizeof(np_call_options), so that the type can grow */
    const char *method;     /* NULL: POST */
    const char *path;       /* the part of the URL after the function's name, with the query; NULL: / */
    const np_field *fields; /* header fields */
    size_t field_count;
    uint64_t deadline_ns;   /* in ns from now; 0: the deadline of the running handler's call */
    uint32_t flags;         /* NP_IDEMPOTENT, NP_SHM_ONLY */
} np_call_options;

#define NP_CALL_OPTIONS { sizeof(np_call_options), 0, 0, 0, 0, 0, 0 }
#define NP_IDEMPOTENT 1u /* the call may run twice: it is made once more after NP_DIED */
#define NP_SHM_ONLY 2u   /* the call never uses HTTP: it fails with NP_UNSENT instead */

/* Answers a call. The default answer is an empty 200. */
typedef void (*np_handler)(np_endpoint *endpoint, const np_request *request, np_answer *answer, void *user);

/* Returns bytes to their owner. */
typedef void (*np_free)(void *context);

/* ---- this thread ---- */

/* Makes an endpoint of this thread, never NULL. It joins its domain with its first call, or when it serves. */
np_endpoint *np_join(void);
/* Ends the endpoint and its open calls. endpoint may be NULL. Handlers must not call this. */
void np_leave(np_endpoint *endpoint);
/* Serves until SIGTERM or SIGINT. Calls through memory and over HTTP run one after the other, on this thread. */
np_code np_serve(np_endpoint *endpoint, np_handler handler, void *user);

/* The options of np_serve_with. Initialize with NP_SERVING. */
typedef struct np_serving {
    size_t size;      /* sizeof(np_serving), so that the type can grow */
    uint32_t threads; /* calls that run at once, each with the np_endpoint of its thread; handler and user are shared by all threads */
    uint32_t flags;   /* NP_STREAM */
} np_serving;

#define NP_SERVING { sizeof(np_serving), 1, 0 }
#define NP_STREAM 1u /* calls the handler when a request begins: np_request_body is its beginning, np_request_part the rest */

/* As np_serve; serving may be NULL. A process serves once: for several threads set np_serving.threads. */
np_code np_serve_with(np_endpoint *endpoint, const np_serving *serving, np_handler handler, void *user);

/* Returns the last error of this endpoint: the function, the path and the cause. Valid until the next error; never NULL. */
const char *np_error(const np_endpoint *endpoint);
/* Reports whether the call that failed last provably did not run. */
bool np_retry_is_safe(const np_endpoint *endpoint);
/* Returns the code's name, the same in every language: "died", "timeout", … */
const char *np_code_name(np_code code);

/* ---- calls: name is NAME or NAME.NAMESPACE, options may be NULL ---- */

/* Makes a call and waits for the answer. The payload is copied. After NP_OK the caller frees *reply, whatever its status. */
np_code np_call(np_endpoint *endpoint, const char *name, const void *payload, size_t bytes, const np_call_options *options,
                np_reply **reply);
/* As np_call without that copy: the bytes must not change until release(context) is called, once, possibly on another thread,
   and also after an error. release may be NULL for bytes that live as long as the process. */
np_code np_call_owned(np_endpoint *endpoint, const char *name, const void *payload, size_t bytes, np_free release, void *context,
                      const np_call_options *options, np_reply **reply);
/* Sends a call without waiting, to make several calls at once. */
np_code np_begin(np_endpoint *endpoint, const char *name, const void *payload, size_t bytes, const np_call_options *options,
                 np_pending **pending);
/* Waits for the answer and frees pending. */
np_code np_wait(np_endpoint *endpoint, np_pending *pending, np_reply **reply);
/* Waits for the first of several answers. pending[0…count-1] may be NULL. *index is the answered call, whose entry becomes NULL.
   The code is that of this call; NP_MISUSE if all entries are NULL. */
np_code np_wait_any(np_endpoint *endpoint, np_pending **pending, size_t count, size_t *index, np_reply **reply);
/* Cancels a call, notifies the callee and frees pending, which may be NULL. */
void np_cancel(np_endpoint *endpoint, np_pending *pending);
/* Sends an event, which has no answer. */
np_code np_notify(np_endpoint *endpoint, const char *name, const void *payload, size_t bytes, const np_call_options *options);

/* ---- payloads written in place ---- */

/* Allocates a draft of zeros, with its memory at *place: in shared memory if there is a free slot, else in private memory. No other
   process reads it before it is sent. NULL: out of memory. Send the draft once, or free it with np_draft_free, while its endpoint lives. */
np_draft *np_draft_begin(np_endpoint *endpoint, size_t bytes, void **place);
/* Shortens a draft to this number of bytes. draft may be NULL. */
void np_draft_truncate(np_draft *draft, size_t bytes);
/* Frees a draft. draft may be NULL. */
void np_draft_free(np_draft *draft);
/* As np_call, np_begin and np_notify, without a copy in shared memory. They consume draft, whatever they return: the memory at *place
   then belongs to the callee. Writing there is an error that the library cannot detect. */
np_code np_call_draft(np_endpoint *endpoint, const char *name, np_draft *draft, const np_call_options *options, np_reply **reply);
np_code np_begin_draft(np_endpoint *endpoint, const char *name, np_draft *draft, const np_call_options *options, np_pending **pending);
np_code np_notify_draft(np_endpoint *endpoint, const char *name, np_draft *draft, const np_call_options *options);

/* Sends an event to one instance of each function of the domain that subscribes to the topic. *sent and *missed count the functions
   whose instance took it or could not; both may be NULL. Outside a domain there are no subscribers. */
np_code np_publish(np_endpoint *endpoint, const char *topic, const void *payload, size_t bytes, const np_call_options *options,
                   size_t *sent, size_t *missed);

/* ---- streamed calls ---- */

typedef enum np_step {
    NP_WRITABLE = 0, /* a piece can be written without waiting */
    NP_BEGUN = 1,    /* the answer has begun: np_exchange_reply */
    NP_PART = 2,     /* a part of the answer's body: np_exchange_part */
    NP_END = 3       /* the answer is complete */
} np_step;

/* Begins a call. The deadline covers the whole call, to the end of the answer. */
np_code np_open(np_endpoint *endpoint, const char *name, const np_call_options *options, np_exchange **exchange);
/* Copies and writes a piece of the body. Waits while eight parts are unread. A callee that answers while it reads waits as well: for
   large bodies to such a callee use np_next between the pieces. NP_UNWANTED: np_next returns the cause. */
np_code np_write(np_endpoint *endpoint, np_exchange *exchange, const void *piece, size_t bytes);
/* Completes the body. Without this the callee's next read after np_close fails: it gets an error, never an end. */
np_code np_finish(np_endpoint *endpoint, np_exchange *exchange);
/* Waits for the next step of the answer; with writes also for NP_WRITABLE. There are no steps after an error. */
np_code np_next(np_endpoint *endpoint, np_exchange *exchange, bool writes, np_step *step);
/* Returns the answer without its body, after NP_BEGUN; NULL before. Valid until np_close; do not free it. */
const np_reply *np_exchange_reply(const np_exchange *exchange);
/* Returns the part of the last np_next; valid until the next np_next or np_close. */
const void *np_exchange_part(const np_exchange *exchange, size_t *bytes);
/* Waits for the next part; NULL at the end. Valid as long as that of np_exchange_part. */
np_code np_reply_part(np_endpoint *endpoint, np_exchange *exchange, const void **part, size_t *bytes);
/* Frees the exchange. Cancels an open call and notifies the callee. exchange may be NULL. */
void np_close(np_endpoint *endpoint, np_exchange *exchange);

/* ---- received answers ---- */

uint16_t np_reply_status(const np_reply *reply);
/* Returns the body: in shared memory, without a copy, if it arrived in one piece. Valid until np_reply_free. */
const void *np_reply_body(const np_reply *reply, size_t *bytes);
/* Returns the first field of that name (in lower case), without a NUL at the end; NULL if there is none. */
const char *np_reply_header(const np_reply *reply, const char *name, size_t *bytes);
/* Returns the path of the call, as the platform reports it: one of NP_PATH_…; empty: unknown. */
const char *np_reply_path(const np_reply *reply);
/* Returns the answering instance; 0: unknown. */
uint64_t np_reply_instance(const np_reply *reply);
/* Frees a reply, which may be NULL. */
void np_reply_free(np_reply *reply);

/* ---- received calls ---- */

/* Returns the body: in shared memory if it arrived in one piece. Valid while the handler runs. */
const void *np_request_body(const np_request *request, size_t *bytes);
/* The text of these functions has no NUL at the end. */
const char *np_request_method(const np_request *request, size_t *bytes);
const char *np_request_path(const np_request *request, size_t *bytes);
const char *np_request_header(const np_request *request, const char *name, size_t *bytes);
/* Returns NAME.NAMESPACE of the calling function, according to the node, without a NUL at the end; NULL: the gateway. */
const char *np_request_caller(const np_request *request, size_t *bytes);
/* Returns the path on which the call arrived: NP_PATH_SHM or NP_PATH_HTTP. */
const char *np_request_arrival_path(const np_request *request);
/* Reports whether the call is an event: its answer is dropped. */
bool np_request_is_event(const np_request *request);
/* Returns the topic of a published event, without a NUL at the end; NULL for other calls. */
const char *np_request_topic(const np_request *request, size_t *bytes);
/* With NP_STREAM: waits for the next part of the body; NULL at the end. Valid until the next part. NP_TRUNCATED: the caller aborted it. */
np_code np_request_part(np_endpoint *endpoint, const np_request *request, const void **part, size_t *bytes);
/* Returns the time until the caller's deadline, in ns; UINT64_MAX: no deadline. */
uint64_t np_request_time_left(const np_request *request);

/* ---- answers of a handler ---- */

void np_answer_status(np_answer *answer, uint16_t status);
np_code np_answer_header(np_answer *answer, const char *name, const void *value, size_t bytes);
/* Sets the body, which is copied. */
np_code np_answer_body(np_answer *answer, const void *body, size_t bytes);
/* Sets the body without that copy; as np_call_owned. */
np_code np_answer_body_owned(np_answer *answer, const void *body, size_t bytes, np_free release, void *context);
/* Sets a body of zeros and returns its memory, to write in place: valid until the handler returns, or np_answer_open.
   NULL: out of memory. */
void *np_answer_begin(np_answer *answer, size_t bytes);
/* Sets the body to a draft, which is consumed. */
np_code np_answer_draft(np_answer *answer, np_draft *draft);
/* Forwards a reply, which is consumed: its status and body, without a copy if it arrived in one piece. */
np_code np_answer_reply(np_answer *answer, np_reply *reply);
/* Begins a streamed answer with the present status, header and body. */
np_code np_answer_open(np_endpoint *endpoint, np_answer *answer);
/* Writes a piece, which is sent at once. Waits while eight parts are unread. NP_UNWANTED: the caller has disconnected. */
np_code np_answer_write(np_endpoint *endpoint, np_answer *answer, const void *piece, size_t bytes);
/* Completes the answer. Without this it is aborted when the handler returns: its reader gets an error, never an end. */
np_code np_answer_finish(np_endpoint *endpoint, np_answer *answer);

#ifdef __cplusplus
}
#endif
#endif
