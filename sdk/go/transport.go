package nearpath

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Transport is an http.RoundTripper that takes requests to the gateway's /function/NAME through shared memory when NAME is
// reached that way, and gives all others to Base. With it an unchanged HTTP client takes part:
//
//	http.DefaultClient.Transport = &nearpath.Transport{}
//
// Header X-Nearpath-Path of the response says "shm" when it came that way.
type Transport struct {
	// Base takes everything else; nil: http.DefaultTransport.
	Base http.RoundTripper
	// Gateway is the URL whose /function/ is meant; empty: GatewayURL, and any host named gateway.
	Gateway string
}

// RoundTrip implements http.RoundTripper. Bodies of both directions go as they come.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	name, path := t.function(r.URL)
	p := home.forCalls(r.Context())
	if name == "" || p == nil || !p.Learns(r.Context(), name) || r.Header.Get("Upgrade") != "" {
		return t.base().RoundTrip(r)
	}
	req, body, err := requestOf(r, path)
	if err != nil {
		return nil, err
	}
	near := Client{ShmOnly: true}
	stream, err := near.Stream(r.Context(), name, req, body)
	if platform := new(PlatformError); errors.As(err, &platform) {
		return platform.response(r), nil
	}
	if KindOf(err) == KindUnsent { // and so unread
		again := r.Clone(r.Context())
		if body == nil {
			again.Body = io.NopCloser(bytes.NewReader(req.Body))
		}
		return t.base().RoundTrip(again)
	}
	if err != nil {
		return nil, err
	}
	return stream.response(r), nil
}

// requestOf reads a body that is short enough to go along with the call; a longer one goes as it comes.
func requestOf(r *http.Request, path string) (*Request, io.Reader, error) {
	req := &Request{Method: r.Method, Path: path, Header: r.Header}
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return req, nil, nil
	case r.ContentLength <= 0 || r.ContentLength > pieceSize:
		return req, r.Body, nil
	}
	defer r.Body.Close()
	req.Body = make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, req.Body)
	return req, nil, err
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

// function is the name in /function/NAME/path?query of the gateway, and what follows it.
func (t *Transport) function(u *url.URL) (name, path string) {
	rest, ok := strings.CutPrefix(u.EscapedPath(), "/function/")
	if !ok || u.Scheme != "http" || !t.isGateway(u) {
		return "", ""
	}
	name, path, _ = strings.Cut(rest, "/")
	path = "/" + path
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return name, path
}

func (t *Transport) isGateway(u *url.URL) bool {
	gateway := t.Gateway
	if gateway == "" {
		if host := u.Hostname(); host == "gateway" || strings.HasPrefix(host, "gateway.") {
			return true
		}
		gateway = GatewayURL()
	}
	parsed, err := url.Parse(gateway)
	return err == nil && parsed.Host == u.Host
}

func (s *Stream) response(r *http.Request) *http.Response {
	if s.Header == nil {
		s.Header = http.Header{}
	}
	s.Header.Set("X-Nearpath-Path", string(PathShm))
	return madeResponse(r, s.Status, s.Header, s.Body, -1)
}

func (e *PlatformError) response(r *http.Request) *http.Response {
	header := http.Header{"X-Nearpath-Reason": {e.Reason}, "Content-Type": {"text/plain"}, "X-Nearpath-Path": {string(PathShm)}}
	return madeResponse(r, e.Status, header, io.NopCloser(strings.NewReader(e.Text)), int64(len(e.Text)))
}

func madeResponse(r *http.Request, status int, header http.Header, body io.ReadCloser, length int64) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, Body: body, ContentLength: length, Request: r,
	}
}
