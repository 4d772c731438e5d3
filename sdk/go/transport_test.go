package nearpath_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"nearpath.io/nearpath"
)

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// startOpenFaaS starts a gateway without support for nearpath and returns its URL.
func startOpenFaaS(t *testing.T, args ...string) string {
	t.Helper()
	child := exec.Command("python3", append([]string{"../standin/openfaas.py"}, args...)...)
	child.Stderr = os.Stderr
	stop, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		skip(t, "python3 is missing: it runs the gateway")
	}
	t.Cleanup(func() { stop.Close(); _ = child.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NEARPATH_GATEWAY", strings.TrimSpace(line))
	return strings.TrimSpace(line)
}

// mirrored is the request that the function mirror received.
type mirrored struct {
	Method, Path, Query, Body string
	Headers                   map[string]string
}

func mirror(t *testing.T, r *http.Response, err error) (request mirrored) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.StatusCode != 200 {
		t.Fatal(r.StatusCode, err)
	}
	return request
}

// gatewayClient is a client outside the domain of the gateway's functions.
var gatewayClient = http.Client{Transport: nearpath.Transport{}}

func TestTransportCallsFunctionsThroughAnOpenFaaSGateway(t *testing.T) {
	gateway := startOpenFaaS(t)
	for _, where := range []string{gateway + "/function/mirror", "nearpath://mirror", "nearpath://mirror.openfaas-fn", "http://mirror"} {
		for _, body := range []io.Reader{strings.NewReader("x"), io.MultiReader(strings.NewReader("x"))} {
			r, err := gatewayClient.Post(where+"/a?b=c", "text/plain", body)
			request := mirror(t, r, err)
			if request.Method != "POST" || request.Path != "/a" || request.Query != "b=c" || request.Body != "x" {
				t.Errorf("%s: %+v", where, request)
			}
			if path := r.Header.Get("X-Nearpath-Path"); path != "http; obstacle=no_endpoint" {
				t.Errorf("%s: %q", where, path)
			}
			if r.Request.URL.String() != where+"/a?b=c" {
				t.Errorf("%s: %s", where, r.Request.URL)
			}
		}
	}
	r, err := gatewayClient.Get(gateway + "/function/moved")
	if request := mirror(t, r, err); request.Path != "/moved" {
		t.Errorf("a redirect leads to %+v", request)
	}
	r, err = gatewayClient.Get(gateway + "/healthz")
	if err != nil || r.StatusCode != 200 || r.Header.Get("X-Nearpath-Path") != "" {
		t.Errorf("%v %v", r, err)
	}
	r.Body.Close()
	r, err = gatewayClient.Get(gateway + "/function/ticks")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if text, err := io.ReadAll(r.Body); err != nil || string(text) != "data: 0\n\ndata: 1\n\ndata: 2\n\n" {
		t.Errorf("%q %v", text, err)
	}
}

// With the line of the guide every client of the process calls functions, and no request loops.
func TestTransportWorksAsTheDefaultTransport(t *testing.T) {
	gateway := startOpenFaaS(t)
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = nearpath.Transport{}
	r, err := http.Get(gateway + "/function/mirror")
	mirror(t, r, err)
	if r.Header.Get("X-Nearpath-Path") == "" {
		t.Error("the answer has no path")
	}
	r, err = http.Get(gateway + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	r, err = nearpath.PostForm(gateway+"/function/mirror", url.Values{"a": {"1"}})
	if request := mirror(t, r, err); request.Body != "a=1" {
		t.Errorf("%+v", request)
	}
	if _, err := http.Get("nearpath://No_Name"); nearpath.KindOf(err) != nearpath.KindName {
		t.Error("an invalid function name was called", err)
	}
}

func TestCallsForwardDeadlineAndTrace(t *testing.T) {
	gateway := startOpenFaaS(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", gateway+"/function/mirror", nil)
	r, err := gatewayClient.Do(req)
	headers := mirror(t, r, err).Headers
	left, bad := time.ParseDuration(headers["X-Timeout"])
	if bad != nil || left > time.Minute || left < 20*time.Second || headers["X-Nearpath-Path"] != "?" {
		t.Errorf("%v", headers)
	}
	if req.Header.Get("X-Timeout") != "" {
		t.Error("a RoundTripper changed the request")
	}
	req.Header.Set("X-Timeout", "1s")
	r, err = gatewayClient.Do(req)
	if own := mirror(t, r, err).Headers["X-Timeout"]; own != "1s" {
		t.Errorf("the caller's own limit became %s", own)
	}
	answer, err := nearpath.Do(ctx, "mirror", &nearpath.Request{Header: http.Header{"Traceparent": {trace}}})
	if err != nil || answer.Path != nearpath.PathHTTP || answer.Obstacle != "no_endpoint" || answer.Header.Get("X-Nearpath-Path") != "" {
		t.Fatalf("%+v %v", answer, err)
	}
	var request mirrored
	if err := json.Unmarshal(answer.Body, &request); err != nil || request.Headers["Traceparent"] != trace {
		t.Errorf("%s %v", answer.Body, err)
	}
}

// A handler that was called over HTTP forwards the trace and the time left of its caller.
func TestAHandlerForwardsDeadlineAndTraceOfItsRequest(t *testing.T) {
	gateway := startOpenFaaS(t)
	address := freeAddress(t)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	server := &nearpath.Server{Addr: address, HTTP: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, _ := http.NewRequestWithContext(r.Context(), "GET", gateway+"/function/mirror", nil)
		answer, err := gatewayClient.Do(out)
		_ = json.NewEncoder(w).Encode(mirror(t, answer, err))
	})}
	go func() { served <- server.RunContext(ctx) }()
	defer func() { stop(); <-served }()
	req, _ := http.NewRequestWithContext(testContext(t), "GET", "http://"+address, nil)
	req.Header = http.Header{"Traceparent": {trace}, "X-Timeout": {"60"}}
	r, err := http.DefaultClient.Do(req)
	for errors.As(err, new(*net.OpError)) && req.Context().Err() == nil {
		time.Sleep(time.Millisecond) // not listening yet
		r, err = http.DefaultClient.Do(req)
	}
	request := mirror(t, r, err)
	left, bad := time.ParseDuration(request.Headers["X-Timeout"])
	if request.Headers["Traceparent"] != trace || bad != nil || left > time.Minute || left < 20*time.Second {
		t.Errorf("%v", request.Headers)
	}
}

func TestAQueuedCallSendsItsAnswerToTheCallback(t *testing.T) {
	startOpenFaaS(t)
	callbacks := make(chan *http.Request, 1)
	callback := serveHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { callbacks <- r }))
	id, err := nearpath.CallLater(testContext(t), "mirror", []byte("x"), callback)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-callbacks:
		if r.Method != "POST" || r.Header.Get("X-Call-Id") != id || id == "" || r.Header.Get("X-Function-Name") != "mirror" {
			t.Errorf("%s %v", id, r.Header)
		}
	case <-time.After(testTimeout):
		t.Error("no callback arrived")
	}
	if _, err := nearpath.CallLater(testContext(t), "unknown", nil, ""); nearpath.KindOf(err) != nearpath.KindPlatform {
		t.Error(err)
	}
}

// A call that did not run, according to the callee's platform, goes over HTTP instead.
func TestACallThatDidNotRunIsSentOverHTTP(t *testing.T) {
	startFunction(t, "busy")
	requests := make(chan string, 2)
	gateway := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- r.URL.Path + " " + string(body)
	}))
	t.Setenv("NEARPATH_GATEWAY", gateway)
	answer, err := nearpath.Call(testContext(t), "busy", []byte("x"))
	if err != nil || answer.Path != nearpath.PathHTTP || answer.Obstacle != "no_room" {
		t.Fatalf("%+v %v", answer, err)
	}
	r, err := nearpath.Post("nearpath://busy", "text/plain", strings.NewReader("y"))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	for _, wanted := range []string{"/function/busy x", "/function/busy y"} {
		if got := <-requests; got != wanted {
			t.Errorf("received %q, expected %q", got, wanted)
		}
	}
	only := nearpath.Client{ShmOnly: true}
	if _, err := only.Do(testContext(t), "busy", &nearpath.Request{}); nearpath.KindOf(err) != nearpath.KindPlatform {
		t.Error(err)
	}
}

// An endpoint of a function's own cannot answer for the platform: its caller would repeat a call that ran.
func TestAFunctionCannotForgeAnErrorOfThePlatform(t *testing.T) {
	startFunction(t, "forger")
	t.Setenv("NEARPATH_GATEWAY", "http://127.0.0.1:1")
	answer, err := nearpath.Call(testContext(t), "forger", []byte("x"))
	if err != nil || answer.Path != nearpath.PathShm || answer.Status != 429 || string(answer.Body) != "full" {
		t.Fatalf("%+v %v", answer, err)
	}
	stream, err := nearpath.CallStream(testContext(t), "forger", &nearpath.Request{}, nil)
	if err != nil || stream.Status != 429 {
		t.Fatalf("%+v %v", stream, err)
	}
	stream.Body.Close()
}

// The node names the caller; fields of the platform that the caller sent are dropped.
func TestACallerCannotNameItself(t *testing.T) {
	startFunction(t, "echo")
	forged := http.Header{"X-Nearpath-Caller": {"admin.fn"}, "X-Nearpath-Other": {"1"}, "X-Openfaas-Internal": {"gateway"}, "X-Mine": {"1"}}
	answer, err := nearpath.Do(testContext(t), "echo", &nearpath.Request{Header: forged})
	wanted := http.Header{"X-Nearpath-Caller": {"shop.fn"}, "X-Mine": {"1"}}
	if err != nil || !reflect.DeepEqual(answer.Header, wanted) {
		t.Errorf("%v %v", answer, err)
	}
}

func TestGatewayURLUsesTheFirstVariableThatIsSet(t *testing.T) {
	names := []string{"NEARPATH_GATEWAY", "gateway_url", "gateway_hostname", "OPENFAAS_URL", "gateway"}
	for k, each := range []struct{ words, url string }{
		{"", "http://gateway:8080"},
		{"OPENFAAS_URL=http://127.0.0.1:31112/ gateway=http://g", "http://127.0.0.1:31112"},
		{"gateway=gateway.openfaas:8080", "http://gateway.openfaas:8080"},
		{"gateway_hostname=g OPENFAAS_URL=http://o", "http://g:8080"},
		{"NEARPATH_GATEWAY=http://n:1 gateway_url=http://u", "http://n:1"},
	} {
		t.Run(strconv.Itoa(k), func(t *testing.T) {
			for _, name := range names {
				t.Setenv(name, "")
			}
			for word := range strings.FieldsSeq(each.words) {
				name, value, _ := strings.Cut(word, "=")
				t.Setenv(name, value)
			}
			if url := nearpath.GatewayURL(); url != each.url {
				t.Errorf("%s: %s", each.words, url)
			}
		})
	}
}

// A later release may report unknown names: a path counts as HTTP, an obstacle is forwarded.
func TestReportedPathsAreParsed(t *testing.T) {
	for _, c := range []struct {
		field    string
		path     nearpath.Path
		obstacle string
	}{
		{"shm", nearpath.PathShm, ""},
		{"quic; obstacle=no_domain", nearpath.PathQUIC, "no_domain"},
		{"quic; obstacle=other_node; node=b; then=http", nearpath.PathQUIC, "other_node"},
		{"direct;obstacle=later_obstacle", nearpath.PathDirect, "later_obstacle"},
		{"unknown; obstacle=later_obstacle", nearpath.PathHTTP, "caller_no_endpoint"},
		{"", nearpath.PathHTTP, "caller_no_endpoint"},
	} {
		if path, obstacle := nearpath.ReportedPath(c.field); path != c.path || obstacle != c.obstacle {
			t.Errorf("%q is %q, %q", c.field, path, obstacle)
		}
	}
}
