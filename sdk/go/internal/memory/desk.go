package memory

import (
	"errors"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// DeskBytes is the size of a desk.
const DeskBytes = 4096

const (
	deskMagic   = "NPWAKE01"
	wakeupFutex   = 0
	wakeupEvent   = 1
	wakeupNone    = 2
	futexWake   = 1
	noEvent     = -1
	deskWakeupAt  = 8
	deskCoreAt  = 12
	deskSleepAt = 64
)

// WakeupCell is where a party sleeps and is woken.
type WakeupCell struct {
	region   *Region
	wakeup   uint32
	core     *atomic.Uint32
	asleep   *atomic.Uint32
	event    int // the eventfd, or noEvent
	blocking bool
}

// OpenWakeupCell maps a desk that the node made. event is its eventfd, or -1; the descriptor stays the caller's and must outlive the
// desk.
func OpenWakeupCell(fd int, event int) (*WakeupCell, error) {
	region, err := OpenRegion(fd, DeskBytes)
	if err != nil {
		return nil, err
	}
	if string(region.mem[:8]) != deskMagic {
		return nil, errors.New("shared memory: the region does not begin with NPWAKE01")
	}
	desk := &WakeupCell{region, region.word32(deskWakeupAt).Load(), region.word32(deskCoreAt), region.word32(deskSleepAt), event, false}
	if desk.wakeup > wakeupNone || (desk.wakeup == wakeupEvent) != (event != noEvent) {
		return nil, errors.New("shared memory: the desk's wakeup mode and the descriptors that came with it do not match")
	}
	if event != noEvent {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(event), syscall.F_GETFL, 0)
		desk.blocking = flags&syscall.O_NONBLOCK == 0
	}
	return desk, nil
}

// UseOwnEvent makes the eventfd the desk's: it is closed when nothing refers to the desk any more.
func (d *WakeupCell) UseOwnEvent() {
	if d.event != noEvent {
		runtime.AddCleanup(d, func(fd int) { _ = syscall.Close(fd) }, d.event)
	}
}

// MarkAsleep says that the party sleeps. Look once more at everything that somebody would ring for after that.
func (d *WakeupCell) MarkAsleep() { d.asleep.Store(1) }

// MarkAwake says that the party is awake.
func (d *WakeupCell) MarkAwake() { d.asleep.Store(0) }

// NoteCore tells peers on which processor the party runs, so that they know whether to spin.
func (d *WakeupCell) NoteCore() { d.SetCore(OwnCore()) }

// SetCore is NoteCore for who has asked already.
func (d *WakeupCell) SetCore(core uint32) {
	if d.core.Load() != core {
		d.core.Store(core)
	}
}

// Core is the processor on which the party last woke up, plus one; 0: unknown.
func (d *WakeupCell) Core() uint32 { return d.core.Load() }

// Wake wakes the party if it sleeps.
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
		one := uint64(1) // fails only when 2^64 − 2 rings are unread: then it rings already
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(d.event), uintptr(unsafe.Pointer(&one)), 8)
	}
}

// OwnCore is the processor of the calling thread, plus one.
func OwnCore() uint32 {
	var cpu uint32
	if _, _, errno := syscall.RawSyscall(sysGetcpu, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return 0
	}
	return cpu + 1
}
