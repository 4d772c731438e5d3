package nearpath

import (
	"net/http"
	"net/url"
	"strings"
)

// target is the function of a URL.
type target struct {
	name       string
	path       string // the part of the URL after the function's name, with the query
	gatewayURL string // the URL for a call over HTTP
	bare       bool   // only the host's name denotes the function: another host may have that name
}

const route = "/function/"

// targetOf returns the function of a URL, if it has one:
//
//	http://gateway:8080/function/NAME/path    the gateway at the URL of the environment, or at that address
//	http://gateway.any:8080/function/…        a gateway of that name, or at the URL of the environment
//	nearpath://NAME/path                      the same for every gateway
//	http://NAME/path                          a host of one word without a port, if no host has that name
func targetOf(u *url.URL, gateway string) (target, bool) {
	known, err := url.Parse(gateway)
	if err != nil {
		known = new(url.URL)
	}
	host := u.Hostname()
	switch {
	case u.Scheme == "nearpath":
		return named(host, pathOf(u.EscapedPath(), u), gateway, false)
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, false
	}
	if base, ok := baseOf(u, known); ok {
		name, rest, slash := strings.Cut(u.EscapedPath()[len(base)+len(route):], "/")
		if slash {
			rest = "/" + rest
		}
		if host == "gateway" && gateway != defaultGateway {
			return named(name, pathOf(rest, u), gateway, false)
		}
		return target{name: name, path: pathOf(rest, u), gatewayURL: u.String()}, checkName(name) == nil
	}
	oneWord := u.Scheme == "http" && u.Port() == "" && u.User == nil && !strings.Contains(host, ".")
	if !oneWord || host == "localhost" || host == "gateway" || host == known.Hostname() {
		return target{}, false
	}
	return named(host, pathOf(u.EscapedPath(), u), gateway, true)
}

func named(name, path, gateway string, bare bool) (target, bool) {
	gatewayURL := gateway + route + name
	if path != "/" {
		gatewayURL += path
	}
	return target{name, path, gatewayURL, bare}, checkName(name) == nil
}

func pathOf(path string, u *url.URL) string {
	if path == "" {
		path = "/"
	}
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return path
}

// baseOf returns the gateway's path before the route; false if the URL is no function of the gateway.
func baseOf(u, gateway *url.URL) (string, bool) {
	if host := u.Hostname(); (host == "gateway" || strings.HasPrefix(host, "gateway.")) && strings.HasPrefix(u.EscapedPath(), route) {
		return "", true
	}
	same := u.Scheme == gateway.Scheme && u.Hostname() == gateway.Hostname() && portOf(u) == portOf(gateway)
	base := strings.TrimRight(gateway.EscapedPath(), "/")
	return base, same && strings.HasPrefix(u.EscapedPath(), base+route)
}

func portOf(u *url.URL) string {
	switch port := u.Port(); {
	case port != "":
		return port
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// wantsConnection reports whether a request needs HTTP, for an upgrade or trailers, or is invalid: http.Transport returns that error.
func wantsConnection(r *http.Request) bool {
	if strings.ContainsFunc(r.Method, isNoToken) {
		return true
	}
	return r.Header.Get("Upgrade") != "" || len(r.Trailer) > 0 || strings.Contains(strings.ToLower(r.Header.Get("Te")), "trailers")
}

// isNoToken reports whether a method cannot have that character (RFC 9110, 5.6.2).
func isNoToken(c rune) bool {
	letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}
