package nearpath_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"testing"

	"nearpath.io/nearpath"
	"nearpath.io/nearpath/internal/reason"
)

func serveHTTP(t testing.TB, handler http.Handler) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestTheServerRespondsOverHTTP(t *testing.T) {
	addr := freeAddress(t)
	server := nearpath.Server{Addr: addr, MaxBody: 10, Handler: func(_ context.Context, req *nearpath.Request) (*nearpath.Response, error) {
		if req.Path == "/fail" {
			return nil, errors.New("no")
		}
		return &nearpath.Response{Header: http.Header{"X-Path": {req.Path}}, Body: bytes.ToUpper(req.Body)}, nil
	}}
	ctx, stop := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { ended <- server.RunContext(ctx) }()
	post := func(path, body string) (*http.Response, string) {
		for {
			r, err := http.Post("http://"+addr+path, "text/plain", bytes.NewBufferString(body))
			if err != nil && ctx.Err() == nil {
				continue // not listening yet
			}
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(r.Body)
			r.Body.Close()
			return r, string(text)
		}
	}
	if r, text := post("/a?b=c", "hi"); r.StatusCode != 200 || text != "HI" || r.Header.Get("X-Path") != "/a?b=c" {
		t.Errorf("%d %q", r.StatusCode, text)
	}
	if r, text := post("/fail", "hi"); r.StatusCode != 500 || text != "no" {
		t.Errorf("%d %q", r.StatusCode, text)
	}
	if r, _ := post("/", "more than ten bytes"); r.StatusCode != 413 {
		t.Errorf("%d", r.StatusCode)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestReasonsEqualThoseOfTheContract(t *testing.T) {
	text, err := os.ReadFile("../../contract/reasons.toml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\[(\w+)\]\nnumber = (\d+)\n.*\n.*\nretry = (\w+)$`).FindAllStringSubmatch(string(text), -1)
	if len(found) == 0 {
		t.Fatal("no reasons in the contract")
	}
	for _, row := range found {
		number, _ := strconv.Atoi(row[2])
		if got := reason.Name(uint16(number)); got != row[1] {
			t.Errorf("%d is %q, not %q", number, got, row[1])
		}
		if fault := (&nearpath.PlatformError{Reason: row[1]}); fault.RetryIsSafe() != (row[3] == "true") {
			t.Errorf("whether a retry is safe after %s: not %s", row[1], row[3])
		}
	}
}

func TestAnEventThatCameOverHTTPHasItsTopic(t *testing.T) {
	got := make(chan nearpath.Request, 1)
	addr := freeAddress(t)
	server := nearpath.Server{Addr: addr, Handler: func(_ context.Context, req *nearpath.Request) (*nearpath.Response, error) {
		got <- *req
		return &nearpath.Response{}, nil
	}}
	ctx, stop := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { ended <- server.RunContext(ctx) }()
	send := func(fields map[string]string) nearpath.Request {
		request, err := http.NewRequest("POST", "http://"+addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range fields {
			request.Header.Set(name, value)
		}
		for {
			response, err := http.DefaultClient.Do(request)
			if err == nil {
				_ = response.Body.Close()
				return <-got
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	event := send(map[string]string{"X-Nearpath-Topic": "order/placed", "X-Nearpath-Caller": "shop.fn"})
	if !event.Event || event.Topic != "order/placed" || event.Caller != "shop.fn" {
		t.Errorf("%+v", event)
	}
	// A client can set this one.
	if call := send(map[string]string{"X-Topic": "order/placed"}); call.Event || call.Topic != "" {
		t.Errorf("%+v", call)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
