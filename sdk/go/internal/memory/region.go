package memory

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	fAddSeals  = 1033
	fGetSeals  = 1034
	sealSeal   = 1
	sealShrink = 2
	sealGrow   = 4
	sealed     = sealSeal | sealShrink | sealGrow
)

// Region is mapped, sealed memory that processes share. It is unmapped when nothing refers to it any more.
type Region struct {
	mem []byte
}

// OpenRegion maps a region of another process with an expected size in bytes. It refuses a region that could change its size: a peer
// that shrinks it would end its readers with SIGBUS. The caller owns the descriptor.
func OpenRegion(fd int, size uint64) (*Region, error) {
	seals, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), fGetSeals, 0)
	if errno != 0 {
		return nil, fmt.Errorf("shared memory: the descriptor is no memfd: %w", errno)
	}
	if seals&sealed != sealed {
		return nil, errors.New("shared memory: the region is not sealed against shrinking, growing and further seals")
	}
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if stat.Size < 0 || uint64(stat.Size) != size {
		return nil, fmt.Errorf("shared memory: the region has %d bytes instead of %d", stat.Size, size)
	}
	return mapRegion(fd, size)
}

func mapRegion(fd int, size uint64) (*Region, error) {
	mem, err := syscall.Mmap(fd, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	region := &Region{mem}
	runtime.AddCleanup(region, func(mem []byte) { _ = syscall.Munmap(mem) }, mem)
	return region, nil
}

// Len is the number of bytes.
func (r *Region) Len() uint64 { return uint64(len(r.mem)) }

// Bytes returns the bytes at an offset. Other processes may change them at any time: hold a lease, or copy and check the copy.
func (r *Region) Bytes(at uint64, size uint32) []byte {
	return r.mem[at : at+uint64(size) : at+uint64(size)]
}

func (r *Region) word32(at uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(r.mem[at : at+4])))
}

func (r *Region) words64(at uint64, count uint64) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(r.mem[at:at+8*count]))), count)
}

// entries returns words that only a ring's indices order. A plain access to one aligned word is never torn, whatever another
// process does meanwhile. This suffices, since every read value is checked.
func (r *Region) entries(at uint64, count uint64) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(r.mem[at:at+8*count]))), count)
}
