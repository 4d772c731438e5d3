package nearpath

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/reason"
)

// Handler answers a call. Its error becomes status 500 with the error's text; a nil Response is an empty 200. The context ends
// when the caller cancels the call, and forwards the deadline and the trace to further calls.
type Handler func(ctx context.Context, req *Request) (*Response, error)

// Server serves the function of this process: over HTTP, on the port that the watchdog expects, and through shared memory inside a
// domain.
type Server struct {
	// Handler answers calls. Either this or HTTP is set.
	Handler Handler
	// HTTP answers calls as an http.Handler: bodies of several messages are streamed, and flushed bytes are sent at once.
	HTTP http.Handler
	// Addr is the TCP address of the HTTP listener; empty: that of upstream_url, or else PORT, or 8082, at every address.
	Addr string
	// MaxBody is the maximum, in bytes, of a request's body; 0: DefaultMaxBody for a Handler, unlimited for an http.Handler.
	MaxBody int64
	// InPlace leaves the body of a request in shared memory, without a copy: Body is valid until the handler returns. The functions of
	// the domain share that memory: a misbehaving one can change it meanwhile.
	InPlace bool
	// Grace is the maximum time of open calls after SIGTERM or SIGINT; 0: 30 s.
	Grace time.Duration
	// Log receives warnings and errors; nil: slog.Default.
	Log *slog.Logger

	open     sync.WaitGroup
	endpoint *endpoint.Endpoint // the last one that joined
}

// Serve takes calls until SIGTERM or SIGINT, finishes the open ones, and returns nil.
func Serve(handler Handler) error { return (&Server{Handler: handler}).Run() }

// ServeHTTP is Serve for an http.Handler.
func ServeHTTP(handler http.Handler) error { return (&Server{HTTP: handler}).Run() }

// Run serves until SIGTERM or SIGINT.
func (s *Server) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return s.RunContext(ctx)
}

// RunContext serves until the context ends.
func (s *Server) RunContext(ctx context.Context) error {
	if (s.Handler == nil) == (s.HTTP == nil) {
		return errors.New("nearpath: a Server needs Handler or HTTP, and not both")
	}
	listener, err := net.Listen("tcp", s.address())
	if err != nil {
		return &Error{Kind: KindListen, Err: fmt.Errorf("cannot listen for HTTP: set upstream_url or PORT: %w", err)}
	}
	server := &http.Server{Handler: s.httpHandler(), ReadHeaderTimeout: 30 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	joined := make(chan struct{})
	inner, leave := context.WithCancel(ctx)
	go func() { defer close(joined); s.serveShm(inner) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
		err = nil
	}
	leave()
	<-joined
	return errors.Join(err, s.drain(server))
}

func (s *Server) address() string {
	if s.Addr != "" {
		return s.Addr
	}
	return listenAddress(os.Getenv("upstream_url"), os.Getenv("PORT"))
}

// listenAddress returns the address that the watchdog calls: upstream_url names it. PORT is the habit of platforms without a watchdog.
func listenAddress(upstream, port string) string {
	if at, err := url.Parse(upstream); err == nil && at.Hostname() != "" {
		return net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), port, "80"))
	}
	return ":" + cmp.Or(port, "8082")
}

func (s *Server) drain(server *http.Server) error {
	grace := s.Grace
	if grace == 0 {
		grace = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := server.Shutdown(ctx)
	done := make(chan struct{})
	go func() { s.open.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	if s.endpoint != nil {
		s.endpoint.Close()
	}
	return err
}

// serveShm keeps an endpoint in the domain, also across restarts of the node, until the context ends.
func (s *Server) serveShm(ctx context.Context) {
	socket := dispatchSocket()
	if socket == "" {
		return
	}
	processMembership.servers.Add(1)
	defer processMembership.servers.Add(-1)
	config := endpoint.Config{
		Socket: socket, Handle: s.handleIncoming, Streams: s.HTTP != nil, MaxBody: uint64(s.maxBody()), Spin: memory.SpinBudget,
	}
	for pauses := new(backoff); ctx.Err() == nil; {
		err := s.serveMembership(ctx, config, pauses)
		if err != nil && ctx.Err() == nil {
			s.log().Warn("shared memory: join failed, serving over HTTP only and retrying", "error", err)
		}
		select {
		case <-time.After(pauses.next()):
		case <-ctx.Done():
		}
	}
}

// serveMembership joins, and returns when the node has disconnected.
func (s *Server) serveMembership(ctx context.Context, config endpoint.Config, pauses *backoff) error {
	p, err := endpoint.Join(ctx, config)
	if err != nil {
		return err
	}
	processMembership.setEndpoint(p)
	if s.endpoint != nil {
		s.endpoint.Retire()
	}
	s.endpoint = p
	if err := p.Ready(); err != nil {
		return err
	}
	pauses.reset()
	select {
	case <-p.Done():
	case <-ctx.Done():
	}
	return nil
}

// handleIncoming answers one call through shared memory.
func (s *Server) handleIncoming(in *endpoint.IncomingCall) {
	s.open.Add(1)
	defer s.open.Done()
	var err error
	if s.HTTP != nil {
		err = s.handleIncomingHTTP(in)
	} else {
		var reply endpoint.Reply
		s.answer(in, &reply)
		err = in.Respond(&reply)
	}
	if err != nil && err != endpoint.ErrClosed && !errors.Is(err, endpoint.ErrNotWanted) {
		s.log().Warn("shared memory: sending an answer failed", "error", err, "caller", in.Caller())
	}
}

// request reads an incoming call without its body. It returns false if the call is refused, with the answer in reply.
func (s *Server) request(in *endpoint.IncomingCall, req *Request, reply *endpoint.Reply) bool {
	req.Caller, req.Event = in.Caller(), in.Kind == memory.KindEvent
	if in.IsTooLarge() {
		*reply = endpoint.Reply{Status: http.StatusRequestEntityTooLarge, Reason: reason.BodyTooLarge, Platform: true}
		return false
	}
	var err error
	if req.Header, err = readHead(in.HeadBytes(), req); err != nil {
		*reply = endpoint.Reply{Status: http.StatusBadRequest, Reason: reason.BadRequest, Platform: true, BodyBytes: []byte(err.Error())}
		return false
	}
	if !req.Event {
		req.Topic = "" // in a call, :name is the called name
	}
	if s.HTTP != nil && req.Topic != "" {
		if req.Header == nil {
			req.Header = http.Header{}
		}
		req.Header.Set("X-Topic", req.Topic) // as the watchdog does
	}
	return true
}

func (s *Server) answer(in *endpoint.IncomingCall, reply *endpoint.Reply) {
	defer func() {
		if fault := recover(); fault != nil {
			s.log().Error("the handler panicked", "panic", fault)
			*reply = failure("the handler panicked")
		}
	}()
	req := new(Request)
	if !s.request(in, req, reply) {
		return
	}
	req.Body = in.BodyBytes(s.InPlace)
	response := s.callHandler(in, req)
	reply.Status, reply.BodyBytes = uint16(response.Status), response.Body
	if reply.Status == 0 {
		reply.Status = http.StatusOK
	}
	if len(response.Header) > 0 {
		var err error
		if reply.HeadBytes, err = appendHeader(nil, response.Header, 0); err != nil {
			*reply = failure(err.Error())
		}
	}
}

func failure(text string) endpoint.Reply {
	return endpoint.Reply{
		Status: http.StatusInternalServerError, Reason: reason.FunctionFailed, Platform: true, BodyBytes: []byte(text),
	}
}

// handleIncomingHTTP answers one call with the http.Handler.
func (s *Server) handleIncomingHTTP(in *endpoint.IncomingCall) error {
	var req Request
	var reply endpoint.Reply
	if !s.request(in, &req, &reply) {
		return in.Respond(&reply)
	}
	a := &responseWriter{in: in, header: http.Header{}}
	body, length := s.bodyOf(in, a)
	out, err := httpRequest(in, &req, body, length)
	if err != nil {
		return in.Respond(&endpoint.Reply{Status: http.StatusBadRequest, Reason: reason.BadRequest, Platform: true, BodyBytes: []byte(err.Error())})
	}
	whole := s.runHTTP(a, out)
	a.WriteHeader(http.StatusOK)
	if in.HasBegun() {
		return a.finish(whole)
	}
	if whole {
		err = a.copyHeader(&reply)
	} else {
		reply = failure("the handler panicked")
	}
	if err != nil {
		reply = failure(err.Error())
	}
	return in.Respond(&reply)
}

// runHTTP runs the handler; it returns false after a panic.
func (s *Server) runHTTP(a *responseWriter, r *http.Request) (whole bool) {
	defer func() {
		if fault := recover(); fault != nil && fault != http.ErrAbortHandler {
			s.log().Error("the handler panicked", "panic", fault)
		}
	}()
	s.HTTP.ServeHTTP(a, r)
	return true
}

// bodyOf returns a request's body, whole or streamed, and its length.
func (s *Server) bodyOf(in *endpoint.IncomingCall, a *responseWriter) (io.ReadCloser, int64) {
	if in.Stream == nil {
		body := in.BodyBytes(s.InPlace)
		return io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	body, length := io.NopCloser(in.Stream), int64(-1)
	if in.Stream.Total != memory.TotalUnknown {
		length = int64(in.Stream.Total)
	}
	if s.MaxBody > 0 {
		body = http.MaxBytesReader(a, body, s.MaxBody)
	}
	return body, length
}

var empty = &Response{Status: http.StatusOK}

// callHandler runs the handler.
func (s *Server) callHandler(ctx context.Context, req *Request) *Response {
	response, err := s.Handler(ctx, req)
	switch {
	case err != nil:
		s.log().Error("the handler failed", "error", err)
		return &Response{Status: http.StatusInternalServerError, Body: []byte(err.Error())}
	case response == nil:
		return empty
	}
	return response
}

// httpHandler returns the handler of the HTTP port.
func (s *Server) httpHandler() http.Handler {
	if s.HTTP != nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := contextOf(r)
			defer cancel()
			s.HTTP.ServeHTTP(w, r.WithContext(ctx))
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := contextOf(r)
		defer cancel()
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.maxBody()))
		if err != nil {
			status := http.StatusBadRequest
			if errors.As(err, new(*http.MaxBytesError)) {
				status = http.StatusRequestEntityTooLarge
			}
			http.Error(w, err.Error(), status)
			return
		}
		req := &Request{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header, Body: body}
		// Set by the platform alone, for an event that could not come through memory.
		if req.Topic = r.Header.Get(topicField); req.Topic != "" {
			req.Event, req.Caller = true, r.Header.Get(callerField)
		}
		response := s.callHandler(ctx, req)
		for name, values := range response.Header {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
		if response.Status != 0 {
			w.WriteHeader(response.Status)
		}
		_, _ = w.Write(response.Body)
	})
}

func (s *Server) maxBody() int64 {
	if s.MaxBody > 0 {
		return s.MaxBody
	}
	return DefaultMaxBody
}

func (s *Server) log() *slog.Logger {
	if s.Log != nil {
		return s.Log
	}
	return slog.Default()
}
