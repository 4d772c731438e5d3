use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;

use nearpath_testkit::{eventually, within};
use rustix::event::epoll::EventFlags;
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, LocalOptions};

use super::*;

/// Runs a test on a serving thread's kind of runtime, with an event loop.
pub(crate) fn run_with_loop(test: impl AsyncFnOnce(Rc<EventLoop>)) {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.unwrap().block_on(async {
        let event_loop = EventLoop::new().unwrap();
        tokio::task::spawn_local(event_loop.clone().run());
        let sweeping = event_loop.clone();
        tokio::task::spawn_local(async move { sweeping.end_overdue_waits().await });
        within(test(event_loop)).await;
    });
}

/// Returns a registered socket and its peer.
fn connected(event_loop: &EventLoop) -> (PolledSocket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    let socket = PolledSocket::register(socket, event_loop.poller()).unwrap();
    (socket, peer)
}

#[derive(Default)]
pub(crate) struct Recorder {
    event_loop: Option<Rc<EventLoop>>,
    /// Common to all recorders of a test.
    pub(crate) calls: Rc<RefCell<Vec<&'static str>>>,
    last_readiness: Cell<Option<Readiness>>,
}

impl Recorder {
    fn note(&self, call: &'static str) {
        self.calls.borrow_mut().push(call);
    }
}

impl EventHandler for Recorder {
    fn handle_event(self: Rc<Self>, _: Token, readiness: Readiness) {
        if readiness.has(Readiness::READ) {
            self.last_readiness.set(Some(readiness));
            self.note("event");
            let event_loop = self.event_loop.clone();
            event_loop.inspect(|event_loop| event_loop.flush_later(self.clone()));
        }
    }

    fn handle_overdue_wait(self: Rc<Self>) {
        self.note("long wait");
    }

    fn flush(self: Rc<Self>) {
        self.note("flush");
    }

    fn abandon(&self) {
        self.note("abandon");
    }
}

#[test]
fn a_socket_changes_between_handler_and_task() {
    run_with_loop(async |event_loop| {
        let (mut socket, mut peer) = connected(&event_loop);
        let handler = Rc::<Recorder>::default();
        event_loop.attach(&socket, handler.clone());
        peer.write_all(b"one").unwrap();
        let calls = handler.calls.clone();
        eventually("the handler is called", async || calls.borrow().len() == 1).await;
        let mut buffer = bytes::BytesMut::new();
        assert_eq!(socket.try_read(&mut buffer).unwrap(), 3);
        event_loop.detach(&socket);
        peer.write_all(b"two").unwrap();
        let mut rest = [0; 3];
        socket.read_exact(&mut rest).await.unwrap();
        assert_eq!((&buffer[..], &rest), (&b"one"[..], b"two"));
        assert_eq!(calls.borrow().len(), 1, "detached");
        event_loop.attach(&socket, handler.clone());
        drop(peer);
        eventually("the end is told", async || calls.borrow().len() == 2).await;
        assert!(handler.last_readiness.get().unwrap().has(Readiness::END));
    });
}

#[test]
fn writes_follow_all_events_of_a_round() {
    run_with_loop(async |event_loop| {
        let calls = Rc::<RefCell<Vec<_>>>::default();
        let mut connections: Vec<_> = (0..3).map(|_| connected(&event_loop)).collect();
        for (socket, peer) in &mut connections {
            let handler = Recorder {
                event_loop: Some(event_loop.clone()),
                calls: calls.clone(),
                ..Recorder::default()
            };
            event_loop.attach(socket, Rc::new(handler));
            peer.write_all(b"x").unwrap();
        }
        eventually("all are flushed", async || calls.borrow().len() == 6).await;
        let (events, flushes) = ([&"event"; 3], [&"flush"; 3]);
        let calls = calls.borrow();
        assert_eq!(calls.iter().collect::<Vec<_>>(), [events, flushes].concat());
    });
}

#[test]
fn a_long_wait_is_handed_over() {
    run_with_loop(async |event_loop| {
        for _ in 0..2 {
            let handler = Rc::<Recorder>::default();
            let key = event_loop.begin_wait(handler.clone());
            let calls = &handler.calls;
            eventually("it is handed over", async || !calls.borrow().is_empty()).await;
            event_loop.end_wait(key); // the sweep ends, and begins again
        }
    });
}

#[test]
fn a_socket_moves_to_another_loop() {
    run_with_loop(async |event_loop| {
        let other = EventLoop::new().unwrap();
        let (mut socket, mut peer) = connected(&other);
        socket.move_to(event_loop.poller()).unwrap();
        assert!(socket.is_watched_by(event_loop.poller()));
        peer.write_all(b"one").unwrap();
        let mut got = [0; 3];
        socket.read_exact(&mut got).await.unwrap(); // the other loop does not run
        assert_eq!(&got, b"one");
        let mut events = Vec::with_capacity(poller::MAX_EVENTS);
        other.poller().take_events(&mut events).unwrap();
        assert!(events.is_empty());
    });
}

#[test]
fn events_of_a_dropped_socket_reach_no_later_one() {
    run_with_loop(async |event_loop| {
        let (first, _peer) = connected(&event_loop);
        let token = first.token();
        drop(first);
        let (mut second, mut peer) = connected(&event_loop);
        assert_eq!(second.token().index(), token.index());
        let end = Readiness::from_flags(EventFlags::HUP);
        event_loop.poller().note_and_wake(token, end);
        assert!(!second.may_be_readable());
        peer.write_all(b"x").unwrap();
        assert_eq!(second.read_u8().await.unwrap(), b'x');
    });
}

/// Panics in its first event.
#[derive(Default)]
struct Failing(Recorder);

impl EventHandler for Failing {
    fn handle_event(self: Rc<Self>, _: Token, _: Readiness) {
        panic!("as the test asks");
    }

    fn handle_overdue_wait(self: Rc<Self>) {}

    fn flush(self: Rc<Self>) {}

    fn abandon(&self) {
        self.0.note("abandon");
    }
}

#[test]
fn a_panic_ends_one_handler_and_not_the_loop() {
    run_with_loop(async |event_loop| {
        let (first, mut peer) = connected(&event_loop);
        let handler = Rc::<Failing>::default();
        event_loop.attach(&first, handler.clone());
        peer.write_all(b"x").unwrap();
        eventually("it is abandoned", async || {
            !handler.0.calls.borrow().is_empty()
        })
        .await;
        let (mut second, mut peer) = connected(&event_loop);
        peer.write_all(b"x").unwrap();
        assert_eq!(second.read_u8().await.unwrap(), b'x');
    });
}

#[test]
fn an_end_that_a_handler_saw_is_read_by_the_next_user() {
    run_with_loop(async |event_loop| {
        let (mut socket, mut peer) = connected(&event_loop);
        let handler = Rc::<Recorder>::default();
        event_loop.attach(&socket, handler.clone());
        peer.write_all(b"last").unwrap();
        drop(peer);
        let has_end = || {
            handler
                .last_readiness
                .get()
                .is_some_and(|seen| seen.has(Readiness::END))
        };
        eventually("the end is seen", async || has_end()).await;
        event_loop.detach(&socket);
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"last");
    });
}
