package party

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// channelEnd is one channelEnd of a channel with what is open on it.
type channelEnd struct {
	*memory.ChannelEnd
	Peer
	side  memory.ChannelSide
	party *Endpoint
	desk  *memory.WakeupCell // the peer's

	mu       sync.Mutex // of the sending half and all below
	open     table
	taken    map[uint64]*IncomingCall // calls that are being handled, for cancels
	counters *memory.Counters
	leaving  bool
	told     bool

	inFlight atomic.Int32  // of open, for who chooses among instances
	waiting  atomic.Int32  // goroutines that wait for room
	starving atomic.Bool   // the ring was full: the peer rings when it has room
	room     chan struct{} // wakes one of them

	flows   int          // bodies that go out in parts; under mu
	stalled []*BodyWriter    // those that wait for the receiver; under mu
	stalls  atomic.Int32 // their number

	bodies map[uint64]*IncomingCall // calls and events whose bodies still arrive; under mu
	failed bool                 // with receive held
}

// open maps what came with a peer message.
func (p *Endpoint) open(peer Peer, fds []int) (*channelEnd, error) {
	event := -1
	if len(fds) == 3 {
		event = fds[2]
	}
	var side memory.ChannelSide
	switch {
	case len(fds) < 2 || len(fds) > 3:
		closeAll(fds)
		return nil, fmt.Errorf("dispatch: %d descriptors came with a peer", len(fds))
	case peer.Side == "callee":
		side = memory.Callee
	case peer.Side != "caller":
		closeAll(fds)
		return nil, fmt.Errorf("dispatch: a peer's side is %q", peer.Side)
	}
	channel, err := memory.OpenChannel(fds[0], peer.Capacity)
	var desk *memory.WakeupCell
	if err == nil {
		desk, err = memory.OpenWakeupCell(fds[1], event)
	}
	closeAll(fds[:2])
	if err != nil {
		closeAll(fds[2:])
		return nil, err
	}
	desk.UseOwnEvent()
	inner := channel.End(side, p.member, peer.Endpoint)
	return &channelEnd{
		ChannelEnd: inner, Peer: peer, side: side, party: p, desk: desk, counters: inner.Counters(),
		taken: map[uint64]*IncomingCall{}, bodies: map[uint64]*IncomingCall{}, room: make(chan struct{}, 1),
	}, nil
}

// deadState is the state of a channel whose other side has died.
func (e *channelEnd) deadState() memory.ChannelState {
	if e.side == memory.Caller {
		return memory.CalleeDead
	}
	return memory.CallerDead
}

// fed says whether a ring that was full has room again; else it asks to be rung, as feeds does.
func (e *channelEnd) fed() bool {
	if !e.starving.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Credits() > 0 || e.RequestWakeup() && e.Credits() > 0
}

func (e *channelEnd) wakeOne() {
	select {
	case e.room <- struct{}{}:
	default:
	}
}

// table is the open calls of one end. The lower 16 bits of a call's number are its place, the rest makes it unique.
type table struct {
	calls []*pendingCall
	free  []uint16
	next  uint64
}

func (t *table) length() int { return len(t.calls) - len(t.free) }

func (t *table) add(c *pendingCall) uint64 {
	place := uint16(len(t.calls))
	if n := len(t.free); n > 0 {
		place, t.free = t.free[n-1], t.free[:n-1]
		t.calls[place] = c
	} else {
		t.calls = append(t.calls, c)
	}
	t.next++
	c.id = t.next<<16 | uint64(place)
	return c.id
}

func (t *table) get(id uint64) *pendingCall {
	if place := int(id & 0xffff); place < len(t.calls) && t.calls[place] != nil && t.calls[place].id == id {
		return t.calls[place]
	}
	return nil
}

func (t *table) remove(c *pendingCall) {
	place := uint16(c.id)
	t.calls[place], t.free = nil, append(t.free, place)
}

func (t *table) all() (all []*pendingCall) {
	for _, c := range t.calls {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// started is when this process began, by the clock of the contract's deadlines.
var (
	started     = time.Now()
	startedMono = monotonic()
)

// now is CLOCK_MONOTONIC.
func now() time.Duration { return startedMono + time.Since(started) }

// At is a time by that clock; 0 means none.
func At(t time.Time) uint64 { return uint64(max(startedMono+t.Sub(started), 1)) }

// TimeOf is the inverse of At.
func TimeOf(deadline uint64) time.Time {
	return started.Add(time.Duration(min(deadline, 1<<62)) - startedMono)
}
