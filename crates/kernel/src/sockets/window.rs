//! Opening the window of a connection that has sent nothing yet; see `bpf/sock_window.c`.

use std::io;
use std::os::fd::AsFd;

use super::raw::{get, set};

/// The option that the program knows, and no kernel.
const OPEN_WINDOW: i32 = 0x4e50;
/// Most octets of a send buffer that are asked for.
const MOST_BUFFERED: u64 = 4 << 20;

/// What a connection may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Segments that may be under way before the first is acknowledged.
    pub segments: u32,
    /// Octets of all of these.
    pub octets: u64,
    /// Octets a second until then.
    pub pace: u32,
}

/// Opens the window of a connection that was made behind a [`Fence`](crate::bpf::Fence) by the calling thread and has sent nothing. Its send buffer grows
/// with it, and goes on to be sized by the kernel.
///
/// # Errors
/// `ENOPROTOOPT` without the fence, `EPERM` when something was sent.
pub fn open_window(socket: impl AsFd, window: &Window) -> io::Result<()> {
    let wish = [window.segments.to_ne_bytes(), window.pace.to_ne_bytes()].concat();
    set(&socket, libc::IPPROTO_TCP, OPEN_WINDOW, &wish)?;
    make_room(&socket, window.octets.saturating_mul(2).min(MOST_BUFFERED))
}

/// Without room in the buffer a window is of no use until the first acknowledgement, when the kernel makes some.
fn make_room(socket: impl AsFd, octets: u64) -> io::Result<()> {
    let mut now = [0; 4];
    get(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut now)?;
    let wanted = i32::try_from(octets).unwrap_or(i32::MAX);
    if i64::from(i32::from_ne_bytes(now)) >= 2 * i64::from(wanted) {
        return Ok(());
    }
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &wanted.to_ne_bytes())?;
    set(&socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &0_i32.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::Fence;
    use crate::sockets::flow;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    const WINDOW: Window = Window { segments: 77, octets: 110_000, pace: 50_000_000 };

    /// A connection that a fenced thread made, with its peer.
    fn fenced(work: impl FnOnce(TcpStream, TcpStream) + Send + 'static) -> Result<(), String> {
        let thread = thread::spawn(|| {
            let fence = Fence::around_this_thread().map_err(|why| why.to_string())?;
            fence.opens_windows().map_err(|why| why.to_string())?;
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let ours = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            work(ours, server.accept().unwrap().0);
            Ok(())
        });
        thread.join().unwrap()
    }

    #[test]
    fn one_that_has_sent_nothing_begins_with_it() {
        let done = fenced(|ours, _peer| {
            open_window(&ours, &WINDOW).unwrap();
            assert_eq!(flow(&ours).unwrap().window, WINDOW.segments);
            let mut room = [0; 4];
            get(&ours, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut room).unwrap();
            assert!(i32::from_ne_bytes(room) >= 440_000);
            let mut lock = [0; 4];
            get(&ours, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &mut lock).unwrap();
            assert_eq!(i32::from_ne_bytes(lock), 0, "the kernel sizes it");
        });
        done.unwrap_or_else(|why| nearpath_testkit::skip!("no windows here: {why}"));
    }

    #[test]
    fn one_that_has_sent_something_keeps_its_own() {
        let done = fenced(|mut ours, mut peer| {
            ours.write_all(b"x").unwrap();
            peer.read_exact(&mut [0]).unwrap();
            let refused = open_window(&ours, &WINDOW).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        });
        done.unwrap_or_else(|why| nearpath_testkit::skip!("no windows here: {why}"));
    }

    #[test]
    fn nobody_else_opens_one() {
        let ((give, take), (answer, answered)) = (mpsc::channel::<TcpStream>(), mpsc::channel());
        thread::spawn(move || {
            let Ok(given) = take.recv() else { return };
            let refused = open_window(&given, &WINDOW).unwrap_err();
            answer.send((refused.raw_os_error(), flow(&given).unwrap().window)).unwrap();
        });
        let done = fenced(move |ours, _peer| {
            give.send(ours).unwrap();
            let (refused, window) = answered.recv().unwrap();
            assert_eq!(refused, Some(libc::ENOPROTOOPT));
            assert_ne!(window, WINDOW.segments);
        });
        done.unwrap_or_else(|why| nearpath_testkit::skip!("no windows here: {why}"));
    }
}
