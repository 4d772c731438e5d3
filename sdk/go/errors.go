package nearpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/reason"
)

// Errors of a call without an answer. An *Error wraps them; errors.Is finds them.
var (
	// ErrDied means that the instance died before it answered: the call may have run.
	ErrDied = endpoint.ErrDied
	// ErrTruncated means that the callee aborted its answer.
	ErrTruncated = endpoint.ErrTruncated
	// ErrTooLarge means that the answer is larger than the Client's MaxBody.
	ErrTooLarge = endpoint.ErrTooLarge
	// ErrNoPeer means that shared memory does not reach the function, and the Client may not use HTTP.
	ErrNoPeer = endpoint.ErrNoPeer
)

// Kind is the kind of an error. The kinds are the same in every language.
type Kind string

// The kinds.
const (
	KindName      Kind = "name"      // the function's name or the topic is invalid
	KindHead      Kind = "head"      // a header field cannot be sent
	KindUnsent    Kind = "unsent"    // the call was not sent
	KindDied      Kind = "died"      // the called instance died, or the connection broke; the call may have run
	KindTimeout   Kind = "timeout"   // no answer before the deadline; the call may have run
	KindTruncated Kind = "truncated" // the answer was aborted, or is invalid
	KindTooLarge  Kind = "too_large" // the answer is larger than the maximum
	KindPlatform  Kind = "platform"  // the platform answered, not the function: the error wraps a *PlatformError
	KindListen    Kind = "listen"    // this process cannot listen for HTTP
)

// Error describes a call without an answer of the function. context.Canceled is returned as it is.
type Error struct {
	// Function is the called function, or empty.
	Function string
	// Path is the path of the call, or empty.
	Path Path
	Kind Kind
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	where := ""
	if e.Function != "" {
		where = e.Function + ": "
		if e.Path != "" {
			where = fmt.Sprintf("%s over %s: ", e.Function, e.Path)
		}
	}
	return "nearpath: " + where + strings.TrimPrefix(e.Err.Error(), "nearpath: ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the deadline has passed; url.Error and net.Error use it.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout }

// RetryIsSafe reports whether the call provably did not run, so that a retry cannot run it twice.
func (e *Error) RetryIsSafe() bool {
	if fault := new(PlatformError); errors.As(e.Err, &fault) {
		return fault.RetryIsSafe()
	}
	return e.Kind == KindUnsent
}

// KindOf returns the kind of an error of this package, or an empty string.
func KindOf(err error) Kind {
	if fault := new(Error); errors.As(err, &fault) {
		return fault.Kind
	}
	return ""
}

// callError adds the function and the path to an error.
func callError(function string, path Path, err error) error {
	if err == nil {
		return nil // the most frequent case, without the checks below
	}
	kind := kindOf(err)
	if kind == "" || errors.As(err, new(*Error)) {
		return err
	}
	if kind == KindUnsent || kind == KindName || kind == KindHead {
		path = ""
	}
	return &Error{function, path, kind, err}
}

func kindOf(err error) Kind {
	var dial *net.OpError
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.As(err, new(*PlatformError)):
		return KindPlatform
	case endpoint.IsUnsent(err), errors.As(err, &dial) && dial.Op == "dial":
		return KindUnsent
	case errors.Is(err, context.DeadlineExceeded):
		return KindTimeout
	case errors.Is(err, ErrTruncated), errors.Is(err, io.ErrUnexpectedEOF):
		return KindTruncated
	case errors.Is(err, ErrTooLarge):
		return KindTooLarge
	case errors.Is(err, errName):
		return KindName
	case errors.Is(err, errHead):
		return KindHead
	}
	return KindDied
}

// PlatformError is an answer of the platform, not of the function.
type PlatformError struct {
	// Status is the HTTP status.
	Status int
	// Reason is a name of contract/reasons.toml, or empty.
	Reason string
	// Text is the message for users.
	Text string
}

// Error implements error.
func (e *PlatformError) Error() string {
	text := e.Text
	if text == "" {
		text = "the platform refused or lost the call"
	}
	return fmt.Sprintf("nearpath: %s (%d %s)", text, e.Status, e.Reason)
}

// RetryIsSafe reports whether the call did not run, according to the reason.
func (e *PlatformError) RetryIsSafe() bool { return reason.RetryIsSafe(e.Reason) }
