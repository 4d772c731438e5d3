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

// windowOf is the window of each of so many bodies that are underway on one channel: together they leave slots to others.
func windowOf(bodies int) int { return min(max(4*window/max(bodies, 1), 2), window) }

// ErrNotWanted is a body of which the other side takes no more: its call has ended, was given up, or the peer is gone.
var ErrNotWanted = errors.New("the other side takes no more of this body")

var errNotYet = errors.New("the receiver must let a part go first")

// Writer sends the rest of a body of which the first message has gone. One goroutine at a time.
type Writer struct {
	end      *end
	envelope memory.Envelope
	unread   []memory.Ticket // under the end's mu: parts that the receiver has not let go
	room     chan struct{}   // the receiver has let some go, or nothing more is wanted
	ended    bool
}

// writer follows a first message that has gone.
func (e *end) writer(first *memory.Envelope, ticket memory.Ticket) *Writer {
	envelope := memory.Envelope{Kind: memory.KindPart, Call: first.Call, Total: first.Total}
	w := &Writer{end: e, envelope: envelope, unread: []memory.Ticket{ticket}, room: make(chan struct{}, 1)}
	e.mu.Lock()
	e.flows++
	e.mu.Unlock()
	return w
}

// Write sends bytes, and waits while the reader is behind. With last they are the end of the body, and may be none.
func (w *Writer) Write(ctx context.Context, body []byte, last bool) error {
	if w.ended {
		return ErrNotWanted
	}
	for len(body) > 0 || last {
		sent, err := w.part(ctx, body, last)
		if err != nil {
			w.Leave()
			return err
		}
		if body = body[sent:]; len(body) == 0 && last {
			w.Leave()
			return nil
		}
	}
	return nil
}

// Leave says that no more is sent.
func (w *Writer) Leave() {
	if w.ended {
		return
	}
	w.ended = true
	w.end.mu.Lock()
	w.end.flows--
	w.end.mu.Unlock()
}

// part sends as much as a slot takes.
func (w *Writer) part(ctx context.Context, body []byte, last bool) (int, error) {
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

func (w *Writer) push(lease *memory.Lease, body []byte, last bool) error {
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
func (w *Writer) await(ctx context.Context) error {
	e := w.end
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.mu.Lock()
		err := w.due()
		if err == errNotYet {
			e.stall(w) // first: who receives and goes to sleep meanwhile asks to be rung once more
			e.Starve()
			if err = w.due(); err != errNotYet {
				e.unstall(w)
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
			e.unstall(w)
			e.mu.Unlock()
			return ctx.Err()
		}
	}
}

// due says whether a part may go now; under the end's mu.
func (w *Writer) due() error {
	e := w.end
	if e.State() > memory.Withdrawn || !e.wants(w.envelope.Call) {
		return ErrNotWanted
	}
	most := windowOf(e.flows)
	if len(w.unread) >= most {
		w.unread = slices.DeleteFunc(w.unread, func(t memory.Ticket) bool { return !e.party.member.Unread(t) })
	}
	if len(w.unread) >= most || e.Underway() >= window {
		return errNotYet
	}
	return nil
}

// wants says whether the peer takes more of a body that goes with a call: as long as neither has ended it; under mu.
func (e *end) wants(id uint64) bool {
	if e.side == memory.Callee {
		return e.taken[id] != nil
	}
	c := e.open.get(id)
	return id&eventBit != 0 || (c != nil && !c.left)
}

// stall notes a writer that waits; under mu.
func (e *end) stall(w *Writer) {
	e.stalled = append(e.stalled, w)
	e.stalls.Store(int32(len(e.stalled)))
}

func (e *end) unstall(w *Writer) {
	e.stalled = slices.DeleteFunc(e.stalled, func(other *Writer) bool { return other == w })
	e.stalls.Store(int32(len(e.stalled)))
}

// feed wakes the writers that may go on.
func (e *end) feed() {
	if e.stalls.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range slices.Clone(e.stalled) {
		if w.due() != errNotYet {
			e.unstall(w)
			w.wake()
		}
	}
}

// feeds says whether feed has somebody to wake; else it asks to be rung. For who has said that it sleeps: the peer rings once, and
// nobody who is awake.
func (e *end) feeds() bool {
	if e.stalls.Load() == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	due := func(w *Writer) bool { return w.due() != errNotYet }
	if slices.ContainsFunc(e.stalled, due) {
		return true
	}
	e.Starve()
	return slices.ContainsFunc(e.stalled, due)
}

func (w *Writer) wake() {
	select {
	case w.room <- struct{}{}:
	default:
	}
}
