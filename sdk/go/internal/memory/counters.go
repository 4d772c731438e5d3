package memory

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	countersSize = 128
	buckets      = 10
	firstBucket  = 5
	microsSum    = firstBucket + buckets
)

// Counters are the counts of one side of an edge, for the node to read. One writer at a time; the values are kept in private memory,
// so that no other process can reset them.
type Counters struct {
	shared []atomic.Uint64
	own    [countersSize / 8]uint64
}

// Sent counts a message.
func (c *Counters) Sent(bytes uint32) {
	c.add(0, 1)
	c.add(1, uint64(bytes))
}

// Opened counts a call that was made (caller) or received (callee).
func (c *Counters) Opened() { c.add(4, 1) }

// Closed counts the end of an open call.
func (c *Counters) Closed(took time.Duration, failed bool) {
	c.add(2, 1)
	if failed {
		c.add(3, 1)
	}
	if c.own[4] > 0 {
		c.add(4, ^uint64(0))
	}
	c.add(firstBucket+bucket(took), 1)
	c.add(microsSum, uint64(max(took.Microseconds(), 0)))
}

// InFlight is the number of open calls.
func (c *Counters) InFlight() uint64 { return c.own[4] }

func (c *Counters) add(cell int, by uint64) {
	c.own[cell] += by
	c.shared[cell].Store(c.own[cell])
}

// bucket returns the index in the histogram: bucket k counts times below 4^(k+1) µs, the last one the rest.
func bucket(took time.Duration) int { return bucketOfMicros(took.Microseconds()) }

func bucketOfMicros(micros int64) int {
	return min(max(bits.Len64(uint64(max(micros, 0)))-1, 0)/2, buckets-1)
}
