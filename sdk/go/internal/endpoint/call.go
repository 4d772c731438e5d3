package endpoint

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// pendingCall is a call that was made and is not yet answered.
type pendingCall struct {
	id      uint64
	started time.Duration
	done    chan error // capacity 1
	message memory.Message
	parted  bool
	left    bool            // no goroutine waits for the answer
	streams context.Context // set: an answer in parts is streamed to its reader, until this ends
	stream  *BodyReader     // the streamed answer, after its first message
	limit   uint64
	head    []byte // the head of an answer in parts
	body    []byte
}

var calls = sync.Pool{New: func() any { return &pendingCall{done: make(chan error, 1)} }}

// end ends a call whose answer may have begun.
func (c *pendingCall) end(err error) {
	if c.stream == nil {
		c.finish(err)
	} else if err != nil {
		c.stream.fail(err)
	}
}

// finish wakes the waiting caller, which owns the call from then on.
func (c *pendingCall) finish(err error) {
	if c.left {
		c.message.Lease.Release()
		return
	}
	c.done <- err
}

// CallResponse is the answer of a call. HeadBytes and BodyBytes are private copies; BodyBytes is not with CallRequest.IsInPlace.
type CallResponse struct {
	memory.Envelope
	HeadBytes []byte
	BodyBytes []byte
	Instance  uint64
	lease     memory.Lease
}

// Release frees the slot of an answer in place; BodyBytes is invalid afterwards.
func (a *CallResponse) Release() {
	if a.lease.Held() {
		a.lease.Release()
		a.BodyBytes = nil
	}
}

// CallRequest describes a call.
type CallRequest struct {
	Function  string
	HeadBytes []byte
	BodyBytes []byte
	Deadline  uint64
	Trace     [16]byte
	Span      [8]byte
	IsInPlace bool // the answer's body stays in its slot until Release
	Event     bool // the call has no answer
}

func (request *CallRequest) envelope(kind memory.MessageKind) memory.Envelope {
	e := memory.Envelope{Kind: kind, Deadline: request.Deadline, Trace: request.Trace, Span: request.Span}
	if kind == memory.KindCall {
		e.Flags = memory.FlagParts
	}
	return e
}

// eventBit distinguishes the numbers of events from those of calls.
const eventBit = 1 << 63

// IsUnsent reports whether nothing of a call has left this process: the caller may use another path.
func IsUnsent(err error) bool {
	return err == ErrNoPeer || err == ErrClosed || err == memory.ErrExhausted || err == memory.ErrBound ||
		err == memory.ErrTooLarge || err == memory.ErrLost
}

// Call makes a call and waits for the answer. After an error with IsUnsent the caller may use another path.
func (p *Endpoint) Call(ctx context.Context, request *CallRequest, answer *CallResponse) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e := p.choose(request.Function)
	if e == nil {
		return ErrNoPeer
	}
	if request.Event {
		return e.notify(ctx, request)
	}
	c := calls.Get().(*pendingCall)
	c.started, c.limit = now(), p.config.MaxBody
	err := e.transmit(ctx, ctx, request.envelope(memory.KindCall), request.HeadBytes, request.BodyBytes, c)
	if err != nil && !errors.As(err, new(errBrokenOff)) {
		return err
	}
	if err == nil {
		if !p.watch(c, e) && ctx.Done() != nil {
			return e.await(ctx, c, request, answer)
		}
		return e.result(<-c.done, c, request, answer)
	}
	e.abandon(c)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return ErrDied
}

func (e *channelEnd) notify(ctx context.Context, request *CallRequest) error {
	envelope := request.envelope(memory.KindEvent)
	envelope.Call = rand.Uint64() | eventBit
	err := e.transmit(ctx, ctx, envelope, request.HeadBytes, request.BodyBytes, nil)
	if errors.As(err, new(errBrokenOff)) {
		e.cancel(envelope.Call)
	}
	return err
}

func (e *channelEnd) await(ctx context.Context, c *pendingCall, request *CallRequest, answer *CallResponse) error {
	select {
	case err := <-c.done:
		return e.result(err, c, request, answer)
	case <-ctx.Done():
		e.abandon(c)
		return ctx.Err()
	}
}

// result converts the received message into an answer, on the caller's goroutine.
func (e *channelEnd) result(err error, c *pendingCall, request *CallRequest, answer *CallResponse) error {
	m := &c.message
	if err == nil {
		answer.Envelope, answer.Instance = m.Envelope, e.Instance
		if c.parted {
			answer.HeadBytes, answer.BodyBytes = c.head, c.body
		} else {
			answer.HeadBytes = copyBytes(m.Head())
			if request.IsInPlace {
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

// abandon marks a call without a waiting caller. The call stays open and keeps its credit until the answer arrives.
func (e *channelEnd) abandon(c *pendingCall) {
	e.mu.Lock()
	open, id := e.open.get(c.id) == c, c.id
	if open {
		c.left = true
	}
	e.mu.Unlock()
	if !open { // the call has just ended
		<-c.done
		c.message.Lease.Release()
		return
	}
	e.cancel(id)
}

// cancel notifies the peer that a call is cancelled or its answer incomplete. It waits for a slot and a credit.
func (e *channelEnd) cancel(id uint64) {
	if !e.tryCancel(id) {
		go func() {
			for !e.tryCancel(id) {
				time.Sleep(maxSlotDelay) // a freed slot causes no wakeup
			}
		}()
	}
}

// tryCancel returns false if the caller has to try again.
func (e *channelEnd) tryCancel(id uint64) bool {
	envelope := memory.Envelope{Kind: memory.KindCancel, Call: id}
	lease, err := e.endpoint.member.Claim(memory.EnvelopeSize)
	if err == nil {
		err = e.push(&envelope, &lease, memory.EnvelopeSize, nil)
	}
	if err != nil {
		lease.Release()
	}
	return err == nil || e.State() > memory.Withdrawn
}

// choose returns the less loaded of two random instances of the function.
func (p *Endpoint) choose(function string) *channelEnd {
	return leastLoaded((*p.routes.Load())[function])
}

// leastLoaded returns the end with fewer open calls of two random ones; it avoids an end without credits.
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

// takeResponse handles the first message of an answer; with receive held.
func (e *channelEnd) takeResponse(m *memory.Message) {
	if !e.Watchdog { // tenant code must not forge reasons of the platform: after "did not run" the call would be repeated
		m.Flags &^= memory.FlagPlatform
		m.Reason = 0
	}
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
	c.head, c.body = copyBytes(m.Head()), make([]byte, 0, min(m.Total, maxPreallocatedBytes))
	e.mu.Unlock()
	e.takePart(m)
}

// close ends an open call; under mu.
func (e *channelEnd) close(c *pendingCall, failed bool) {
	e.open.remove(c)
	for _, w := range e.stalled {
		w.wake() // the callee does not read the rest of the call's body
	}
	e.inFlight.Add(-1)
	e.counters.Closed(now()-c.started, failed)
}

// finish unlocks mu and wakes the caller.
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

// beginResponse passes the first part of a streamed answer to the caller; it unlocks mu.
func (e *channelEnd) beginResponse(c *pendingCall, m *memory.Message) {
	c.parted, c.message.Envelope, c.head = true, m.Envelope, copyBytes(m.Head())
	c.stream = newBodyReader(c.streams, e.wakeupCell, m.Total)
	stream := c.stream
	e.mu.Unlock()
	stream.addPart(m, false)
	c.done <- nil
}

// takeResponsePart handles a further part of an answer.
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
	isTooLarge := uint64(len(c.body))+uint64(len(m.Body())) > c.limit
	if !isTooLarge && !c.left {
		c.body = append(c.body, m.Body()...)
	}
	m.Lease.Release()
	switch {
	case isTooLarge:
		e.close(c, true)
		e.finish(c, ErrTooLarge)
	case more:
		e.mu.Unlock()
	default:
		e.close(c, c.message.Status >= 500)
		e.finish(c, nil)
	}
}

// streamPart passes the next part of an answer to its reader; it unlocks mu.
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
			c.stream.fail(ErrTruncated)
		}
		e.finish(c, ErrTruncated)
		return
	}
	e.mu.Unlock()
}

// maxPreallocatedBytes limits the allocation that a peer causes by announcing a long body.
const maxPreallocatedBytes = 1 << 20

func copyBytes(bytes []byte) []byte {
	if len(bytes) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(bytes)), bytes...)
}

// InPlace reports whether the body lies in its slot.
func (a *CallResponse) InPlace() bool { return a.lease.Held() }
