package nearpath

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
)

// maxBufferedBytes is the maximum of bytes of an answer that wait for the rest: a short answer goes in one message.
const maxBufferedBytes = 32 << 10

// responseWriter is an http.ResponseWriter for a call through shared memory. Bytes beyond the buffer, or flushed ones, are sent at once;
// a Write waits while the window is full, and fails after the caller has cancelled the call.
type responseWriter struct {
	in     *endpoint.IncomingCall
	header http.Header
	sent   http.Header // as it was when the status was written
	status int
	body   bytes.Buffer
	total  uint64 // by Content-Length, or memory.TotalUnknown
	wrote  uint64
	err    error
}

// Header implements http.ResponseWriter.
func (a *responseWriter) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter. It drops informational responses.
func (a *responseWriter) WriteHeader(status int) {
	if a.status != 0 || status < 200 {
		return
	}
	a.status, a.sent, a.total = status, a.header.Clone(), memory.TotalUnknown // what is set later would be a trailer
	if length, err := strconv.ParseUint(a.sent.Get("Content-Length"), 10, 63); err == nil {
		a.total = length
	}
}

// Write implements http.ResponseWriter.
func (a *responseWriter) Write(piece []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	switch {
	case a.err != nil:
		return 0, a.err
	case a.status == http.StatusNoContent || a.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case a.total != memory.TotalUnknown && uint64(len(piece)) > a.total-a.wrote:
		return 0, http.ErrContentLength
	}
	a.wrote += uint64(len(piece))
	if a.body.Len()+len(piece) <= maxBufferedBytes {
		return a.body.Write(piece)
	}
	a.detectContentType(piece)
	if a.err = a.FlushError(); a.err == nil {
		a.err = a.in.Write(piece)
	}
	if a.err != nil {
		return 0, a.err
	}
	return len(piece), nil
}

// Flush implements http.Flusher.
func (a *responseWriter) Flush() { _ = a.FlushError() }

// FlushError sends the buffered bytes; http.ResponseController uses it.
func (a *responseWriter) FlushError() error {
	a.WriteHeader(http.StatusOK)
	if a.err != nil {
		return a.err
	}
	piece := a.body.Bytes()
	if !a.in.HasBegun() {
		var reply endpoint.Reply
		if a.err = a.copyHeader(&reply); a.err == nil {
			a.err = a.in.Begin(&reply, a.total)
		}
	} else if len(piece) > 0 {
		a.err = a.in.Write(piece)
	}
	a.body.Reset()
	return a.err
}

// copyHeader fills an answer with the status, header and body written so far.
func (a *responseWriter) copyHeader(reply *endpoint.Reply) (err error) {
	a.detectContentType(nil)
	reply.Status, reply.BodyBytes = uint16(a.status), a.body.Bytes()
	reply.HeadBytes, err = appendHeader(nil, a.sent, 0)
	return err
}

// detectContentType sets the type of a body that has none, as net/http does: from the buffered bytes, or else from the next piece.
func (a *responseWriter) detectContentType(piece []byte) {
	if a.body.Len() > 0 {
		piece = a.body.Bytes()
	}
	_, typed := a.sent["Content-Type"]
	if !typed && len(piece) > 0 && a.sent.Get("Content-Encoding") == "" && !a.in.HasBegun() {
		a.sent.Set("Content-Type", http.DetectContentType(piece))
	}
}

// EnableFullDuplex does nothing: the body can always be read while the answer is written. http.ResponseController uses it.
func (a *responseWriter) EnableFullDuplex() error { return nil }

// finish sends the rest of the answer; whole is false if the handler aborted it.
func (a *responseWriter) finish(whole bool) error {
	if a.total != memory.TotalUnknown && a.wrote < a.total {
		whole = false
	}
	if whole && a.err == nil {
		a.err = a.FlushError()
	}
	return a.in.End(whole && a.err == nil)
}

// unknownAddr is the address of a caller that has none, in the form HOST:PORT.
const unknownAddr = "127.0.0.1:0"

// httpRequest makes the request of an http.Handler for a call through shared memory.
func httpRequest(ctx context.Context, req *Request, body io.ReadCloser, length int64) (*http.Request, error) {
	path, method := req.Path, req.Method
	if path == "" {
		path = "/"
	}
	if method == "" {
		method = http.MethodPost
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, err
	}
	header := req.Header
	if header == nil {
		header = http.Header{}
	}
	out := &http.Request{
		Method: method, URL: u, RequestURI: path, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Host: header.Get("Host"), RemoteAddr: unknownAddr, Body: body, ContentLength: length,
	}
	return out.WithContext(ctx), nil
}
