package nearpath

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// response converts an answer through shared memory into a response as http.Transport returns it.
func (s *Stream) response(r *http.Request) *http.Response {
	header, length := s.Header, s.Length
	if header == nil {
		header = http.Header{}
	}
	header.Set(pathField, string(PathShm))
	if asksHead := r.Method == http.MethodHead; (length > 0 || length == 0 && !asksHead) && header.Get("Content-Length") == "" {
		header.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	switch bodiless := s.Status == http.StatusNoContent || s.Status == http.StatusNotModified; {
	case bodiless, r.Method == http.MethodHead:
		s.Body.Close()
		if bodiless {
			header.Del("Content-Length")
			length = 0
		} else if length == 0 {
			length = -1 // the answer to a HEAD has no body, so its length is unknown
		}
		return newHTTPResponse(r, s.Status, header, http.NoBody, length)
	}
	response := newHTTPResponse(r, s.Status, header, &reportedBody{from: s.Body, ctx: r.Context()}, length)
	if wantsUnpacked(r) && strings.EqualFold(header.Get("Content-Encoding"), "gzip") {
		header.Del("Content-Encoding")
		header.Del("Content-Length")
		response.Body, response.ContentLength, response.Uncompressed = &gzipBody{packed: response.Body}, -1, true
	}
	return response
}

func (e *PlatformError) response(r *http.Request) *http.Response {
	header := http.Header{"X-Nearpath-Reason": {e.Reason}, "Content-Type": {"text/plain"}, "X-Nearpath-Path": {string(PathShm)}}
	return newHTTPResponse(r, e.Status, header, io.NopCloser(strings.NewReader(e.Text)), int64(len(e.Text)))
}

func newHTTPResponse(r *http.Request, status int, header http.Header, body io.ReadCloser, length int64) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, Body: body, ContentLength: length, Request: r,
	}
}

// wantsUnpacked reports whether http.Transport would request and decompress gzip by itself.
func wantsUnpacked(r *http.Request) bool {
	return r.Header.Get("Accept-Encoding") == "" && r.Header.Get("Range") == ""
}

// reportedBody is a body with the errors of http.Transport.
type reportedBody struct {
	from   io.ReadCloser
	ctx    context.Context
	closed atomic.Bool
}

// Read implements io.Reader.
func (b *reportedBody) Read(to []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.from.Read(to)
	if err != nil && err != io.EOF {
		err = b.explain(err)
	}
	return n, err
}

// explain returns the context's error if that ended the body: the callee may have reached the deadline first.
func (b *reportedBody) explain(err error) error {
	if given := b.ctx.Err(); given != nil {
		return given
	}
	if deadline, ok := b.ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return err
}

// Close implements io.Closer.
func (b *reportedBody) Close() error {
	b.closed.Store(true)
	return b.from.Close()
}

// gzipBody decompresses a gzip body from its first read on.
type gzipBody struct {
	packed io.ReadCloser
	reader *gzip.Reader
	err    error
}

// Read implements io.Reader.
func (g *gzipBody) Read(to []byte) (int, error) {
	if g.reader == nil && g.err == nil {
		g.reader, g.err = gzip.NewReader(g.packed)
	}
	if g.err != nil {
		return 0, g.err
	}
	return g.reader.Read(to)
}

// Close implements io.Closer.
func (g *gzipBody) Close() error {
	g.err = http.ErrBodyReadAfterClose
	return g.packed.Close()
}
