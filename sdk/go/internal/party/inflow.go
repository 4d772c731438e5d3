package party

import (
	"context"
	"errors"
	"io"
	"sync"

	"nearpath.io/nearpath/internal/memory"
)

// mostUnread is how many parts of a body a peer may have unread here before it counts as one that knows no window.
const mostUnread = 4 * window

var errBodyClosed = errors.New("the body was closed by its reader")

// BodyReader is a body that comes in parts and is read as it comes. Parts lie in the sender's slots until they are read; then the sender
// hears of it and sends the next one.
type BodyReader struct {
	// Total is the bytes of the whole body as its sender said, or memory.TotalUnknown. Nobody has checked it.
	Total uint64

	ctx  context.Context // ends the wait for more
	desk *memory.WakeupCell    // the sender's
	more chan struct{}   // something changed

	mu      sync.Mutex
	parts   []memory.Message
	at      int   // bytes read of parts[0]
	copying bool  // parts[0] is the reader's for the moment
	end     error // io.EOF: that was all
	left    bool  // nobody reads any more
}

func newBodyReader(ctx context.Context, desk *memory.WakeupCell, total uint64) *BodyReader {
	return &BodyReader{Total: total, ctx: ctx, desk: desk, more: make(chan struct{}, 1)}
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

// await waits for bytes, which are the reader's until it has set copying back.
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

// release releases a part and tells its sender, which may wait for that.
func (f *BodyReader) release(m *memory.Message) {
	if m.Lease.Held() {
		m.Lease.Release()
		f.desk.Wake()
	}
}

// addPart takes the next part; false when the sender keeps no window. A part that nobody reads is let go.
func (f *BodyReader) addPart(m *memory.Message, last bool) bool {
	f.mu.Lock()
	keep := !f.left && f.end == nil && len(m.Body()) > 0
	if keep {
		f.parts = append(f.parts, *m)
	}
	if last && f.end == nil {
		f.end = io.EOF
	}
	sound := len(f.parts) <= mostUnread
	f.mu.Unlock()
	if !keep {
		m.Lease.Release() // within the batch: its sender is rung by the ring
	}
	f.wake()
	return sound
}

// fail says that the rest will not come. What has come is still read. The first end counts.
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

// Close says that nobody reads any more: what has come is let go. Whether more would have come: its sender may be told.
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
