package nearpath

import (
	"net/url"
	"testing"
)

func TestFunctionURLsAreRecognized(t *testing.T) {
	for _, each := range []struct{ url, name, path, gatewayURL string }{
		{"http://gateway:8080/function/echo", "echo", "/", "http://faas:31112/function/echo"},
		{"http://gateway/function/echo/a%2Fb?c", "echo", "/a%2Fb?c", "http://faas:31112/function/echo/a%2Fb?c"},
		{"http://gateway.openfaas:8080/function/echo.dev/a/b?c=d", "echo.dev", "/a/b?c=d", ""},
		{"http://faas:31112/function/echo?c=d", "echo", "/?c=d", ""},
		{"http://faas:31112/function/echo/a%2Fb", "echo", "/a%2Fb", ""},
		{"nearpath://echo", "echo", "/", "http://faas:31112/function/echo"},
		{"nearpath://echo.dev/a?b", "echo.dev", "/a?b", "http://faas:31112/function/echo.dev/a?b"},
		{"http://echo/a", "echo", "/a", "http://faas:31112/function/echo/a"},
	} {
		if each.gatewayURL == "" {
			each.gatewayURL = each.url
		}
		got, ok := targetOf(parsed(t, each.url), "http://faas:31112")
		if !ok || got.name != each.name || got.path != each.path || got.gatewayURL != each.gatewayURL || got.bare != (each.url == "http://echo/a") {
			t.Errorf("%s: %+v %v", each.url, got, ok)
		}
	}
	if got, ok := targetOf(parsed(t, "http://gateway/function/echo/"), "http://gateway:8080"); !ok || got.gatewayURL != "http://gateway/function/echo/" {
		t.Errorf("%+v %v", got, ok)
	}
	if got, ok := targetOf(parsed(t, "https://host/faas/function/echo/a"), "https://host:443/faas/"); !ok || got.path != "/a" {
		t.Errorf("%+v %v", got, ok)
	}
}

func TestOtherURLsNameNoFunction(t *testing.T) {
	for _, each := range []string{
		"http://example.com/function/echo", "http://localhost/function/echo", "http://faas/function/echo", "https://faas:31112/function/echo",
		"http://faas:31112/async-function/echo", "http://gateway/", "http://gateway:8080/function/No_Name", "http://echo:80/", "https://echo/",
		"http://user@echo/", "ftp://echo/", "http://[::1]/",
	} {
		if got, ok := targetOf(parsed(t, each), "http://faas:31112"); ok {
			t.Errorf("%s: %+v", each, got)
		}
	}
}

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestInvalidTraceparentsAreRejected(t *testing.T) {
	if _, ok := parseTrace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"); !ok {
		t.Error("a trace is refused")
	}
	for _, bad := range []string{"", "00-0-0-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319x-b7ad6b7169203331-01"} {
		if got, ok := parseTrace(bad); ok {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
