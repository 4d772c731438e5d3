package memory

// Numbers that package syscall does not have.
const (
	sysGetcpu      = 309
	sysMemfdCreate = 319
)
