package nearpath

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"nearpath.io/nearpath/internal/endpoint"
)

// Transport is an http.RoundTripper. It sends requests for functions through shared memory if possible, else through the gateway, and all
// others through Base. An unchanged HTTP client uses it:
//
//	http.DefaultTransport = nearpath.Transport{}
//
// These are URLs of functions:
//
//   - http://gateway:8080/function/NAME, with any host named gateway, or that of GatewayURL
//   - nearpath://NAME
//   - http://NAME, if the domain has the function or no host has that name
//
// Header X-Nearpath-Path of the response has the path of the call and the obstacle to a nearer one. Bodies of both directions are streamed; requests that need a connection (an upgrade, trailers)
// use HTTP. Transport forwards the deadline of the request's context and the trace of the request to which it belongs.
type Transport struct {
	// Base sends all requests outside shared memory; nil: the initial http.DefaultTransport of the process, and a pool of connections
	// to the gateway.
	Base http.RoundTripper
	// Gateway is the URL of the gateway; empty: GatewayURL.
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
	if r.URL == nil {
		return t.otherTransport().RoundTrip(r) // returns the error
	}
	wanted, ok := targetOf(r.URL, t.gateway())
	if !ok && r.URL.Scheme == "nearpath" {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, callError(r.URL.Host, "", errName)
	}
	if !ok {
		return t.otherTransport().RoundTrip(r)
	}
	p := processMembership.endpointForCalls(r.Context())
	if p != nil && !wantsConnection(r) && p.AwaitRoute(r.Context(), wanted.name) {
		response, again, err := t.roundTripShm(r, wanted)
		if again == nil {
			return response, err
		}
		r = again
	}
	if wanted.bare {
		response, again, err := t.roundTripOther(r)
		if again == nil {
			return response, err
		}
		r = again
	}
	return t.roundTripGateway(r, wanted, p)
}

// roundTripOther sends a request to the host with that name. It returns the request if there is no such host.
func (t Transport) roundTripOther(r *http.Request) (*http.Response, *http.Request, error) {
	if r.Body != nil && r.GetBody == nil { // a failed attempt would close the body
		if _, err := net.DefaultResolver.LookupHost(r.Context(), r.URL.Hostname()); isNoPeer(err) {
			return nil, r, nil
		}
		response, err := t.otherTransport().RoundTrip(r)
		return response, nil, err
	}
	response, err := t.otherTransport().RoundTrip(r)
	if !isNoPeer(err) {
		return response, nil, err
	}
	again := r.Clone(r.Context())
	if r.Body != nil {
		if again = withRequestBody(again, r); again == nil {
			return nil, nil, err
		}
	}
	return nil, again, nil
}

func isNoPeer(err error) bool {
	var unknown *net.DNSError
	return errors.As(err, &unknown)
}

// roundTripGateway sends a request through the gateway.
func (t Transport) roundTripGateway(r *http.Request, wanted target, p *endpoint.Endpoint) (*http.Response, error) {
	out := r.Clone(r.Context())
	if out.Header == nil {
		out.Header = http.Header{}
	}
	if wanted.gatewayURL != r.URL.String() {
		where, err := url.Parse(wanted.gatewayURL)
		if err != nil {
			return nil, err
		}
		out.URL, out.Host = where, ""
	}
	forwardTrace(r.Context(), out.Header)
	forwardHeaders(r.Context(), out.Header)
	response, err := t.functionTransport().RoundTrip(out)
	if err != nil {
		return nil, err
	}
	response.Request = r
	if response.Header.Get(pathField) == "" {
		response.Header.Set(pathField, string(PathHTTP)+"; obstacle="+obstacle(p, wanted.name))
	}
	return response, nil
}

// CloseIdleConnections closes connections that no call uses; http.Client calls it.
func (t Transport) CloseIdleConnections() {
	for _, each := range []http.RoundTripper{t.otherTransport(), t.functionTransport()} {
		if closer, ok := each.(interface{ CloseIdleConnections() }); ok {
			closer.CloseIdleConnections()
		}
	}
}

func (t Transport) otherTransport() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return original
}

func (t Transport) functionTransport() http.RoundTripper {
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
