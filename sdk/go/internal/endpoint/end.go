package endpoint

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// channelEnd is one end of a channel with its open calls.
type channelEnd struct {
	*memory.ChannelEnd
	Peer
	side       memory.ChannelSide
	endpoint   *Endpoint
	wakeupCell *memory.WakeupCell // the peer's wakeup cell

	mu            sync.Mutex // guards the sending half and the fields below
	open          table
	taken         map[uint64]*IncomingCall // calls that handlers process, for cancels
	counters      *memory.Counters
	leaving       bool
	drainReported bool

	inFlight     atomic.Int32  // length of open, for leastLoaded
	waiting      atomic.Int32  // goroutines that wait for a credit
	awaitsCredit atomic.Bool   // the ring was full: the peer sends a wakeup after it has consumed
	room         chan struct{} // wakes one of them

	flows   int           // bodies that are sent in parts; under mu
	stalled []*BodyWriter // writers that wait for the receiver; under mu
	stalls  atomic.Int32  // length of stalled

	bodies map[uint64]*IncomingCall // calls and events with incomplete bodies; under mu
	failed bool                     // under receive
}

// open maps the memory of a peer message.
func (p *Endpoint) open(peer Peer, fds []int) (*channelEnd, error) {
	event := -1
	if len(fds) == 3 {
		event = fds[2]
	}
	var side memory.ChannelSide
	switch {
	case len(fds) < 2 || len(fds) > 3:
		closeAll(fds)
		return nil, fmt.Errorf("dispatch: the peer message has %d descriptors instead of 2 or 3", len(fds))
	case peer.Side == "callee":
		side = memory.Callee
	case peer.Side != "caller":
		closeAll(fds)
		return nil, fmt.Errorf("dispatch: unexpected side %q of a peer: expected caller or callee", peer.Side)
	}
	channel, err := memory.OpenChannel(fds[0], peer.Capacity)
	var wakeupCell *memory.WakeupCell
	if err == nil {
		wakeupCell, err = memory.OpenWakeupCell(fds[1], event)
	}
	closeAll(fds[:2])
	if err != nil {
		closeAll(fds[2:])
		return nil, err
	}
	wakeupCell.UseOwnEvent()
	inner := channel.End(side, p.member, peer.Endpoint)
	return &channelEnd{
		ChannelEnd: inner, Peer: peer, side: side, endpoint: p, wakeupCell: wakeupCell, counters: inner.Counters(),
		taken: map[uint64]*IncomingCall{}, bodies: map[uint64]*IncomingCall{}, room: make(chan struct{}, 1),
	}, nil
}

// deadState returns the state of a channel whose other side has died.
func (e *channelEnd) deadState() memory.ChannelState {
	if e.side == memory.Caller {
		return memory.CalleeDead
	}
	return memory.CallerDead
}

// hasFreedCredit reports whether a ring that was full has a credit again; else it requests a wakeup, as canResumeWriter does.
func (e *channelEnd) hasFreedCredit() bool {
	if !e.awaitsCredit.Load() {
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

// table holds the open calls of one end. The lower 16 bits of a call's number are its index, the others make it unique.
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

// started and startedMono are the start of this process by both clocks; contract deadlines use CLOCK_MONOTONIC.
var (
	started     = time.Now()
	startedMono = monotonic()
)

// now returns the time by CLOCK_MONOTONIC.
func now() time.Duration { return startedMono + time.Since(started) }

// At converts a time to nanoseconds of CLOCK_MONOTONIC; it never returns 0, which means no deadline.
func At(t time.Time) uint64 { return uint64(max(startedMono+t.Sub(started), 1)) }

// TimeOf is the inverse of At.
func TimeOf(deadline uint64) time.Time {
	return started.Add(time.Duration(min(deadline, 1<<62)) - startedMono)
}
