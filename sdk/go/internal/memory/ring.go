package memory

import "sync/atomic"

const (
	ringHeader    = 192
	ringHeadAt    = 64
	ringStarvedAt = 128
)

// Why a ring is of no use.
const (
	// ErrFull is the lack of a credit: the consumer has as much as it may have.
	ErrFull = MemoryError("the ring is full")
	// ErrPoisoned is an index of the other side that cannot be.
	ErrPoisoned = MemoryError("the other side of a ring broke its index")
)

// ring is the shared words of one direction.
type ring struct {
	tail, head, producerWaiting *atomic.Uint32
	entries             []uint64
	capacity            uint32
}

func ringAt(r *Region, at uint64, capacity uint32) ring {
	return ring{
		r.word32(at), r.word32(at + ringHeadAt), r.word32(at + ringStarvedAt),
		r.entries(at+ringHeader, 2*uint64(capacity)), capacity,
	}
}

func (r *ring) read(index uint32) Descriptor {
	at := 2 * (index & (r.capacity - 1))
	return DescriptorOf([2]uint64{r.entries[at], r.entries[at+1]})
}

// Producer is the side of a ring that pushes. It keeps its index in private memory.
type Producer struct {
	ring
	own, seen uint32
}

// FreeSlots is the number of descriptors that can be pushed now.
func (p *Producer) FreeSlots() (uint32, error) {
	used, err := p.usedSlots()
	return p.capacity - used, err
}

func (p *Producer) usedSlots() (uint32, error) {
	head := p.head.Load()
	used := p.own - head
	if used > p.capacity {
		return p.capacity, ErrPoisoned
	}
	p.seen = head
	return used, nil
}

// Push publishes one. Ring the consumer's desk after the batch.
func (p *Producer) Push(d Descriptor) error {
	if p.own-p.seen >= p.capacity { // the head seen last is enough while there is room by it
		if used, err := p.usedSlots(); err != nil {
			return err
		} else if used >= p.capacity {
			return ErrFull
		}
	}
	at, words := 2*(p.own&(p.capacity-1)), d.Words()
	p.entries[at], p.entries[at+1] = words[0], words[1]
	p.own++
	p.tail.Store(p.own)
	return nil
}

// RequestWakeup asks to be rung when there is room; true when there is some already.
func (p *Producer) RequestWakeup() bool {
	p.producerWaiting.Store(1)
	room, err := p.FreeSlots()
	return room > 0 || err != nil
}

// Unconsumed calls visit for what was pushed and is not known to be consumed.
func (p *Producer) Unconsumed(visit func(Descriptor)) {
	used, _ := p.usedSlots()
	for index := p.own - used; index != p.own; index++ {
		visit(p.read(index))
	}
}

// Consumer is the side of a ring that pops. It keeps its index in private memory.
type Consumer struct {
	ring
	own, seen uint32
}

func (c *Consumer) refresh() (bool, error) {
	if c.seen == c.own {
		tail := c.tail.Load()
		if tail-c.own > c.capacity {
			return false, ErrPoisoned
		}
		c.seen = tail
	}
	return c.seen != c.own, nil
}

// Ready says whether Pop has something to say.
func (c *Consumer) Ready() bool {
	more, err := c.refresh()
	return more || err != nil
}

// Pop copies the next descriptor, unchecked. Its place is the producer's again after Commit.
func (c *Consumer) Pop() (d Descriptor, ok bool, err error) {
	if ok, err = c.refresh(); !ok {
		return d, false, err
	}
	d = c.read(c.own)
	c.own++
	return d, true, nil
}

// Commit gives back the places of all that was popped: only after their leases were taken.
func (c *Consumer) Commit() { c.head.Store(c.own) }

// IsProducerWaiting says whether the producer waits for room; asked once for a batch, after Commit.
func (c *Consumer) IsProducerWaiting() bool {
	return c.producerWaiting.Load() == 1 && c.producerWaiting.Swap(0) == 1
}
