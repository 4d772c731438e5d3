package nearpath_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"nearpath.io/nearpath"
)

// parity is a handler for calls through shared memory and over HTTP.
func parity(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/answer":
		body, err := io.ReadAll(r.Body)
		fmt.Fprintln(w, r.Method, r.UserAgent(), string(body), len(body), err)
	case "/empty":
		w.WriteHeader(http.StatusNoContent)
	case "/moved":
		http.Redirect(w, r, "/answer", http.StatusTemporaryRedirect)
	case "/long":
		w.Header().Set("Content-Length", "300000")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 300_000))
	case "/packed":
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_, _ = io.WriteString(packed, "unpacked")
		_ = packed.Close()
	case "/slow":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// observe formats an answer as a client sees it, without the headers of a connection.
func observe(r *http.Response, err error) string {
	if err != nil {
		return "no answer, " + errorChecks(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	header := maps.Clone(r.Header)
	for _, each := range []string{"Date", "X-Nearpath-Path"} {
		header.Del(each)
	}
	return fmt.Sprint(r.StatusCode, r.ContentLength, r.Uncompressed, header, len(body), string(body[:min(len(body), 80)]), errorChecks(err))
}

// errorChecks formats the results of a caller's checks of an error.
func errorChecks(err error) string {
	late := new(url.Error)
	isLate := errors.As(err, &late) && late.Timeout() || errors.Is(err, context.DeadlineExceeded)
	return fmt.Sprint(err != nil, isLate, errors.Is(err, context.Canceled))
}

// An answer through shared memory equals that of http.Transport for the same handler.
func TestResponsesThroughMemoryEqualThoseOverHTTP(t *testing.T) {
	startFunction(t, "parity")
	gatewayURL := serveHTTP(t, http.HandlerFunc(parity))
	direct := http.Client{Transport: nearpath.Transport{Base: refusingTransport{}}}
	only := func(r io.Reader) io.Reader { return struct{ io.Reader }{r} }
	for name, ask := range map[string]func(c *http.Client, at string) (*http.Response, error){
		"get":    func(c *http.Client, at string) (*http.Response, error) { return c.Get(at + "/answer") },
		"head":   func(c *http.Client, at string) (*http.Response, error) { return c.Head(at + "/long") },
		"empty":  func(c *http.Client, at string) (*http.Response, error) { return c.Get(at + "/empty") },
		"long":   func(c *http.Client, at string) (*http.Response, error) { return c.Get(at + "/long") },
		"packed": func(c *http.Client, at string) (*http.Response, error) { return c.Get(at + "/packed") },
		"post": func(c *http.Client, at string) (*http.Response, error) {
			return c.Post(at+"/answer", "", strings.NewReader("body"))
		},
		"no method": func(c *http.Client, at string) (*http.Response, error) {
			where, _ := url.Parse(at + "/answer")
			return c.Do(&http.Request{URL: where})
		},
		"bad method": func(c *http.Client, at string) (*http.Response, error) {
			r, _ := http.NewRequest("GET", at+"/answer", nil)
			r.Method = "no method"
			return c.Do(r)
		},
		"no agent": func(c *http.Client, at string) (*http.Response, error) {
			r, _ := http.NewRequest("GET", at+"/answer", nil)
			r.Header["User-Agent"] = nil
			return c.Do(r)
		},
		"sent again": func(c *http.Client, at string) (*http.Response, error) {
			return c.Post(at+"/moved", "", strings.NewReader("body"))
		},
		"short": func(c *http.Client, at string) (*http.Response, error) {
			r, _ := http.NewRequest("POST", at+"/answer", only(strings.NewReader(strings.Repeat("x", 100_000))))
			r.ContentLength = 200_000
			return c.Do(r)
		},
		"late": func(c *http.Client, at string) (*http.Response, error) {
			late := *c
			late.Timeout = 20 * time.Millisecond
			return late.Get(at + "/slow")
		},
		"late by context": func(c *http.Client, at string) (*http.Response, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			t.Cleanup(cancel)
			r, _ := http.NewRequestWithContext(ctx, "GET", at+"/slow", nil)
			return c.Do(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			wanted, got := observe(ask(http.DefaultClient, gatewayURL)), observe(ask(&direct, "nearpath://parity"))
			if wanted != got {
				t.Errorf("over HTTP    %s\nthrough memory %s", wanted, got)
			}
		})
	}
}

func TestReadingAClosedBodyFails(t *testing.T) {
	startFunction(t, "parity")
	r, err := nearpath.Get("nearpath://parity/long")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Error(err)
	}
}

// A call with an ended context is not sent.
func TestACallWithAnEndedContextIsNotSent(t *testing.T) {
	startFunction(t, "parity")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 50 { // an answer may arrive before the check of the context
		r, _ := http.NewRequestWithContext(ctx, "GET", "nearpath://parity/answer", nil)
		if _, err := nearpath.DefaultClient.Do(r); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if _, err := nearpath.Call(ctx, "parity", nil); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

// A body longer than its announced length is an error.
func TestABodyLongerThanItsContentLengthIsAnError(t *testing.T) {
	startFunction(t, "parity")
	for _, length := range []int{4, 200_000} {
		body := struct{ io.Reader }{bytes.NewReader(slices.Repeat([]byte("x"), 2*length))}
		r, _ := http.NewRequest("POST", "nearpath://parity/answer", body)
		r.ContentLength = int64(length)
		if r, err := nearpath.DefaultClient.Do(r); err == nil {
			r.Body.Close()
			t.Errorf("%d bytes were sent as %d", 2*length, length)
		}
	}
}
