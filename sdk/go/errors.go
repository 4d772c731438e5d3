package nearpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"nearpath.io/nearpath/internal/party"
	"nearpath.io/nearpath/internal/reason"
)

// Why a call has no answer: what an *Error wraps. errors.Is finds them.
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

// Kind is what went wrong. The kinds are the same in every language.
type Kind string

// The kinds.
const (
	KindName     Kind = "name"      // no function can have that name
	KindHead     Kind = "head"      // a header field cannot be sent
	KindUnsent   Kind = "unsent"    // nobody has seen the call
	KindDied     Kind = "died"      // the called instance died, or the connection broke; the call may have run
	KindTimeout  Kind = "timeout"   // no answer before the deadline; the call may have run
	KindCut      Kind = "cut"       // the answer was broken off, or cannot be understood
	KindTooLarge Kind = "too_large" // the answer is larger than is taken
	KindPlatform Kind = "platform"  // the platform answered, not the function: there is a *PlatformError
	KindListen   Kind = "listen"    // this process cannot listen for HTTP
)

// Error is a call without an answer of the function. A context that its owner canceled is returned as it is.
type Error struct {
	// Function is the one that was called; empty when none was.
	Function string
	// Path is the one that the call took, or empty.
	Path Path
	Kind Kind
	// Err says more.
	Err error
}

// Error says what happened.
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

// Unwrap is what it is made of.
func (e *Error) Unwrap() error { return e.Err }

// Timeout says whether it came too late; url.Error and net.Error ask for it.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout }

// RetryIsSafe says whether the call provably did not run, so that making it again cannot run it twice.
func (e *Error) RetryIsSafe() bool {
	if fault := new(PlatformError); errors.As(e.Err, &fault) {
		return fault.RetryIsSafe()
	}
	return e.Kind == KindUnsent
}

// KindOf is the kind of an error of this package, or empty.
func KindOf(err error) Kind {
	if fault := new(Error); errors.As(err, &fault) {
		return fault.Kind
	}
	return ""
}

// callError says which call it was that has no answer.
func callError(function string, path Path, err error) error {
	if err == nil {
		return nil // before anything that costs
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
	case party.IsUnsent(err), errors.As(err, &dial) && dial.Op == "dial":
		return KindUnsent
	case errors.Is(err, context.DeadlineExceeded):
		return KindTimeout
	case errors.Is(err, ErrCut), errors.Is(err, io.ErrUnexpectedEOF):
		return KindCut
	case errors.Is(err, ErrTooBig):
		return KindTooLarge
	case errors.Is(err, errName):
		return KindName
	case errors.Is(err, errHead):
		return KindHead
	}
	return KindDied
}

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

// RetryIsSafe says whether the reason tells that the call did not run.
func (e *PlatformError) RetryIsSafe() bool { return reason.RetryIsSafe(e.Reason) }
