package party

import (
	"context"
	"runtime"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// wait is the goroutine that receives when nobody else does. The eventfd is never read: the runtime's poller is edge-triggered, and
// each write to an eventfd is an edge, also when its count is not zero.
func (p *Endpoint) wait() {
	raw, err := p.event.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		p.receive.Lock()
		p.desk.MarkAwake()
		p.desk.NoteCore()
		p.settle()
		p.receive.Unlock()
		return p.closing.Load()
	})
}

// pollOnce takes what is there; for who has changed what is to be looked at.
func (p *Endpoint) pollOnce() {
	p.receive.Lock()
	p.settle()
	p.receive.Unlock()
}

// settle takes all there is and says that the party sleeps; with receive held.
func (p *Endpoint) settle() {
	for {
		p.drain()
		p.desk.MarkAsleep()
		if !p.ready() {
			return
		}
		p.desk.MarkAwake()
	}
}

// watch looks for the answer of one call for a while, when its callee runs on another processor. True when it came.
func (p *Endpoint) watch(c *pendingCall, e *channelEnd) bool {
	if p.config.Spin == 0 || !p.receive.TryLock() {
		return false
	}
	defer p.receive.Unlock()
	return p.spinFor(&p.spin, e.desk.Core(), func() bool { return len(c.done) > 0 })
}

// nextCall looks for another call for a while, when the last one came from another processor. Who gives an answer so takes the nextCall call
// itself: nobody is woken and nothing changes goroutines.
func (p *Endpoint) nextCall(from *channelEnd) (in *IncomingCall) {
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
func (p *Endpoint) spinFor(spin *memory.Spin, peer uint32, done func() bool) bool {
	own := memory.OwnCore()
	budget := spin.Budget(own, peer)
	if budget == 0 {
		return false
	}
	p.desk.SetCore(own)
	p.desk.MarkAwake()
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

func (p *Endpoint) drain() {
	for _, e := range *p.ends.Load() {
		e.drain()
	}
}

// ready says whether drain has something to do: all that somebody would ring for.
func (p *Endpoint) ready() bool {
	for _, e := range *p.ends.Load() {
		if !e.failed && (e.Ready() || e.fed() || e.canFeed()) {
			return true
		}
	}
	return false
}

func (e *channelEnd) drain() {
	if e.failed {
		return
	}
	var m memory.Message
	for e.Ready() {
		ok, err := e.Receive(&m)
		if err != nil {
			e.breakChannel()
			return
		}
		if ok {
			e.take(&m)
		}
	}
	if e.IsProducerWaiting() {
		e.desk.Wake()
	}
	if e.fed() {
		e.starving.Store(false)
		e.wakeOne()
	}
	e.wakeStalled()
}

func (e *channelEnd) take(m *memory.Message) {
	switch {
	case m.Kind == memory.KindPart:
		e.takePart(m)
	case m.Kind == memory.KindCancel:
		e.takeCancel(m)
	case e.side == memory.Caller && m.Kind == memory.KindAnswer:
		e.takeResponse(m)
	case e.side == memory.Callee && (m.Kind == memory.KindEvent || m.Kind == memory.KindCall && !e.EventsOnly):
		e.takeCall(m)
	default:
		m.Lease.Release()
		e.Close(memory.Broken) // an edge has one direction, and some are for events alone
	}
}

// breakChannel ends all that is open on a channel that is closed and empty; with receive held.
func (e *channelEnd) breakChannel() {
	if e.failed {
		return
	}
	e.failed = true
	e.mu.Lock()
	if e.State() == memory.Open || e.State() == memory.Withdrawn {
		e.Close(memory.Broken)
	}
	e.ReclaimUnconsumed()
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
			in.Stream.fail(context.Canceled)
		}
	}
	for _, in := range taken {
		in.Cancel()
	}
	e.desk.Wake()
	e.wakeOne()
	if told {
		e.party.removeChannel(e)
		return
	}
	e.party.change.Lock()
	e.party.rebuildRoutes()
	e.party.change.Unlock()
}

// letGo tells the node when nothing of the channel is held any more.
func (e *channelEnd) letGo() {
	e.mu.Lock()
	e.leaving = true
	done := e.isFinished()
	e.mu.Unlock()
	if done {
		e.reportDrained()
	}
}

// isFinished says whether this was the last of a channel that goes; under mu.
func (e *channelEnd) isFinished() bool {
	if !e.leaving || e.told || e.open.length() > 0 || len(e.taken) > 0 {
		return false
	}
	e.told = true
	return true
}

func (e *channelEnd) reportDrained() {
	_ = Send(e.party.conn, NodeRequest{ChannelDrained: &Drained{e.Peer.Channel}})
	if e.State() > memory.Withdrawn {
		e.party.removeChannel(e)
	}
}
