package nearpath

import (
	"context"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"nearpath.io/nearpath/internal/party"
)

const (
	pathField    = "X-Nearpath-Path"
	timeoutField = "X-Timeout"
	traceField   = "Traceparent"
)

// forwardHeaders tells the callee how long its caller waits and which trace the call belongs to, and asks for the way that it takes. What the
// caller says itself stays.
func forwardHeaders(ctx context.Context, header http.Header) {
	if deadline, ok := ctx.Deadline(); ok && header.Get(timeoutField) == "" {
		left := max(time.Until(deadline).Milliseconds(), 1)
		header.Set(timeoutField, strconv.FormatInt(left, 10)+"ms")
	}
	if header.Get(pathField) == "" {
		header.Set(pathField, "?")
	}
}

func forwardTrace(ctx context.Context, header http.Header) {
	if header.Get(traceField) != "" {
		return
	}
	if t := traceOf(ctx, nil); t != (trace{}) {
		header.Set(traceField, "00-"+hex.EncodeToString(t.id[:])+"-"+hex.EncodeToString(t.span[:])+"-01")
	}
}

// trace is what a call belongs to (W3C Trace Context).
type trace struct {
	id   [16]byte
	span [8]byte
}

// traceOf is the trace that a header names, or else that of the request to which ctx belongs.
func traceOf(ctx context.Context, header http.Header) (t trace) {
	if t, ok := parseTrace(header.Get(traceField)); ok {
		return t
	}
	switch in := ctx.Value(party.TraceKey{}).(type) {
	case *party.IncomingCall:
		t.id, t.span = in.Trace, in.Span
	case trace:
		t = in
	}
	return t
}

// parseTrace reads the field traceparent.
func parseTrace(field string) (t trace, ok bool) {
	parts := strings.Split(field, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || parts[0] == "ff" || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return t, false
	}
	_, bad := hex.Decode(t.id[:], []byte(parts[1]))
	_, worse := hex.Decode(t.span[:], []byte(parts[2]))
	return t, bad == nil && worse == nil && t.id != [16]byte{} && t.span != [8]byte{}
}

// contextOf is the context of a request that came over HTTP: its trace, and the time for which its caller waits.
func contextOf(r *http.Request) (context.Context, context.CancelFunc) {
	ctx := r.Context()
	if t, ok := parseTrace(r.Header.Get(traceField)); ok {
		ctx = context.WithValue(ctx, party.TraceKey{}, t)
	}
	text := r.Header.Get(timeoutField)
	if _, bad := strconv.ParseUint(text, 10, 31); bad == nil {
		text += "s" // a bare number is seconds
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit <= 0 || r.Header.Get("Upgrade") != "" {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// reportedPath is the way that a call over HTTP took, and what stood against a nearer one: what the answer says, or else what is known here
// (OpenFaaS's gateway says nothing). The field is about this call: who passes the answer on does not pass it on.
func reportedPath(header http.Header, p *party.Endpoint, name string) (Path, string) {
	said, rest, _ := strings.Cut(header.Get(pathField), ";")
	header.Del(pathField)
	path := Path(strings.TrimSpace(said))
	if !path.isKnown() {
		return PathHTTP, obstacle(p, name)
	}
	_, why, _ := strings.Cut(rest, "not_nearer=")
	return path, strings.TrimSpace(why)
}

func obstacle(p *party.Endpoint, name string) string {
	switch {
	case p == nil:
		return obstacleCallerNoEndpoint
	case !p.HasRoute(name):
		return obstacleNoEndpoint
	}
	return obstacleNoRoom
}
