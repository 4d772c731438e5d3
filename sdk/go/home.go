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
var home house

type house struct {
	current atomic.Pointer[party.Party]
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

// joined forgets failures.
func (b *backoff) joined() { b.last = 0 }

// forCalls is the party that makes calls; nil outside a domain.
func (h *house) forCalls(ctx context.Context) *party.Party {
	if p := h.here(); p != nil {
		return p
	}
	socket := dispatchSocket()
	if socket == "" || h.servers.Load() > 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.here(); p != nil {
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
	h.backoff.joined()
	h.settle(p)
	return p
}

func (h *house) here() *party.Party {
	if p := h.current.Load(); p != nil && !left(p) {
		return p
	}
	return nil
}

// settle makes p the party for new calls.
func (h *house) settle(p *party.Party) {
	if before := h.current.Swap(p); before != nil && before != p {
		before.Retire()
	}
}

func left(p *party.Party) bool {
	select {
	case <-p.Left():
		return true
	default:
		return false
	}
}
