// Code generated from contract/reasons.toml by `cargo xtask generate`. DO NOT EDIT.

// Package reason lists the reasons of platform errors.
package reason

// Numbers of the reasons.
const (
	BadRequest        = 1  // The request is not valid HTTP or names no valid function.
	NoFunction        = 2  // No function of that name is deployed in that namespace.
	NotAllowed        = 3  // The calling function has no declared edge to the function it called; or a web page of another site called the API.
	MethodNotAllowed  = 4  // The path exists, but not with this method.
	BodyTooLarge      = 5  // The request body is larger than the limit.
	HeadersTooLarge   = 6  // The request's header fields are larger than the limit.
	SlowRequest       = 7  // The request's body stopped arriving.
	Overload          = 8  // Every instance is at its limit and the queue is full.
	QueueTimeout      = 9  // No instance became free in time.
	ColdTimeout       = 10 // The function was scaled to zero or had no ready instance, and none became ready in time.
	Draining          = 11 // The component is shutting down.
	ConnectFailed     = 12 // No connection to an instance could be made; the request was not sent.
	InstanceDied      = 13 // The instance closed the connection before its response; the request may have run.
	FirstByteTimeout  = 14 // The instance did not begin to answer in time.
	IdleTimeout       = 15 // The response was idle for too long and was truncated.
	TotalTimeout      = 16 // The request's deadline passed.
	ResponseTruncated = 17 // The instance aborted its response.
	CallerGone        = 18 // The caller disconnected before the response was complete.
	FunctionFailed    = 19 // The tenant's process could not be run or ended with an error.
	ExecTimeout       = 20 // The tenant's process ran longer than it may.
	Internal          = 21 // An internal error of nearpath.
	Unauthorized      = 22 // The administrator's credentials are missing or wrong.
	NotFound          = 23 // No such secret, namespace or path.
	Conflict          = 24 // The change contradicts what exists: it is there already, or something still uses it.
	NotImplemented    = 25 // A later version will do this.
	StorageFull       = 26 // The disk under the data directory is full; nothing was changed.
	ReadOnly          = 27 // The store had an error that it cannot recover from by itself and takes no changes until a restart.
	AnswerTooLarge    = 28 // The answer is larger than the protocol's adapter (MQTT, CoAP) forwards, and was truncated.
	TooEarly          = 29 // The request came before the handshake was complete, and is not one that may run twice: send it again when it is (RFC 8470).
	StartFailed       = 30 // The last starts of the function's instances all failed; `Retry-After` names the time of the next one.
	ConnectionLimit   = 31 // All connections of the address are in use. A few further ones serve `/system` and `/healthz` alone.
	LoginLocked       = 32 // Too many wrong passwords came from the caller's address: its logins are refused until the time in `Retry-After`.
	NotHere           = 33 // The node that was asked runs no instance of the function: the caller's node knows another state, and asks the next one.
)

var names = [...]string{
	BadRequest:        "bad_request",
	NoFunction:        "no_function",
	NotAllowed:        "not_allowed",
	MethodNotAllowed:  "method_not_allowed",
	BodyTooLarge:      "body_too_large",
	HeadersTooLarge:   "headers_too_large",
	SlowRequest:       "slow_request",
	Overload:          "overload",
	QueueTimeout:      "queue_timeout",
	ColdTimeout:       "cold_timeout",
	Draining:          "draining",
	ConnectFailed:     "connect_failed",
	InstanceDied:      "instance_died",
	FirstByteTimeout:  "first_byte_timeout",
	IdleTimeout:       "idle_timeout",
	TotalTimeout:      "total_timeout",
	ResponseTruncated: "response_truncated",
	CallerGone:        "caller_gone",
	FunctionFailed:    "function_failed",
	ExecTimeout:       "exec_timeout",
	Internal:          "internal",
	Unauthorized:      "unauthorized",
	NotFound:          "not_found",
	Conflict:          "conflict",
	NotImplemented:    "not_implemented",
	StorageFull:       "storage_full",
	ReadOnly:          "read_only",
	AnswerTooLarge:    "answer_too_large",
	TooEarly:          "too_early",
	StartFailed:       "start_failed",
	ConnectionLimit:   "connection_limit",
	LoginLocked:       "login_locked",
	NotHere:           "not_here",
}

// Name returns the name of a number; unknown: an empty string.
func Name(number uint16) string {
	if int(number) < len(names) {
		return names[number]
	}
	return ""
}

// RetryIsSafe reports whether a retry after this reason cannot run the request twice.
func RetryIsSafe(name string) bool {
	switch name {
	case "slow_request", "overload", "queue_timeout", "cold_timeout", "draining", "connect_failed", "storage_full", "read_only", "too_early", "start_failed", "connection_limit", "login_locked", "not_here":
		return true
	}
	return false
}
