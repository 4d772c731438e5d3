package nearpath

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/party"
)

// DefaultMaxBody is the most bytes of a body, unless told otherwise.
const DefaultMaxBody = 64 << 20

// Client makes calls. The zero Client is what Call uses.
type Client struct {
	// Gateway is where calls go over HTTP; empty: see GatewayURL.
	Gateway string
	// HTTP makes these calls; nil: a client of its own with a pool of connections.
	HTTP *http.Client
	// MaxBody bounds an answer that comes over HTTP; 0: DefaultMaxBody.
	MaxBody int64
	// InPlace leaves the body of an answer in shared memory until Response.Release: nothing is copied. Every response has to be
	// released, or its slot is lost to the domain while the process lives. The functions of the domain share that memory: one that
	// breaks the rules can change it while it is read.
	InPlace bool
	// ShmOnly makes calls fail with ErrNoPeer instead of going over HTTP.
	ShmOnly bool
}

var standard Client

// Call calls a function with a payload. name may have a namespace: "name.namespace".
func Call(ctx context.Context, name string, body []byte) (*Response, error) {
	return standard.Do(ctx, name, &Request{Body: body})
}

// Do calls a function.
func Do(ctx context.Context, name string, req *Request) (*Response, error) {
	return standard.Do(ctx, name, req)
}

// Notify sends an event: it returns when it was handed over, and no answer comes.
func Notify(ctx context.Context, name string, body []byte) error {
	return standard.Notify(ctx, name, &Request{Body: body})
}

// Do calls a function.
func (c *Client) Do(ctx context.Context, name string, req *Request) (*Response, error) {
	if p := home.forCalls(ctx); p != nil && p.Reaches(name) {
		response, err := c.overShm(ctx, p, name, req, false)
		if !party.Unsent(err) {
			return response, err
		}
	}
	if c.ShmOnly {
		return nil, ErrNoPeer
	}
	return c.overHTTP(ctx, "/function/", name, req)
}

// Notify sends an event.
func (c *Client) Notify(ctx context.Context, name string, req *Request) error {
	if p := home.forCalls(ctx); p != nil && p.Reaches(name) {
		if _, err := c.overShm(ctx, p, name, req, true); !party.Unsent(err) {
			return err
		}
	}
	if c.ShmOnly {
		return ErrNoPeer
	}
	_, err := c.overHTTP(ctx, "/async-function/", name, req)
	return err
}

// exchange is what one call needs.
type exchange struct {
	ask    party.Ask
	answer party.Answer
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

func (c *Client) overShm(ctx context.Context, p *party.Party, name string, req *Request, event bool) (*Response, error) {
	head, err := requestHead(req)
	if err != nil {
		return nil, err
	}
	x := exchanges.Get().(*exchange)
	defer func() { *x = exchange{}; exchanges.Put(x) }()
	x.ask = party.Ask{Function: name, HeadBytes: head, BodyBytes: req.Body, InPlace: c.InPlace, Event: event}
	if deadline, ok := ctx.Deadline(); ok {
		x.ask.Deadline = party.At(deadline)
	}
	if in, ok := ctx.Value(party.TraceKey{}).(*party.Incoming); ok {
		x.ask.Trace, x.ask.Span = in.Trace, in.Span
	}
	if err := p.Call(ctx, &x.ask, &x.answer); err != nil || event {
		return nil, err
	}
	return response(&x.answer)
}

func response(answer *party.Answer) (*Response, error) {
	r := &Response{Status: int(answer.Status), Body: answer.BodyBytes, Path: PathShm, Instance: answer.Instance}
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	if answer.InPlace() {
		leased := *answer
		r.leased = &leased
	}
	if answer.Has(memory.FlagPlatform) {
		defer r.Release()
		return nil, &PlatformError{r.Status, reasonName(answer.Reason), string(answer.BodyBytes)}
	}
	header, err := readHead(answer.HeadBytes, nil)
	if err != nil {
		r.Release()
		return nil, ErrCut
	}
	r.Header = header
	return r, nil
}

// home is this process in its domain: the party that serves, or else one that only calls. An instance that called before it served
// has been two parties; the first one goes on with the calls that are open there.
var home house

type house struct {
	current atomic.Pointer[party.Party]
	mu      sync.Mutex
	nextTry time.Time
}

const rejoinPause = time.Second

// forCalls is the party that makes calls; nil outside a domain.
func (h *house) forCalls(ctx context.Context) *party.Party {
	if p := h.current.Load(); p != nil && !left(p) {
		return p
	}
	socket := dispatchSocket()
	if socket == "" {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.current.Load(); p != nil && !left(p) {
		return p
	}
	if time.Now().Before(h.nextTry) {
		return nil
	}
	p, err := party.Join(ctx, party.Config{Socket: socket, MaxBody: DefaultMaxBody, Spin: memory.SpinBudget})
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			h.nextTry = time.Now().Add(rejoinPause)
		}
		return nil
	}
	h.current.Store(p)
	return p
}

func left(p *party.Party) bool {
	select {
	case <-p.Left():
		return true
	default:
		return false
	}
}
