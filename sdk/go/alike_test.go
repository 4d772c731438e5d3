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

// alike is a handler that is served through memory and over HTTP.
func alike(w http.ResponseWriter, r *http.Request) {
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

// what a client sees of an answer, but for what only a connection has.
func seen(r *http.Response, err error) string {
	if err != nil {
		return "no answer, " + kinds(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	header := maps.Clone(r.Header)
	for _, each := range []string{"Date", "X-Nearpath-Path"} {
		header.Del(each)
	}
	return fmt.Sprint(r.StatusCode, r.ContentLength, r.Uncompressed, header, len(body), string(body[:min(len(body), 80)]), kinds(err))
}

// kinds are the checks of a caller on an error.
func kinds(err error) string {
	late := new(url.Error)
	isLate := errors.As(err, &late) && late.Timeout() || errors.Is(err, context.DeadlineExceeded)
	return fmt.Sprint(err != nil, isLate, errors.Is(err, context.Canceled))
}

// An answer through shared memory equals that of http.Transport for the same handler.
func TestAnswersAreThoseOfHTTP(t *testing.T) {
	process(t, "alike")
	gatewayURL := serveHTTP(t, http.HandlerFunc(alike))
	direct := http.Client{Transport: nearpath.Transport{Base: refuse{}}}
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
			wanted, got := seen(ask(http.DefaultClient, gatewayURL)), seen(ask(&direct, "nearpath://alike"))
			if wanted != got {
				t.Errorf("over HTTP    %s\nthrough memory %s", wanted, got)
			}
		})
	}
}

func TestABodyIsNotReadAfterItWasClosed(t *testing.T) {
	process(t, "alike")
	r, err := nearpath.Get("nearpath://alike/long")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Error(err)
	}
}

// A call with an ended context is not sent.
func TestACallThatWasGivenUpBefore(t *testing.T) {
	process(t, "alike")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 50 { // an answer may arrive before the check of the context
		r, _ := http.NewRequestWithContext(ctx, "GET", "nearpath://alike/answer", nil)
		if _, err := nearpath.DefaultClient.Do(r); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if _, err := nearpath.Call(ctx, "alike", nil); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

// A body longer than its announced length is an error.
func TestABodyThatIsLongerThanWasSaid(t *testing.T) {
	process(t, "alike")
	for _, length := range []int{4, 200_000} {
		body := struct{ io.Reader }{bytes.NewReader(slices.Repeat([]byte("x"), 2*length))}
		r, _ := http.NewRequest("POST", "nearpath://alike/answer", body)
		r.ContentLength = int64(length)
		if r, err := nearpath.DefaultClient.Do(r); err == nil {
			r.Body.Close()
			t.Errorf("%d bytes were sent as %d", 2*length, length)
		}
	}
}
