package nearpath

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
)

// processMembership is this process in its domain: the endpoint that serves, or else one that only calls. The node disconnects it when it
// restarts or removes the process. A new endpoint then joins at the same socket, with growing delays. The old one finishes its open calls
// and then leaves.
var processMembership membership

type membership struct {
	current atomic.Pointer[endpoint.Endpoint]
	servers atomic.Int32 // running servers, which join their own endpoints

	mu      sync.Mutex
	backoff backoff
	nextTry time.Time
}

// backoff computes the delays between attempts to join.
type backoff struct{ last time.Duration }

const (
	minRejoinDelay = 100 * time.Millisecond
	maxRejoinDelay = 5 * time.Second
)

// next returns the delay after one more failure.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, minRejoinDelay), maxRejoinDelay)
	return b.last
}

// reset clears the failures.
func (b *backoff) reset() { b.last = 0 }

// endpointForCalls returns the endpoint that makes calls; nil outside a domain.
func (h *membership) endpointForCalls(ctx context.Context) *endpoint.Endpoint {
	if p := h.currentEndpoint(); p != nil {
		return p
	}
	socket := dispatchSocket()
	if socket == "" || h.servers.Load() > 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.currentEndpoint(); p != nil {
		return p
	}
	if time.Now().Before(h.nextTry) {
		return nil
	}
	p, err := endpoint.Join(ctx, endpoint.Config{Socket: socket, MaxBody: DefaultMaxBody, Spin: memory.SpinBudget})
	if err != nil {
		if ctx.Err() == nil { // else the caller's deadline may be the cause
			h.nextTry = time.Now().Add(h.backoff.next())
		}
		return nil
	}
	h.backoff.reset()
	h.setEndpoint(p)
	return p
}

func (h *membership) currentEndpoint() *endpoint.Endpoint {
	if p := h.current.Load(); p != nil && !hasLeft(p) {
		return p
	}
	return nil
}

// setEndpoint makes p the endpoint for new calls.
func (h *membership) setEndpoint(p *endpoint.Endpoint) {
	if before := h.current.Swap(p); before != nil && before != p {
		before.Retire()
	}
}

func hasLeft(p *endpoint.Endpoint) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}
