package nearpath_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"nearpath.io/nearpath"
)

// BenchmarkPingPong calls a function in another process, one call at a time, and reports the median. Both processes are
// pinned to one processor, or to one each; "free" leaves the choice to the scheduler.
func BenchmarkPingPong(b *testing.B) {
	for _, place := range []struct {
		name           string
		caller, callee int
	}{{"one core", 0, 0}, {"two cores", 0, 1}, {"free", -1, -1}} {
		b.Run(place.name, func(b *testing.B) {
			child, _ := startFunction(b, "echo")
			pin(b, child, place.callee)
			pin(b, nil, place.caller)
			client := nearpath.Client{ShmOnly: true}
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				if _, err := client.Do(context.Background(), "echo", &nearpath.Request{Body: make([]byte, 64)}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// pin pins all threads of a process, or of this one, to a processor.
func pin(b *testing.B, child *exec.Cmd, core int) {
	if core < 0 {
		return
	}
	pid := os.Getpid()
	if child != nil {
		pid = child.Process.Pid
	}
	setAffinity(b, pid, 1<<core)
	if child == nil {
		b.Cleanup(func() { setAffinity(b, pid, 1<<64-1) })
	}
}

func setAffinity(b *testing.B, pid int, mask uint64) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(tid), 8, uintptr(unsafe.Pointer(&mask)))
		if errno != 0 && errno != syscall.ESRCH {
			b.Fatal(errno)
		}
	}
}
