package nearpath

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"nearpath.io/nearpath/internal/party"
)

// Transport is an http.RoundTripper that takes requests for functions through shared memory where that reaches, through the gateway
// elsewhere, and gives all others to Base. With it an unchanged HTTP client takes part:
//
//	http.DefaultTransport = nearpath.Transport{}
//
// A function is meant by http://gateway:8080/function/NAME (any host named gateway, or the one that GatewayURL names), by nearpath://NAME,
// and by http://NAME where the domain knows the function, or no host has that name. Header X-Nearpath-Path of the response says which
// way it took, and why no nearer one. Bodies of both directions go as they come; what needs a connection (an upgrade, trailers) goes over HTTP.
// The deadline of the request's context, and the trace of the request that it belongs to, go along.
type Transport struct {
	// Base takes everything that does not go through memory; nil: the http.DefaultTransport that the process began with, and connections
	// to the gateway that are kept for calls.
	Base http.RoundTripper
	// Gateway is the URL whose /function/ is meant, and where names go over HTTP; empty: GatewayURL.
	Gateway string
}

// DefaultClient is an http.Client whose calls of functions take the nearest path.
var DefaultClient = &http.Client{Transport: Transport{}}

// Get is http.Get with DefaultClient.
func Get(url string) (*http.Response, error) { return DefaultClient.Get(url) }

// Head is http.Head with DefaultClient.
func Head(url string) (*http.Response, error) { return DefaultClient.Head(url) }

// Post is http.Post with DefaultClient.
func Post(url, contentType string, body io.Reader) (*http.Response, error) {
	return DefaultClient.Post(url, contentType, body)
}

// PostForm is http.PostForm with DefaultClient.
func PostForm(url string, data url.Values) (*http.Response, error) {
	return DefaultClient.PostForm(url, data)
}

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	wanted, ok := targetOf(r.URL, t.gateway())
	if !ok {
		return t.others().RoundTrip(r)
	}
	p := home.forCalls(r.Context())
	if p != nil && !wantsConnection(r) && p.Learns(r.Context(), wanted.name) {
		response, again, err := t.near(r, wanted)
		if again == nil {
			return response, err
		}
		r = again
	}
	if wanted.bare {
		response, again, err := t.elsewhere(r)
		if again == nil {
			return response, err
		}
		r = again
	}
	return t.far(r, wanted, p)
}

// near takes a request through memory. One that provably did not run comes back, to be sent another way.
func (t Transport) near(r *http.Request, wanted target) (*http.Response, *http.Request, error) {
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
	case body == nil && r.Body == nil:
		return again
	case body == nil:
		again.Body = io.NopCloser(bytes.NewReader(req.Body))
		return again
	}
	return withBody(again, r)
}

// withBody has a request's body begin anew, if it can.
func withBody(again, r *http.Request) *http.Request {
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

// elsewhere sends a request to the host that has the name. When there is none it comes back.
func (t Transport) elsewhere(r *http.Request) (*http.Response, *http.Request, error) {
	if r.Body != nil && r.GetBody == nil { // it would be closed
		if _, err := net.DefaultResolver.LookupHost(r.Context(), r.URL.Hostname()); isNobody(err) {
			return nil, r, nil
		}
		response, err := t.others().RoundTrip(r)
		return response, nil, err
	}
	response, err := t.others().RoundTrip(r)
	if !isNobody(err) {
		return response, nil, err
	}
	again := r.Clone(r.Context())
	if r.Body != nil {
		if again = withBody(again, r); again == nil {
			return nil, nil, err
		}
	}
	return nil, again, nil
}

func isNobody(err error) bool {
	var unknown *net.DNSError
	return errors.As(err, &unknown)
}

// far sends a request through the gateway.
func (t Transport) far(r *http.Request, wanted target, p *party.Party) (*http.Response, error) {
	out := r.Clone(r.Context())
	if out.Header == nil {
		out.Header = http.Header{}
	}
	if wanted.far != r.URL.String() {
		where, err := url.Parse(wanted.far)
		if err != nil {
			return nil, err
		}
		out.URL, out.Host = where, ""
	}
	handOnTrace(r.Context(), out.Header)
	handOn(r.Context(), out.Header)
	response, err := t.functions().RoundTrip(out)
	if err != nil {
		return nil, err
	}
	response.Request = r
	if response.Header.Get(pathField) == "" {
		response.Header.Set(pathField, string(PathHTTP)+"; not_nearer="+obstacle(p, wanted.name))
	}
	return response, nil
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

// CloseIdleConnections closes connections that no call uses; http.Client finds it.
func (t Transport) CloseIdleConnections() {
	for _, each := range []http.RoundTripper{t.others(), t.functions()} {
		if closer, ok := each.(interface{ CloseIdleConnections() }); ok {
			closer.CloseIdleConnections()
		}
	}
}

func (t Transport) others() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return original
}

func (t Transport) functions() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return pooled()
}

func (t Transport) gateway() string {
	if t.Gateway != "" {
		return strings.TrimRight(t.Gateway, "/")
	}
	return GatewayURL()
}

func (s *Stream) response(r *http.Request) *http.Response {
	if s.Header == nil {
		s.Header = http.Header{}
	}
	s.Header.Set(pathField, string(PathShm))
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
