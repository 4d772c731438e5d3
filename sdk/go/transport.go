package nearpath

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
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
	if r.URL == nil {
		return t.otherTransport().RoundTrip(r) // which says so
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
	p := home.endpointForCalls(r.Context())
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

// roundTripOther sends a request to the host that has the name. When there is none it comes back.
func (t Transport) roundTripOther(r *http.Request) (*http.Response, *http.Request, error) {
	if r.Body != nil && r.GetBody == nil { // it would be closed
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
func (t Transport) roundTripGateway(r *http.Request, wanted target, p *party.Endpoint) (*http.Response, error) {
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
	forwardTrace(r.Context(), out.Header)
	forwardHeaders(r.Context(), out.Header)
	response, err := t.functionTransport().RoundTrip(out)
	if err != nil {
		return nil, err
	}
	response.Request = r
	if response.Header.Get(pathField) == "" {
		response.Header.Set(pathField, string(PathHTTP)+"; not_nearer="+obstacle(p, wanted.name))
	}
	return response, nil
}

// CloseIdleConnections closes connections that no call uses; http.Client finds it.
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
