//! A filter that asks about connect(), and the end at which the question arrives (`seccomp_unotify(2)`).
//!
//! It tells of setsockopt() as well, where the option is one that programs seldom set: the call goes on, and from then on each option of a socket has to
//! be looked at, which is dear ([`Options::changes`](crate::sockets::Options::changes)).
//!
//! [`install`] puts the filter on the calling thread and what it executes or forks; whoever holds the [`Listener`] is told of each connect() to an
//! address as long as an IPv4 or IPv6 one, while its caller waits: a [`Call`]. The holder lets the kernel go on with it ([`Listener::pass`]), or puts
//! another socket in the place of the caller's and answers 0 ([`Listener::replace`]). What the caller's memory says may change after it was looked at, so
//! passing a call is never a permission: something else has to hold the caller.
//!
//! When the last holder of a listener is gone, the calls under its filter fail with `ENOSYS`: they never hang.
#![expect(unsafe_code, reason = "seccomp(2) and its ioctls have no safe interface")]

use std::cell::Cell;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::sockets::untold;

/// Wake the other side on this processor: a question and its answer are one hand-over, not two threads at work (`linux/seccomp.h`, Linux 6.6).
const SYNC_WAKE_UP: libc::c_ulong = 1;
/// Lengths of `struct sockaddr_in` and `struct sockaddr_in6`.
const LENGTHS: [u32; 2] = [size_of::<libc::sockaddr_in>() as u32, size_of::<libc::sockaddr_in6>() as u32];
/// Places in `struct seccomp_data`: the number of the call, its ABI, and the low half of its third argument. connect() takes that as an `int`, so the
/// other half means nothing.
const NUMBER: u32 = 0;
const ABI: u32 = 4;
const LENGTH: u32 = argument(2);
/// Those of setsockopt(), which are `int`s as well.
const LEVEL: u32 = argument(1);
const NAME: u32 = argument(2);

/// Place of the low half of an argument.
const fn argument(number: u32) -> u32 {
    16 + number * 8 + if cfg!(target_endian = "big") { 4 } else { 0 }
}

#[cfg(target_arch = "x86_64")]
const OWN_ABI: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const OWN_ABI: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OWN_ABI: u32 = 0; // no call has it: nothing is asked about

/// Asks about connect() from now on, for the calling thread and what it executes or forks, for good. Sets `no_new_privs`.
///
/// Signals that do not kill wait while a call is looked at, so that it is never begun twice (Go interrupts its threads all the time).
///
/// # Errors
/// `EBUSY` under another listener, `EINVAL` before Linux 5.19, `EPERM` or `ENOSYS` where the machine forbids listeners.
pub fn install() -> io::Result<OwnedFd> {
    rustix::thread::set_no_new_privs(true)?;
    let mut filter = filter();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel copies the program, whose pointer and length belong to `filter`, which outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just opened it for this process, and nobody else knows of it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this machine has listeners: tried by a thread that ends with its filter.
///
/// # Errors
/// As [`install`].
pub fn possible() -> io::Result<()> {
    let tried = std::thread::Builder::new().name("probe".into()).spawn(|| install().map(drop))?;
    tried.join().unwrap_or_else(|_| Err(io::Error::other("the probing thread panicked")))
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const ASK: libc::sock_filter = op(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF);
const ALLOW: libc::sock_filter = op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

const fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn filter() -> Vec<libc::sock_filter> {
    let mut program = vec![
        op(LOAD, 0, 0, ABI),
        op(EQUAL, 1, 0, OWN_ABI),
        ALLOW,
        op(LOAD, 0, 0, NUMBER),
        op(EQUAL, 0, 5, libc::SYS_connect as u32),
        op(LOAD, 0, 0, LENGTH),
        op(EQUAL, 1, 0, LENGTHS[0]),
        op(EQUAL, 0, 1, LENGTHS[1]),
        ASK,
        ALLOW,
        op(EQUAL, 1, 0, libc::SYS_setsockopt as u32),
        ALLOW,
    ];
    for (level, name) in untold() {
        let known =
            [op(LOAD, 0, 0, LEVEL), op(EQUAL, 0, 3, level as u32), op(LOAD, 0, 0, NAME), op(EQUAL, 0, 1, name as u32)];
        program.extend(known.into_iter().chain([ALLOW]));
    }
    program.push(ASK);
    program
}

/// A connect() that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Names it towards the listener.
    pub id: u64,
    /// The thread that waits, as this process sees it; 0 when it cannot.
    pub thread: u32,
    /// The descriptor that it wants connected.
    pub descriptor: i32,
    /// Where its memory holds the address.
    pub address: u64,
    /// How long that is: 16 or 28 octets.
    pub length: usize,
}

/// Where the questions of one filter arrive. Readable while there is one; hung up when nobody is left who could ask.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
    /// Whether who waits for a call hears that there will be none.
    tells_the_end: bool,
    odd_options: Cell<bool>,
}

/// What a listener has at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// A call.
    Call(Call),
    /// Nothing.
    Nothing,
    /// Nothing ever again: all that were under the filter have ended.
    Over,
}

const CONNECT: libc::c_long = libc::SYS_connect;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Listener {
    /// Takes a listener's descriptor over, from [`install`].
    ///
    /// On kernels before 6.6 callers are woken a little later than they could be.
    pub fn new(descriptor: OwnedFd) -> Self {
        // SAFETY: the argument is a number, no pointer.
        unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        let release = rustix::system::uname();
        Self {
            descriptor,
            tells_the_end: release.release().to_str().is_ok_and(tells_the_end),
            odd_options: Cell::default(),
        }
    }

    /// Whether somebody under the filter has set an option of a socket that programs seldom set: before any call that was received since.
    pub fn has_heard_of_odd_options(&self) -> bool {
        self.odd_options.get()
    }

    /// The next call, without waiting for one. Nothing, too, where what waited was none, or its caller was killed.
    ///
    /// # Errors
    /// When the descriptor is no listener.
    pub fn next(&self) -> io::Result<Waiting> {
        self.within(Some(&AT_ONCE))
    }

    /// The next call, or nothing if there is none for so long.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn wait_for(&self, patience: Duration) -> io::Result<Waiting> {
        let patience = Timespec::try_from(patience).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.within(Some(&patience))
    }

    /// Waits for the next call; `None`: there will be none.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn wait(&self) -> io::Result<Option<Call>> {
        loop {
            let found = match self.tells_the_end {
                true => self.receive_or(|| self.within(Some(&AT_ONCE)))?,
                false => self.within(None)?,
            };
            match found {
                Waiting::Call(call) => return Ok(Some(call)),
                Waiting::Over => return Ok(None),
                Waiting::Nothing => {}
            }
        }
    }

    fn within(&self, patience: Option<&Timespec>) -> io::Result<Waiting> {
        loop {
            let mut ends = [PollFd::new(&self.descriptor, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut ends, patience))?;
            let found = ends[0].revents();
            if !found.contains(PollFlags::IN) {
                let over = found.intersects(PollFlags::HUP | PollFlags::ERR);
                return Ok(if over { Waiting::Over } else { Waiting::Nothing });
            }
            match self.receive_or(|| Ok(Waiting::Nothing))? {
                Waiting::Nothing if patience.is_none() => {}
                found => return Ok(found),
            }
        }
    }

    /// Takes the next call, and waits for it; `none` where its caller was killed before it was looked at, or nobody is left.
    fn receive_or(&self, none: impl FnOnce() -> io::Result<Waiting>) -> io::Result<Waiting> {
        match self.receive() {
            Ok((call, CONNECT)) => Ok(Waiting::Call(call)),
            Ok((call, _)) => {
                self.odd_options.set(true);
                self.pass(&call);
                Ok(Waiting::Nothing)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => none(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Waiting::Nothing),
            Err(error) => Err(error),
        }
    }

    /// A call, and its number.
    fn receive(&self) -> io::Result<(Call, libc::c_long)> {
        // SAFETY: a struct of numbers, for which zero is valid; the kernel wants it zeroed.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `struct seccomp_notif` to it.
        self.control(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice)?;
        let [descriptor, address, length, ..] = notice.data.args;
        let call = Call {
            id: notice.id,
            thread: notice.pid,
            descriptor: descriptor as i32, // connect() takes an int
            address,
            length: length as u32 as usize,
        };
        Ok((call, notice.data.nr.into()))
    }

    /// Whether the caller still waits. What was learnt of its thread by number before is of this thread then, and not of another one that got the
    /// number after its death. [`replace`](Self::replace) says so as well.
    pub fn waits(&self, call: &Call) -> bool {
        let mut id = call.id;
        self.control(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id).is_ok()
    }

    /// Lets the kernel go on with the call. One whose caller was killed meanwhile needs no answer.
    pub fn pass(&self, call: &Call) {
        self.answer(call, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// Closes the caller's descriptor, puts a duplicate of `socket` under its number and answers 0: connected.
    ///
    /// # Errors
    /// When the caller was killed meanwhile, or its descriptor may not be replaced: then nothing has changed, and the call is to be passed.
    pub fn replace(&self, call: &Call, socket: BorrowedFd<'_>, close_at_exec: bool) -> io::Result<()> {
        let mut order = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: socket.as_raw_fd() as u32,
            newfd: call.descriptor as u32,
            newfd_flags: if close_at_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        self.control(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut order)?;
        self.answer(call, 0);
        Ok(())
    }

    fn answer(&self, call: &Call, flags: u32) {
        let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        let _ = self.control(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer); // fails when the caller is dead: well
    }

    /// One of the listener's ioctls, with the struct that it takes.
    fn control<T>(&self, request: libc::Ioctl, argument: *mut T) -> io::Result<()> {
        // SAFETY: each request's number holds the size of its struct (`_IOWR`), and every caller here passes that very struct, alive and exclusive.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Since Linux 6.11, which its number has to tell: to try it is to wait for ever on others.
fn tells_the_end(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()) >= Some((6, 11))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Listener {
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

    /// A thread under a filter that does `work`, and its listener.
    fn listened<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Listener, thread::JoinHandle<T>) {
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            tell.send(install()).unwrap();
            work()
        });
        (Listener::new(told.recv().unwrap().unwrap()), thread)
    }

    /// Waits for a call, half a minute at most.
    fn call(listener: &Listener) -> Call {
        let half_a_minute = Timespec { tv_sec: 30, tv_nsec: 0 };
        poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&half_a_minute)).unwrap();
        match listener.next().unwrap() {
            Waiting::Call(call) => call,
            other => panic!("no call within 30 s: {other:?}"),
        }
    }

    #[test]
    fn a_call_is_told_passed_and_answered() {
        if let Err(why) = possible() {
            nearpath_testkit::skip!("no listeners here: {why}");
        }
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let (go, gone) = mpsc::channel::<()>();
        let (listener, client) = listened(move || {
            let _ = gone.recv();
            let passed = TcpStream::connect(to).unwrap().peer_addr().unwrap();
            (passed, TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).unwrap().peer_addr().unwrap())
        });
        assert_eq!(listener.next().unwrap(), Waiting::Nothing);
        drop(go);
        let first = call(&listener);
        assert_eq!(first.length, 16);
        assert!(listener.waits(&first));
        listener.pass(&first);
        let second = call(&listener);
        assert!(!listener.waits(&first));
        let warm = TcpStream::connect(to).unwrap();
        listener.replace(&second, warm.as_fd(), true).unwrap();
        assert_eq!(client.join().unwrap(), (to, to));
        assert!(listener.replace(&second, warm.as_fd(), true).is_err());
        assert_eq!(listener.next().unwrap(), Waiting::Over);
    }

    #[test]
    fn options_that_are_seldom_set_are_told() {
        use rustix::net::sockopt;
        if let Err(why) = possible() {
            nearpath_testkit::skip!("no listeners here: {why}");
        }
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let (listener, client) = listened(move || {
            let usual = TcpStream::connect(to).unwrap();
            usual.set_nodelay(true).unwrap();
            sockopt::set_socket_keepalive(&usual, true).unwrap();
            let odd = TcpStream::connect(to).unwrap();
            sockopt::set_tcp_congestion(&odd, "reno").unwrap();
            drop(TcpStream::connect(to).unwrap());
            sockopt::tcp_congestion(&odd).unwrap()
        });
        for odd in [false, false, true] {
            let mut found = listener.wait_for(Duration::from_secs(30)).unwrap();
            while found == Waiting::Nothing {
                found = listener.wait_for(Duration::from_secs(30)).unwrap();
            }
            let Waiting::Call(call) = found else { panic!("{found:?}") };
            assert_eq!(listener.has_heard_of_odd_options(), odd);
            listener.pass(&call);
        }
        assert_eq!(client.join().unwrap(), "reno");
    }

    #[test]
    fn who_waits_hears_the_end() {
        if let Err(why) = possible() {
            nearpath_testkit::skip!("no listeners here: {why}");
        }
        let known = rustix::system::uname().release().to_str().is_ok_and(tells_the_end);
        for tells_the_end in [false, known] {
            let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let to = server.local_addr().unwrap();
            let (go, gone) = mpsc::channel::<()>();
            let (mut listener, client) = listened(move || (TcpStream::connect(to).unwrap(), gone.recv()));
            listener.tells_the_end = tells_the_end;
            let (tell, told) = mpsc::channel();
            let waiting = thread::spawn(move || {
                let mut calls = 0;
                while let Some(call) = listener.wait().unwrap() {
                    listener.pass(&call);
                    calls += 1;
                }
                tell.send(calls).unwrap();
            });
            drop(go);
            client.join().unwrap().0.peer_addr().unwrap();
            assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(1), "it never hears: {tells_the_end}");
            waiting.join().unwrap();
        }
    }

    #[test]
    fn who_has_patience_for_so_long_waits_no_longer() {
        if let Err(why) = possible() {
            nearpath_testkit::skip!("no listeners here: {why}");
        }
        let (go, gone) = mpsc::channel::<()>();
        let (listener, client) = listened(move || gone.recv());
        assert_eq!(listener.wait_for(Duration::from_millis(1)).unwrap(), Waiting::Nothing);
        drop(go);
        let _ = client.join().unwrap();
        assert_eq!(listener.wait_for(Duration::from_secs(30)).unwrap(), Waiting::Over);
    }

    #[test]
    fn releases_are_told_apart() {
        for (release, tells) in
            [("6.11.0", true), ("6.18.44-fc", true), ("7.0-rc1", true), ("6.8.0-90", false), ("5.19", false)]
        {
            assert_eq!(tells_the_end(release), tells, "{release}");
        }
        assert!(!tells_the_end("") && !tells_the_end("6") && !tells_the_end("next"));
    }

    #[test]
    fn other_lengths_are_not_asked_about() {
        if let Err(why) = possible() {
            nearpath_testkit::skip!("no listeners here: {why}");
        }
        let (listener, client) = listened(|| std::os::unix::net::UnixStream::connect("/nowhere").unwrap_err().kind());
        assert_eq!(client.join().unwrap(), io::ErrorKind::NotFound);
        assert_eq!(listener.next().unwrap(), Waiting::Over);
    }

    #[test]
    fn without_a_listener_calls_fail_and_do_not_hang() {
        if let Err(why) = possible() {
            nearpath_testkit::skip!("no listeners here: {why}");
        }
        let (listener, client) = listened(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).unwrap_err());
        let _ = call(&listener);
        drop(listener);
        assert_eq!(client.join().unwrap().raw_os_error(), Some(libc::ENOSYS));
    }
}
