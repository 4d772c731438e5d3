package nearpath

import (
	"fmt"

	"nearpath.io/nearpath/internal/party"
)

// Why a call has no answer.
var (
	// ErrDied is an instance that died before it had answered: the call may have run.
	ErrDied = party.ErrDied
	// ErrCut is an answer that was broken off.
	ErrCut = party.ErrCut
	// ErrTooBig is an answer that is larger than the Client's MaxBody.
	ErrTooBig = party.ErrTooBig
	// ErrNoPeer is a function that shared memory does not reach, when the Client may not use HTTP.
	ErrNoPeer = party.ErrNoPeer
)

// PlatformError is an answer that the platform made, not the function.
type PlatformError struct {
	// Status is the HTTP status.
	Status int
	// Reason is a name of contract/reasons.toml, or empty.
	Reason string
	// Text is for people.
	Text string
}

// Error says what happened.
func (e *PlatformError) Error() string {
	text := e.Text
	if text == "" {
		text = "the platform refused or lost the call"
	}
	return fmt.Sprintf("nearpath: %s (%d %s)", text, e.Status, e.Reason)
}

// reasons are those of contract/reasons.toml by number; a test compares.
var reasons = [...]string{
	1: "bad_request", 2: "no_function", 3: "not_allowed", 4: "method_not_allowed", 5: "body_too_large", 6: "headers_too_large",
	7: "slow_request", 8: "overload", 9: "queue_timeout", 10: "cold_timeout", 11: "draining", 12: "connect_failed",
	13: "instance_died", 14: "first_byte_timeout", 15: "idle_timeout", 16: "total_timeout", 17: "response_cut", 18: "caller_gone",
	19: "function_failed", 20: "exec_timeout", 21: "internal", 22: "unauthorized", 23: "not_found", 24: "conflict",
	25: "not_implemented", 26: "storage_full", 27: "read_only",
	28: "answer_too_large",
}

// reasonName is the name of a number of contract/reasons.toml, or empty.
func reasonName(number uint16) string {
	if int(number) < len(reasons) && number > 0 {
		return reasons[number]
	}
	return ""
}

// The reasons that this package gives itself.
const (
	reasonBadRequest     = 1
	reasonBodyTooLarge   = 5
	reasonFunctionFailed = 19
)
