package memory

// Numbers that package syscall does not have.
const (
	sysGetcpu      = 168
	sysMemfdCreate = 279
)
