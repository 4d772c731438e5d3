package nearpath

import (
	"net/http"
	"net/url"
	"strings"
)

// target is a function that a URL means.
type target struct {
	name string
	path string // what follows the function's name, with the query
	far  string // where the call goes over HTTP
	bare bool   // only the host's name says so: it may be another host's
}

const route = "/function/"

// targetOf is the function that a URL means, if it means one:
//
//	http://gateway:8080/function/NAME/path    the gateway: where the environment says it is, or at that address
//	http://gateway.any:8080/function/…        a gateway by that name, or at the address that the environment names
//	nearpath://NAME/path                      the same, whatever the gateway is called
//	http://NAME/path                          a host of one word without a port, when nothing else answers to that name
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
		if host == "gateway" && gateway != nobodysGateway {
			return named(name, pathOf(rest, u), gateway, false)
		}
		return target{name: name, path: pathOf(rest, u), far: u.String()}, checkName(name) == nil
	}
	oneWord := u.Scheme == "http" && u.Port() == "" && u.User == nil && !strings.Contains(host, ".")
	if !oneWord || host == "localhost" || host == "gateway" || host == known.Hostname() {
		return target{}, false
	}
	return named(host, pathOf(u.EscapedPath(), u), gateway, true)
}

func named(name, path, gateway string, bare bool) (target, bool) {
	far := gateway + route + name
	if path != "/" {
		far += path
	}
	return target{name, path, far, bare}, checkName(name) == nil
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

// baseOf is what stands before the route at the gateway; false when the URL is no function of the gateway's.
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

// wantsConnection says whether a request needs what memory cannot carry, an upgrade or trailers, or is none, as http.Transport will say.
func wantsConnection(r *http.Request) bool {
	if strings.ContainsFunc(r.Method, isNoToken) {
		return true
	}
	return r.Header.Get("Upgrade") != "" || len(r.Trailer) > 0 || strings.Contains(strings.ToLower(r.Header.Get("Te")), "trailers")
}

// isNoToken says whether a method can not have that character (RFC 9110, 5.6.2).
func isNoToken(c rune) bool {
	letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}
