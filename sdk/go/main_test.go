package nearpath_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"nearpath.io/nearpath"
	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/fakenode"
)

// The test binary has every role. By default it is the function shop.fn and the fake node of its domain; with NEARPATH_TEST_ROLE it is
// another function, in its own process.

// testTimeout is the maximum time of a wait in a test.
const testTimeout = 30 * time.Second

var node *fakenode.Node

func TestMain(m *testing.M) {
	if role := os.Getenv("NEARPATH_TEST_ROLE"); role != "" {
		runRole(role)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "np")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	edges := [][2]string{{"shop.fn", "echo.fn"}, {"shop.fn", "mortal.fn"}, {"shop.fn", "web.fn"}, {"shop.fn", "chain.fn"}, {"chain.fn", "echo.fn"}, {"shop.fn", "flow.fn"}, {"shop.fn", "busy.fn"}, {"shop.fn", "forger.fn"}, {"shop.fn", "parity.fn"}}
	node, err = fakenode.Start(fakenode.Config{Dir: dir, Edges: edges, Terms: map[[2]string]endpoint.Peer{
		{"shop.fn", "flow.fn"}: {Topics: []string{"news/#"}}, {"shop.fn", "busy.fn"}: {Watchdog: true},
	}})
	if err != nil {
		panic(err)
	}
	defer node.Stop()
	socket, err := node.Listen("shop.fn", 1)
	if err != nil {
		panic(err)
	}
	os.Setenv("NEARPATH_DISPATCH", socket)
	return m.Run()
}

// runRole runs the function of another process.
func runRole(role string) {
	var err error
	switch role {
	case "echo":
		err = nearpath.Serve(func(_ context.Context, req *nearpath.Request) (*nearpath.Response, error) {
			if req.Path == "/fail" {
				return nil, errors.New("fail requested")
			}
			if req.Path == "/panic" {
				panic("panic requested")
			}
			return &nearpath.Response{Status: 201, Header: req.Header, Body: req.Body}, nil
		})
	case "chain":
		err = nearpath.Serve(func(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
			return nearpath.Call(ctx, "echo", req.Body)
		})
	case "mortal":
		err = nearpath.Serve(func(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
			fmt.Println("taken")
			<-ctx.Done()
			return nil, ctx.Err()
		})
	case "web":
		err = nearpath.ServeHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Saw", r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("q")+" "+r.Header.Get("X-Sent"))
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprintf(w, "%d bytes", len(body))
		}))
	case "busy", "forger":
		err = serveBusy()
	case "parity":
		err = nearpath.ServeHTTP(http.HandlerFunc(parity))
	case "flow":
		err = nearpath.ServeHTTP(http.HandlerFunc(flow))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveBusy answers every call with a platform error: the function has not run.
func serveBusy() error {
	config := endpoint.Config{Socket: os.Getenv("NEARPATH_DISPATCH"), Handle: func(in *endpoint.IncomingCall) {
		_ = in.Respond(&endpoint.Reply{Status: 429, Reason: overload, Platform: true, BodyBytes: []byte("full")})
	}}
	p, err := endpoint.Join(context.Background(), config)
	if err != nil {
		return err
	}
	if err := p.Ready(); err != nil {
		return err
	}
	<-p.Done()
	return nil
}

const overload = 8 // of contract/reasons.toml

var instances uint64 = 1

// startFunction starts a function and waits until it can be called.
func startFunction(t testing.TB, role string) (*exec.Cmd, io.Reader) {
	t.Helper()
	instances++
	socket, err := node.Listen(role+".fn", instances)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "NEARPATH_TEST_ROLE="+role, "NEARPATH_DISPATCH="+socket, "PORT=0")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	client := nearpath.Client{ShmOnly: true}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for role != "mortal" {
		if _, err := client.Do(ctx, role, &nearpath.Request{}); err == nil || nearpath.KindOf(err) == nearpath.KindPlatform {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%s cannot be called", role)
		}
		time.Sleep(time.Millisecond)
	}
	return child, out
}

// testContext returns a context that ends after testTimeout.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func TestCallsBetweenProcessesUseSharedMemory(t *testing.T) {
	startFunction(t, "echo")
	header := http.Header{"X-Two": {"a", "b"}, "Connection": {"close"}}
	r, err := nearpath.Do(testContext(t), "echo", &nearpath.Request{Header: header, Body: []byte("hello")})
	if err != nil || r.Path != nearpath.PathShm || r.Status != 201 || string(r.Body) != "hello" || len(r.Header["X-Two"]) != 2 || r.Header["Connection"] != nil {
		t.Fatalf("%v %+v", err, r)
	}
	big := make([]byte, 10<<20)
	if r, err = nearpath.Call(testContext(t), "echo.fn", big); err != nil || len(r.Body) != len(big) {
		t.Fatalf("%v", err)
	}
	r, err = nearpath.Do(testContext(t), "echo", &nearpath.Request{Path: "/fail"})
	if err != nil || r.Status != 500 || string(r.Body) != "fail requested" {
		t.Fatalf("%v %+v", err, r)
	}
	r, err = nearpath.Do(testContext(t), "echo", &nearpath.Request{Path: "/panic"})
	if err != nil || r.Status != 500 {
		t.Fatalf("%v %+v", err, r)
	}
}

func TestCallsPassThroughAChainOfFunctions(t *testing.T) {
	startFunction(t, "echo")
	startFunction(t, "chain")
	for {
		r, err := nearpath.Call(testContext(t), "chain", []byte("through two"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Status == 201 && string(r.Body) == "through two" {
			return
		}
		if r.Status != 500 { // until the middle function has its peer, it calls the gateway, which does not exist
			t.Fatalf("%+v", r)
		}
	}
}

func TestAKilledCalleeFailsItsOpenCallsImmediately(t *testing.T) {
	child, out := startFunction(t, "mortal")
	const open = 20
	results := make(chan error, open)
	client := nearpath.Client{ShmOnly: true}
	for range open {
		go func() {
			for {
				_, err := client.Do(testContext(t), "mortal", &nearpath.Request{Body: make([]byte, 1000)})
				if !errors.Is(err, nearpath.ErrNoPeer) {
					results <- err
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	if _, err := io.ReadFull(out, make([]byte, open*len("taken\n"))); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil { // SIGKILL
		t.Fatal(err)
	}
	for range open {
		select {
		case err := <-results:
			if !errors.Is(err, nearpath.ErrDied) {
				t.Fatal(err)
			}
		case <-time.After(testTimeout):
			t.Fatal("a call to a dead instance hangs")
		}
	}
	node.Await((*fakenode.View).Drained)
	node.Sweep()
	for deadline := time.Now().Add(testTimeout); node.Pool.TakenSlots() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d slots are lost", node.Pool.TakenSlots())
		}
	}
}

func TestAnUnchangedHTTPClientAndHandlerUseSharedMemory(t *testing.T) {
	startFunction(t, "web")
	client := http.Client{Transport: &nearpath.Transport{Base: refusingTransport{}}}
	r, _ := http.NewRequestWithContext(testContext(t), http.MethodPut, "http://gateway:8080/function/web/a/b?q=1", strings.NewReader("12345"))
	r.Header.Set("X-Sent", "yes")
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusTeapot || answer.Header.Get("X-Saw") != "PUT /a/b 1 yes" || string(body) != "5 bytes" {
		t.Fatalf("%+v %s", answer, body)
	}
	if answer.Header.Get("X-Nearpath-Path") != "shm" {
		t.Errorf("%v", answer.Header)
	}
	for _, url := range []string{"http://gateway:8080/function/other", "http://example.com/function/web", "http://gateway:8080/system/info"} {
		if _, err := client.Post(url, "text/plain", strings.NewReader("x")); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

type refusingTransport struct{}

var errRefused = errors.New("refused by the test transport")

func (refusingTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, errRefused }

func TestCallsWithoutAPeerUseTheGateway(t *testing.T) {
	gateway := http.NewServeMux()
	gateway.HandleFunc("/function/remote/x", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write([]byte(hex.EncodeToString(body) + " " + r.Header.Get("X-A")))
	})
	gateway.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Nearpath-Reason", "no_function")
		w.WriteHeader(http.StatusNotFound)
	})
	c := nearpath.Client{Gateway: serveHTTP(t, gateway)}
	r, err := c.Do(testContext(t), "remote", &nearpath.Request{Path: "/x", Header: http.Header{"X-A": {"b"}}, Body: []byte{1, 2}})
	if err != nil || r.Path != nearpath.PathHTTP || string(r.Body) != "0102 b" {
		t.Fatalf("%v %+v", err, r)
	}
	_, err = c.Do(testContext(t), "unknown", &nearpath.Request{})
	if fault := new(nearpath.PlatformError); !errors.As(err, &fault) || fault.Reason != "no_function" || fault.Status != 404 {
		t.Fatal(err)
	}
}

func BenchmarkCallAnotherProcess(b *testing.B) {
	startFunction(b, "echo")
	client := nearpath.Client{ShmOnly: true}
	for _, size := range []int{64, 4096, 65536} {
		body := make([]byte, size)
		once := func(b *testing.B) {
			if _, err := client.Do(context.Background(), "echo", &nearpath.Request{Body: body}); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("%d B", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				once(b)
			}
		})
		b.Run(fmt.Sprintf("%d B, 32 at a time", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					once(b)
				}
			})
		})
	}
}
