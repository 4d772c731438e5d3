package endpoint

import (
	"context"
	"sync"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// IncomingCall is a received call. It is the context of its handler: done when the caller has cancelled the call or the deadline has
// passed. Its channel and timer are made on the first use of Done.
type IncomingCall struct {
	memory.Envelope
	end        *channelEnd
	message    memory.Message
	head       []byte
	body       []byte
	started    time.Duration
	isTooLarge bool
	writer     *BodyWriter // set after Begin

	// Stream is a body of several messages, with Config.Streams; BodyBytes is empty then.
	Stream *BodyReader

	mu    sync.Mutex
	done  chan struct{}
	err   error
	timer *time.Timer
}

// TraceKey is the context key of an IncomingCall.
type TraceKey struct{}

// Caller is the calling function.
func (in *IncomingCall) Caller() string { return in.end.Function }

// IsTooLarge reports whether the body exceeded the limit and was dropped.
func (in *IncomingCall) IsTooLarge() bool { return in.isTooLarge }

// HeadBytes is a private copy of the head.
func (in *IncomingCall) HeadBytes() []byte {
	if in.message.Lease.Held() && in.head == nil {
		in.head = copyBytes(in.message.Head())
	}
	return in.head
}

// BodyBytes is the body: a private copy, or in place in its slot, valid until the answer.
func (in *IncomingCall) BodyBytes(inPlace bool) []byte {
	if in.Stream != nil {
		return nil
	}
	if !in.message.Lease.Held() {
		return in.body
	}
	if inPlace {
		return in.message.Body()
	}
	in.HeadBytes()
	in.body = copyBytes(in.message.Body())
	in.message.Lease.Release() // a handler that waits for a slot does not hold an unused one
	return in.body
}

// Deadline implements context.Context.
func (in *IncomingCall) Deadline() (time.Time, bool) {
	if in.Envelope.Deadline == 0 {
		return time.Time{}, false
	}
	return TimeOf(in.Envelope.Deadline), true
}

// Done implements context.Context.
func (in *IncomingCall) Done() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.done == nil {
		in.done = make(chan struct{})
		if in.err != nil {
			close(in.done)
		} else if deadline, ok := in.Deadline(); ok {
			in.timer = time.AfterFunc(time.Until(deadline), func() { in.stop(context.DeadlineExceeded) })
		}
	}
	return in.done
}

// Err implements context.Context.
func (in *IncomingCall) Err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if deadline, ok := in.Deadline(); ok && in.err == nil && time.Now().After(deadline) {
		return context.DeadlineExceeded
	}
	return in.err
}

// Value implements context.Context.
func (in *IncomingCall) Value(key any) any {
	if key == (TraceKey{}) {
		return in
	}
	return nil
}

// Cancel ends the context: the caller does not wait for the answer.
func (in *IncomingCall) Cancel() { in.stop(context.Canceled) }

func (in *IncomingCall) stop(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return
	}
	in.err = err
	if in.done != nil {
		close(in.done)
	}
	if in.timer != nil {
		in.timer.Stop()
	}
}

// takeCall handles the first message of a call or event; with receive held.
func (e *channelEnd) takeCall(m *memory.Message) {
	in := &IncomingCall{Envelope: m.Envelope, end: e, started: now()}
	if e.endpoint.config.Handle == nil {
		m.Lease.Release()
		return
	}
	if !e.register(in, m.Has(memory.FlagMore)) {
		m.Lease.Release()
		e.Close(memory.Broken)
		return
	}
	if !m.Has(memory.FlagMore) {
		in.message = *m
		e.endpoint.startWorker(in)
		return
	}
	in.head = copyBytes(m.Head())
	if in.Stream == nil {
		in.body = make([]byte, 0, min(m.Total, maxPreallocatedBytes))
		e.takePart(m)
		return
	}
	in.Stream.addPart(m, false)
	e.endpoint.startWorker(in)
}

// register stores a received call; it returns false if another open call has its number.
func (e *channelEnd) register(in *IncomingCall, parts bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, twice := e.taken[in.Call]
	_, arriving := e.bodies[in.Call]
	if twice || arriving || (parts && len(e.bodies) >= int(e.ChannelEnd.Capacity())) {
		return false
	}
	if in.Kind == memory.KindCall {
		e.taken[in.Call] = in
		e.counters.Opened()
	}
	if parts {
		e.bodies[in.Call] = in
		if e.endpoint.config.Streams && in.Kind == memory.KindCall {
			in.Stream = newBodyReader(in, e.wakeupCell, in.Total)
		}
	}
	return true
}

// takePart handles a further part of a body, of a call or an answer.
func (e *channelEnd) takePart(m *memory.Message) {
	if e.side == memory.Caller {
		e.takeResponsePart(m)
		return
	}
	more := m.Has(memory.FlagMore)
	e.mu.Lock()
	in := e.bodies[m.Call]
	if in != nil && !more {
		delete(e.bodies, m.Call)
	}
	e.mu.Unlock()
	switch {
	case in == nil: // the call was cancelled
		m.Lease.Release()
	case in.Stream == nil:
		in.assemble(m, more)
	case !in.Stream.addPart(m, !more):
		e.Close(memory.Broken)
	}
}

// assemble appends a part to a body; the last part, or the one that exceeds the limit, passes the call to its handler.
func (in *IncomingCall) assemble(m *memory.Message, more bool) {
	e := in.end
	if body := m.Body(); uint64(len(in.body))+uint64(len(body)) > e.endpoint.config.MaxBody {
		in.isTooLarge, in.body = true, nil
		e.mu.Lock()
		delete(e.bodies, m.Call)
		e.mu.Unlock()
	} else {
		in.body = append(in.body, body...)
	}
	m.Lease.Release()
	if !more || in.isTooLarge {
		e.endpoint.startWorker(in)
	}
}

// takeCancel ends a call that the caller has cancelled, or an answer that the callee cannot finish.
func (e *channelEnd) takeCancel(m *memory.Message) {
	id := m.Call
	m.Lease.Release()
	if e.side == memory.Caller {
		e.cancelResponse(id)
		return
	}
	e.mu.Lock()
	in, arriving := e.taken[id], e.bodies[id]
	delete(e.bodies, id) // the rest of its body does not arrive
	e.mu.Unlock()
	switch {
	case in == nil: // an event, or already answered
	case arriving != nil && in.Stream == nil: // no handler has the call yet
		in.Cancel()
		go func() { _ = in.Respond(&Reply{Status: 499}) }()
	default:
		in.Cancel()
		if in.Stream != nil {
			in.Stream.fail(context.Canceled)
		}
	}
}

// startWorker passes a call to an idle worker, or to a new one.
func (p *Endpoint) startWorker(in *IncomingCall) {
	if p.nextIncoming != nil && *p.nextIncoming == nil {
		*p.nextIncoming = in
		return
	}
	select {
	case p.workers <- in:
	default:
		go p.runWorker(in)
	}
}

// maxIdleWorkers is the maximum of workers that wait for calls.
const maxIdleWorkers = 64

func (p *Endpoint) runWorker(in *IncomingCall) {
	for {
		from := in.end
		p.config.Handle(in)
		if in = p.nextCall(from); in != nil {
			continue
		}
		if p.idle.Add(1) > maxIdleWorkers {
			p.idle.Add(-1)
			return
		}
		select {
		case in = <-p.workers:
			p.idle.Add(-1)
		case <-p.ended:
			return
		}
	}
}
