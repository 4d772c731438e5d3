package memory

import (
	"fmt"
	"sync/atomic"
)

// ChannelSide is an end of a channel.
type ChannelSide int

// The sides.
const (
	Caller ChannelSide = iota // produces calls, consumes answers
	Callee             // consumes calls, produces answers
)

// ChannelState says what became of a channel. It only grows.
type ChannelState uint32

// The states.
const (
	Open       ChannelState = iota
	Withdrawn        // no new calls; those that are open come to their end
	CallerDead       // nobody makes calls any more
	CalleeDead       // nobody answers any more
	Broken           // one side broke the rules
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

// OpenChannel maps one that the node made, of this capacity as the node told.
func OpenChannel(fd int, capacity uint32) (*Channel, error) {
	if capacity < minCapacity || capacity > maxCapacity || capacity&(capacity-1) != 0 {
		return nil, fmt.Errorf("shared memory: a ring of %d descriptors", capacity)
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

// State is whether it is open.
func (c *Channel) State() ChannelState { return min(ChannelState(c.closed.Load()), Broken) }

// Close closes it, or closes it further. Ring the peer's desk after that.
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

// ChannelEnd is one party's end. Its sending half (Send, Credits, Starve, Recall) and its receiving half (Receive, Ready, Popped) may be
// used by two goroutines at a time; each half by one. Each end is made once in the life of a channel.
type ChannelEnd struct {
	*Channel
	side   ChannelSide
	member *LeaseHolder
	peer   EndpointID
	out    Producer
	in     Consumer
	popped bool
}

// End makes it; peer is the number of the other party, as the node told.
func (c *Channel) End(side ChannelSide, member *LeaseHolder, peer EndpointID) *ChannelEnd {
	e := &ChannelEnd{Channel: c, side: side, member: member, peer: peer}
	e.out.ring, e.in.ring = c.ring(side), c.ring(1-side)
	return e
}

// ring is the one that a side produces.
func (c *Channel) ring(by ChannelSide) ring {
	if by == Caller {
		return ringAt(c.region, channelHeader, c.capacity)
	}
	return ringAt(c.region, ResponsesOffset(c.capacity), c.capacity)
}

// ErrClosed is a channel that takes no more.
const ErrClosed = MemoryError("the channel is closed")

// Send hands the message over that lies at the start of a slot. Knock at the peer's desk after the batch. Unless it succeeds
// the lease stays the caller's. begins says that a caller makes a new call or event of it: a withdrawn channel takes none, but
// still what belongs to the calls that are open.
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

// Credits is how many messages the ring takes now.
func (e *ChannelEnd) Credits() uint32 {
	room, err := e.out.FreeSlots()
	if err != nil {
		return 0
	}
	return room
}

// Unconsumed is how many messages lie in the ring, not yet taken.
func (e *ChannelEnd) Unconsumed() uint32 { return e.capacity - e.Credits() }

// RequestWakeup asks the peer to knock when the ring has room again; true when it has already.
func (e *ChannelEnd) RequestWakeup() bool { return e.out.RequestWakeup() }

// ReclaimUnconsumed frees what was sent and not taken, once the peer is dead or the channel broken.
func (e *ChannelEnd) ReclaimUnconsumed() {
	e.out.Unconsumed(func(d Descriptor) { e.member.reclaim(d, e.peer) })
}

// Message is what was received: its lease, and a private copy of its envelope, checked.
type Message struct {
	Envelope
	Lease  Lease
	offset uint32
}

// Head are the bytes of the head where they lie: copy them, then read the copy.
func (m *Message) Head() []byte {
	return m.Lease.mem[m.offset+EnvelopeSize:][:m.Envelope.Head]
}

// Body are the bytes of the body where they lie.
func (m *Message) Body() []byte {
	return m.Lease.mem[m.offset+m.BodyOffset():][:m.Envelope.Body:m.Envelope.Body]
}

// Receive takes the next message; false when there is none. What was sent before the channel was closed still comes, unless it
// is broken. An error closes the channel, or says that it is closed and empty.
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
	e.in.Commit() // only now: a descriptor that is in no ring any more has been accepted
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

// Ready says whether Receive has something to say.
func (e *ChannelEnd) Ready() bool { return e.in.Ready() || e.State() > Withdrawn }

// IsProducerWaiting says whether the peer waits for the room that Receive has made since it was last asked: then knock.
func (e *ChannelEnd) IsProducerWaiting() bool {
	popped := e.popped
	e.popped = false
	return popped && e.in.IsProducerWaiting()
}

// Counters are this side's.
func (e *ChannelEnd) Counters() *Counters {
	return &Counters{shared: e.region.words64(64+uint64(e.side)*countersSize, countersSize/8)}
}
