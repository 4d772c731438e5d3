//! A seccomp filter that reports connect() to a listener (`seccomp_unotify(2)`).
//!
//! [`install_listener`] installs the filter for the calling thread and everything that it executes
//! or forks. The holder of the [`SeccompListener`] receives each connect() to an address of IPv4 or
//! IPv6 length as a [`ConnectCall`]. The caller waits meanwhile. The holder lets the kernel
//! continue it ([`SeccompListener::continue_call`]), or replaces the caller's socket and reports
//! success ([`SeccompListener::replace_socket`]).
//!
//! The caller's memory may change after it was read. Continuing a call is therefore never a
//! permission; something else must confine the caller.
//!
//! The filter also reports setsockopt() of rarely used options, and lets it continue. Afterwards
//! every option of a socket must be compared, which is expensive
//! ([`SocketOptions::changes_on`](crate::sockets::SocketOptions::changes_on)).
//!
//! When the last holder of a listener is gone, calls under its filter fail with `ENOSYS` instead of
//! hanging.
#![expect(
    unsafe_code,
    reason = "seccomp(2) and its ioctls have no safe interface"
)]

use std::cell::Cell;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::sockets::unreported_options;

/// Wakes the other side on the same processor: call and response hand over and never run in
/// parallel (`linux/seccomp.h`, Linux 6.6).
const SYNC_WAKE_UP: libc::c_ulong = 1;
/// Sizes of `struct sockaddr_in` and `struct sockaddr_in6`.
const ADDRESS_LENGTHS: [u32; 2] = [
    size_of::<libc::sockaddr_in>() as u32,
    size_of::<libc::sockaddr_in6>() as u32,
];
/// Offsets in `struct seccomp_data`: the system call, its ABI, and the low half of the third
/// argument. connect() takes an `int` there, so the high half is meaningless.
const SYSCALL_OFFSET: u32 = 0;
const ABI_OFFSET: u32 = 4;
const ADDRLEN_OFFSET: u32 = argument_offset(2);
/// Arguments of setsockopt(), also `int`s.
const LEVEL_OFFSET: u32 = argument_offset(1);
const OPTNAME_OFFSET: u32 = argument_offset(2);

/// Returns the offset of the low half of an argument.
const fn argument_offset(number: u32) -> u32 {
    16 + number * 8 + if cfg!(target_endian = "big") { 4 } else { 0 }
}

#[cfg(target_arch = "x86_64")]
const OWN_ABI: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64 of linux/audit.h
#[cfg(target_arch = "aarch64")]
const OWN_ABI: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64 of linux/audit.h
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OWN_ABI: u32 = 0; // matches no call, so nothing is reported

/// Installs the filter for the calling thread and everything that it executes or forks,
/// permanently. Sets `no_new_privs`.
///
/// Non-fatal signals wait while a call is inspected, so that no call is restarted (Go signals its
/// threads often).
///
/// # Errors
/// Fails with `EBUSY` under another listener, `EINVAL` before Linux 5.19, `EPERM` or `ENOSYS` where
/// listeners are forbidden.
pub fn install_listener() -> io::Result<OwnedFd> {
    rustix::thread::set_no_new_privs(true)?;
    let mut filter = notify_filter();
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel copies the program, whose pointer and length belong to `notify_filter`,
    // which outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just opened it for this process, and no other code knows of it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks that this machine has listeners, on a thread that ends with its filter.
///
/// # Errors
/// Fails like [`install_listener`].
pub fn check_listener_support() -> io::Result<()> {
    let tried = std::thread::Builder::new()
        .name("probe".into())
        .spawn(|| install_listener().map(drop))?;
    tried
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the probing thread panicked")))
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const NOTIFY: libc::sock_filter = bpf_instruction(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF);
const ALLOW: libc::sock_filter = bpf_instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

const fn bpf_instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn notify_filter() -> Vec<libc::sock_filter> {
    let mut program = vec![
        bpf_instruction(LOAD, 0, 0, ABI_OFFSET),
        // A foreign ABI has other call numbers. The deny list ends such processes.
        bpf_instruction(JUMP_EQUAL, 1, 0, OWN_ABI),
        ALLOW,
        bpf_instruction(LOAD, 0, 0, SYSCALL_OFFSET),
        bpf_instruction(JUMP_EQUAL, 0, 5, libc::SYS_connect as u32),
        bpf_instruction(LOAD, 0, 0, ADDRLEN_OFFSET),
        bpf_instruction(JUMP_EQUAL, 1, 0, ADDRESS_LENGTHS[0]),
        bpf_instruction(JUMP_EQUAL, 0, 1, ADDRESS_LENGTHS[1]),
        NOTIFY,
        ALLOW,
        bpf_instruction(JUMP_EQUAL, 1, 0, libc::SYS_setsockopt as u32),
        ALLOW,
    ];
    for (level, name) in unreported_options() {
        let rule = [
            bpf_instruction(LOAD, 0, 0, LEVEL_OFFSET),
            // On a mismatch to the next rule, which loads the level again.
            bpf_instruction(JUMP_EQUAL, 0, 3, level as u32),
            bpf_instruction(LOAD, 0, 0, OPTNAME_OFFSET),
            bpf_instruction(JUMP_EQUAL, 0, 1, name as u32),
        ];
        program.extend(rule.into_iter().chain([ALLOW]));
    }
    program.push(NOTIFY);
    program
}

/// A connect() that waits for a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectCall {
    /// Id of the call for the listener.
    pub id: u64,
    /// Id of the waiting thread in this process's PID namespace; 0 outside it.
    pub tid: u32,
    /// Descriptor of the socket to connect.
    pub socket_fd: i32,
    /// Address of the socket address in the thread's memory.
    pub address_ptr: u64,
    /// Length of the socket address: 16 or 28 octets.
    pub address_len: usize,
}

/// The receiving end of a filter. Readable when a call waits; hung up when all filtered processes
/// have ended.
#[derive(Debug)]
pub struct SeccompListener {
    descriptor: OwnedFd,
    /// Set if a blocking receive returns when all filtered processes have ended.
    reports_hangup: bool,
    rare_option_set: Cell<bool>,
}

/// State of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerEvent {
    /// A call waits.
    Call(ConnectCall),
    /// No call waits.
    Empty,
    /// All filtered processes have ended.
    HungUp,
}

const CONNECT: libc::c_long = libc::SYS_connect;
const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

impl SeccompListener {
    /// Takes over the descriptor from [`install_listener`].
    ///
    /// Kernels before 6.6 wake callers slightly later.
    pub fn new(descriptor: OwnedFd) -> Self {
        // SAFETY: the argument is a number, no pointer.
        unsafe {
            libc::ioctl(
                descriptor.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNC_WAKE_UP,
            )
        };
        let release = rustix::system::uname();
        Self {
            descriptor,
            reports_hangup: release.release().to_str().is_ok_and(kernel_reports_hangup),
            rare_option_set: Cell::default(),
        }
    }

    /// Returns whether a filtered process has set a rarely used socket option before any call
    /// received since.
    pub fn saw_rare_option(&self) -> bool {
        self.rare_option_set.get()
    }

    /// Returns the next call without waiting. Empty also when a reported call was not a connect(),
    /// or its caller was killed.
    ///
    /// # Errors
    /// Fails when the descriptor is not a listener.
    pub fn try_next(&self) -> io::Result<ListenerEvent> {
        self.poll_event(Some(&NO_WAIT))
    }

    /// Returns the next call, waiting up to `timeout`.
    ///
    /// # Errors
    /// Fails like [`try_next`](Self::try_next).
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<ListenerEvent> {
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.poll_event(Some(&timeout))
    }

    /// Waits for the next call; `None` when all filtered processes have ended.
    ///
    /// # Errors
    /// Fails like [`try_next`](Self::try_next).
    pub fn wait_call(&self) -> io::Result<Option<ConnectCall>> {
        loop {
            let event = match self.reports_hangup {
                true => self.receive_or_else(|| self.poll_event(Some(&NO_WAIT)))?,
                false => self.poll_event(None)?,
            };
            match event {
                ListenerEvent::Call(call) => return Ok(Some(call)),
                ListenerEvent::HungUp => return Ok(None),
                ListenerEvent::Empty => {}
            }
        }
    }

    fn poll_event(&self, timeout: Option<&Timespec>) -> io::Result<ListenerEvent> {
        loop {
            let mut ends = [PollFd::new(&self.descriptor, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut ends, timeout))?;
            let event = ends[0].revents();
            if !event.contains(PollFlags::IN) {
                let over = event.intersects(PollFlags::HUP | PollFlags::ERR);
                return Ok(if over {
                    ListenerEvent::HungUp
                } else {
                    ListenerEvent::Empty
                });
            }
            match self.receive_or_else(|| Ok(ListenerEvent::Empty))? {
                ListenerEvent::Empty if timeout.is_none() => {}
                event => return Ok(event),
            }
        }
    }

    /// Receives the next call, blocking. Calls `otherwise` if its caller was killed before, or no
    /// process is left.
    fn receive_or_else(
        &self,
        otherwise: impl FnOnce() -> io::Result<ListenerEvent>,
    ) -> io::Result<ListenerEvent> {
        match self.receive_notification() {
            Ok((call, CONNECT)) => Ok(ListenerEvent::Call(call)),
            Ok((call, _)) => {
                self.rare_option_set.set(true);
                // Only noted: the option takes effect, and the next connect() compares all of them.
                self.continue_call(&call);
                Ok(ListenerEvent::Empty)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => otherwise(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(ListenerEvent::Empty),
            Err(error) => Err(error),
        }
    }

    /// Receives a call and its system call number.
    fn receive_notification(&self) -> io::Result<(ConnectCall, libc::c_long)> {
        // SAFETY: a struct of numbers, for which zero is valid; the kernel wants it zeroed.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `struct seccomp_notif` to it.
        self.notify_ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)?;
        let [descriptor, address, length, ..] = notification.data.args;
        let call = ConnectCall {
            id: notification.id,
            tid: notification.pid,
            socket_fd: descriptor as i32, // connect() takes an int
            address_ptr: address,
            address_len: length as u32 as usize,
        };
        Ok((call, notification.data.nr.into()))
    }

    /// Returns whether the caller still waits.
    ///
    /// If it does, data read from its thread by id belongs to that thread, not to a later one with
    /// the same id. [`replace_socket`](Self::replace_socket) checks this too.
    pub fn is_pending(&self, call: &ConnectCall) -> bool {
        let mut id = call.id;
        self.notify_ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id)
            .is_ok()
    }

    /// Lets the kernel continue the call. A killed caller needs no response.
    pub fn continue_call(&self, call: &ConnectCall) {
        self.send_response(call, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// Replaces the caller's descriptor with a duplicate of `socket`, and reports success to it.
    ///
    /// # Errors
    /// Fails when the caller was killed, or its descriptor may not be replaced. Nothing has changed
    /// then, and the call must be continued.
    pub fn replace_socket(
        &self,
        call: &ConnectCall,
        socket: BorrowedFd<'_>,
        close_at_exec: bool,
    ) -> io::Result<()> {
        let mut request = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: socket.as_raw_fd() as u32,
            newfd: call.socket_fd as u32,
            newfd_flags: if close_at_exec {
                libc::O_CLOEXEC as u32
            } else {
                0
            },
        };
        // Two steps instead of `SECCOMP_ADDFD_FLAG_SEND`, which would return the descriptor's
        // number as the result of connect().
        self.notify_ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut request)?;
        self.send_response(call, 0);
        Ok(())
    }

    fn send_response(&self, call: &ConnectCall, flags: u32) {
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags,
        };
        // fails only when the caller is dead
        let _ = self.notify_ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
    }

    /// Issues one of the listener's ioctls with the struct that it takes.
    fn notify_ioctl<T>(&self, request: libc::Ioctl, argument: *mut T) -> io::Result<()> {
        // SAFETY: each request's number holds the size of its struct (`_IOWR`), and every caller
        // here passes that very struct, alive and exclusive.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Decides by the release, since Linux 6.11: a trial would block for ever on older kernels.
fn kernel_reports_hangup(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()) >= Some((6, 11))
}

impl AsFd for SeccompListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for SeccompListener {
    fn as_raw_fd(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    /// Starts a thread that installs the filter and does `work`; returns its listener.
    fn spawn_filtered<T: Send + 'static>(
        work: impl FnOnce() -> T + Send + 'static,
    ) -> (SeccompListener, thread::JoinHandle<T>) {
        let (sender, received) = mpsc::channel();
        let thread = thread::spawn(move || {
            sender.send(install_listener()).unwrap();
            work()
        });
        (
            SeccompListener::new(received.recv().unwrap().unwrap()),
            thread,
        )
    }

    /// Waits up to 30 seconds for a call.
    fn next_call(listener: &SeccompListener) -> ConnectCall {
        let thirty_seconds = Timespec {
            tv_sec: 30,
            tv_nsec: 0,
        };
        poll(
            &mut [PollFd::new(listener, PollFlags::IN)],
            Some(&thirty_seconds),
        )
        .unwrap();
        match listener.try_next().unwrap() {
            ListenerEvent::Call(call) => call,
            other => panic!("no call within 30 s: {other:?}"),
        }
    }

    #[test]
    fn a_call_is_reported_continued_and_replaced() {
        if let Err(why) = check_listener_support() {
            nearpath_testkit::skip!("seccomp listeners are unavailable: {why}");
        }
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let (release_thread, released) = mpsc::channel::<()>();
        let (listener, client) = spawn_filtered(move || {
            let _ = released.recv();
            let passed = TcpStream::connect(to).unwrap().peer_addr().unwrap();
            (
                passed,
                TcpStream::connect((Ipv4Addr::LOCALHOST, 1))
                    .unwrap()
                    .peer_addr()
                    .unwrap(),
            )
        });
        assert_eq!(listener.try_next().unwrap(), ListenerEvent::Empty);
        drop(release_thread);
        let first = next_call(&listener);
        assert_eq!(first.address_len, 16);
        assert!(listener.is_pending(&first));
        listener.continue_call(&first);
        let second = next_call(&listener);
        assert!(!listener.is_pending(&first));
        let warm = TcpStream::connect(to).unwrap();
        listener
            .replace_socket(&second, warm.as_fd(), true)
            .unwrap();
        assert_eq!(client.join().unwrap(), (to, to));
        assert!(
            listener
                .replace_socket(&second, warm.as_fd(), true)
                .is_err()
        );
        assert_eq!(listener.try_next().unwrap(), ListenerEvent::HungUp);
    }

    #[test]
    fn setting_a_rare_option_is_reported() {
        use rustix::net::sockopt;
        if let Err(why) = check_listener_support() {
            nearpath_testkit::skip!("seccomp listeners are unavailable: {why}");
        }
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let (listener, client) = spawn_filtered(move || {
            let usual = TcpStream::connect(to).unwrap();
            usual.set_nodelay(true).unwrap();
            sockopt::set_socket_keepalive(&usual, true).unwrap();
            let odd = TcpStream::connect(to).unwrap();
            sockopt::set_tcp_congestion(&odd, "reno").unwrap();
            drop(TcpStream::connect(to).unwrap());
            sockopt::tcp_congestion(&odd).unwrap()
        });
        for odd in [false, false, true] {
            let mut event = listener.wait_timeout(Duration::from_secs(30)).unwrap();
            while event == ListenerEvent::Empty {
                event = listener.wait_timeout(Duration::from_secs(30)).unwrap();
            }
            let ListenerEvent::Call(call) = event else {
                panic!("{event:?}")
            };
            assert_eq!(listener.saw_rare_option(), odd);
            listener.continue_call(&call);
        }
        assert_eq!(client.join().unwrap(), "reno");
    }

    #[test]
    fn a_waiting_thread_sees_the_hangup() {
        if let Err(why) = check_listener_support() {
            nearpath_testkit::skip!("seccomp listeners are unavailable: {why}");
        }
        let rule = rustix::system::uname()
            .release()
            .to_str()
            .is_ok_and(kernel_reports_hangup);
        for reports_hangup in [false, rule] {
            let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let to = server.local_addr().unwrap();
            let (release_thread, released) = mpsc::channel::<()>();
            let (mut listener, client) =
                spawn_filtered(move || (TcpStream::connect(to).unwrap(), released.recv()));
            listener.reports_hangup = reports_hangup;
            let (sender, received) = mpsc::channel();
            let waiting = thread::spawn(move || {
                let mut calls = 0;
                while let Some(call) = listener.wait_call().unwrap() {
                    listener.continue_call(&call);
                    calls += 1;
                }
                sender.send(calls).unwrap();
            });
            drop(release_thread);
            client.join().unwrap().0.peer_addr().unwrap();
            assert_eq!(
                received.recv_timeout(Duration::from_secs(30)),
                Ok(1),
                "no hangup was reported with reports_hangup = {reports_hangup}"
            );
            waiting.join().unwrap();
        }
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        if let Err(why) = check_listener_support() {
            nearpath_testkit::skip!("seccomp listeners are unavailable: {why}");
        }
        let (release_thread, released) = mpsc::channel::<()>();
        let (listener, client) = spawn_filtered(move || released.recv());
        assert_eq!(
            listener.wait_timeout(Duration::from_millis(1)).unwrap(),
            ListenerEvent::Empty
        );
        drop(release_thread);
        let _ = client.join().unwrap();
        assert_eq!(
            listener.wait_timeout(Duration::from_secs(30)).unwrap(),
            ListenerEvent::HungUp
        );
    }

    #[test]
    fn kernel_releases_are_compared() {
        for (release, tells) in [
            ("6.11.0", true),
            ("6.18.44-fc", true),
            ("7.0-rc1", true),
            ("6.8.0-90", false),
            ("5.19", false),
        ] {
            assert_eq!(kernel_reports_hangup(release), tells, "{release}");
        }
        assert!(
            !kernel_reports_hangup("")
                && !kernel_reports_hangup("6")
                && !kernel_reports_hangup("next")
        );
    }

    #[test]
    fn other_address_lengths_are_not_reported() {
        if let Err(why) = check_listener_support() {
            nearpath_testkit::skip!("seccomp listeners are unavailable: {why}");
        }
        let (listener, client) = spawn_filtered(|| {
            std::os::unix::net::UnixStream::connect("/nowhere")
                .unwrap_err()
                .kind()
        });
        assert_eq!(client.join().unwrap(), io::ErrorKind::NotFound);
        assert_eq!(listener.try_next().unwrap(), ListenerEvent::HungUp);
    }

    #[test]
    fn calls_fail_when_the_listener_is_closed() {
        if let Err(why) = check_listener_support() {
            nearpath_testkit::skip!("seccomp listeners are unavailable: {why}");
        }
        let (listener, client) =
            spawn_filtered(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).unwrap_err());
        let _ = next_call(&listener);
        drop(listener);
        assert_eq!(client.join().unwrap().raw_os_error(), Some(libc::ENOSYS));
    }
}
