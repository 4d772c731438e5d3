package memory

import (
	"encoding/binary"
	"os"
	"syscall"
	"unsafe"
)

const (
	memfdCloexec      = 1
	memfdAllowSealing = 2
)

// The rest of this file is the node's part of the contract, for tests that simulate the node.

// CreateRegion makes, maps and seals a region of zeros. The caller owns the descriptor.
func CreateRegion(name string, size uint64) (*Region, *os.File, error) {
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return nil, nil, err
	}
	fd, _, errno := syscall.Syscall(sysMemfdCreate, uintptr(unsafe.Pointer(text)), memfdCloexec|memfdAllowSealing, 0)
	if errno != 0 {
		return nil, nil, os.NewSyscallError("memfd_create", errno)
	}
	file := os.NewFile(fd, name)
	if err := file.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, fAddSeals, sealed); errno != 0 {
		return nil, nil, os.NewSyscallError("fcntl", errno)
	}
	region, err := mapRegion(int(fd), size)
	return region, file, err
}

// CreatePool makes a pool with all slots free.
func CreatePool(sizes []ClassSize) (*Pool, *os.File, error) {
	geometry, err := Layout(sizes)
	if err != nil {
		return nil, nil, err
	}
	region, file, err := CreateRegion("nearpath-pool", geometry.Bytes)
	if err != nil {
		return nil, nil, err
	}
	copy(region.mem, geometry.Header())
	pool := newPool(region, geometry)
	pool.RestoreHints()
	return pool, file, nil
}

// CreateWakeupCell makes a wakeup cell. Its wakeup is an eventfd, which the node makes, or a futex.
func CreateWakeupCell(event bool) (*os.File, error) {
	region, file, err := CreateRegion("nearpath-wakeup-cell", WakeupCellBytes)
	if err != nil {
		return nil, err
	}
	if event {
		region.word32(wakeupModeAt).Store(wakeupEvent)
	}
	copy(region.mem, wakeupCellMagic)
	return file, nil
}

// CreateChannel makes a channel.
func CreateChannel(capacity uint32) (*Channel, *os.File, error) {
	region, file, err := CreateRegion("nearpath-channel", ChannelBytes(capacity))
	if err != nil {
		return nil, nil, err
	}
	binary.LittleEndian.PutUint32(region.mem[8:], capacity)
	copy(region.mem, channelMagic)
	return &Channel{region, capacity, region.word32(12)}, file, nil
}

// RestoreHints sets the hint of every free slot.
func (p *Pool) RestoreHints() {
	p.eachSlot(func(s Slot, word LeaseWord) {
		if word.IsFree() {
			p.hint(s)
		}
	})
}

// Sweep frees the slots that dead endpoints hold, or have offered without a descriptor in a ring; it returns their number.
func (p *Pool) Sweep(alive func(EndpointID) bool, inRing func(from, to EndpointID, s Slot, generation uint32) bool) (freed int) {
	p.eachSlot(func(s Slot, word LeaseWord) {
		from, to := word.From(), word.Holder()
		ends := (to == 0 && from != 0) || (to != 0 && !alive(to)) ||
			(to != 0 && from != 0 && !alive(from) && !inRing(from, to, s, word.Generation()))
		if ends && p.free(s, word) {
			freed++
		}
	})
	p.RestoreHints()
	return freed
}

// TakenSlots is the number of slots that are not free.
func (p *Pool) TakenSlots() (taken int) {
	p.eachSlot(func(_ Slot, word LeaseWord) {
		if !word.IsFree() {
			taken++
		}
	})
	return taken
}

func (p *Pool) eachSlot(visit func(Slot, LeaseWord)) {
	for class := range p.words {
		for index := range p.words[class] {
			s := NewSlot(class, uint32(index))
			visit(s, p.Word(s))
		}
	}
}

// Holds reports whether the ring that a side produces has a slot with this generation.
func (c *Channel) Holds(by ChannelSide, s Slot, generation uint32) bool {
	r := c.ring(by)
	head := r.head.Load()
	length := r.tail.Load() - head
	for k := uint32(0); length <= c.capacity && k < length; k++ {
		if d := r.read(head + k); d.Slot == s && d.Generation == generation {
			return true
		}
	}
	return false
}

// Counted returns the words of one side's counters.
func (c *Channel) Counted(by ChannelSide) (out [countersSize / 8]uint64) {
	words := c.region.words64(64+uint64(by)*countersSize, countersSize/8)
	for k := range words {
		out[k] = words[k].Load()
	}
	return out
}

// Forge pushes any descriptor into the ring that a side produces, as a misbehaving endpoint does.
func (c *Channel) Forge(by ChannelSide, d Descriptor) {
	r := c.ring(by)
	p := Producer{ring: r, own: r.tail.Load(), seen: r.head.Load()}
	_ = p.Push(d)
}

// ForgeTail sets the tail of the ring that a side produces.
func (c *Channel) ForgeTail(by ChannelSide, tail uint32) {
	r := c.ring(by)
	r.tail.Store(tail)
}
