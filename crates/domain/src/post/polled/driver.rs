//! The task that runs a party: it takes what comes, rings who was sent something, and sleeps on the desk's event.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as Plain;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::sleep;

use super::shared::Shared;

/// Runs a party. Ends when no handle is left; when the node hangs up, open calls go on.
#[must_use = "a party does nothing unless its driver runs"]
pub struct Driver {
    run: Pin<Box<dyn Future<Output = io::Result<()>>>>,
}

impl Driver {
    /// `event` is readable when peers ring, `line` when the node says something.
    pub(super) fn new(shared: &Rc<Shared>, event: Option<UnixDatagram>, line: UnixDatagram) -> Self {
        Self { run: Box::pin(drive(Rc::downgrade(shared), event, line)) }
    }
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.run.as_mut().poll(cx)
    }
}

/// tokio's datagram socket waits for the readiness of any descriptor and leaves the calls to us.
pub(super) fn readiness(descriptor: OwnedFd) -> io::Result<UnixDatagram> {
    rustix::io::ioctl_fionbio(&descriptor, true)?; // a party's socket comes as one that blocks
    UnixDatagram::from_std(Plain::from(descriptor))
}

/// Forgets a readiness that has been seen, without a call to the kernel: the next write is an edge of its own.
fn seen(descriptor: &UnixDatagram) {
    let _ = descriptor.try_io(Interest::READABLE, || -> io::Result<()> { Err(io::ErrorKind::WouldBlock.into()) });
}

async fn drive(shared: Weak<Shared>, event: Option<UnixDatagram>, socket: UnixDatagram) -> io::Result<()> {
    let mut alarm = pin!(sleep(Duration::ZERO));
    while let Some(post) = shared.upgrade() {
        let asleep = post.turn(alarm.as_mut());
        let (armed, over) = (post.alarm.get().is_some(), post.over.get());
        let cut = post.core.borrow().is_cut_off(); // a socket at its end is readable for ever
        drop(post); // the handles alone keep the party
        let Some(event) = event.as_ref().filter(|_| asleep) else {
            tokio::task::yield_now().await; // whom the turn has woken goes first
            if event.is_none() {
                std::thread::yield_now(); // a party that polls: its peer may wait for this very processor
            }
            continue;
        };
        tokio::select! {
            biased;
            ready = event.readable(), if !cut => ready.map(|()| seen(event))?,
            ready = socket.readable(), if !over => {
                ready.map(|()| seen(&socket))?;
                shared.upgrade().inspect(|post| post.core.borrow_mut().read_socket());
            }
            () = alarm.as_mut(), if armed => {}
            () = called(&shared) => {}
        }
        shared.upgrade().inspect(|post| post.core.borrow().desk.rise());
    }
    Ok(())
}

/// Resolves when a handle needs an earlier alarm, or the last handle is gone.
async fn called(shared: &Weak<Shared>) {
    let mut waits = false;
    poll_fn(|cx| {
        let Some(post) = shared.upgrade() else { return Poll::Ready(()) };
        let mut driver = post.driver.borrow_mut();
        if waits && driver.is_none() {
            return Poll::Ready(());
        }
        (*driver, waits) = (Some(cx.waker().clone()), true);
        Poll::Pending
    })
    .await;
}
