package nearpath

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/party"
)

// buffered is how much of an answer waits for the rest, so that a short one goes in one message.
const buffered = 32 << 10

// responseWriter is a ResponseWriter for a call that came through shared memory. What is longer than a buffer, or flushed, goes as it is
// written; a Write waits while the reader is behind, and fails when nobody reads any more.
type responseWriter struct {
	in     *party.IncomingCall
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

// WriteHeader implements http.ResponseWriter. Informational responses are not passed on.
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
	if a.body.Len()+len(piece) <= buffered {
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

// FlushError sends what there is; http.ResponseController finds it.
func (a *responseWriter) FlushError() error {
	a.WriteHeader(http.StatusOK)
	if a.err != nil {
		return a.err
	}
	piece := a.body.Bytes()
	if !a.in.HasBegun() {
		var reply party.Reply
		if a.err = a.copyHeader(&reply); a.err == nil {
			a.err = a.in.Begin(&reply, a.total)
		}
	} else if len(piece) > 0 {
		a.err = a.in.Write(piece)
	}
	a.body.Reset()
	return a.err
}

// copyHeader makes an answer of what was written so far.
func (a *responseWriter) copyHeader(reply *party.Reply) (err error) {
	a.detectContentType(nil)
	reply.Status, reply.BodyBytes = uint16(a.status), a.body.Bytes()
	reply.HeadBytes, err = appendHeader(nil, a.sent, 0)
	return err
}

// detectContentType sets the type of a body that has none, as net/http does: by what is buffered, or else by the next piece.
func (a *responseWriter) detectContentType(piece []byte) {
	if a.body.Len() > 0 {
		piece = a.body.Bytes()
	}
	_, typed := a.sent["Content-Type"]
	if !typed && len(piece) > 0 && a.sent.Get("Content-Encoding") == "" && !a.in.HasBegun() {
		a.sent.Set("Content-Type", http.DetectContentType(piece))
	}
}

// EnableFullDuplex does nothing: reading goes on while an answer is written. http.ResponseController finds it.
func (a *responseWriter) EnableFullDuplex() error { return nil }

// finish gives what is left of the answer; whole is false when the handler broke it off.
func (a *responseWriter) finish(whole bool) error {
	if a.total != memory.TotalUnknown && a.wrote < a.total {
		whole = false
	}
	if whole && a.err == nil {
		a.err = a.FlushError()
	}
	return a.in.End(whole && a.err == nil)
}

// nobody is the address of a caller that has none, in a form that can be taken apart.
const nobody = "127.0.0.1:0"

// httpRequest is the request that an http.Handler gets for a call that did not come over HTTP.
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
		Header: header, Host: header.Get("Host"), RemoteAddr: nobody, Body: body, ContentLength: length,
	}
	return out.WithContext(ctx), nil
}
