package nearpath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/party"
)

// Handler answers a call. Its error becomes status 500 with the error's text; a nil Response is an empty 200. The context ends
// when the caller no longer waits, and carries the deadline and the trace to further calls.
type Handler func(ctx context.Context, req *Request) (*Response, error)

// Server takes calls for the function of this process: over HTTP, where the watchdog expects its tenant, and through shared
// memory inside a domain.
type Server struct {
	// Handler answers calls. Either this or HTTP is set.
	Handler Handler
	// HTTP answers calls as an http.Handler; a response is buffered when the call came through shared memory.
	HTTP http.Handler
	// Addr is the TCP address to listen on; empty: PORT, or 8082.
	Addr string
	// MaxBody is the most bytes of a request's body; 0: DefaultMaxBody.
	MaxBody int64
	// InPlace leaves the body of a request that came through shared memory where it lies: nothing is copied, and Body is valid
	// until the handler returns. The functions of the domain share that memory: one that breaks the rules can change it meanwhile.
	InPlace bool
	// Grace is how long open calls may take when the process is told to stop; 0: 30 s.
	Grace time.Duration
	// Log takes what goes wrong; nil: slog.Default.
	Log *slog.Logger

	open  sync.WaitGroup
	party *party.Party // the last one, for who has waited for member
}

// Serve takes calls until the process is told to stop (SIGTERM, SIGINT), finishes those that are open, and returns nil.
func Serve(handler Handler) error { return (&Server{Handler: handler}).Run() }

// ServeHTTP is Serve for an http.Handler.
func ServeHTTP(handler http.Handler) error { return (&Server{HTTP: handler}).Run() }

// Run serves until the process is told to stop.
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
		return fmt.Errorf("nearpath: cannot listen for HTTP: set PORT: %w", err)
	}
	server := &http.Server{Handler: s.httpHandler(), ReadHeaderTimeout: 30 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	joined := make(chan struct{})
	inner, leave := context.WithCancel(ctx)
	go func() { defer close(joined); s.member(inner) }()
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
	if port := os.Getenv("PORT"); port != "" {
		return ":" + port
	}
	return ":8082"
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
	if s.party != nil {
		s.party.Leave()
	}
	return err
}

const (
	firstRejoin = 100 * time.Millisecond
	lastRejoin  = 5 * time.Second
)

// member keeps a party in the domain, also over restarts of the node, until the context ends.
func (s *Server) member(ctx context.Context) {
	socket := dispatchSocket()
	for pause := firstRejoin; socket != "" && ctx.Err() == nil; pause = min(2*pause, lastRejoin) {
		p, err := party.Join(ctx, party.Config{Socket: socket, Handle: s.take, MaxBody: uint64(s.maxBody()), Spin: memory.SpinBudget})
		if err == nil {
			home.current.Store(p)
			s.party = p
			if err = p.Ready(); err == nil {
				pause = firstRejoin
				select {
				case <-p.Left():
				case <-ctx.Done():
				}
			}
		}
		if err != nil && ctx.Err() == nil {
			s.log().Warn("no shared memory: calls come over HTTP only, for now", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// take answers one call that came through shared memory.
func (s *Server) take(in *party.Incoming) {
	s.open.Add(1)
	defer s.open.Done()
	var reply party.Reply
	s.answer(in, &reply)
	if err := in.Answer(&reply); err != nil && err != party.ErrClosed {
		s.log().Warn("an answer was not sent", "error", err, "caller", in.Caller())
	}
}

func (s *Server) answer(in *party.Incoming, reply *party.Reply) {
	defer func() {
		if fault := recover(); fault != nil {
			s.log().Error("the handler panicked", "panic", fault)
			*reply = party.Reply{Status: http.StatusInternalServerError, Reason: reasonFunctionFailed, Platform: true, BodyBytes: []byte("the handler panicked")}
		}
	}()
	req := &Request{Caller: in.Caller()}
	var err error
	if in.TooBig() {
		*reply = party.Reply{Status: http.StatusRequestEntityTooLarge, Reason: reasonBodyTooLarge, Platform: true}
		return
	}
	if req.Header, err = readHead(in.HeadBytes(), req); err != nil {
		*reply = party.Reply{Status: http.StatusBadRequest, Reason: reasonBadRequest, Platform: true, BodyBytes: []byte(err.Error())}
		return
	}
	req.Body = in.BodyBytes(s.InPlace)
	response := s.call(in, req)
	reply.Status, reply.BodyBytes = uint16(response.Status), response.Body
	if reply.Status == 0 {
		reply.Status = http.StatusOK
	}
	if len(response.Header) > 0 {
		if reply.HeadBytes, err = appendHeader(nil, response.Header, 0); err != nil {
			*reply = party.Reply{Status: http.StatusInternalServerError, Reason: reasonFunctionFailed, Platform: true, BodyBytes: []byte(err.Error())}
		}
	}
}

var empty = &Response{Status: http.StatusOK}

// call runs the handler.
func (s *Server) call(ctx context.Context, req *Request) *Response {
	if s.HTTP != nil {
		return serveRecorded(ctx, s.HTTP, req)
	}
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

// httpHandler is what the HTTP port serves.
func (s *Server) httpHandler() http.Handler {
	if s.HTTP != nil {
		return s.HTTP
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.maxBody()))
		if err != nil {
			status := http.StatusBadRequest
			if errors.As(err, new(*http.MaxBytesError)) {
				status = http.StatusRequestEntityTooLarge
			}
			http.Error(w, err.Error(), status)
			return
		}
		response := s.call(r.Context(), &Request{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header, Body: body})
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
