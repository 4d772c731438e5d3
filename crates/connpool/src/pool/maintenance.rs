//! The one task that sees to what nobody else does: time that passes, and connections that end while they are open for nobody.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::sleep_until;

use super::driver::{Held, Keeper};
use super::liveness::has_ended;
use super::ready_slots::Lifted;
use crate::state::SocketId;

impl Keeper {
    /// Runs as long as the thread.
    pub async fn mind(self: Rc<Self>) {
        loop {
            let due = self.stock.borrow().wake_at();
            self.minded.set(due);
            let time = sleep_until(due.unwrap_or_else(Instant::now).into());
            tokio::select! {
                () = self.changed.notified() => {}
                () = time, if due.is_some() => {}
                ended = poll_fn(|cx| self.poll_ended(cx)) => ended.into_iter().for_each(|socket| self.lapsed(socket)),
            }
            for socket in self.gone.take() {
                let key = self.stock.borrow().key(socket);
                self.stock.borrow_mut().closed(Instant::now(), socket);
                key.inspect(|key| self.look_over(*key));
            }
            self.stock.borrow_mut().tick(Instant::now());
            self.obey();
            self.lay_out();
        }
    }

    /// Those that are open for nobody and have something to read, an end or an error. Nobody has asked for any of these.
    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<Vec<SocketId>> {
        let sockets = self.sockets.borrow();
        let warm = sockets.iter().filter_map(|(id, held)| match held {
            Held::Warm(stream) => Some((*id, stream)),
            Held::Opening(_) | Held::Taken(_) => None,
        });
        let ended: Vec<_> = warm.filter(|(_, stream)| has_ended(stream, cx)).map(|(id, _)| id).collect();
        if ended.is_empty() { Poll::Pending } else { Poll::Ready(ended) }
    }

    fn lapsed(&self, socket: SocketId) {
        let held = self.sockets.borrow_mut().remove(&socket);
        if let (Lifted::Taken, Some(Held::Warm(stream))) = (self.lift(socket), held) {
            self.sockets.borrow_mut().insert(socket, Held::Taken(stream));
            return;
        }
        self.stock.borrow_mut().closed(Instant::now(), socket);
    }
}
