package party

import (
	"context"
	"sync"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// IncomingCall is a call that was taken. It is the context of its handler: done when the caller no longer wants the answer or the
// deadline has passed. Its channel and timer are made only when somebody asks for them.
type IncomingCall struct {
	memory.Envelope
	end     *channelEnd
	message memory.Message
	head    []byte
	body    []byte
	started time.Duration
	tooBig  bool
	writer  *BodyWriter // of an answer that has begun

	// Stream is a body of several messages, when the party reads those as they come; then BodyBytes has nothing.
	Stream *BodyReader

	mu    sync.Mutex
	done  chan struct{}
	err   error
	timer *time.Timer
}

// TraceKey is the key under which an Incoming is found as a context's value.
type TraceKey struct{}

// Caller is the function that calls.
func (in *IncomingCall) Caller() string { return in.end.Function }

// TooBig says that the body was larger than the limit and is not there.
func (in *IncomingCall) TooBig() bool { return in.tooBig }

// HeadBytes is a private copy of the head.
func (in *IncomingCall) HeadBytes() []byte {
	if in.message.Lease.Held() && in.head == nil {
		in.head = copyBytes(in.message.Head())
	}
	return in.head
}

// BodyBytes is the body: a private copy, or where it lies, valid until the answer.
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
	in.message.Lease.Release() // nobody waits for a slot while holding one that is of no use
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

// Cancel says that nobody wants the answer.
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

// takeCall is the receiver's part: the first message of a call or event.
func (e *channelEnd) takeCall(m *memory.Message) {
	in := &IncomingCall{Envelope: m.Envelope, end: e, started: now()}
	if e.party.config.Handle == nil {
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
		e.party.startWorker(in)
		return
	}
	in.head = copyBytes(m.Head())
	if in.Stream == nil {
		in.body = make([]byte, 0, min(m.Total, firstRoom))
		e.takePart(m)
		return
	}
	in.Stream.addPart(m, false)
	e.party.startWorker(in)
}

// register keeps a call that was taken; false when its number is that of another one.
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
		if e.party.config.Streams && in.Kind == memory.KindCall {
			in.Stream = newBodyReader(in, e.desk, in.Total)
		}
	}
	return true
}

// takePart adds to a body that arrives, of a call or an answer.
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
	case in == nil: // of what was given up
		m.Lease.Release()
	case in.Stream == nil:
		in.assemble(m, more)
	case !in.Stream.addPart(m, !more):
		e.Close(memory.Broken)
	}
}

// assemble puts a body together; the last part, or the one that is too much, hands the call to its handler.
func (in *IncomingCall) assemble(m *memory.Message, more bool) {
	e := in.end
	if body := m.Body(); uint64(len(in.body))+uint64(len(body)) > e.party.config.MaxBody {
		in.tooBig, in.body = true, nil
		e.mu.Lock()
		delete(e.bodies, m.Call)
		e.mu.Unlock()
	} else {
		in.body = append(in.body, body...)
	}
	m.Lease.Release()
	if !more || in.tooBig {
		e.party.startWorker(in)
	}
}

// takeCancel ends a call that the caller no longer wants, or an answer that the callee cannot finish.
func (e *channelEnd) takeCancel(m *memory.Message) {
	id := m.Call
	m.Lease.Release()
	if e.side == memory.Caller {
		e.cancelResponse(id)
		return
	}
	e.mu.Lock()
	in, arriving := e.taken[id], e.bodies[id]
	delete(e.bodies, id) // the rest of its body will not come
	e.mu.Unlock()
	switch {
	case in == nil: // an event, or answered meanwhile
	case arriving != nil && in.Stream == nil: // no handler knows of it
		in.Cancel()
		go func() { _ = in.Respond(&Reply{Status: 499}) }()
	default:
		in.Cancel()
		if in.Stream != nil {
			in.Stream.fail(context.Canceled)
		}
	}
}

// startWorker hands a call to a worker that is idle, or to a new one.
func (p *Endpoint) startWorker(in *IncomingCall) {
	if p.catcher != nil && *p.catcher == nil {
		*p.catcher = in
		return
	}
	select {
	case p.workers <- in:
	default:
		go p.runWorker(in)
	}
}

// mostIdle is the most workers that stay when there is nothing to do.
const mostIdle = 64

func (p *Endpoint) runWorker(in *IncomingCall) {
	for {
		from := in.end
		p.config.Handle(in)
		if in = p.nextCall(from); in != nil {
			continue
		}
		if p.idle.Add(1) > mostIdle {
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
