package party

import (
	"context"
	"sync"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// Incoming is a call that was taken. It is the context of its handler: done when the caller no longer wants the answer or the
// deadline has passed. Its channel and timer are made only when somebody asks for them.
type Incoming struct {
	memory.Envelope
	end     *end
	message memory.Message
	head    []byte
	body    []byte
	started time.Duration
	tooBig  bool

	mu    sync.Mutex
	done  chan struct{}
	err   error
	timer *time.Timer
}

// TraceKey is the key under which an Incoming is found as a context's value.
type TraceKey struct{}

// Caller is the function that calls.
func (in *Incoming) Caller() string { return in.end.Function }

// TooBig says that the body was larger than the limit and is not there.
func (in *Incoming) TooBig() bool { return in.tooBig }

// HeadBytes is a private copy of the head.
func (in *Incoming) HeadBytes() []byte {
	if in.message.Lease.Held() && in.head == nil {
		in.head = copyOf(in.message.Head())
	}
	return in.head
}

// BodyBytes is the body: a private copy, or where it lies, valid until the answer.
func (in *Incoming) BodyBytes(inPlace bool) []byte {
	if !in.message.Lease.Held() {
		return in.body
	}
	if inPlace {
		return in.message.Body()
	}
	in.HeadBytes()
	in.body = copyOf(in.message.Body())
	in.message.Lease.Release() // nobody waits for a slot while holding one that is of no use
	return in.body
}

// Deadline implements context.Context.
func (in *Incoming) Deadline() (time.Time, bool) {
	if in.Envelope.Deadline == 0 {
		return time.Time{}, false
	}
	return TimeOf(in.Envelope.Deadline), true
}

// Done implements context.Context.
func (in *Incoming) Done() <-chan struct{} {
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
func (in *Incoming) Err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if deadline, ok := in.Deadline(); ok && in.err == nil && time.Now().After(deadline) {
		return context.DeadlineExceeded
	}
	return in.err
}

// Value implements context.Context.
func (in *Incoming) Value(key any) any {
	if key == (TraceKey{}) {
		return in
	}
	return nil
}

// Cancel says that nobody wants the answer.
func (in *Incoming) Cancel() { in.stop(context.Canceled) }

func (in *Incoming) stop(err error) {
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

// Reply is an answer to give.
type Reply struct {
	Status    uint16
	Reason    uint16
	Platform  bool
	HeadBytes []byte
	BodyBytes []byte
}

// Answer gives the answer, once. An event's answer goes nowhere.
func (in *Incoming) Answer(reply *Reply) error {
	var err error
	if in.Kind == memory.KindCall {
		err = in.reply(reply)
	}
	in.message.Lease.Release() // only now: the answer may be made of the request in its slot
	in.Cancel()
	e := in.end
	e.mu.Lock()
	delete(e.taken, in.Call)
	e.counters.Closed(now()-in.started, reply.Status >= 500 || err != nil)
	last := e.finished()
	e.mu.Unlock()
	if last {
		e.drained()
	}
	return err
}

func (in *Incoming) reply(reply *Reply) error {
	envelope := memory.Envelope{
		Kind: memory.KindAnswer, Status: reply.Status, Reason: reply.Reason, Call: in.Call, Trace: in.Trace, Span: in.Span,
	}
	in.mu.Lock()
	gone := in.err == context.Canceled
	in.mu.Unlock()
	if gone { // its answer is not sent on, but gives the caller its credit back
		reply = &Reply{Status: 499, Reason: callerGone, Platform: true}
		envelope.Status, envelope.Reason = reply.Status, reply.Reason
	}
	if reply.Platform {
		envelope.Flags |= memory.FlagPlatform
	}
	ctx := context.Background() // a caller that left still gets its answer: that gives its credit back
	for {
		err := in.end.transmit(ctx, envelope, reply.HeadBytes, reply.BodyBytes, nil)
		if err != memory.ErrExhausted && err != memory.ErrBound {
			return err
		}
		in.letGo(reply)
		time.Sleep(lastPause) // nobody rings for a free slot
		if in.end.State() > memory.Withdrawn {
			return ErrClosed
		}
	}
}

// letGo releases the request's slot before an answer waits for another: else as many calls as there are slots would wait for each
// other. The answer may be made of what lies in the slot.
func (in *Incoming) letGo(reply *Reply) {
	if in.message.Lease.Held() {
		reply.BodyBytes, reply.HeadBytes = copyOf(reply.BodyBytes), copyOf(reply.HeadBytes)
		in.message.Lease.Release()
	}
}

// takeCall is the receiver's part: the first message of a call or event.
func (e *end) takeCall(m *memory.Message) {
	in := &Incoming{Envelope: m.Envelope, end: e, started: now()}
	e.mu.Lock()
	if _, twice := e.taken[m.Call]; twice || e.party.config.Handle == nil {
		e.mu.Unlock()
		m.Lease.Release()
		return
	}
	e.taken[m.Call] = in
	e.counters.Opened()
	e.mu.Unlock()
	if m.Has(memory.FlagMore) {
		in.head, in.body = copyOf(m.Head()), make([]byte, 0, min(m.Total, firstRoom))
		e.bodies[m.Call] = in
		e.takePart(m)
		return
	}
	in.message = *m
	e.party.work(in)
}

// takePart adds to a body that arrives, of a call or an answer.
func (e *end) takePart(m *memory.Message) {
	if e.side == memory.Caller {
		e.takeAnswerPart(m)
		return
	}
	in := e.bodies[m.Call]
	if in == nil {
		m.Lease.Release()
		return
	}
	if body := m.Body(); uint64(len(in.body))+uint64(len(body)) > e.party.config.MaxBody {
		in.tooBig, in.body = true, nil
	} else {
		in.body = append(in.body, body...)
	}
	more := m.Has(memory.FlagMore)
	m.Lease.Release()
	if !more || in.tooBig {
		delete(e.bodies, m.Call)
		e.party.work(in)
	}
}

// takeCancel ends a call that the caller no longer wants, or an answer that the callee cannot finish.
func (e *end) takeCancel(m *memory.Message) {
	id := m.Call
	m.Lease.Release()
	if e.side == memory.Caller {
		e.cutAnswer(id)
		return
	}
	if in := e.bodies[id]; in != nil { // the rest of its body will not come
		delete(e.bodies, id)
		go func() { _ = in.Answer(&Reply{Status: 499, Platform: true, Reason: callerGone}) }()
		return
	}
	e.mu.Lock()
	in := e.taken[id]
	e.mu.Unlock()
	if in != nil {
		in.Cancel()
	}
}

const callerGone = 18

// work hands a call to a worker that is idle, or to a new one.
func (p *Party) work(in *Incoming) {
	select {
	case p.workers <- in:
	default:
		go p.worker(in)
	}
}

// mostIdle is the most workers that stay when there is nothing to do.
const mostIdle = 64

func (p *Party) worker(in *Incoming) {
	for {
		p.config.Handle(in)
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
