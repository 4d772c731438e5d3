package party

import (
	"context"
	"runtime"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// wait is the goroutine that receives when nobody else does. The eventfd is never read: the runtime's poller is edge-triggered, and
// each write to an eventfd is an edge, also when its count is not zero.
func (p *Party) wait() {
	raw, err := p.event.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		p.receive.Lock()
		p.desk.Awake()
		p.desk.NoteCore()
		p.settle()
		p.receive.Unlock()
		return p.closing.Load()
	})
}

// look takes what is there; for who has changed what is to be looked at.
func (p *Party) look() {
	p.receive.Lock()
	p.settle()
	p.receive.Unlock()
}

// settle takes all there is and says that the party sleeps; with receive held.
func (p *Party) settle() {
	for {
		p.drain()
		p.desk.Announce()
		if !p.ready() {
			return
		}
		p.desk.Awake()
	}
}

// watch looks for the answer of one call for a while, when its callee runs on another processor. True when it came.
func (p *Party) watch(c *call, e *end) bool {
	if p.config.Spin == 0 || !p.receive.TryLock() {
		return false
	}
	defer p.receive.Unlock()
	return p.spinFor(&p.spin, e.desk.Core(), func() bool { return len(c.done) > 0 })
}

// next looks for another call for a while, when the last one came from another processor. Who gives an answer so takes the next call
// itself: nobody is woken and nothing changes goroutines.
func (p *Party) next(from *end) (in *Incoming) {
	if p.config.Spin == 0 || p.closing.Load() || !p.receive.TryLock() {
		return nil
	}
	defer p.receive.Unlock()
	p.catcher = &in
	p.spinFor(&p.serving, from.desk.Core(), func() bool { return in != nil })
	p.catcher = nil
	return in
}

// yieldEvery is after how many looks a spin lets others have the thread.
const yieldEvery = 64

// spinFor takes what comes until done or the budget is spent; with receive held.
func (p *Party) spinFor(spin *memory.Spin, peer uint32, done func() bool) bool {
	own := memory.OwnCore()
	budget := spin.Budget(own, peer)
	if budget == 0 {
		return false
	}
	p.desk.SetCore(own)
	p.desk.Awake()
	defer p.settle()
	for start, looks := time.Now(), 1; ; looks++ {
		p.drain()
		if done() {
			spin.Spun(true)
			return true
		}
		if looks%8 == 0 && time.Since(start) > budget {
			spin.Spun(false)
			return false
		}
		if looks%yieldEvery == 0 {
			runtime.Gosched()
		}
	}
}

func (p *Party) drain() {
	for _, e := range *p.ends.Load() {
		e.drain()
	}
}

// ready says whether drain has something to do: all that somebody would ring for.
func (p *Party) ready() bool {
	for _, e := range *p.ends.Load() {
		if !e.failed && (e.Ready() || e.fed() || e.feeds()) {
			return true
		}
	}
	return false
}

func (e *end) drain() {
	if e.failed {
		return
	}
	var m memory.Message
	for e.Ready() {
		ok, err := e.Receive(&m)
		if err != nil {
			e.fail()
			return
		}
		if ok {
			e.take(&m)
		}
	}
	if e.Feeds() {
		e.desk.Knock()
	}
	if e.fed() {
		e.starving.Store(false)
		e.wakeOne()
	}
	e.feed()
}

func (e *end) take(m *memory.Message) {
	switch {
	case m.Kind == memory.KindPart:
		e.takePart(m)
	case m.Kind == memory.KindCancel:
		e.takeCancel(m)
	case e.side == memory.Caller && m.Kind == memory.KindAnswer:
		e.takeAnswer(m)
	case e.side == memory.Callee && (m.Kind == memory.KindEvent || m.Kind == memory.KindCall && !e.EventsOnly):
		e.takeCall(m)
	default:
		m.Lease.Release()
		e.Close(memory.Broken) // an edge has one direction, and some are for events alone
	}
}

// fail ends all that is open on a channel that is closed and empty; with receive held.
func (e *end) fail() {
	if e.failed {
		return
	}
	e.failed = true
	e.mu.Lock()
	if e.State() == memory.Open || e.State() == memory.Withdrawn {
		e.Close(memory.Broken)
	}
	e.Recall()
	open, taken, bodies, told := e.open.all(), e.taken, e.bodies, e.told
	e.open, e.taken, e.bodies = table{}, nil, nil
	for _, w := range e.stalled {
		w.wake()
	}
	e.stalled = nil
	e.stalls.Store(0)
	for _, c := range open {
		e.counters.Closed(now()-c.started, true)
		e.inFlight.Add(-1)
	}
	e.mu.Unlock()
	for _, c := range open {
		c.end(ErrDied)
	}
	for _, in := range bodies {
		if in.Stream != nil {
			in.Stream.broke(context.Canceled)
		}
	}
	for _, in := range taken {
		in.Cancel()
	}
	e.desk.Knock()
	e.wakeOne()
	if told {
		e.party.forget(e)
		return
	}
	e.party.change.Lock()
	e.party.reroute()
	e.party.change.Unlock()
}

// letGo tells the node when nothing of the channel is held any more.
func (e *end) letGo() {
	e.mu.Lock()
	e.leaving = true
	done := e.finished()
	e.mu.Unlock()
	if done {
		e.drained()
	}
}

// finished says whether this was the last of a channel that goes; under mu.
func (e *end) finished() bool {
	if !e.leaving || e.told || e.open.length() > 0 || len(e.taken) > 0 {
		return false
	}
	e.told = true
	return true
}

func (e *end) drained() {
	_ = Send(e.party.conn, Out{Drained: &Drained{e.Peer.Channel}})
	if e.State() > memory.Withdrawn {
		e.party.forget(e)
	}
}
