package memory

import "sync/atomic"

const (
	ringHeader    = 192
	ringHeadAt    = 64
	ringStarvedAt = 128
)

// Errors of rings.
const (
	// ErrFull means that there is no credit: the ring is full of unconsumed descriptors.
	ErrFull = MemoryError("the ring is full")
	// ErrPoisoned is an impossible index of the other side.
	ErrPoisoned = MemoryError("the other side of a ring broke its index")
)

// ring holds the shared words of one direction.
type ring struct {
	tail, head, producerWaiting *atomic.Uint32
	entries                     []uint64
	capacity                    uint32
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

// Push publishes a descriptor. The caller wakes the consumer after the batch.
func (p *Producer) Push(d Descriptor) error {
	if p.own-p.seen >= p.capacity { // the cached head suffices while it leaves a credit
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

// RequestWakeup requests a wakeup when there is a credit; it returns true if there is one already.
func (p *Producer) RequestWakeup() bool {
	p.producerWaiting.Store(1)
	room, err := p.FreeSlots()
	return room > 0 || err != nil
}

// Unconsumed calls visit for every pushed descriptor without a confirmed consumption.
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

// Ready reports whether Pop would return a descriptor or an error.
func (c *Consumer) Ready() bool {
	more, err := c.refresh()
	return more || err != nil
}

// Pop copies the next descriptor, unchecked. Its entry belongs to the producer again after Commit.
func (c *Consumer) Pop() (d Descriptor, ok bool, err error) {
	if ok, err = c.refresh(); !ok {
		return d, false, err
	}
	d = c.read(c.own)
	c.own++
	return d, true, nil
}

// Commit returns the entries of all popped descriptors to the producer: only after their leases were taken.
func (c *Consumer) Commit() { c.head.Store(c.own) }

// IsProducerWaiting reports whether the producer waits for credits; called once per batch, after Commit.
func (c *Consumer) IsProducerWaiting() bool {
	return c.producerWaiting.Load() == 1 && c.producerWaiting.Swap(0) == 1
}
