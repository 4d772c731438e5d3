package endpoint

import (
	"context"
	"time"

	"nearpath.io/nearpath/internal/memory"
)

// Delays between attempts to claim a slot: a freed slot causes no wakeup.
const (
	minSlotDelay = 20 * time.Microsecond
	maxSlotDelay = 2 * time.Millisecond
)

// transmit sends a message, in parts if it is larger than a slot. c is the call that it opens; nil for an answer or event. ctx limits
// the first message, rest the following ones.
func (e *channelEnd) transmit(ctx, rest context.Context, envelope memory.Envelope, head, body []byte, c *pendingCall) error {
	envelope.Total = uint64(len(body))
	w, sent, err := e.begin(ctx, &envelope, head, body, false, c)
	if err != nil || w == nil {
		return err
	}
	err = w.Write(rest, body[sent:], true)
	if err == ErrNotWanted && c != nil && e.State() <= memory.Withdrawn {
		return nil // answered before all was sent
	}
	if err != nil {
		return errBrokenOff{err}
	}
	return nil
}

// begin sends the first message with as much of the body as fits into its slot. The BodyWriter sends the rest; it is nil unless the
// body is longer or open, that is not complete yet.
func (e *channelEnd) begin(ctx context.Context, envelope *memory.Envelope, head, body []byte, open bool, c *pendingCall) (*BodyWriter, int, error) {
	first := memory.BodyAt(uint32(len(head)))
	lease, err := e.endpoint.claim(first, len(body))
	if err != nil {
		return nil, 0, err
	}
	fits := int(min(uint64(len(lease.Bytes()))-uint64(first), uint64(len(body))))
	more, ticket := open || len(body) > fits, lease.Ticket()
	if err := e.send(ctx, envelope, lease, head, body[:fits], more, c); err != nil || !more {
		return nil, fits, err
	}
	return e.writer(envelope, ticket), fits, nil
}

// errBrokenOff is an error after a part of the message was sent.
type errBrokenOff struct{ error }

func (e errBrokenOff) Unwrap() error { return e.error }

// claim claims a slot for the bytes before the body and as much of the body as possible: if the larger slots are in use, the message
// goes in more parts.
func (p *Endpoint) claim(before uint32, body int) (memory.Lease, error) {
	g := &p.member.Pool.Geometry
	largest := g.Largest()
	want := min(uint64(before)+uint64(body), uint64(max(largest, before)))
	lease, err := p.member.Claim(uint32(want))
	for class := len(g.Classes) - 1; class >= 0 && err != nil; class-- {
		if size := g.Classes[class].Size; uint64(size) < want && size > before {
			lease, err = p.member.Claim(size)
		}
	}
	return lease, err
}

// claimWaiting is claim, but waits for a slot.
func (e *channelEnd) claimWaiting(ctx context.Context, before uint32, body int) (memory.Lease, error) {
	for pause := minSlotDelay; ; pause = min(2*pause, maxSlotDelay) {
		lease, err := e.endpoint.claim(before, body)
		if err == nil || err == memory.ErrTooLarge {
			return lease, err
		}
		if e.State() > memory.Withdrawn {
			return lease, ErrClosed
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return lease, ctx.Err()
		case <-timer.C:
		}
	}
}

// send writes one message into its slot and pushes it; it waits for a credit. The lease is consumed.
func (e *channelEnd) send(ctx context.Context, envelope *memory.Envelope, lease memory.Lease, head, body []byte, more bool, c *pendingCall) error {
	at := memory.BodyAt(uint32(len(head)))
	slot := lease.Bytes()
	copy(slot[memory.EnvelopeSize:], head)
	copy(slot[at:], body)
	envelope.Head, envelope.Body = uint32(len(head)), uint32(len(body))
	envelope.Flags &^= memory.FlagMore
	if more {
		envelope.Flags |= memory.FlagMore
	}
	for {
		err := e.push(envelope, &lease, at+uint32(len(body)), c)
		if err == memory.ErrFull {
			err = e.awaitCredit(ctx)
			if err == nil {
				continue
			}
		}
		if err != nil {
			lease.Release()
		}
		return err
	}
}

// push sends the slot and opens the call; it returns ErrFull if there is no credit.
func (e *channelEnd) push(envelope *memory.Envelope, lease *memory.Lease, length uint32, c *pendingCall) error {
	e.mu.Lock()
	if c != nil && uint32(e.open.length()) >= e.ChannelEnd.Capacity() {
		e.mu.Unlock()
		return memory.ErrFull
	}
	if c != nil {
		envelope.Call = e.open.add(c)
	}
	envelope.Put(lease.Bytes())
	err := e.Send(lease, length, envelope.Kind == memory.KindCall || envelope.Kind == memory.KindEvent)
	switch {
	case err != nil && c != nil:
		e.open.remove(c)
	case err == nil:
		e.counters.Sent(length)
	}
	if err == nil && c != nil {
		e.counters.Opened()
		e.inFlight.Add(1)
	}
	e.mu.Unlock()
	if err == nil {
		e.afterPush()
		return nil
	}
	if err == memory.ErrClosed {
		return ErrClosed
	}
	return err
}

// afterPush wakes the peer, and reclaims the messages that a dead peer will not consume.
func (e *channelEnd) afterPush() {
	e.wakeupCell.Wake()
	if e.waiting.Load() > 0 {
		e.wakeOne() // the goroutine woken before may have left a credit
	}
	if e.State() > memory.Withdrawn {
		e.mu.Lock()
		e.ReclaimUnconsumed()
		e.mu.Unlock()
	}
}

func (e *channelEnd) awaitCredit(ctx context.Context) error {
	e.waiting.Add(1)
	defer e.waiting.Add(-1)
	e.mu.Lock()
	e.awaitsCredit.Store(true) // before RequestWakeup, as in await
	room := e.RequestWakeup()
	if room {
		e.awaitsCredit.Store(false)
	}
	now := room && (e.side == memory.Callee || uint32(e.open.length()) < e.ChannelEnd.Capacity())
	e.mu.Unlock()
	if now || e.State() > memory.Withdrawn {
		e.wakeOne() // other goroutines may sleep since before the credit
		return nil
	}
	select {
	case <-e.room:
		return nil
	case <-ctx.Done():
		e.wakeOne()
		return ctx.Err()
	}
}
