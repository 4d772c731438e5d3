package endpoint

import (
	"context"
	"errors"
	"slices"

	"nearpath.io/nearpath/internal/memory"
)

const (
	// window is the maximum of parts of one body in the ring and unread at its receiver.
	window = 8
	// maxPartBytes is the maximum of bytes in a part: larger slots are few, and a slow reader keeps some.
	maxPartBytes = 65_536 - memory.EnvelopeSize
)

// windowSlots returns the window of each body when a channel sends this many at once: together they leave slots to others.
func windowSlots(bodies int) int { return min(max(4*window/max(bodies, 1), 2), window) }

// ErrNotWanted means that the receiver takes no more of a body: its call has ended or was cancelled, or the peer is gone.
var ErrNotWanted = errors.New("the other side takes no more of this body")

var errNotYet = errors.New("the window is full: the receiver has to read a part first")

// BodyWriter sends the rest of a body after its first message. One goroutine at a time uses it.
type BodyWriter struct {
	end      *channelEnd
	envelope memory.Envelope
	unread   []memory.SentSlot // parts that the receiver holds; under the end's mu
	room     chan struct{}     // the receiver has released parts, or takes no more
	ended    bool
}

// writer returns the writer of the body whose first message was sent.
func (e *channelEnd) writer(first *memory.Envelope, ticket memory.SentSlot) *BodyWriter {
	envelope := memory.Envelope{Kind: memory.KindPart, Call: first.Call, Total: first.Total}
	w := &BodyWriter{end: e, envelope: envelope, unread: []memory.SentSlot{ticket}, room: make(chan struct{}, 1)}
	e.mu.Lock()
	e.flows++
	e.mu.Unlock()
	return w
}

// Write sends bytes, and waits while the window is full. With last they are the end of the body, and may be empty.
func (w *BodyWriter) Write(ctx context.Context, body []byte, last bool) error {
	if w.ended {
		return ErrNotWanted
	}
	for len(body) > 0 || last {
		sent, err := w.part(ctx, body, last)
		if err != nil {
			w.Abandon()
			return err
		}
		if body = body[sent:]; len(body) == 0 && last {
			w.Abandon()
			return nil
		}
	}
	return nil
}

// Abandon ends the writer: it sends no more.
func (w *BodyWriter) Abandon() {
	if w.ended {
		return
	}
	w.ended = true
	w.end.mu.Lock()
	w.end.flows--
	w.end.mu.Unlock()
}

// part sends as many bytes as fit into a slot.
func (w *BodyWriter) part(ctx context.Context, body []byte, last bool) (int, error) {
	for {
		if err := w.await(ctx); err != nil {
			return 0, err
		}
		lease, err := w.end.claimWaiting(ctx, memory.EnvelopeSize, min(len(body), maxPartBytes))
		if err != nil {
			return 0, err
		}
		fits := min(len(lease.Bytes())-memory.EnvelopeSize, len(body), maxPartBytes)
		err = w.push(&lease, body[:fits], last && fits == len(body))
		if err == nil {
			return fits, nil
		}
		lease.Release()
		if err != errNotYet && err != memory.ErrFull {
			return 0, err
		}
	}
}

func (w *BodyWriter) push(lease *memory.Lease, body []byte, last bool) error {
	e := w.end
	w.envelope.Body, w.envelope.Flags = uint32(len(body)), memory.FlagMore
	if last {
		w.envelope.Flags = 0
	}
	copy(lease.Bytes()[memory.EnvelopeSize:], body)
	w.envelope.Put(lease.Bytes())
	ticket, length := lease.Ticket(), memory.EnvelopeSize+uint32(len(body))
	e.mu.Lock()
	err := w.due()
	if err == nil {
		err = e.Send(lease, length, false)
	}
	if err == nil {
		w.unread = append(w.unread, ticket)
		e.counters.Sent(length)
	}
	e.mu.Unlock()
	if err == nil {
		e.afterPush()
	}
	return err
}

// await waits until a part can be sent.
func (w *BodyWriter) await(ctx context.Context) error {
	e := w.end
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.mu.Lock()
		err := w.due()
		if err == errNotYet {
			e.addStalled(w) // first: a receiving goroutine that goes to sleep meanwhile requests one more wakeup
			e.RequestWakeup()
			if err = w.due(); err != errNotYet {
				e.removeStalled(w)
			}
		}
		e.mu.Unlock()
		if err != errNotYet {
			return err
		}
		select {
		case <-w.room:
		case <-ctx.Done():
			e.mu.Lock()
			e.removeStalled(w)
			e.mu.Unlock()
			return ctx.Err()
		}
	}
}

// due returns nil if a part can be sent now, errNotYet if the window is full; under the end's mu.
func (w *BodyWriter) due() error {
	e := w.end
	if e.State() > memory.Withdrawn || !e.hasWaitingReader(w.envelope.Call) {
		return ErrNotWanted
	}
	limit := windowSlots(e.flows)
	if len(w.unread) >= limit {
		w.unread = slices.DeleteFunc(w.unread, func(t memory.SentSlot) bool { return !e.endpoint.member.Unread(t) })
	}
	if len(w.unread) >= limit || e.Unconsumed() >= window {
		return errNotYet
	}
	return nil
}

// hasWaitingReader reports whether the peer takes more of a call's body, that is until one side ends the call; under mu.
func (e *channelEnd) hasWaitingReader(id uint64) bool {
	if e.side == memory.Callee {
		return e.taken[id] != nil
	}
	c := e.open.get(id)
	return id&eventBit != 0 || (c != nil && !c.left)
}

// addStalled adds a waiting writer; under mu.
func (e *channelEnd) addStalled(w *BodyWriter) {
	e.stalled = append(e.stalled, w)
	e.stalls.Store(int32(len(e.stalled)))
}

func (e *channelEnd) removeStalled(w *BodyWriter) {
	e.stalled = slices.DeleteFunc(e.stalled, func(other *BodyWriter) bool { return other == w })
	e.stalls.Store(int32(len(e.stalled)))
}

// wakeStalled wakes the writers that can continue.
func (e *channelEnd) wakeStalled() {
	if e.stalls.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range slices.Clone(e.stalled) {
		if w.due() != errNotYet {
			e.removeStalled(w)
			w.wake()
		}
	}
}

// canResumeWriter reports whether wakeStalled would wake a writer; else it requests a wakeup. The caller has marked the endpoint asleep
// before: a peer wakes a sleeping endpoint only, and once.
func (e *channelEnd) canResumeWriter() bool {
	if e.stalls.Load() == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	due := func(w *BodyWriter) bool { return w.due() != errNotYet }
	if slices.ContainsFunc(e.stalled, due) {
		return true
	}
	e.RequestWakeup()
	return slices.ContainsFunc(e.stalled, due)
}

func (w *BodyWriter) wake() {
	select {
	case w.room <- struct{}{}:
	default:
	}
}
