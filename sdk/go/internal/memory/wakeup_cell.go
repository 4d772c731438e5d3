package memory

import (
	"errors"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// WakeupCellBytes is the size of a wakeup cell.
const WakeupCellBytes = 4096

const (
	wakeupCellMagic = "NPWAKE01"
	wakeupFutex     = 0
	wakeupEvent     = 1
	wakeupNone      = 2
	futexWake       = 1
	noEvent         = -1
	wakeupModeAt    = 8
	coreAt          = 12
	asleepAt        = 64
)

// WakeupCell is the memory in which an endpoint sleeps and is woken.
type WakeupCell struct {
	region   *Region
	wakeup   uint32
	core     *atomic.Uint32
	asleep   *atomic.Uint32
	event    int // the eventfd, or noEvent
	blocking bool
}

// OpenWakeupCell maps a wakeup cell of the node. event is its eventfd, or -1; the caller owns the descriptor, which must outlive the cell.
func OpenWakeupCell(fd int, event int) (*WakeupCell, error) {
	region, err := OpenRegion(fd, WakeupCellBytes)
	if err != nil {
		return nil, err
	}
	if string(region.mem[:8]) != wakeupCellMagic {
		return nil, errors.New("shared memory: the region does not begin with NPWAKE01")
	}
	wakeupCell := &WakeupCell{region, region.word32(wakeupModeAt).Load(), region.word32(coreAt), region.word32(asleepAt), event, false}
	if wakeupCell.wakeup > wakeupNone || (wakeupCell.wakeup == wakeupEvent) != (event != noEvent) {
		return nil, errors.New("shared memory: the wakeup cell's mode does not match its descriptors")
	}
	if event != noEvent {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(event), syscall.F_GETFL, 0)
		wakeupCell.blocking = flags&syscall.O_NONBLOCK == 0
	}
	return wakeupCell, nil
}

// UseOwnEvent makes the cell own its eventfd: it is closed when nothing refers to the cell any more.
func (d *WakeupCell) UseOwnEvent() {
	if d.event != noEvent {
		runtime.AddCleanup(d, func(fd int) { _ = syscall.Close(fd) }, d.event)
	}
}

// MarkAsleep marks the endpoint asleep. Afterwards the caller polls every cause of a wakeup once more.
func (d *WakeupCell) MarkAsleep() { d.asleep.Store(1) }

// MarkAwake marks the endpoint awake.
func (d *WakeupCell) MarkAwake() { d.asleep.Store(0) }

// NoteCore publishes the processor of the calling thread, so that peers can decide whether to spin.
func (d *WakeupCell) NoteCore() { d.SetCore(OwnCore()) }

// SetCore is NoteCore with a given processor.
func (d *WakeupCell) SetCore(core uint32) {
	if d.core.Load() != core {
		d.core.Store(core)
	}
}

// Core is the processor on which the endpoint last woke up, plus one; 0: unknown.
func (d *WakeupCell) Core() uint32 { return d.core.Load() }

// Wake wakes the endpoint if it sleeps.
func (d *WakeupCell) Wake() {
	if d.asleep.Load() != 1 || d.asleep.Swap(0) != 1 {
		return
	}
	defer runtime.KeepAlive(d)
	switch {
	case d.wakeup == wakeupFutex:
		_, _, _ = syscall.RawSyscall(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(d.asleep)), futexWake, 1)
	case d.wakeup == wakeupEvent && d.blocking:
		one := uint64(1)
		_, _ = syscall.Write(d.event, (*[8]byte)(unsafe.Pointer(&one))[:])
	case d.wakeup == wakeupEvent:
		one := uint64(1) // the write fails only at a count of 2^64 − 2: then the endpoint is being woken already
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(d.event), uintptr(unsafe.Pointer(&one)), 8)
	}
}

// OwnCore returns the processor of the calling thread, plus one; 0: unknown.
func OwnCore() uint32 {
	var cpu uint32
	if _, _, errno := syscall.RawSyscall(sysGetcpu, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return 0
	}
	return cpu + 1
}
