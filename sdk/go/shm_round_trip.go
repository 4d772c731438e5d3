package nearpath

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
)

// roundTripShm sends a request through shared memory. It returns a request that provably did not run, for another path.
func (t Transport) roundTripShm(r *http.Request, wanted target) (*http.Response, *http.Request, error) {
	if err := r.Context().Err(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, nil, err
	}
	req, body, err := requestOf(r, wanted.path)
	if err != nil {
		return nil, nil, err
	}
	shmOnly := Client{ShmOnly: true}
	stream, err := shmOnly.Stream(r.Context(), wanted.name, req, body)
	if err == nil {
		return stream.response(r), nil, nil
	}
	if again := sendAgain(r, req, body, err); again != nil {
		return nil, again, nil
	}
	if platform := new(PlatformError); errors.As(err, &platform) {
		return platform.response(r), nil, nil
	}
	return nil, nil, err
}

// sendAgain returns a request that was not sent, or did not run, with its body from the beginning; nil if it may have run or if its body
// was read.
func sendAgain(r *http.Request, req *Request, body io.Reader, err error) *http.Request {
	again := r.Clone(r.Context())
	switch {
	case KindOf(err) == KindUnsent && body != nil: // and so unread
		return again
	case KindOf(err) != KindUnsent && !didNotRun(err):
		return nil
	case body == nil && (r.Body == nil || r.Body == http.NoBody):
		return again
	case body == nil:
		again.Body = io.NopCloser(bytes.NewReader(req.Body))
		return again
	}
	return withRequestBody(again, r)
}

// withRequestBody rewinds a request's body; it returns nil if that is impossible.
func withRequestBody(again, r *http.Request) *http.Request {
	if r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	again.Body = body
	return again
}

// requestOf converts a request. It reads a body that fits into the first message; a longer one is streamed.
func requestOf(r *http.Request, path string) (*Request, io.Reader, error) {
	req := &Request{Method: methodOf(r), Path: path, Header: headerOf(r)}
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return req, nil, nil
	case r.ContentLength <= 0:
		return req, r.Body, nil
	case r.ContentLength > pieceSize:
		return req, &exactReader{r.Body, r.ContentLength}, nil
	}
	defer r.Body.Close()
	body, err := io.ReadAll(&exactReader{r.Body, r.ContentLength})
	req.Body = body
	return req, nil, err
}

// methodOf returns a request's method; in a client an empty one means GET.
func methodOf(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// headerOf returns a request's header with the User-Agent of http.Transport, unless the request sets or empties that field.
func headerOf(r *http.Request) http.Header {
	if own, ok := r.Header["User-Agent"]; ok && len(own) > 0 && own[0] != "" {
		return r.Header
	}
	header := maps.Clone(r.Header)
	if _, ok := header["User-Agent"]; ok {
		delete(header, "User-Agent")
		return header
	}
	if header == nil {
		header = http.Header{}
	}
	header["User-Agent"] = []string{"Go-http-client/1.1"}
	return header
}

// exactReader is a body that must have the announced length, as with http.Transport.
type exactReader struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (e *exactReader) Read(to []byte) (int, error) {
	n, err := e.ReadCloser.Read(to)
	e.left -= int64(n)
	switch {
	case e.left < 0:
		return 0, errLonger
	case err == io.EOF && e.left > 0:
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

var errLonger = errors.New("nearpath: the request's body is longer than its ContentLength")
