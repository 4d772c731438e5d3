package nearpath_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"nearpath.io/nearpath"
)

// flow is a handler that reads and writes concurrently.
func flow(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	switch r.URL.Path {
	case "/echo":
		_, _ = io.Copy(w, r.Body)
	case "/lines": // each line is answered before the next one is sent
		piece := make([]byte, 100)
		for {
			n, err := r.Body.Read(piece)
			if err != nil {
				return
			}
			fmt.Fprintf(w, "got %s", piece[:n])
			if control.Flush() != nil {
				return
			}
		}
	case "/":
		if topic := r.Header.Get("X-Topic"); topic != "" {
			body, _ := io.ReadAll(r.Body)
			fmt.Printf("event: %s %s\n", topic, body)
		}
	case "/truncated":
		_, _ = io.WriteString(w, "half")
		_ = control.Flush()
		panic(http.ErrAbortHandler)
	case "/short":
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "half")
		_ = control.Flush()
	case "/endless":
		for {
			if _, err := w.Write(make([]byte, 10_000)); err != nil {
				fmt.Println("ended:", r.Context().Err())
				return
			}
		}
	}
}

func shmClient() *nearpath.Client { return &nearpath.Client{ShmOnly: true} }

func TestBodiesStreamThroughSharedMemory(t *testing.T) {
	_, out := startFunction(t, "flow")
	body := bytes.Repeat([]byte("0123456789"), 300_000)
	stream, err := shmClient().Stream(testContext(t), "flow", &nearpath.Request{Path: "/echo", Body: body}, nil)
	if err != nil || stream.Status != 200 || stream.Path != nearpath.PathShm {
		t.Fatalf("%v %+v", err, stream)
	}
	if got, err := io.ReadAll(stream.Body); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%v, %d bytes", err, len(got))
	}
	t.Run("each line is answered before the next one is sent", exchangeLines)
	for path, kind := range map[string]nearpath.Kind{"/truncated": nearpath.KindTruncated, "/short": nearpath.KindTruncated} {
		stream, err := shmClient().Stream(testContext(t), "flow", &nearpath.Request{Path: path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(stream.Body); string(got) != "half" || nearpath.KindOf(err) != kind {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if stream, err = shmClient().Stream(testContext(t), "flow", &nearpath.Request{Path: "/endless"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stream.Body, make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
	_ = stream.Body.Close()
	text := make([]byte, len("ended: context canceled"))
	if _, err := io.ReadFull(out, text); err != nil || string(text) != "ended: context canceled" {
		t.Errorf("%v %q", err, text)
	}
}

func TestAnEventReachesTheSubscribersOfItsTopic(t *testing.T) {
	_, out := startFunction(t, "flow")
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n')
		line <- text
	}()
	var published nearpath.PublishReport
	var err error
	for got, end := "", time.Now().Add(testTimeout); got == ""; {
		if published, err = nearpath.Publish(testContext(t), "news/today", []byte("payload")); err != nil || published.Sent != 1 {
			t.Fatalf("%v %+v", err, published)
		}
		select {
		case got = <-line:
		case <-time.After(100 * time.Millisecond): // the event may have reached the dead instance of another test
		}
		if got != "" && got != "event: news/today payload\n" || time.Now().After(end) {
			t.Fatalf("%q", got)
		}
	}
	if published, err = nearpath.Publish(testContext(t), "weather", nil); err != nil || published.Sent != 0 {
		t.Errorf("%v %+v", err, published)
	}
	if _, err := nearpath.Publish(testContext(t), "news/#", nil); nearpath.KindOf(err) != nearpath.KindName {
		t.Error(err)
	}
}

func exchangeLines(t *testing.T) {
	lines, write := io.Pipe()
	go func() { _, _ = io.WriteString(write, "0") }()
	stream, err := shmClient().Stream(testContext(t), "flow", &nearpath.Request{Path: "/lines"}, lines)
	if err != nil {
		t.Fatal(err)
	}
	for k := range 9 {
		got := make([]byte, len("got 0"))
		if _, err = io.ReadFull(stream.Body, got); string(got) != fmt.Sprintf("got %d", k) {
			t.Fatalf("%q %v", got, err)
		}
		_, _ = fmt.Fprint(write, k+1)
	}
	_ = write.Close()
	if rest, err := io.ReadAll(stream.Body); err != nil || string(rest) != "got 9" {
		t.Errorf("%v %q", err, rest)
	}
}

func TestAFailingBodyEndsItsCallWithTheSameError(t *testing.T) {
	startFunction(t, "flow")
	broken := errors.New("disk error")
	body := io.MultiReader(strings.NewReader("half"), failingReader{broken})
	stream, err := shmClient().Stream(testContext(t), "flow", &nearpath.Request{Path: "/echo"}, body)
	if err == nil {
		_, err = io.ReadAll(stream.Body)
	}
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}

type failingReader struct{ error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.error }

func TestBodiesStreamOverHTTP(t *testing.T) {
	c := nearpath.Client{Gateway: serveHTTP(t, http.StripPrefix("/function/remote", http.HandlerFunc(flow)))}
	stream, err := c.Stream(testContext(t), "remote", &nearpath.Request{Path: "/echo"}, strings.NewReader("over there"))
	if err != nil || stream.Path != nearpath.PathHTTP {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if got, err := io.ReadAll(stream.Body); err != nil || string(got) != "over there" {
		t.Errorf("%v %q", err, got)
	}
}

func TestGatherReturnsAnOutcomeForEachCall(t *testing.T) {
	startFunction(t, "echo")
	outcomes := shmClient().Gather(testContext(t), nearpath.GatherCall{Function: "echo", Body: []byte("a")}, nearpath.GatherCall{Function: "unknown"},
		nearpath.GatherCall{Function: "echo", Request: &nearpath.Request{Path: "/fail"}})
	if r := outcomes[0].Response; r == nil || string(r.Body) != "a" {
		t.Errorf("%+v", outcomes[0])
	}
	if err := outcomes[1].Err; nearpath.KindOf(err) != nearpath.KindUnsent || !errors.Is(err, nearpath.ErrNoPeer) {
		t.Error(err)
	}
	if r := outcomes[2].Response; r == nil || r.Status != 500 {
		t.Errorf("%+v", outcomes[2])
	}
}

func TestErrorsHaveTheKindOfTheirCause(t *testing.T) {
	refusing := nearpath.Client{Gateway: "http://127.0.0.1:1"}
	overload := nearpath.Client{Gateway: serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Nearpath-Reason", "overload")
		w.WriteHeader(http.StatusTooManyRequests)
	}))}
	silent := nearpath.Client{Gateway: serveHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))}
	shortContext, cancel := context.WithTimeout(context.Background(), 1)
	defer cancel()
	for _, c := range []struct {
		client *nearpath.Client
		ctx    context.Context
		name   string
		req    nearpath.Request
		kind   nearpath.Kind
		safe   bool
	}{
		{&refusing, testContext(t), "remote", nearpath.Request{}, nearpath.KindUnsent, true},
		{&refusing, testContext(t), "../system", nearpath.Request{}, nearpath.KindName, false},
		{&overload, testContext(t), "remote", nearpath.Request{}, nearpath.KindPlatform, true},
		{&silent, shortContext, "remote", nearpath.Request{}, nearpath.KindTimeout, false},
	} {
		_, err := c.client.Do(c.ctx, c.name, &c.req)
		fault := new(nearpath.Error)
		if !errors.As(err, &fault) || fault.Kind != c.kind || fault.Function != c.name || fault.RetryIsSafe() != c.safe {
			t.Errorf("%s instead of %+v", err, c)
		}
	}
}
