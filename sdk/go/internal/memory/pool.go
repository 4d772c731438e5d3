package memory

import (
	"math/bits"
	"sync/atomic"
)

// Pool is the mapped memory with the slots of one security domain.
type Pool struct {
	region   *Region
	Geometry PoolGeometry
	words    [][]atomic.Uint64
	hints    [][]atomic.Uint64
}

// OpenPool maps a pool of the node, with the size in bytes from the node's message.
func OpenPool(fd int, size uint64) (*Pool, error) {
	region, err := OpenRegion(fd, size)
	if err != nil {
		return nil, err
	}
	if region.Len() < PoolHeader {
		return nil, MemoryError("region")
	}
	header := make([]byte, 32+32*MaxClasses)
	copy(header, region.mem)
	geometry, err := ReadGeometry(header, region.Len())
	if err != nil {
		return nil, err
	}
	return newPool(region, geometry), nil
}

func newPool(region *Region, geometry PoolGeometry) *Pool {
	pool := &Pool{region: region, Geometry: geometry}
	for _, c := range geometry.Classes {
		pool.words = append(pool.words, region.words64(c.Words, uint64(c.Count)))
		pool.hints = append(pool.hints, region.words64(c.Hints, (uint64(c.Count)+63)/64))
	}
	return pool
}

// Word returns the lease word of a slot of the pool.
func (p *Pool) Word(s Slot) LeaseWord { return LeaseWord(p.words[s.Class()][s.Index()].Load()) }

// swap does one step of a lease; it fails if the slot is in another state.
func (p *Pool) swap(s Slot, before, after LeaseWord) bool {
	return p.words[s.Class()][s.Index()].CompareAndSwap(uint64(before), uint64(after))
}

// free swaps to a free word and sets the hint.
func (p *Pool) free(s Slot, before LeaseWord) bool {
	if !p.swap(s, before, FreeLease(before.Generation())) {
		return false
	}
	p.hint(s)
	return true
}

func (p *Pool) hint(s Slot) {
	p.hints[s.Class()][s.Index()/64].Or(1 << (s.Index() % 64))
}

// claim takes a free slot of a class; the search begins around slot recent.
func (p *Pool) claim(class int, by EndpointID, recent uint32) (Slot, uint32, bool) {
	groups := len(p.hints[class])
	start := int(recent/64) % groups
	for k := range groups {
		if index, generation, ok := p.claimIn(class, by, (start+k)%groups); ok {
			return NewSlot(class, index), generation, true
		}
	}
	return 0, 0, false
}

func (p *Pool) claimIn(class int, by EndpointID, group int) (uint32, uint32, bool) {
	hint := &p.hints[class][group]
	for set := hint.Load(); set != 0; {
		bit := set & -set
		// Cleared before the word is read: a later release of the slot sets it again, so no hint is lost.
		before := hint.And(^bit)
		index := uint32(group*64 + bits.TrailingZeros64(bit))
		if before&bit != 0 && index < uint32(len(p.words[class])) {
			s := NewSlot(class, index)
			word := p.Word(s)
			after := HeldLease(nextGeneration(word.Generation()), by)
			if word.IsFree() && p.swap(s, word, after) {
				return index, after.Generation(), true
			}
		}
		set = before & set &^ bit
	}
	return 0, 0, false
}
