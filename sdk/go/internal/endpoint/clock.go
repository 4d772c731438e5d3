package endpoint

import (
	"syscall"
	"time"
	"unsafe"
)

func monotonic() time.Duration {
	var spec syscall.Timespec
	const clockMonotonic = 1
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&spec)), 0)
	return time.Duration(spec.Nano())
}
