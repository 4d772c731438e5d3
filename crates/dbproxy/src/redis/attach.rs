//! The backend of a client: there as long as something of the client is under way or in it.

use std::io;
use std::time::Instant;

use super::backend::{Backend, CLEANING, Unfit};
use super::relay::Relay;
use super::session::Leaves;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::{Got, Kept, Reused};
use nearpath_connpool::pool::NoConnection;

impl Relay {
    /// Sees to it that there is a backend. If not, the client knows why, and is sent away.
    pub(super) async fn attached(&mut self) -> io::Result<bool> {
        match self.attach_backend().await {
            Ok(()) => Ok(true),
            Err(line) => {
                self.over = true;
                self.house.known.borrow_mut().forget();
                self.say(&line)?;
                Ok(false)
            }
        }
    }

    pub(super) async fn attach_backend(&mut self) -> Result<(), Vec<u8>> {
        if self.backend.is_none() {
            self.backend = Some(self.attach().await?);
        }
        Ok(())
    }

    /// A backend that is what the client's connection is; else a line for the client.
    async fn attach(&mut self) -> Result<Kept<Backend>, Vec<u8>> {
        let (to, born) = (&self.visit.upstream.destination, Instant::now());
        let deadline = born + to.egress.wait;
        let lease = match self.house.bench.acquire(&self.visit.upstream, self.session.identity(), deadline).await {
            Ok(Got::Used(kept)) => return Ok(kept),
            Ok(Got::New(lease)) => lease,
            Err(error) => return Err(line(&error)),
        };
        let made = async {
            let mut backend = Backend {
                socket: nearpath_connpool::tls::on(lease, to, &self.visit.upstream.rooms)
                    .await
                    .map_err(|error| line(&error))?,
            };
            match backend.set_up(to, self.session.identity()).await {
                Ok(()) => Ok(backend),
                Err(Unfit::Refused(line)) => Err([&line, &b"\r\n"[..]].concat()),
                Err(Unfit::Broken(error)) => Err(line(&NoConnection::Refused { to: to.key.to.clone(), error })),
            }
        };
        let late = || line(&NoConnection::Refused { to: to.key.to.clone(), error: io::ErrorKind::TimedOut.into() });
        let backend = tokio::time::timeout_at(deadline.into(), made).await.map_err(|_| late())??;
        Ok(Kept::new(backend, born))
    }

    /// Gives the backend back as soon as nothing of the client is in it.
    pub(super) fn release(&mut self) {
        let clean = self.session.free() && !self.input.streams && self.to_backend.is_empty() && self.frames.between();
        if clean && let Some(backend) = self.backend.take() {
            self.house.bench.give_back(&self.visit.upstream, self.session.identity(), backend);
        }
    }

    /// The client has left: what it left behind is removed, or goes with its backend.
    pub(super) async fn leave(mut self) {
        self.end_notes();
        self.bequeath();
        self.release();
        // The client need not wait for what happens to its backend.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.client).await;
        self.detach().await;
    }

    pub(super) async fn detach(&mut self) {
        let whole = !self.input.streams && self.to_backend.is_empty() && self.frames.between();
        let Some(mut backend) = self.backend.take() else { return };
        if self.session.leaves() == Leaves::Unknown || !whole {
            return backend.item.close();
        }
        let cleaning = backend.item.clean(&self.visit.upstream.destination, self.session.identity());
        match tokio::time::timeout(CLEANING, cleaning).await {
            Ok(Ok(())) => {
                Ledger::count(&self.visit.upstream.ledger.resets, 1);
                self.house.bench.give_back(&self.visit.upstream, self.session.identity(), backend);
            }
            _ => backend.item.close(),
        }
    }
}

/// An error in the words of Redis, as far as it has some.
fn line(error: &NoConnection) -> Vec<u8> {
    match error {
        NoConnection::Exhausted { .. } => format!("-ERR max number of clients reached: {error} (egress max=)\r\n"),
        NoConnection::Refused { .. } => format!("-ERR {error}\r\n").replace('\n', " ").replace("\r ", "\r\n"),
    }
    .into_bytes()
}
