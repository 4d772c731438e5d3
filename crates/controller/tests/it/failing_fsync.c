/* For LD_PRELOAD: fsync and fdatasync fail with EIO while the file named by FSYNC_FAILS_WHILE exists. */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int sync_with(long call, int fd)
{
	const char *flag = getenv("FSYNC_FAILS_WHILE");
	if (flag && access(flag, F_OK) == 0) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(call, fd);
}

int fsync(int fd) { return sync_with(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_with(SYS_fdatasync, fd); }
