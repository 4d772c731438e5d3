package party

import (
	"context"
	"errors"
	"slices"

	"nearpath.io/nearpath/internal/memory"
)

const (
	// window is the most parts of one body that its receiver has, in the ring or unread.
	window = 8
	// largestPart is what a part carries at most: larger slots are few, and a slow reader keeps some.
	largestPart = 65_536 - memory.EnvelopeSize
)

// windowSlots is the window of each of so many bodies that are underway on one channel: together they leave slots to others.
func windowSlots(bodies int) int { return min(max(4*window/max(bodies, 1), 2), window) }

// ErrNotWanted is a body of which the other side takes no more: its call has ended, was given up, or the peer is gone.
var ErrNotWanted = errors.New("the other side takes no more of this body")

var errNotYet = errors.New("the receiver must let a part go first")

// BodyWriter sends the rest of a body of which the first message has gone. One goroutine at a time.
type BodyWriter struct {
	end      *channelEnd
	envelope memory.Envelope
	unread   []memory.SentSlot // under the end's mu: parts that the receiver has not let go
	room     chan struct{}   // the receiver has let some go, or nothing more is wanted
	ended    bool
}

// writer follows a first message that has gone.
func (e *channelEnd) writer(first *memory.Envelope, ticket memory.SentSlot) *BodyWriter {
	envelope := memory.Envelope{Kind: memory.KindPart, Call: first.Call, Total: first.Total}
	w := &BodyWriter{end: e, envelope: envelope, unread: []memory.SentSlot{ticket}, room: make(chan struct{}, 1)}
	e.mu.Lock()
	e.flows++
	e.mu.Unlock()
	return w
}

// Write sends bytes, and waits while the reader is behind. With last they are the end of the body, and may be none.
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

// Abandon says that no more is sent.
func (w *BodyWriter) Abandon() {
	if w.ended {
		return
	}
	w.ended = true
	w.end.mu.Lock()
	w.end.flows--
	w.end.mu.Unlock()
}

// part sends as much as a slot takes.
func (w *BodyWriter) part(ctx context.Context, body []byte, last bool) (int, error) {
	for {
		if err := w.await(ctx); err != nil {
			return 0, err
		}
		lease, err := w.end.claimWaiting(ctx, memory.EnvelopeSize, min(len(body), largestPart))
		if err != nil {
			return 0, err
		}
		fits := min(len(lease.Bytes())-memory.EnvelopeSize, len(body), largestPart)
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

// await waits until a part may go.
func (w *BodyWriter) await(ctx context.Context) error {
	e := w.end
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.mu.Lock()
		err := w.due()
		if err == errNotYet {
			e.addStalled(w) // first: who receives and goes to sleep meanwhile asks to be rung once more
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

// due says whether a part may go now; under the end's mu.
func (w *BodyWriter) due() error {
	e := w.end
	if e.State() > memory.Withdrawn || !e.hasWaitingReader(w.envelope.Call) {
		return ErrNotWanted
	}
	most := windowSlots(e.flows)
	if len(w.unread) >= most {
		w.unread = slices.DeleteFunc(w.unread, func(t memory.SentSlot) bool { return !e.party.member.Unread(t) })
	}
	if len(w.unread) >= most || e.Unconsumed() >= window {
		return errNotYet
	}
	return nil
}

// hasWaitingReader says whether the peer takes more of a body that goes with a call: as long as neither has ended it; under mu.
func (e *channelEnd) hasWaitingReader(id uint64) bool {
	if e.side == memory.Callee {
		return e.taken[id] != nil
	}
	c := e.open.get(id)
	return id&eventBit != 0 || (c != nil && !c.left)
}

// addStalled notes a writer that waits; under mu.
func (e *channelEnd) addStalled(w *BodyWriter) {
	e.stalled = append(e.stalled, w)
	e.stalls.Store(int32(len(e.stalled)))
}

func (e *channelEnd) removeStalled(w *BodyWriter) {
	e.stalled = slices.DeleteFunc(e.stalled, func(other *BodyWriter) bool { return other == w })
	e.stalls.Store(int32(len(e.stalled)))
}

// wakeStalled wakes the writers that may go on.
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

// canFeed says whether feed has somebody to wake; else it asks to be rung. For who has said that it sleeps: the peer rings once, and
// nobody who is awake.
func (e *channelEnd) canFeed() bool {
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
