package endpoint

import (
	"context"
	"runtime"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// wait is the goroutine that receives while no caller or worker polls. The eventfd is never read: the runtime's poller is
// edge-triggered. Each write to an eventfd is an edge, also when its count is not zero.
func (p *Endpoint) wait() {
	raw, err := p.event.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		p.receive.Lock()
		p.wakeupCell.MarkAwake()
		p.wakeupCell.NoteCore()
		p.settle()
		p.receive.Unlock()
		return p.closing.Load()
	})
}

// pollOnce handles the messages that are there; called after the set of ends has changed.
func (p *Endpoint) pollOnce() {
	p.receive.Lock()
	p.settle()
	p.receive.Unlock()
}

// settle handles all messages and marks the endpoint asleep; with receive held.
func (p *Endpoint) settle() {
	for {
		p.drain()
		p.wakeupCell.MarkAsleep()
		if !p.ready() {
			return
		}
		p.wakeupCell.MarkAwake()
	}
}

// watch polls for the answer of one call if its callee runs on another processor. It returns true if the answer has arrived.
func (p *Endpoint) watch(c *pendingCall, e *channelEnd) bool {
	if p.config.Spin == 0 || !p.receive.TryLock() {
		return false
	}
	defer p.receive.Unlock()
	return p.spinFor(&p.spin, e.wakeupCell.Core(), func() bool { return len(c.done) > 0 })
}

// nextCall polls for another call if the last one came from another processor. The goroutine that has just answered thus takes the next
// call itself, without a wakeup or a switch of goroutines.
func (p *Endpoint) nextCall(from *channelEnd) (in *IncomingCall) {
	if p.config.Spin == 0 || p.closing.Load() || !p.receive.TryLock() {
		return nil
	}
	defer p.receive.Unlock()
	p.nextIncoming = &in
	p.spinFor(&p.serving, from.wakeupCell.Core(), func() bool { return in != nil })
	p.nextIncoming = nil
	return in
}

// yieldEvery is the number of polls after which a spin yields its thread to other goroutines.
const yieldEvery = 64

// spinFor polls until done or until the budget is spent; with receive held.
func (p *Endpoint) spinFor(spin *memory.Spin, peer uint32, done func() bool) bool {
	own := memory.OwnCore()
	budget := spin.Budget(own, peer)
	if budget == 0 {
		return false
	}
	p.wakeupCell.SetCore(own)
	p.wakeupCell.MarkAwake()
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

// ready reports whether drain has something to do. It covers every cause of a wakeup.
func (p *Endpoint) ready() bool {
	for _, e := range *p.ends.Load() {
		if !e.failed && (e.Ready() || e.hasFreedCredit() || e.canResumeWriter()) {
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
		e.wakeupCell.Wake()
	}
	if e.hasFreedCredit() {
		e.awaitsCredit.Store(false)
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
		e.Close(memory.Broken) // an edge has one direction, and some carry only events
	}
}

// breakChannel ends all open calls of a closed and empty channel; with receive held.
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
	open, taken, bodies, drainReported := e.open.all(), e.taken, e.bodies, e.drainReported
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
	e.wakeupCell.Wake()
	e.wakeOne()
	if drainReported {
		e.endpoint.removeChannel(e)
		return
	}
	e.endpoint.change.Lock()
	e.endpoint.rebuildRoutes()
	e.endpoint.change.Unlock()
}

// markLeaving reports the channel as drained to the node, now or after its last open call.
func (e *channelEnd) markLeaving() {
	e.mu.Lock()
	e.leaving = true
	done := e.isFinished()
	e.mu.Unlock()
	if done {
		e.reportDrained()
	}
}

// isFinished reports, once, whether the last open call of a leaving channel has ended; under mu.
func (e *channelEnd) isFinished() bool {
	if !e.leaving || e.drainReported || e.open.length() > 0 || len(e.taken) > 0 {
		return false
	}
	e.drainReported = true
	return true
}

func (e *channelEnd) reportDrained() {
	_ = Send(e.endpoint.conn, NodeRequest{ChannelDrained: &Drained{e.Peer.Channel}})
	if e.State() > memory.Withdrawn {
		e.endpoint.removeChannel(e)
	}
}
