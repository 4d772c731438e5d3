package nearpath

import (
	"context"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"nearpath.io/nearpath/internal/endpoint"
)

const (
	pathField    = "X-Nearpath-Path"
	timeoutField = "X-Timeout"
	traceField   = "Traceparent"
)

// forwardHeaders adds the caller's timeout and requests a report of the call's path. Headers that the caller has set stay.
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

// trace identifies a call's trace and span (W3C Trace Context).
type trace struct {
	id   [16]byte
	span [8]byte
}

// traceOf returns the trace in a header, or else that of the request to which ctx belongs.
func traceOf(ctx context.Context, header http.Header) (t trace) {
	if t, ok := parseTrace(header.Get(traceField)); ok {
		return t
	}
	switch in := ctx.Value(endpoint.TraceKey{}).(type) {
	case *endpoint.IncomingCall:
		t.id, t.span = in.Trace, in.Span
	case trace:
		t = in
	}
	return t
}

// parseTrace parses the field traceparent.
func parseTrace(field string) (t trace, ok bool) {
	parts := strings.Split(field, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || parts[0] == "ff" || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return t, false
	}
	_, bad := hex.Decode(t.id[:], []byte(parts[1]))
	_, worse := hex.Decode(t.span[:], []byte(parts[2]))
	return t, bad == nil && worse == nil && t.id != [16]byte{} && t.span != [8]byte{}
}

// contextOf returns the context of a request over HTTP, with its trace and its caller's timeout.
func contextOf(r *http.Request) (context.Context, context.CancelFunc) {
	ctx := r.Context()
	if t, ok := parseTrace(r.Header.Get(traceField)); ok {
		ctx = context.WithValue(ctx, endpoint.TraceKey{}, t)
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

// reportedPath returns the path of a call over HTTP and the obstacle to a nearer one. Without a report, as from an OpenFaaS gateway, the
// obstacle is that of this process. The field describes this call only, so it is removed from the answer's header.
func reportedPath(header http.Header, p *endpoint.Endpoint, name string) (Path, string) {
	reported, rest, _ := strings.Cut(header.Get(pathField), ";")
	header.Del(pathField)
	path := Path(strings.TrimSpace(reported))
	if !path.isKnown() {
		return PathHTTP, obstacle(p, name)
	}
	_, reason, _ := strings.Cut(rest, "obstacle=")
	reason, _, _ = strings.Cut(reason, ";")
	return path, strings.TrimSpace(reason)
}

func obstacle(p *endpoint.Endpoint, name string) string {
	switch {
	case p == nil:
		return obstacleCallerNoEndpoint
	case !p.HasRoute(name):
		return obstacleNoEndpoint
	}
	return obstacleNoRoom
}
