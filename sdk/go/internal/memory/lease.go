package memory

import (
	"errors"
	"sync/atomic"
)

// Errors of slots.
var (
	ErrTooLarge  = errors.New("shared memory: the message is larger than the pool's largest slot")
	ErrBound     = errors.New("shared memory: the endpoint holds its maximum of bytes")
	ErrExhausted = errors.New("shared memory: the pool has no free slot of that size")
	// ErrNotOffered is a descriptor that is forged, stolen or from an earlier generation of its slot.
	ErrNotOffered = errors.New("shared memory: the sender has not offered the slot to this endpoint")
	// ErrLost is a slot that the node has reclaimed, or that another endpoint took in violation of the contract.
	ErrLost = errors.New("shared memory: the endpoint does not hold the slot any more")
)

// LeaseHolder is one endpoint of a pool: its id, its held bytes and their maximum.
type LeaseHolder struct {
	Pool     *Pool
	Endpoint EndpointID
	bound    int64
	held     atomic.Int64
	// recent is the index of the slot of each class that was claimed or released last: slots around it are warm in the cache.
	recent [MaxClasses]atomic.Uint32
}

// NewLeaseHolder makes a holder that claims slots up to bound bytes.
func NewLeaseHolder(pool *Pool, endpoint EndpointID, bound uint64) *LeaseHolder {
	return &LeaseHolder{Pool: pool, Endpoint: endpoint, bound: int64(min(bound, 1<<62))}
}

// HeldSlots is the number of bytes of the slots that it holds.
func (m *LeaseHolder) HeldSlots() int64 { return m.held.Load() }

// Lease is a slot that this endpoint holds; the zero Lease holds none.
type Lease struct {
	member     *LeaseHolder
	slot       Slot
	generation uint32
	mem        []byte
}

// Claim takes a free slot of at least size bytes from the smallest class that has one.
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
		if slot, generation, ok := m.Pool.claim(class, m.Endpoint, m.recent[class].Load()); ok {
			m.recent[class].Store(slot.Index())
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

// Accept takes a slot that endpoint from has offered, after all checks.
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

// Bytes returns the slot's bytes, valid while the lease is held. A misbehaving endpoint can change them at any time.
func (l *Lease) Bytes() []byte { return l.mem }

// SentSlot identifies a sent message, so that its sender can check when the receiver has released it.
type SentSlot struct {
	slot       Slot
	generation uint32
}

// Ticket returns the identity of this slot in its current generation; take it before Send.
func (l *Lease) Ticket() SentSlot { return SentSlot{l.slot, l.generation} }

// Unread reports whether the receiver still holds a sent message.
func (m *LeaseHolder) Unread(t SentSlot) bool {
	word := m.Pool.Word(t.slot)
	return word.Generation() == t.generation && !word.IsFree()
}

// Held reports whether the lease has a slot.
func (l *Lease) Held() bool { return l.member != nil }

// Release frees the slot. If that fails, the node has reclaimed the slot because it considered this endpoint dead.
func (l *Lease) Release() {
	m := l.member
	if m == nil {
		return
	}
	m.Pool.free(l.slot, HeldLease(l.generation, m.Endpoint))
	m.recent[l.slot.Class()].Store(l.slot.Index())
	m.held.Add(-int64(len(l.mem)))
	*l = Lease{}
}

// offer writes the next holder into the lease word, before the descriptor is pushed.
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

// reclaim frees a slot that was offered to an endpoint which will not take it; the swap decides between this endpoint and the node.
func (m *LeaseHolder) reclaim(d Descriptor, to EndpointID) bool {
	if d.Check(m.Pool.Geometry.SlotSize(d.Slot)) != nil {
		return false
	}
	held := HeldLease(d.Generation, m.Endpoint)
	return m.Pool.swap(d.Slot, OfferedLease(d.Generation, m.Endpoint, to), held) && m.Pool.free(d.Slot, held)
}
