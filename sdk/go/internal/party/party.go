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
	Handle func(*Incoming)
	// Streams hands calls over when their first message has come: what follows is in Incoming.Stream.
	Streams bool
	// MaxBody is the most bytes of a body that arrives in parts and is put together.
	MaxBody uint64
	// Spin is the longest time that a caller looks for its answer, or a worker for its next call, before it sleeps; 0: never.
	Spin time.Duration
}

// Party is a member of a domain.
type Party struct {
	Welcome
	config    Config
	namespace string
	conn      *net.UnixConn
	member    *memory.Member
	desk      *memory.Desk
	event     *os.File

	// ends is every end, for who receives; routes those that can be called, by name; subscribers those that want events, by function.
	// All are replaced, never changed.
	ends        atomic.Pointer[[]*end]
	routes      atomic.Pointer[map[string][]*end]
	subscribers atomic.Pointer[map[string][]*end]
	change      sync.Mutex // of the three, and of byNum
	byNum       map[uint64]*end
	hungUp      bool
	joined      time.Time

	// receive is held by who takes messages from the rings. Who lets go of it has said that the party sleeps and looked again.
	receive sync.Mutex
	spin    memory.Spin
	catcher **Incoming // a worker that looks for its next call takes it here
	serving memory.Spin

	workers chan *Incoming
	idle    atomic.Int32
	closing atomic.Bool
	ended   chan struct{}
	left    chan struct{}
}

// Join becomes a party. It returns once the node has said welcome; peers come later.
func Join(ctx context.Context, config Config) (*Party, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", config.Socket)
	if err != nil {
		return nil, err
	}
	p := &Party{config: config, conn: conn.(*net.UnixConn), byNum: map[uint64]*end{}, workers: make(chan *Incoming), ended: make(chan struct{}), left: make(chan struct{})}
	p.ends.Store(new([]*end))
	p.routes.Store(&map[string][]*end{})
	p.subscribers.Store(&map[string][]*end{})
	p.spin, p.serving = memory.NewSpin(config.Spin), memory.NewSpin(config.Spin)
	if deadline, ok := ctx.Deadline(); ok {
		_ = p.conn.SetDeadline(deadline)
	}
	if err := p.greet(); err != nil {
		_ = p.conn.Close()
		return nil, err
	}
	_ = p.conn.SetDeadline(time.Time{})
	p.joined = time.Now()
	go p.listen()
	go p.wait()
	return p, nil
}

func (p *Party) greet() error {
	if err := Send(p.conn, Out{Hello: &Hello{Version, p.config.Handle != nil, "eventfd", Delivery}}); err != nil {
		return err
	}
	for {
		var in In
		fds, err := Receive(p.conn, &in)
		switch {
		case err != nil:
			return err
		case in.Refused != nil:
			closeAll(fds)
			return fmt.Errorf("dispatch: the node refused: %s", in.Refused.Why)
		case in.Welcome != nil:
			return p.settleIn(*in.Welcome, fds)
		}
		closeAll(fds)
	}
}

func (p *Party) settleIn(welcome Welcome, fds []int) error {
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
	p.member = memory.NewMember(pool, welcome.Party, welcome.Bound)
	p.desk, err = memory.OpenDesk(fds[1], fds[2])
	return err
}

// Ready says that the party takes calls from now on.
func (p *Party) Ready() error { return Send(p.conn, Out{Ready: &struct{}{}}) }

// Left is closed when the node has let go of the party: no new calls are made or come.
func (p *Party) Left() <-chan struct{} { return p.left }

// Held is the bytes of slots that the party holds.
func (p *Party) Held() int64 { return p.member.Held() }

// Leave ends the party. Open calls fail.
func (p *Party) Leave() {
	if p.closing.Swap(true) {
		return
	}
	close(p.ended)
	_ = p.conn.Close()
	for _, e := range *p.ends.Load() {
		e.Close(memory.Broken) // the peer learns of it with the next look
		e.desk.Knock()
	}
	_ = p.event.Close()
	p.receive.Lock()
	defer p.receive.Unlock()
	for _, e := range *p.ends.Load() {
		e.fail()
	}
}

// listen reads what the node says.
func (p *Party) listen() {
	defer close(p.left)
	defer p.stopCalling()
	for {
		var in In
		fds, err := Receive(p.conn, &in)
		if err != nil {
			return
		}
		switch {
		case in.Peer != nil:
			p.add(*in.Peer, fds)
		case in.Gone != nil:
			p.gone(*in.Gone)
			closeAll(fds)
		default:
			closeAll(fds)
		}
	}
}

func (p *Party) add(peer Peer, fds []int) {
	e, err := p.open(peer, fds)
	if err != nil {
		return // an edge that cannot be mapped is not used
	}
	p.change.Lock()
	p.byNum[peer.Channel] = e
	ends := append(append([]*end(nil), *p.ends.Load()...), e)
	p.ends.Store(&ends)
	p.reroute()
	p.change.Unlock()
	p.look() // somebody may have sent before this end was known
}

func (p *Party) gone(gone Gone) {
	p.change.Lock()
	e := p.byNum[gone.Channel]
	p.reroute()
	p.change.Unlock()
	if e == nil { // it could not be mapped
		_ = Send(p.conn, Out{Drained: &Drained{gone.Channel}})
		return
	}
	if gone.State == "dead" {
		e.Close(e.deadState())
	} else {
		e.Close(memory.Withdrawn)
	}
	p.change.Lock()
	p.reroute()
	p.change.Unlock()
	p.look()
	e.letGo()
}

// reroute makes the tables of who can be called and who wants events; under change.
func (p *Party) reroute() {
	routes, subscribers := map[string][]*end{}, map[string][]*end{}
	for _, e := range *p.ends.Load() {
		if e.side != memory.Caller || e.State() != memory.Open || p.hungUp {
			continue
		}
		if len(e.Topics) > 0 {
			subscribers[e.Function] = append(subscribers[e.Function], e)
		}
		for _, name := range p.namesOf(e) {
			routes[name] = append(routes[name], e)
		}
	}
	p.routes.Store(&routes)
	p.subscribers.Store(&subscribers)
}

// namesOf is what an end is called by: name.namespace, and name alone within this party's namespace.
func (p *Party) namesOf(e *end) (names []string) {
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
func (p *Party) stopCalling() {
	p.change.Lock()
	defer p.change.Unlock()
	p.hungUp = true
	p.reroute()
}

// forget removes an end of which nothing is left.
func (p *Party) forget(e *end) {
	p.change.Lock()
	defer p.change.Unlock()
	delete(p.byNum, e.Peer.Channel)
	var ends []*end
	for _, other := range *p.ends.Load() {
		if other != e {
			ends = append(ends, other)
		}
	}
	p.ends.Store(&ends)
	p.reroute()
}

// Reaches says whether the function can be called through shared memory now.
func (p *Party) Reaches(function string) bool { return len((*p.routes.Load())[function]) > 0 }

const (
	// youth is how long after the welcome a callee may not have been told of yet.
	youth      = 50 * time.Millisecond
	youngPause = time.Millisecond
)

// Learns is Reaches that waits for the node to tell, while the party is young.
func (p *Party) Learns(ctx context.Context, function string) bool {
	for !p.Reaches(function) {
		if time.Since(p.joined) > youth || ctx.Err() != nil {
			return false
		}
		time.Sleep(youngPause) // nobody says that the last peer was told
	}
	return true
}

// Retire leaves when all that is open has come to its end. No new calls should be made.
func (p *Party) Retire() {
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
		p.Leave()
	}()
}

const (
	firstRetire = time.Millisecond
	lastRetire  = time.Second
)

func (p *Party) isIdle() bool {
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
