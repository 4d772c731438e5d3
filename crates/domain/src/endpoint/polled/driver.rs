//! Driver of an endpoint: receives, wakes the receivers of sent messages, and sleeps on the cell's
//! eventfd.

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

use super::shared::SharedEndpoint;

/// Runs an endpoint. Ends when no handle is left; after the node closed the socket, open calls
/// continue.
#[must_use = "an endpoint does nothing unless its driver runs"]
pub struct EndpointDriver {
    run: Pin<Box<dyn Future<Output = io::Result<()>>>>,
}

impl EndpointDriver {
    /// Creates a driver. `event` is readable when peers wake, `line` when the node sends.
    pub(super) fn new(
        shared: &Rc<SharedEndpoint>,
        event: Option<UnixDatagram>,
        line: UnixDatagram,
    ) -> Self {
        Self {
            run: Box::pin(run_driver(Rc::downgrade(shared), event, line)),
        }
    }
}

impl Future for EndpointDriver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.run.as_mut().poll(cx)
    }
}

/// tokio's datagram socket only provides readiness of a descriptor here.
pub(super) fn watch_readiness(descriptor: OwnedFd) -> io::Result<UnixDatagram> {
    rustix::io::ioctl_fionbio(&descriptor, true)?; // an endpoint's socket arrives blocking
    UnixDatagram::from_std(Plain::from(descriptor))
}

/// Clears a readiness without a system call: with edge-triggered epoll the next write is a new
/// event.
fn clear_readiness(descriptor: &UnixDatagram) {
    let _ = descriptor.try_io(Interest::READABLE, || -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    });
}

async fn run_driver(
    shared: Weak<SharedEndpoint>,
    event: Option<UnixDatagram>,
    socket: UnixDatagram,
) -> io::Result<()> {
    let mut alarm = pin!(sleep(Duration::ZERO));
    while let Some(post) = shared.upgrade() {
        let asleep = post.run_once(alarm.as_mut());
        let (armed, over) = (post.alarm_at.get().is_some(), post.hung_up.get());
        let cut = post.core.borrow().is_sockmap_closed(); // a closed socket stays readable for ever
        drop(post); // only handles keep the endpoint alive
        let Some(event) = event.as_ref().filter(|_| asleep) else {
            tokio::task::yield_now().await; // tasks woken by this run go first
            if event.is_none() {
                std::thread::yield_now(); // polling mode: the peer may need this core
            }
            continue;
        };
        tokio::select! {
            // In order of urgency, and without the random number of a fair choice.
            biased;
            ready = event.readable(), if !cut => ready.map(|()| clear_readiness(event))?,
            ready = socket.readable(), if !over => {
                ready.map(|()| clear_readiness(&socket))?;
                shared.upgrade().inspect(|post| post.core.borrow_mut().read_socket());
            }
            // No action of their own: the next run looks at everything.
            () = alarm.as_mut(), if armed => {}
            () = driver_needed(&shared) => {}
        }
        shared
            .upgrade()
            .inspect(|post| post.core.borrow().cell.mark_awake());
    }
    Ok(())
}

/// Resolves when a handle needs an earlier alarm, or the last handle is gone.
async fn driver_needed(shared: &Weak<SharedEndpoint>) {
    let mut waits = false;
    poll_fn(|cx| {
        let Some(post) = shared.upgrade() else {
            return Poll::Ready(());
        };
        let mut driver = post.driver_waker.borrow_mut();
        // The waker is taken when it is used: an empty slot is the signal.
        if waits && driver.is_none() {
            return Poll::Ready(());
        }
        (*driver, waits) = (Some(cx.waker().clone()), true);
        Poll::Pending
    })
    .await;
}
