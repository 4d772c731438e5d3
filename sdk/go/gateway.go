package nearpath

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

var dispatchSocket = sync.OnceValue(func() string { return os.Getenv("NEARPATH_DISPATCH") })

// GatewayURL returns the gateway's URL: NEARPATH_GATEWAY, gateway_url, gateway_hostname with port 8080, OPENFAAS_URL, gateway, or
// http://gateway:8080, whichever is set first.
func GatewayURL() string {
	for _, name := range []string{"NEARPATH_GATEWAY", "gateway_url", "gateway_hostname", "OPENFAAS_URL", "gateway"} {
		url := strings.TrimRight(os.Getenv(name), "/")
		switch {
		case url == "":
			continue
		case name == "gateway_hostname":
			url += ":8080"
		}
		if !strings.Contains(url, "://") {
			url = "http://" + url
		}
		return url
	}
	return defaultGateway
}

// defaultGateway is the gateway's URL if no variable is set.
const defaultGateway = "http://gateway:8080"

// original is the initial http.DefaultTransport of the process, which the program may have replaced by a Transport.
var original = http.DefaultTransport

// plain returns the client for calls over HTTP: it keeps more connections to the gateway than the default one.
var plain = sync.OnceValue(func() *http.Client {
	return &http.Client{Transport: pooled(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
})

// pooled returns the transport with the connections to the gateway.
var pooled = sync.OnceValue(func() http.RoundTripper {
	plain, ok := original.(*http.Transport)
	if !ok {
		return original // the program has replaced the default one before this package was initialized
	}
	transport := plain.Clone()
	transport.MaxIdleConnsPerHost, transport.IdleConnTimeout = 64, 30*time.Second
	return transport
})

func (c *Client) overHTTP(ctx context.Context, prefix, name string, req *Request) (*Response, error) {
	out, err := c.httpRequest(ctx, prefix+name, req, bytes.NewReader(req.Body))
	if err != nil {
		return nil, err
	}
	answer, err := c.httpClient().Do(out)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	limit := c.MaxBody
	if limit == 0 {
		limit = DefaultMaxBody
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, ErrTooLarge
	}
	if reason := answer.Header.Get("X-Nearpath-Reason"); reason != "" {
		return nil, &PlatformError{answer.StatusCode, reason, string(body)}
	}
	return &Response{Status: answer.StatusCode, Header: answer.Header, Body: body, Path: PathHTTP}, nil
}

func (c *Client) httpClient() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return plain()
}

func (c *Client) httpRequest(ctx context.Context, route string, req *Request, body io.Reader) (*http.Request, error) {
	gateway, method, path := c.Gateway, req.Method, req.Path
	if gateway == "" {
		gateway = GatewayURL()
	}
	if method == "" {
		method = http.MethodPost
	}
	if path == "/" {
		path = ""
	}
	out, err := http.NewRequestWithContext(ctx, method, gateway+route+path, body)
	if err != nil {
		return nil, err
	}
	if req.Header != nil {
		out.Header = req.Header.Clone()
	}
	if forwardTrace(ctx, out.Header); strings.HasPrefix(route, "/function/") {
		forwardHeaders(ctx, out.Header)
	}
	return out, nil
}
