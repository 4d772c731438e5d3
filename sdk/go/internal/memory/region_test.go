package memory

import (
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// memfd creates a region with these seals.
func memfd(t *testing.T, seals uintptr) *os.File {
	name := []byte("np-test\x00")
	fd, _, errno := syscall.Syscall(sysMemfdCreate, uintptr(unsafe.Pointer(&name[0])), memfdCloexec|memfdAllowSealing, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	file := os.NewFile(fd, "np-test")
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, fAddSeals, seals); errno != 0 {
		t.Fatal(errno)
	}
	return file
}

func TestRegionsWithoutSealsAreRejected(t *testing.T) {
	for _, missing := range []uintptr{sealSeal, sealShrink, sealGrow} {
		if _, err := OpenRegion(int(memfd(t, sealed&^missing).Fd()), 8192); err == nil {
			t.Errorf("without seal %d", missing)
		}
	}
	whole := memfd(t, sealed)
	if _, err := OpenRegion(int(whole.Fd()), 8192); err != nil {
		t.Error(err)
	}
	if _, err := OpenRegion(int(whole.Fd()), 4096); err == nil {
		t.Error("a region of another size was accepted")
	}
	if err := whole.Truncate(0); err == nil {
		t.Error("a sealed region shrank")
	}
	plain, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := OpenRegion(int(plain.Fd()), 0); err == nil {
		t.Error("no memfd")
	}
}
