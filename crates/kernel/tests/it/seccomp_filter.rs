//! System calls that the seccomp list refuses, tried from inside: at least one for each kind of
//! rule.

use crate::fixture::Lab;
use nearpath_testkit::need_root;

/// Tries calls by number and prints the errno of each (x86_64 and aarch64 numbers).
const TRY_CALLS: &str = r#"
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
libc_name = ctypes.addressof(ctypes.create_string_buffer(b'name'))
def call(name, x, a, *args):
    ctypes.set_errno(0)
    result = libc.syscall(x if x86 else a, *[ctypes.c_long(arg) for arg in args])
    print(name, errno.errorcode.get(ctypes.get_errno(), '0') if result < 0 else 'allowed', flush=True)
call('mount', 165, 40, 0, 0, 0, 0, 0)
call('umount2', 166, 39, 0, 0)
call('open_tree', 428, 428, -100, 0, 1)
call('pivot_root', 155, 41, 0, 0)
call('unshare', 272, 97, 0x10000000)
call('setns', 308, 268, 0, 0)
call('clone_newuser', 56, 220, 0x10000000 | 17, 0, 0, 0, 0)
call('clone_newnet', 56, 220, 0x40000000 | 17, 0, 0, 0, 0)
call('ptrace', 101, 117, 0, 0, 0, 0)
call('process_vm_readv', 310, 270, 1, 0, 0, 0, 0, 0)
call('pidfd_getfd', 438, 438, 0, 0, 0)
call('bpf', 321, 280, 0, 0, 0)
call('perf_event_open', 298, 241, 0, 0, 0, 0, 0)
call('io_uring_setup', 425, 425, 1, 0)
call('userfaultfd', 323, 282, 1)
call('keyctl', 250, 219, 0, -3, 1)
call('add_key', 248, 217, 0, 0, 0, 0, 0)
call('finit_module', 313, 273, 0, 0, 0)
call('kexec_load', 246, 104, 0, 0, 0, 0)
call('reboot', 169, 142, 0, 0, 0, 0)
call('swapon', 167, 224, 0, 0)
call('quotactl', 179, 60, 0, 0, 0, 0)
call('settimeofday', 164, 170, 0, 0)
call('open_by_handle_at', 304, 265, 0, 0, 0)
call('fanotify_init', 300, 262, 0, 0)
call('syslog', 103, 116, 10, 0, 0)
call('sethostname', 170, 161, 0, 0)
call('move_pages', 279, 239, 1, 0, 0, 0, 0, 0)
call('personality', 135, 92, 0x40000)
call('packet_socket', 41, 198, 17, 3, 0)
call('vsock_socket', 41, 198, 40, 1, 0)
call('alg_socket', 41, 198, 38, 5, 0)
call('ax25_socket', 41, 198, 3, 5, 0)
call('audit_netlink', 41, 198, 16, 3, 9)
call('tipc_pair', 53, 199, 30, 1, 0, 0)
call('memfd_hugetlb', 319, 279, libc_name, 4)
call('mmap_hugetlb', 9, 222, 0, 1 << 21, 3, 0x40022, -1, 0)
call('shmget_hugetlb', 29, 194, 0, 1 << 21, 0o6600)
call('tiocsti', 16, 29, 0, 0x5412, 0)
call('tiocsti_high_bits', 16, 29, 0, 0x100005412, 0)
"#;

#[test]
fn listed_calls_fail_with_eperm() {
    need_root!();
    let lab = Lab::new();
    let result = lab.run(&lab.python(TRY_CALLS));
    assert_eq!(
        result.out.lines().count(),
        TRY_CALLS.matches("\ncall(").count(),
        "{result:?}"
    );
    for line in result.out.lines() {
        assert!(line.ends_with(" EPERM"), "{line}: {result:?}");
    }
}

#[test]
fn clone3_fails_with_enosys_and_threads_work() {
    need_root!();
    let lab = Lab::new();
    let script = "import ctypes, threading, subprocess, socket, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(435, 0, 0), ctypes.get_errno())
t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()
print(subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout.strip())
print(socket.if_nameindex(), libc.personality(0xffffffff))
a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))";
    let result = lab.run(&lab.python(script));
    assert_eq!(
        result.out, "-1 38\nthread\nchild\n[(1, 'lo'), (2, 'eth0')] 0\nb'x'\n",
        "{result:?}"
    );
}

/// Other ABIs use other numbers, so a filter that ignored them could be bypassed.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_of_other_abis_are_refused() {
    need_root!();
    let lab = Lab::new();
    let x32 = lab.run(&lab.python(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.syscall(0x40000000 | 39), ctypes.get_errno())",
    ));
    assert_eq!(x32.out, "-1 38\n", "{x32:?}");
    // mov eax, 20 (getpid); int 0x80; ret
    let code = "import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(bytes.fromhex('b814000000cd80c3'))
print('before', flush=True)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())";
    let mut spec = lab.shell("/usr/bin/python3 -c \"$SCRIPT\"; echo $?");
    spec.environment.insert("SCRIPT".into(), code.into());
    let ia32 = lab.run(&spec);
    assert_eq!(ia32.out, "before\n159\n", "SIGSYS is 31: {ia32:?}");
}
