// Package endpoint is one endpoint of a security domain: it joins by contract/dispatch.md, receives its peers, makes and takes calls.
//
// One goroutine per endpoint waits for the wakeup cell's eventfd through the runtime's poller. It passes answers to the waiting
// goroutines and calls to workers. A caller whose peer runs on another processor first polls the rings itself for some
// microseconds: a wake-up across processors costs more. Senders write their slot without a lock and take the lock of one end
// to push.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// Errors of a call without an answer. All but ErrDied, ErrTruncated and ErrTooLarge mean that nothing was sent: the caller may use another path.
var (
	ErrNoPeer    = errors.New("no instance of the function can be called through shared memory")
	ErrClosed    = errors.New("the channel to the function was closed before the call was sent")
	ErrDied      = errors.New("the function's instance died before it answered; the call may have run")
	ErrTruncated = errors.New("the function's instance aborted its answer")
	ErrTooLarge  = errors.New("the answer is larger than the limit")
)

const joinTimeout = 10 * time.Second

// Config holds the settings with which an endpoint joins.
type Config struct {
	// Socket is the path of the dispatch socket.
	Socket string
	// Handle takes calls, each on its own goroutine; nil: the endpoint only makes calls.
	Handle func(*IncomingCall)
	// Streams passes calls to Handle when their first message has arrived: the rest is in IncomingCall.Stream.
	Streams bool
	// MaxBody is the maximum, in bytes, of a body that arrives in parts and is assembled.
	MaxBody uint64
	// Spin is the maximum time of polling before a sleep, of a caller for its answer and a worker for its next call; 0: no polling.
	Spin time.Duration
}

// Endpoint is the membership of this process in a domain.
type Endpoint struct {
	Welcome
	config     Config
	namespace  string
	conn       *net.UnixConn
	member     *memory.LeaseHolder
	wakeupCell *memory.WakeupCell
	event      *os.File

	// ends holds every end, for the receiver; routes the callable ones, by name; subscribers those with topics, by function.
	// All are replaced, never changed.
	ends         atomic.Pointer[[]*channelEnd]
	routes       atomic.Pointer[map[string][]*channelEnd]
	subscribers  atomic.Pointer[map[string][]*channelEnd]
	change       sync.Mutex // guards the writes of these three, and byNum
	byNum        map[uint64]*channelEnd
	disconnected bool
	joined       time.Time

	// receive is held by the goroutine that takes messages from the rings. Before the unlock it marks the endpoint asleep and polls again.
	receive      sync.Mutex
	spin         memory.Spin
	nextIncoming **IncomingCall // where a polling worker receives its next call; under receive
	serving      memory.Spin

	workers chan *IncomingCall
	idle    atomic.Int32
	closing atomic.Bool
	ended   chan struct{}
	left    chan struct{}
}

// Join makes this process an endpoint of the domain. It returns after the node's welcome; peers arrive later.
func Join(ctx context.Context, config Config) (*Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", config.Socket)
	if err != nil {
		return nil, err
	}
	p := &Endpoint{config: config, conn: conn.(*net.UnixConn), byNum: map[uint64]*channelEnd{}, workers: make(chan *IncomingCall), ended: make(chan struct{}), left: make(chan struct{})}
	p.ends.Store(new([]*channelEnd))
	p.routes.Store(&map[string][]*channelEnd{})
	p.subscribers.Store(&map[string][]*channelEnd{})
	p.spin, p.serving = memory.NewSpin(config.Spin), memory.NewSpin(config.Spin)
	if deadline, ok := ctx.Deadline(); ok {
		_ = p.conn.SetDeadline(deadline)
	}
	if err := p.sendHello(); err != nil {
		_ = p.conn.Close()
		return nil, err
	}
	_ = p.conn.SetDeadline(time.Time{})
	p.joined = time.Now()
	go p.readControl()
	go p.wait()
	return p, nil
}

func (p *Endpoint) sendHello() error {
	if err := Send(p.conn, NodeRequest{Hello: &Hello{Version, p.config.Handle != nil, "eventfd", Delivery}}); err != nil {
		return err
	}
	for {
		var in NodeMessage
		fds, err := Receive(p.conn, &in)
		switch {
		case err != nil:
			return err
		case in.JoinRefused != nil:
			closeAll(fds)
			return fmt.Errorf("dispatch: the node refused the endpoint: %s", in.JoinRefused.Reason)
		case in.Welcome != nil:
			return p.applyWelcome(*in.Welcome, fds)
		}
		closeAll(fds)
	}
}

func (p *Endpoint) applyWelcome(welcome Welcome, fds []int) error {
	if welcome.Delivery != "" && welcome.Delivery != "ring" && welcome.Delivery != "poll" {
		closeAll(fds)
		return fmt.Errorf("dispatch: unexpected delivery %q: expected ring or poll", welcome.Delivery)
	}
	if len(fds) != 3 {
		closeAll(fds)
		return fmt.Errorf("dispatch: the welcome has %d descriptors instead of 3", len(fds))
	}
	p.Welcome = welcome
	if _, after, ok := strings.Cut(welcome.Function, "."); ok {
		p.namespace = "." + after
	}
	defer closeAll(fds[:2])
	err := syscall.SetNonblock(fds[2], true)
	p.event = os.NewFile(uintptr(fds[2]), "eventfd")
	if err != nil {
		return err
	}
	pool, err := memory.OpenPool(fds[0], welcome.Pool)
	if err != nil {
		return err
	}
	p.member = memory.NewLeaseHolder(pool, welcome.Endpoint, welcome.MaxHeldBytes)
	p.wakeupCell, err = memory.OpenWakeupCell(fds[1], fds[2])
	return err
}

// Ready reports to the node that the endpoint takes calls from now on.
func (p *Endpoint) Ready() error { return Send(p.conn, NodeRequest{Ready: &struct{}{}}) }

// Done is closed when the node has disconnected the endpoint: no new calls are made or arrive.
func (p *Endpoint) Done() <-chan struct{} { return p.left }

// HeldSlots is the number of bytes of the slots that the endpoint holds.
func (p *Endpoint) HeldSlots() int64 { return p.member.HeldSlots() }

// Close ends the endpoint. Open calls fail.
func (p *Endpoint) Close() {
	if p.closing.Swap(true) {
		return
	}
	close(p.ended)
	_ = p.conn.Close()
	for _, e := range *p.ends.Load() {
		e.Close(memory.Broken) // the peer reads the state when it polls next
		e.wakeupCell.Wake()
	}
	_ = p.event.Close()
	p.receive.Lock()
	defer p.receive.Unlock()
	for _, e := range *p.ends.Load() {
		e.breakChannel()
	}
}

// readControl reads the node's messages.
func (p *Endpoint) readControl() {
	defer close(p.left)
	defer p.stopCalling()
	for {
		var in NodeMessage
		fds, err := Receive(p.conn, &in)
		if err != nil {
			return
		}
		switch {
		case in.Peer != nil:
			p.addPeer(*in.Peer, fds)
		case in.PeerGone != nil:
			p.removePeer(*in.PeerGone)
			closeAll(fds)
		default:
			closeAll(fds)
		}
	}
}

func (p *Endpoint) addPeer(peer Peer, fds []int) {
	e, err := p.open(peer, fds)
	if err != nil {
		return // an edge that cannot be mapped is not used
	}
	p.change.Lock()
	p.byNum[peer.Channel] = e
	ends := append(append([]*channelEnd(nil), *p.ends.Load()...), e)
	p.ends.Store(&ends)
	p.rebuildRoutes()
	p.change.Unlock()
	p.pollOnce() // the peer may have sent before this end was added
}

func (p *Endpoint) removePeer(gone Gone) {
	p.change.Lock()
	e := p.byNum[gone.Channel]
	p.rebuildRoutes()
	p.change.Unlock()
	if e == nil { // it could not be mapped
		_ = Send(p.conn, NodeRequest{ChannelDrained: &Drained{gone.Channel}})
		return
	}
	if gone.State == "dead" {
		e.Close(e.deadState())
	} else {
		e.Close(memory.Withdrawn)
	}
	p.change.Lock()
	p.rebuildRoutes()
	p.change.Unlock()
	p.pollOnce()
	e.markLeaving()
}

// rebuildRoutes rebuilds the tables of callable ends and of subscribers; under change.
func (p *Endpoint) rebuildRoutes() {
	routes, subscribers := map[string][]*channelEnd{}, map[string][]*channelEnd{}
	for _, e := range *p.ends.Load() {
		if e.side != memory.Caller || e.State() != memory.Open || p.disconnected {
			continue
		}
		if len(e.Topics) > 0 {
			subscribers[e.Function] = append(subscribers[e.Function], e)
		}
		for _, name := range p.namesOfPeer(e) {
			routes[name] = append(routes[name], e)
		}
	}
	p.routes.Store(&routes)
	p.subscribers.Store(&subscribers)
}

// namesOfPeer returns the names of an end: name.namespace, and the plain name within this endpoint's namespace.
func (p *Endpoint) namesOfPeer(e *channelEnd) (names []string) {
	if e.EventsOnly {
		return nil
	}
	for _, name := range append([]string{e.Function}, e.Aliases...) {
		names = append(names, name)
		if short, ok := strings.CutSuffix(name, p.namespace); ok && p.namespace != "" {
			names = append(names, short)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stopCalling removes all routes and subscribers.
func (p *Endpoint) stopCalling() {
	p.change.Lock()
	defer p.change.Unlock()
	p.disconnected = true
	p.rebuildRoutes()
}

// removeChannel removes an end without open calls.
func (p *Endpoint) removeChannel(e *channelEnd) {
	p.change.Lock()
	defer p.change.Unlock()
	delete(p.byNum, e.Peer.Channel)
	var ends []*channelEnd
	for _, other := range *p.ends.Load() {
		if other != e {
			ends = append(ends, other)
		}
	}
	p.ends.Store(&ends)
	p.rebuildRoutes()
}

// HasRoute reports whether the function can be called through shared memory now.
func (p *Endpoint) HasRoute(function string) bool { return len((*p.routes.Load())[function]) > 0 }

const (
	// announceGrace is the time after the welcome in which the node may not have announced every callee yet.
	announceGrace        = 50 * time.Millisecond
	announcePollInterval = time.Millisecond
)

// AwaitRoute is HasRoute, but waits for the node's announcement in the first announceGrace of the endpoint.
func (p *Endpoint) AwaitRoute(ctx context.Context, function string) bool {
	for !p.HasRoute(function) {
		if time.Since(p.joined) > announceGrace || ctx.Err() != nil {
			return false
		}
		time.Sleep(announcePollInterval) // the node does not report that it has announced the last peer
	}
	return true
}

// Retire closes the endpoint when all open calls have ended. The caller makes no new calls.
func (p *Endpoint) Retire() {
	go func() {
		for pause := minRetireDelay; !p.isIdle(); pause = min(2*pause, maxRetireDelay) {
			select {
			case <-p.ended:
			case <-time.After(pause):
			}
			if p.closing.Load() {
				return
			}
		}
		p.Close()
	}()
}

const (
	minRetireDelay = time.Millisecond
	maxRetireDelay = time.Second
)

func (p *Endpoint) isIdle() bool {
	for _, e := range *p.ends.Load() {
		e.mu.Lock()
		open := e.open.length() + len(e.taken)
		e.mu.Unlock()
		if open > 0 {
			return false
		}
	}
	return true
}
