package nearpath

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
)

// roundTripShm takes a request through memory. One that provably did not run comes back, to be sent another way.
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
	near := Client{ShmOnly: true}
	stream, err := near.Stream(r.Context(), wanted.name, req, body)
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

// sendAgain is a request that was not sent, or did not run, with its body from the beginning; nil when it may have run, or when its body
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

// withRequestBody has a request's body begin anew, if it can.
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

// requestOf reads a body that is short enough to go along with the call; a longer one goes as it comes.
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

// methodOf is a request's method: to a client none is GET.
func methodOf(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// headerOf is a request's header with what http.Transport says of itself, unless the request has its own, or an empty one.
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

// exactReader is a body that has to have the length that was said, as http.Transport has it.
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

var errLonger = errors.New("nearpath: the request's body is longer than its ContentLength says")
