package memory

import (
	"fmt"
	"sync/atomic"
)

// ChannelSide is a side of a channel: caller or callee.
type ChannelSide int

// The sides.
const (
	Caller ChannelSide = iota // produces calls, consumes answers
	Callee                    // consumes calls, produces answers
)

// ChannelState is the state of a channel. It only grows.
type ChannelState uint32

// The states.
const (
	Open       ChannelState = iota
	Withdrawn               // no new calls; open ones finish
	CallerDead              // the caller has died
	CalleeDead              // the callee has died
	Broken                  // one side violated the contract
)

const (
	channelMagic  = "NPCHAN01"
	channelHeader = 4096
	minCapacity   = 16
	maxCapacity   = 4096
)

// ResponsesOffset is the offset of the ring of answers.
func ResponsesOffset(capacity uint32) uint64 { return channelHeader + ringBytes(capacity) }

// ChannelBytes is the size of a channel.
func ChannelBytes(capacity uint32) uint64 { return channelHeader + 2*ringBytes(capacity) }

func ringBytes(capacity uint32) uint64 {
	return roundUp(ringHeader+DescriptorSize*uint64(capacity), 4096)
}

// Channel is two rings between a caller and a callee, mapped.
type Channel struct {
	region   *Region
	capacity uint32
	closed   *atomic.Uint32
}

// OpenChannel maps a channel of the node, with the capacity from the node's message.
func OpenChannel(fd int, capacity uint32) (*Channel, error) {
	if capacity < minCapacity || capacity > maxCapacity || capacity&(capacity-1) != 0 {
		return nil, fmt.Errorf("shared memory: invalid ring capacity %d: expected a power of two from 16 to 4096", capacity)
	}
	region, err := OpenRegion(fd, ChannelBytes(capacity))
	if err != nil {
		return nil, err
	}
	header := string(region.mem[:8])
	if header != channelMagic || region.word32(8).Load() != capacity {
		return nil, fmt.Errorf("shared memory: the region is no channel of %d descriptors", capacity)
	}
	return &Channel{region, capacity, region.word32(12)}, nil
}

// State is the state of the channel.
func (c *Channel) State() ChannelState { return min(ChannelState(c.closed.Load()), Broken) }

// Close raises the channel's state. The caller wakes the peer afterwards.
func (c *Channel) Close(state ChannelState) {
	for {
		now := c.closed.Load()
		if now >= uint32(state) || c.closed.CompareAndSwap(now, uint32(state)) {
			return
		}
	}
}

// Capacity is the number of descriptors in each ring.
func (c *Channel) Capacity() uint32 { return c.capacity }

// ChannelEnd is one endpoint's end of a channel. Two goroutines may use it at a time: one its sending half (Send, Credits, RequestWakeup,
// ReclaimUnconsumed), one its receiving half (Receive, Ready, IsProducerWaiting). Each end is made once in the life of a channel.
type ChannelEnd struct {
	*Channel
	side   ChannelSide
	member *LeaseHolder
	peer   EndpointID
	out    Producer
	in     Consumer
	popped bool
}

// End makes the end of a side; peer is the endpoint id of the other side, from the node's message.
func (c *Channel) End(side ChannelSide, member *LeaseHolder, peer EndpointID) *ChannelEnd {
	e := &ChannelEnd{Channel: c, side: side, member: member, peer: peer}
	e.out.ring, e.in.ring = c.ring(side), c.ring(1-side)
	return e
}

// ring returns the ring that a side produces.
func (c *Channel) ring(by ChannelSide) ring {
	if by == Caller {
		return ringAt(c.region, channelHeader, c.capacity)
	}
	return ringAt(c.region, ResponsesOffset(c.capacity), c.capacity)
}

// ErrClosed means that the channel takes no more messages.
const ErrClosed = MemoryError("the channel is closed")

// Send sends the message at the start of a slot. The caller wakes the peer after the batch, and keeps the lease if Send fails. begins
// is true for a new call or event of a caller: a withdrawn channel takes none, but still the messages of open calls.
func (e *ChannelEnd) Send(lease *Lease, length uint32, begins bool) error {
	if state := e.State(); state > Withdrawn || (state == Withdrawn && begins && e.side == Caller) {
		return ErrClosed
	}
	if !lease.offer(e.peer) {
		return ErrLost
	}
	err := e.out.Push(Descriptor{lease.slot, lease.generation, 0, length})
	if err == nil {
		lease.sent()
		return nil
	}
	if err == ErrPoisoned {
		e.Close(Broken)
	}
	if !lease.takeBack(e.peer) {
		return ErrLost
	}
	return err
}

// Credits is the number of messages that the ring takes now.
func (e *ChannelEnd) Credits() uint32 {
	room, err := e.out.FreeSlots()
	if err != nil {
		return 0
	}
	return room
}

// Unconsumed is the number of messages in the ring that the peer has not taken.
func (e *ChannelEnd) Unconsumed() uint32 { return e.capacity - e.Credits() }

// RequestWakeup requests a wakeup by the peer when the ring has credits again; it returns true if it has some already.
func (e *ChannelEnd) RequestWakeup() bool { return e.out.RequestWakeup() }

// ReclaimUnconsumed frees the slots that were sent and not taken, after the peer's death or on a broken channel.
func (e *ChannelEnd) ReclaimUnconsumed() {
	e.out.Unconsumed(func(d Descriptor) { e.member.reclaim(d, e.peer) })
}

// Message is a received message: its lease, and a private copy of its envelope, checked.
type Message struct {
	Envelope
	Lease  Lease
	offset uint32
}

// Head returns the bytes of the head in the slot: copy them, then read the copy.
func (m *Message) Head() []byte {
	return m.Lease.mem[m.offset+EnvelopeSize:][:m.Envelope.Head]
}

// Body returns the bytes of the body in the slot.
func (m *Message) Body() []byte {
	return m.Lease.mem[m.offset+m.BodyOffset():][:m.Envelope.Body:m.Envelope.Body]
}

// Receive takes the next message; it returns false if there is none. Messages from before the close still arrive, unless the channel
// is broken. After an error the channel is closed; ErrClosed means closed and empty.
func (e *ChannelEnd) Receive(m *Message) (bool, error) {
	state := e.State()
	if state == Broken {
		return false, ErrClosed
	}
	ok, err := e.take(m)
	switch {
	case err == ErrNotOffered && state > Withdrawn:
		return false, ErrClosed // a dead peer's last offer, reclaimed before it was read
	case err != nil:
		e.Close(Broken)
		return false, err
	case !ok && state > Withdrawn:
		return false, ErrClosed
	}
	return ok, nil
}

func (e *ChannelEnd) take(m *Message) (bool, error) {
	d, ok, err := e.in.Pop()
	if !ok {
		return false, err
	}
	lease, err := e.member.Accept(d, e.peer)
	e.in.Commit() // only now: a descriptor that has left the ring is accepted
	e.popped = true
	if err != nil {
		return false, err
	}
	var first [EnvelopeSize]byte
	copy(first[:], lease.mem[d.Offset:])
	m.Lease, m.offset = lease, d.Offset
	if m.Envelope, err = ReadEnvelope(&first, d.Length); err != nil {
		m.Lease.Release()
		return false, err
	}
	return true, nil
}

// Ready reports whether Receive would return a message or an error.
func (e *ChannelEnd) Ready() bool { return e.in.Ready() || e.State() > Withdrawn }

// IsProducerWaiting reports whether the peer waits for credits that Receive has freed since the last check: then the caller wakes it.
func (e *ChannelEnd) IsProducerWaiting() bool {
	popped := e.popped
	e.popped = false
	return popped && e.in.IsProducerWaiting()
}

// Counters returns the counters of this side.
func (e *ChannelEnd) Counters() *Counters {
	return &Counters{shared: e.region.words64(64+uint64(e.side)*countersSize, countersSize/8)}
}
