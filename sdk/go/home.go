package nearpath

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/party"
)

// home is this process in its domain: the party that serves, or else one that only calls. When the node has hung up (it has restarted,
// or cut the process off), a new party joins at the same door, with growing pauses; the old one goes on with the calls that are open
// there, and then leaves.
var home membership

type membership struct {
	current atomic.Pointer[party.Endpoint]
	servers atomic.Int32 // they keep a party themselves

	mu      sync.Mutex
	backoff backoff
	nextTry time.Time
}

// backoff is the pauses between tries to join.
type backoff struct{ last time.Duration }

const (
	firstRejoin = 100 * time.Millisecond
	lastRejoin  = 5 * time.Second
)

// next is the pause after one more failure.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, firstRejoin), lastRejoin)
	return b.last
}

// reset forgets failures.
func (b *backoff) reset() { b.last = 0 }

// endpointForCalls is the party that makes calls; nil outside a domain.
func (h *membership) endpointForCalls(ctx context.Context) *party.Endpoint {
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
	p, err := party.Join(ctx, party.Config{Socket: socket, MaxBody: DefaultMaxBody, Spin: memory.SpinBudget})
	if err != nil {
		if ctx.Err() == nil { // else it may be the caller's haste
			h.nextTry = time.Now().Add(h.backoff.next())
		}
		return nil
	}
	h.backoff.reset()
	h.setEndpoint(p)
	return p
}

func (h *membership) currentEndpoint() *party.Endpoint {
	if p := h.current.Load(); p != nil && !hasLeft(p) {
		return p
	}
	return nil
}

// setEndpoint makes p the party for new calls.
func (h *membership) setEndpoint(p *party.Endpoint) {
	if before := h.current.Swap(p); before != nil && before != p {
		before.Retire()
	}
}

func hasLeft(p *party.Endpoint) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}
