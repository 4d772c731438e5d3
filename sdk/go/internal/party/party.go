// Package party is one party of a security domain: it joins by contract/dispatch.md, learns its peers, makes calls and takes them.
//
// One goroutine a party waits for the desk's eventfd, through the runtime's poller, and hands out what arrives: answers to the
// goroutines that wait for them, calls to workers. A caller whose peer runs on another processor looks at the rings itself
// for some microseconds first, since a wake-up across processors costs more. Senders write their slot without a lock and take the
// lock of one end to push.
package party

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

// Why a call has no answer. All but ErrDied and ErrCut mean that nothing was sent: the caller may go another way.
var (
	ErrNoPeer = errors.New("no instance of the function can be called through shared memory")
	ErrClosed = errors.New("the channel to the function was closed before the call was sent")
	ErrDied   = errors.New("the function's instance died before it had answered; the call may have run")
	ErrCut    = errors.New("the function's instance broke off its answer")
	ErrTooBig = errors.New("the answer is larger than the limit")
)

const joinTimeout = 10 * time.Second

// Config is how a party joins.
type Config struct {
	// Socket is the path of the dispatch socket.
	Socket string
	// Handle takes calls; nil: the party only makes them. It is called on a goroutine of its own.
	Handle func(*IncomingCall)
	// Streams hands calls over when their first message has come: what follows is in Incoming.Stream.
	Streams bool
	// MaxBody is the most bytes of a body that arrives in parts and is put together.
	MaxBody uint64
	// Spin is the longest time that a caller looks for its answer, or a worker for its next call, before it sleeps; 0: never.
	Spin time.Duration
}

// Endpoint is a member of a domain.
type Endpoint struct {
	Welcome
	config    Config
	namespace string
	conn      *net.UnixConn
	member    *memory.LeaseHolder
	desk      *memory.WakeupCell
	event     *os.File

	// ends is every end, for who receives; routes those that can be called, by name; subscribers those that want events, by function.
	// All are replaced, never changed.
	ends        atomic.Pointer[[]*channelEnd]
	routes      atomic.Pointer[map[string][]*channelEnd]
	subscribers atomic.Pointer[map[string][]*channelEnd]
	change      sync.Mutex // of the three, and of byNum
	byNum       map[uint64]*channelEnd
	hungUp      bool
	joined      time.Time

	// receive is held by who takes messages from the rings. Who lets go of it has said that the party sleeps and looked again.
	receive sync.Mutex
	spin    memory.Spin
	catcher **IncomingCall // a worker that looks for its next call takes it here
	serving memory.Spin

	workers chan *IncomingCall
	idle    atomic.Int32
	closing atomic.Bool
	ended   chan struct{}
	left    chan struct{}
}

// Join becomes a party. It returns once the node has said welcome; peers come later.
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
			return fmt.Errorf("dispatch: the node refused: %s", in.JoinRefused.Reason)
		case in.Welcome != nil:
			return p.applyWelcome(*in.Welcome, fds)
		}
		closeAll(fds)
	}
}

func (p *Endpoint) applyWelcome(welcome Welcome, fds []int) error {
	if welcome.Delivery != "" && welcome.Delivery != "ring" && welcome.Delivery != "poll" {
		closeAll(fds)
		return fmt.Errorf("dispatch: the domain delivers by %q, which this party did not say it can do", welcome.Delivery)
	}
	if len(fds) != 3 {
		closeAll(fds)
		return fmt.Errorf("dispatch: %d descriptors came with the welcome instead of 3", len(fds))
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
	p.desk, err = memory.OpenWakeupCell(fds[1], fds[2])
	return err
}

// Ready says that the party takes calls from now on.
func (p *Endpoint) Ready() error { return Send(p.conn, NodeRequest{Ready: &struct{}{}}) }

// Done is closed when the node has let go of the party: no new calls are made or come.
func (p *Endpoint) Done() <-chan struct{} { return p.left }

// HeldSlots is the bytes of slots that the party holds.
func (p *Endpoint) HeldSlots() int64 { return p.member.HeldSlots() }

// Close ends the party. Open calls fail.
func (p *Endpoint) Close() {
	if p.closing.Swap(true) {
		return
	}
	close(p.ended)
	_ = p.conn.Close()
	for _, e := range *p.ends.Load() {
		e.Close(memory.Broken) // the peer learns of it with the next look
		e.desk.Wake()
	}
	_ = p.event.Close()
	p.receive.Lock()
	defer p.receive.Unlock()
	for _, e := range *p.ends.Load() {
		e.breakChannel()
	}
}

// readControl reads what the node says.
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
	p.pollOnce() // somebody may have sent before this end was known
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
	e.letGo()
}

// rebuildRoutes makes the tables of who can be called and who wants events; under change.
func (p *Endpoint) rebuildRoutes() {
	routes, subscribers := map[string][]*channelEnd{}, map[string][]*channelEnd{}
	for _, e := range *p.ends.Load() {
		if e.side != memory.Caller || e.State() != memory.Open || p.hungUp {
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

// namesOfPeer is what an end is called by: name.namespace, and name alone within this party's namespace.
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

// stopCalling forgets who can be called.
func (p *Endpoint) stopCalling() {
	p.change.Lock()
	defer p.change.Unlock()
	p.hungUp = true
	p.rebuildRoutes()
}

// removeChannel removes an end of which nothing is left.
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

// HasRoute says whether the function can be called through shared memory now.
func (p *Endpoint) HasRoute(function string) bool { return len((*p.routes.Load())[function]) > 0 }

const (
	// youth is how long after the welcome a callee may not have been told of yet.
	youth      = 50 * time.Millisecond
	youngPause = time.Millisecond
)

// AwaitRoute is Reaches that waits for the node to tell, while the party is young.
func (p *Endpoint) AwaitRoute(ctx context.Context, function string) bool {
	for !p.HasRoute(function) {
		if time.Since(p.joined) > youth || ctx.Err() != nil {
			return false
		}
		time.Sleep(youngPause) // nobody says that the last peer was told
	}
	return true
}

// Retire leaves when all that is open has come to its end. No new calls should be made.
func (p *Endpoint) Retire() {
	go func() {
		for pause := firstRetire; !p.isIdle(); pause = min(2*pause, lastRetire) {
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
	firstRetire = time.Millisecond
	lastRetire  = time.Second
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
