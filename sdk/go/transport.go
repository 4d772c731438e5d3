package nearpath

import (
	"bytes"
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

// mostBuffered is the longest body of unknown length that is read to find out whether it ends.
const mostBuffered = 1 << 20

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	name, path := t.function(r.URL)
	p := home.forCalls(r.Context())
	if name == "" || p == nil || !p.Reaches(name) || r.ContentLength > DefaultMaxBody {
		return t.base().RoundTrip(r)
	}
	body, whole, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if whole {
		call := Client{ShmOnly: true}
		response, err := call.Do(r.Context(), name, &Request{Method: r.Method, Path: path, Header: r.Header, Body: body})
		if platform, ok := err.(*PlatformError); ok {
			return platform.response(r), nil
		}
		if err != ErrNoPeer {
			return httpResponse(r, response, err)
		}
	}
	again := r.Clone(r.Context())
	again.Body = rest(body, r.Body, whole)
	return t.base().RoundTrip(again)
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

// readBody reads a body that is known to end soon; false when it does not.
func readBody(r *http.Request) ([]byte, bool, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, true, nil
	}
	if r.ContentLength > 0 {
		body := make([]byte, r.ContentLength)
		_, err := io.ReadFull(r.Body, body)
		_ = r.Body.Close()
		return body, true, err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, mostBuffered))
	whole := len(body) < mostBuffered
	if whole || err != nil {
		_ = r.Body.Close()
	}
	return body, whole, err
}

func rest(read []byte, body io.ReadCloser, whole bool) io.ReadCloser {
	if whole {
		return io.NopCloser(bytes.NewReader(read))
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), body), body}
}

func httpResponse(r *http.Request, response *Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	header := response.Header
	if header == nil {
		header = http.Header{}
	}
	header.Set("X-Nearpath-Path", string(PathShm))
	return madeResponse(r, response.Status, header, response.Body), nil
}

func (e *PlatformError) response(r *http.Request) *http.Response {
	header := http.Header{"X-Nearpath-Reason": {e.Reason}, "Content-Type": {"text/plain"}, "X-Nearpath-Path": {string(PathShm)}}
	return madeResponse(r, e.Status, header, []byte(e.Text))
}

func madeResponse(r *http.Request, status int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}
}
