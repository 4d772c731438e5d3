package endpoint

import (
	"context"
	"errors"
	"io"
	"sync"

	"nearpath.io/nearpath/internal/memory"
)

// maxUnreadParts is the number of unread parts of a body above which its sender violates the window.
const maxUnreadParts = 4 * window

var errBodyClosed = errors.New("the body was closed by its reader")

// BodyReader is a body that is read while its parts arrive. Parts lie in the sender's slots until they are read; then the sender is
// woken and sends the next one.
type BodyReader struct {
	// Total is the length of the whole body in bytes according to its sender, unchecked, or memory.TotalUnknown.
	Total uint64

	ctx        context.Context    // ends the wait for more
	wakeupCell *memory.WakeupCell // the sender's
	more       chan struct{}      // something changed

	mu      sync.Mutex
	parts   []memory.Message
	at      int   // bytes read of parts[0]
	copying bool  // the reader copies from parts[0]
	end     error // io.EOF: the body is complete
	left    bool  // the reader has closed the body
}

func newBodyReader(ctx context.Context, wakeupCell *memory.WakeupCell, total uint64) *BodyReader {
	return &BodyReader{Total: total, ctx: ctx, wakeupCell: wakeupCell, more: make(chan struct{}, 1)}
}

// Read implements io.Reader.
func (f *BodyReader) Read(to []byte) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	from, err := f.await()
	if err != nil {
		return 0, err
	}
	n := copy(to, from)
	f.mu.Lock()
	f.copying = false
	f.at += n
	var done memory.Message
	if f.left || n == len(from) {
		done, f.at = f.parts[0], 0
		f.parts[0], f.parts = memory.Message{}, f.parts[1:]
	}
	f.mu.Unlock()
	f.release(&done)
	return n, nil
}

// await waits for bytes. They are valid until the reader resets copying.
func (f *BodyReader) await() ([]byte, error) {
	for {
		f.mu.Lock()
		switch {
		case f.left:
			f.mu.Unlock()
			return nil, errBodyClosed
		case len(f.parts) > 0:
			from := f.parts[0].Body()[f.at:]
			f.copying = true
			f.mu.Unlock()
			return from, nil
		case f.end != nil:
			f.mu.Unlock()
			return nil, f.end
		}
		f.mu.Unlock()
		select {
		case <-f.more:
		case <-f.ctx.Done():
			return nil, context.Cause(f.ctx)
		}
	}
}

// release frees a part's slot and wakes the sender, which may wait for that.
func (f *BodyReader) release(m *memory.Message) {
	if m.Lease.Held() {
		m.Lease.Release()
		f.wakeupCell.Wake()
	}
}

// addPart appends the next part; it returns false if the sender violates the window. A part without a reader is released.
func (f *BodyReader) addPart(m *memory.Message, last bool) bool {
	f.mu.Lock()
	keep := !f.left && f.end == nil && len(m.Body()) > 0
	if keep {
		f.parts = append(f.parts, *m)
	}
	if last && f.end == nil {
		f.end = io.EOF
	}
	sound := len(f.parts) <= maxUnreadParts
	f.mu.Unlock()
	if !keep {
		m.Lease.Release() // within the batch: the ring's credits wake the sender
	}
	f.wake()
	return sound
}

// fail ends the body before it is complete. Parts that have arrived are still read. The first end counts.
func (f *BodyReader) fail(why error) {
	f.mu.Lock()
	if f.end == nil {
		f.end = why
	}
	f.mu.Unlock()
	f.wake()
}

func (f *BodyReader) wake() {
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// Close ends reading and releases the unread parts. It returns true if the body was incomplete: its sender may be notified.
func (f *BodyReader) Close() bool {
	f.mu.Lock()
	more := !f.left && f.end == nil
	f.left = true
	var unread []memory.Message
	if f.copying {
		unread, f.parts = f.parts[1:], f.parts[:1:1]
	} else {
		unread, f.parts = f.parts, nil
	}
	f.mu.Unlock()
	for k := range unread {
		f.release(&unread[k])
	}
	f.wake()
	return more
}
