package party

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// pendingCall is one that is open: made, and not yet answered.
type pendingCall struct {
	id      uint64
	started time.Duration
	done    chan error // room for one
	message memory.Message
	parted  bool
	left    bool            // nobody waits for it
	streams context.Context // set: an answer in parts is read as it comes, until this ends
	stream  *BodyReader         // such an answer, once it has begun
	limit   uint64
	head    []byte // of an answer in parts
	body    []byte
}

var calls = sync.Pool{New: func() any { return &pendingCall{done: make(chan error, 1)} }}

// end is finish for what may have begun.
func (c *pendingCall) end(err error) {
	if c.stream == nil {
		c.finish(err)
	} else if err != nil {
		c.stream.fail(err)
	}
}

// finish wakes who waits; the call is theirs then.
func (c *pendingCall) finish(err error) {
	if c.left {
		c.message.Lease.Release()
		return
	}
	c.done <- err
}

// CallResponse is what a call came to. Head and Body are private copies unless the answer was asked for in place.
type CallResponse struct {
	memory.Envelope
	HeadBytes []byte
	BodyBytes []byte
	Instance  uint64
	lease     memory.Lease
}

// Release gives the slot back in which an answer in place lies; Body is not valid any more.
func (a *CallResponse) Release() {
	if a.lease.Held() {
		a.lease.Release()
		a.BodyBytes = nil
	}
}

// CallRequest is a call to make.
type CallRequest struct {
	Function  string
	HeadBytes []byte
	BodyBytes []byte
	Deadline  uint64
	Trace     [16]byte
	Span      [8]byte
	IsInPlace   bool // the answer's body stays in its slot until Release
	Event     bool // nobody waits for an answer
}

func (ask *CallRequest) envelope(kind memory.MessageKind) memory.Envelope {
	e := memory.Envelope{Kind: kind, Deadline: ask.Deadline, Trace: ask.Trace, Span: ask.Span}
	if kind == memory.KindCall {
		e.Flags = memory.FlagParts
	}
	return e
}

// eventBit sets the numbers of events apart from those of calls.
const eventBit = 1 << 63

// IsUnsent says that nothing of a call has left this process: another way may be tried.
func IsUnsent(err error) bool {
	return err == ErrNoPeer || err == ErrClosed || err == memory.ErrExhausted || err == memory.ErrBound ||
		err == memory.ErrTooLarge || err == memory.ErrLost
}

// Call makes a call and waits for the answer. An error for which Unsent holds leaves other ways open.
func (p *Endpoint) Call(ctx context.Context, ask *CallRequest, answer *CallResponse) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e := p.choose(ask.Function)
	if e == nil {
		return ErrNoPeer
	}
	if ask.Event {
		return e.notify(ctx, ask)
	}
	c := calls.Get().(*pendingCall)
	c.started, c.limit = now(), p.config.MaxBody
	err := e.transmit(ctx, ctx, ask.envelope(memory.KindCall), ask.HeadBytes, ask.BodyBytes, c)
	if err != nil && !errors.As(err, new(errBrokenOff)) {
		return err
	}
	if err == nil {
		if !p.watch(c, e) && ctx.Done() != nil {
			return e.await(ctx, c, ask, answer)
		}
		return e.result(<-c.done, c, ask, answer)
	}
	e.abandon(c)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return ErrDied
}

func (e *channelEnd) notify(ctx context.Context, ask *CallRequest) error {
	envelope := ask.envelope(memory.KindEvent)
	envelope.Call = rand.Uint64() | eventBit
	err := e.transmit(ctx, ctx, envelope, ask.HeadBytes, ask.BodyBytes, nil)
	if errors.As(err, new(errBrokenOff)) {
		e.cancel(envelope.Call)
	}
	return err
}

func (e *channelEnd) await(ctx context.Context, c *pendingCall, ask *CallRequest, answer *CallResponse) error {
	select {
	case err := <-c.done:
		return e.result(err, c, ask, answer)
	case <-ctx.Done():
		e.abandon(c)
		return ctx.Err()
	}
}

// result turns what arrived into an answer, on the goroutine of the caller.
func (e *channelEnd) result(err error, c *pendingCall, ask *CallRequest, answer *CallResponse) error {
	m := &c.message
	if err == nil {
		answer.Envelope, answer.Instance = m.Envelope, e.Instance
		if c.parted {
			answer.HeadBytes, answer.BodyBytes = c.head, c.body
		} else {
			answer.HeadBytes = copyBytes(m.Head())
			if ask.IsInPlace {
				answer.BodyBytes, answer.lease, m.Lease = m.Body(), m.Lease, memory.Lease{}
			} else {
				answer.BodyBytes = copyBytes(m.Body())
			}
		}
	}
	m.Lease.Release()
	*c = pendingCall{done: c.done}
	calls.Put(c)
	return err
}

// abandon says that nobody waits for the answer any more. The call stays open, and its credit taken, until the answer comes.
func (e *channelEnd) abandon(c *pendingCall) {
	e.mu.Lock()
	open, id := e.open.get(c.id) == c, c.id
	if open {
		c.left = true
	}
	e.mu.Unlock()
	if !open { // it has just come to its end
		<-c.done
		c.message.Lease.Release()
		return
	}
	e.cancel(id)
}

// cancel says that nobody wants a call any more, or that its answer ends here; as soon as there is a slot and room.
func (e *channelEnd) cancel(id uint64) {
	if !e.tryCancel(id) {
		go func() {
			for !e.tryCancel(id) {
				time.Sleep(lastPause) // nobody rings for a free slot
			}
		}()
	}
}

// tryCancel is false when it should be tried again.
func (e *channelEnd) tryCancel(id uint64) bool {
	envelope := memory.Envelope{Kind: memory.KindCancel, Call: id}
	lease, err := e.party.member.Claim(memory.EnvelopeSize)
	if err == nil {
		err = e.push(&envelope, &lease, memory.EnvelopeSize, nil)
	}
	if err != nil {
		lease.Release()
	}
	return err == nil || e.State() > memory.Withdrawn
}

// choose takes the instance with the fewest open calls of two.
func (p *Endpoint) choose(function string) *channelEnd {
	return leastLoaded((*p.routes.Load())[function])
}

// leastLoaded takes the end with fewer open calls of two drawn at random; one without credits is passed over.
func leastLoaded(ends []*channelEnd) *channelEnd {
	switch len(ends) {
	case 0:
		return nil
	case 1:
		return ends[0]
	}
	first := rand.IntN(len(ends))
	second := rand.IntN(len(ends) - 1)
	if second >= first {
		second++
	}
	better, other := ends[first], ends[second]
	if other.inFlight.Load() < better.inFlight.Load() {
		better, other = other, better
	}
	if uint32(better.inFlight.Load()) >= better.ChannelEnd.Capacity() || better.State() != memory.Open {
		return other
	}
	return better
}

// takeResponse is the receiver's part: the first message of an answer.
func (e *channelEnd) takeResponse(m *memory.Message) {
	e.mu.Lock()
	c := e.open.get(m.Call)
	if c == nil || c.parted {
		e.mu.Unlock()
		m.Lease.Release()
		return
	}
	if !m.Has(memory.FlagMore) {
		c.message = *m
		e.close(c, m.Status >= 500)
		e.finish(c, nil)
		return
	}
	if c.streams != nil && !c.left {
		e.beginResponse(c, m)
		return
	}
	c.parted, c.message.Envelope = true, m.Envelope
	c.head, c.body = copyBytes(m.Head()), make([]byte, 0, min(m.Total, firstRoom))
	e.mu.Unlock()
	e.takePart(m)
}

// close ends an open call; under mu.
func (e *channelEnd) close(c *pendingCall, failed bool) {
	e.open.remove(c)
	for _, w := range e.stalled {
		w.wake() // what is left of the call's body is not wanted
	}
	e.inFlight.Add(-1)
	e.counters.Closed(now()-c.started, failed)
}

// finish lets go of mu and wakes the caller.
func (e *channelEnd) finish(c *pendingCall, err error) {
	last := e.isFinished()
	e.mu.Unlock()
	if c.stream == nil {
		c.finish(err)
	}
	if e.waiting.Load() > 0 {
		e.wakeOne()
	}
	if last {
		e.reportDrained()
	}
}

// beginResponse hands an answer over of which more will come; it lets go of mu.
func (e *channelEnd) beginResponse(c *pendingCall, m *memory.Message) {
	c.parted, c.message.Envelope, c.head = true, m.Envelope, copyBytes(m.Head())
	c.stream = newBodyReader(c.streams, e.desk, m.Total)
	stream := c.stream
	e.mu.Unlock()
	stream.addPart(m, false)
	c.done <- nil
}

// takeResponsePart adds to the body of an answer.
func (e *channelEnd) takeResponsePart(m *memory.Message) {
	e.mu.Lock()
	c := e.open.get(m.Call)
	if c == nil || !c.parted {
		e.mu.Unlock()
		m.Lease.Release()
		return
	}
	more := m.Has(memory.FlagMore)
	if c.stream != nil {
		e.streamPart(c, m, more)
		return
	}
	tooBig := uint64(len(c.body))+uint64(len(m.Body())) > c.limit
	if !tooBig && !c.left {
		c.body = append(c.body, m.Body()...)
	}
	m.Lease.Release()
	switch {
	case tooBig:
		e.close(c, true)
		e.finish(c, ErrTooBig)
	case more:
		e.mu.Unlock()
	default:
		e.close(c, c.message.Status >= 500)
		e.finish(c, nil)
	}
}

// streamPart hands the next part of an answer to its reader; it lets go of mu.
func (e *channelEnd) streamPart(c *pendingCall, m *memory.Message, more bool) {
	stream, last := c.stream, false
	if !more {
		e.close(c, c.message.Status >= 500)
		last = e.isFinished()
	}
	e.mu.Unlock()
	if !stream.addPart(m, !more) {
		e.Close(memory.Broken)
	}
	if last {
		e.reportDrained()
	}
}

func (e *channelEnd) cancelResponse(id uint64) {
	e.mu.Lock()
	if c := e.open.get(id); c != nil {
		e.close(c, true)
		if c.stream != nil {
			c.stream.fail(ErrCut)
		}
		e.finish(c, ErrCut)
		return
	}
	e.mu.Unlock()
}

// firstRoom bounds what is allocated because somebody says that much will come.
const firstRoom = 1 << 20

func copyBytes(bytes []byte) []byte {
	if len(bytes) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(bytes)), bytes...)
}

// InPlace says whether the body lies in its slot.
func (a *CallResponse) InPlace() bool { return a.lease.Held() }
