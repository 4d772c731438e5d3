package memory

import (
	"errors"
	"sync/atomic"
)

// Why there is no slot.
var (
	ErrTooLarge  = errors.New("shared memory: the message is larger than the pool's largest slot")
	ErrBound     = errors.New("shared memory: this party holds as many bytes as it may")
	ErrExhausted = errors.New("shared memory: the pool has no free slot of that size")
	// ErrNotOffered is a descriptor that is forged, stolen or from an earlier life of its slot.
	ErrNotOffered = errors.New("shared memory: the slot was not offered to this party by this sender")
	// ErrLost is a slot that the node took, or that somebody in the domain took against the rules.
	ErrLost = errors.New("shared memory: the slot is no longer held by this party")
)

// LeaseHolder is one party of a pool: its number, and what it holds against its bound.
type LeaseHolder struct {
	Pool  *Pool
	Endpoint EndpointID
	bound int64
	held  atomic.Int64
	// near is where each class was last claimed or released: those slots are warm in the cache.
	near [MaxClasses]atomic.Uint32
}

// NewLeaseHolder may hold bound bytes of slots when it claims another one.
func NewLeaseHolder(pool *Pool, party EndpointID, bound uint64) *LeaseHolder {
	return &LeaseHolder{Pool: pool, Endpoint: party, bound: int64(min(bound, 1<<62))}
}

// HeldSlots is the bytes of the slots that it holds.
func (m *LeaseHolder) HeldSlots() int64 { return m.held.Load() }

// Lease is a slot that this party holds; the zero Lease holds none.
type Lease struct {
	member     *LeaseHolder
	slot       Slot
	generation uint32
	mem        []byte
}

// Claim takes a free slot of at least size bytes: of the smallest class that has one.
func (m *LeaseHolder) Claim(size uint32) (Lease, error) {
	classes := m.Pool.Geometry.Classes
	first := m.Pool.Geometry.ClassFor(size)
	if first == len(classes) {
		return Lease{}, ErrTooLarge
	}
	for class := first; class < len(classes); class++ {
		bytes := int64(classes[class].Size)
		if m.held.Add(bytes) > m.bound {
			m.held.Add(-bytes)
			return Lease{}, ErrBound
		}
		if slot, generation, ok := m.Pool.claim(class, m.Endpoint, m.near[class].Load()); ok {
			m.near[class].Store(slot.Index())
			return m.lease(slot, generation), nil
		}
		m.held.Add(-bytes)
	}
	return Lease{}, ErrExhausted
}

func (m *LeaseHolder) lease(s Slot, generation uint32) Lease {
	g := &m.Pool.Geometry
	return Lease{m, s, generation, m.Pool.region.Bytes(g.SlotAt(s), g.Classes[s.Class()].Size)}
}

// Accept takes what from offered, after all checks.
func (m *LeaseHolder) Accept(d Descriptor, from EndpointID) (Lease, error) {
	if err := d.Check(m.Pool.Geometry.SlotSize(d.Slot)); err != nil {
		return Lease{}, err
	}
	if !m.Pool.swap(d.Slot, OfferedLease(d.Generation, from, m.Endpoint), HeldLease(d.Generation, m.Endpoint)) {
		return Lease{}, ErrNotOffered
	}
	lease := m.lease(d.Slot, d.Generation)
	m.held.Add(int64(len(lease.mem)))
	return lease, nil
}

// Bytes are the slot's, valid while the lease is held. A party that breaks the rules can change them at any time.
func (l *Lease) Bytes() []byte { return l.mem }

// SentSlot names a message that was handed over, for its sender to see when the receiver has let it go.
type SentSlot struct {
	slot       Slot
	generation uint32
}

// Ticket is that of this slot in its present life; take it before sending.
func (l *Lease) Ticket() SentSlot { return SentSlot{l.slot, l.generation} }

// Unread says whether a message that was handed over is still with its receiver.
func (m *LeaseHolder) Unread(t SentSlot) bool {
	word := m.Pool.Word(t.slot)
	return word.Generation() == t.generation && !word.IsFree()
}

// Held says whether there is a slot.
func (l *Lease) Held() bool { return l.member != nil }

// Release gives the slot back. When that fails the node has taken it: it believed this party dead.
func (l *Lease) Release() {
	m := l.member
	if m == nil {
		return
	}
	m.Pool.free(l.slot, HeldLease(l.generation, m.Endpoint))
	m.near[l.slot.Class()].Store(l.slot.Index())
	m.held.Add(-int64(len(l.mem)))
	*l = Lease{}
}

// offer names the next holder, before the descriptor is pushed.
func (l *Lease) offer(to EndpointID) bool {
	m := l.member
	return m.Pool.swap(l.slot, HeldLease(l.generation, m.Endpoint), OfferedLease(l.generation, m.Endpoint, to))
}

// sent ends the lease after the push.
func (l *Lease) sent() {
	l.member.held.Add(-int64(len(l.mem)))
	*l = Lease{}
}

// takeBack undoes an offer that was not pushed.
func (l *Lease) takeBack(to EndpointID) bool {
	m := l.member
	return m.Pool.swap(l.slot, OfferedLease(l.generation, m.Endpoint, to), HeldLease(l.generation, m.Endpoint))
}

// reclaim frees what was offered to another but will not be taken; the swap decides between this party and the node.
func (m *LeaseHolder) reclaim(d Descriptor, to EndpointID) bool {
	if d.Check(m.Pool.Geometry.SlotSize(d.Slot)) != nil {
		return false
	}
	held := HeldLease(d.Generation, m.Endpoint)
	return m.Pool.swap(d.Slot, OfferedLease(d.Generation, m.Endpoint, to), held) && m.Pool.free(d.Slot, held)
}
