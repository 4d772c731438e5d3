package memory

import "encoding/binary"

// DescriptorSize is the number of bytes of a descriptor in a ring.
const DescriptorSize = 16

// MaxIndex is the index of the last slot that a class can have.
const MaxIndex = 1<<28 - 1

// Slot identifies a slot: the class in bits 31–28, the index within the class in bits 27–0.
type Slot uint32

// NewSlot makes the number of a slot; class is below 16 and index at most MaxIndex.
func NewSlot(class int, index uint32) Slot { return Slot(uint32(class)<<28 | index&MaxIndex) }

// Class is the number of the size class.
func (s Slot) Class() int { return int(s >> 28) }

// Index is the number of the slot within its class.
func (s Slot) Index() uint32 { return uint32(s) & MaxIndex }

// Descriptor is the location of a message; endpoints exchange descriptors.
type Descriptor struct {
	Slot       Slot
	Generation uint32
	Offset     uint32
	Length     uint32
}

// Words returns the two words of a ring's entry.
func (d Descriptor) Words() [2]uint64 {
	return [2]uint64{uint64(d.Slot) | uint64(d.Generation)<<32, uint64(d.Offset) | uint64(d.Length)<<32}
}

// DescriptorOf reads two words; any two words are a descriptor.
func DescriptorOf(words [2]uint64) Descriptor {
	return Descriptor{Slot(words[0]), uint32(words[0] >> 32), uint32(words[1]), uint32(words[1] >> 32)}
}

// Bytes returns the 16 bytes of contract/memory.md.
func (d Descriptor) Bytes() (out [DescriptorSize]byte) {
	words := d.Words()
	binary.LittleEndian.PutUint64(out[:8], words[0])
	binary.LittleEndian.PutUint64(out[8:], words[1])
	return out
}

// Check checks all but the slot's lease word. slotSize is 0 if there is no such slot.
func (d Descriptor) Check(slotSize uint32) error {
	switch {
	case slotSize == 0:
		return MemoryError("no_such_slot")
	case d.Generation == 0:
		return MemoryError("generation")
	case d.Offset%8 != 0:
		return MemoryError("unaligned")
	case d.Length < EnvelopeSize:
		return MemoryError("too_short")
	case uint64(d.Offset)+uint64(d.Length) > uint64(slotSize):
		return MemoryError("too_long")
	}
	return nil
}
