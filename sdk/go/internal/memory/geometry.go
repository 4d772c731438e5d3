package memory

import (
	"bytes"
	"encoding/binary"
)

// Bounds of a pool.
const (
	PoolHeader  = 4096
	MaxClasses  = 15
	minSlotSize = 64
	maxSlotSize = 1 << 24
)

const poolMagic = "NPPOOL01"

// ClassSize is the requested size and count of one size class.
type ClassSize struct {
	Size, Count uint32
}

// SlotClass is one size class with its offsets from the region's start.
type SlotClass struct {
	Size, Count         uint32
	Words, Hints, Slots uint64
}

// PoolGeometry is a pool's layout: a private copy, never read again from shared memory.
type PoolGeometry struct {
	Classes []SlotClass
	Bytes   uint64
}

// Layout computes the layout of the classes: first words and hints of every class, then the slots of every class.
func Layout(sizes []ClassSize) (PoolGeometry, error) {
	if err := checkSizes(sizes); err != nil {
		return PoolGeometry{}, err
	}
	end := uint64(PoolHeader)
	take := func(size, align uint64) uint64 {
		start := roundUp(end, align)
		end = start + size
		return start
	}
	classes := make([]SlotClass, len(sizes))
	for k, s := range sizes {
		classes[k] = SlotClass{Size: s.Size, Count: s.Count}
		classes[k].Words = take(uint64(s.Count)*8, 64)
		classes[k].Hints = take((uint64(s.Count)+63)/64*8, 64)
	}
	for k, s := range sizes {
		classes[k].Slots = take(uint64(s.Count)*uint64(s.Size), min(uint64(s.Size), 4096))
	}
	return PoolGeometry{classes, roundUp(end, 4096)}, nil
}

func checkSizes(sizes []ClassSize) error {
	if len(sizes) < 1 || len(sizes) > MaxClasses {
		return MemoryError("classes")
	}
	last := uint32(0)
	for _, s := range sizes {
		good := s.Size >= minSlotSize && s.Size <= maxSlotSize && s.Size&(s.Size-1) == 0
		if !good || s.Size <= last || s.Count < 1 || s.Count > MaxIndex+1 {
			return MemoryError("classes")
		}
		last = s.Size
	}
	return nil
}

// ReadGeometry reads a copy of a header. It accepts only the one layout that its classes have, and only a pool within region bytes.
func ReadGeometry(header []byte, region uint64) (PoolGeometry, error) {
	if len(header) < 32 || string(header[:8]) != poolMagic {
		return PoolGeometry{}, MemoryError("magic")
	}
	count := binary.LittleEndian.Uint32(header[8:])
	if count > MaxClasses {
		return PoolGeometry{}, MemoryError("classes")
	}
	if len(header) < 32+32*int(count) {
		return PoolGeometry{}, MemoryError("layout")
	}
	sizes := make([]ClassSize, count)
	for k := range sizes {
		at := header[32+32*k:]
		sizes[k] = ClassSize{binary.LittleEndian.Uint32(at), binary.LittleEndian.Uint32(at[4:])}
	}
	g, err := Layout(sizes)
	if err != nil {
		return PoolGeometry{}, err
	}
	if expected := g.Header(); !bytes.Equal(header[:len(expected)], expected) {
		return PoolGeometry{}, MemoryError("layout")
	}
	if g.Bytes > region {
		return PoolGeometry{}, MemoryError("region")
	}
	return g, nil
}

// Header returns the bytes of the header.
func (g PoolGeometry) Header() []byte {
	le := binary.LittleEndian
	out := append(make([]byte, 0, 32+32*len(g.Classes)), poolMagic...)
	out = le.AppendUint32(out, uint32(len(g.Classes)))
	out = le.AppendUint32(out, 0)
	out = le.AppendUint64(out, g.Bytes)
	out = le.AppendUint64(out, 0)
	for _, c := range g.Classes {
		out = le.AppendUint32(out, c.Size)
		out = le.AppendUint32(out, c.Count)
		out = le.AppendUint64(out, c.Words)
		out = le.AppendUint64(out, c.Hints)
		out = le.AppendUint64(out, c.Slots)
	}
	return out
}

// SlotSize returns the size of a slot, 0 if the pool has no such slot.
func (g PoolGeometry) SlotSize(s Slot) uint32 {
	if k := s.Class(); k < len(g.Classes) && s.Index() < g.Classes[k].Count {
		return g.Classes[k].Size
	}
	return 0
}

// SlotAt returns the offset of a slot of the pool.
func (g PoolGeometry) SlotAt(s Slot) uint64 {
	c := &g.Classes[s.Class()]
	return c.Slots + uint64(s.Index())*uint64(c.Size)
}

// ClassFor returns the smallest class with slots of at least this size; the number of classes if there is none.
func (g PoolGeometry) ClassFor(bytes uint32) int {
	for k := range g.Classes {
		if g.Classes[k].Size >= bytes {
			return k
		}
	}
	return len(g.Classes)
}

// Largest returns the size of the largest slots.
func (g PoolGeometry) Largest() uint32 { return g.Classes[len(g.Classes)-1].Size }

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }
