package nearpath

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
)

// recorder is a ResponseWriter whose response goes back in one message.
type recorder struct {
	header http.Header
	sent   http.Header // as it was when the status was written
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter. Informational responses are not passed on.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status, r.sent = status, r.header.Clone() // what is set later would be a trailer
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(bytes []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(bytes)
}

// Flush implements http.Flusher: for handlers that insist on one.
func (r *recorder) Flush() { r.WriteHeader(http.StatusOK) }

// serveRecorded runs an http.Handler for a call that did not come over HTTP.
func serveRecorded(ctx context.Context, handler http.Handler, req *Request) *Response {
	out, err := httpRequest(ctx, req)
	if err != nil {
		return &Response{Status: http.StatusBadRequest, Body: []byte(err.Error())}
	}
	r := &recorder{header: http.Header{}}
	handler.ServeHTTP(r, out)
	r.WriteHeader(http.StatusOK)
	if len(r.sent["Content-Type"]) == 0 && r.body.Len() > 0 {
		r.sent.Set("Content-Type", http.DetectContentType(r.body.Bytes()))
	}
	return &Response{Status: r.status, Header: r.sent, Body: r.body.Bytes()}
}

func httpRequest(ctx context.Context, req *Request) (*http.Request, error) {
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
		Header: header, Host: header.Get("Host"), Body: io.NopCloser(bytes.NewReader(req.Body)), ContentLength: int64(len(req.Body)),
	}
	return out.WithContext(ctx), nil
}
