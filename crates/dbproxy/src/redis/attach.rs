//! The backend of a client: there as long as something of the client is under way or in it.

use std::io;
use std::time::Instant;

use super::backend::{CLEAN_TIMEOUT, RedisBackend, RedisBackendError};
use super::relay::RedisRelay;
use super::session::SessionResidue;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::NoConnection;

impl RedisRelay {
    /// Sees to it that there is a backend. If not, the client knows why, and is sent away.
    pub(super) async fn ensure_attached(&mut self) -> io::Result<bool> {
        match self.attach_backend().await {
            Ok(()) => Ok(true),
            Err(line) => {
                self.is_closing = true;
                self.state.setting_replies.borrow_mut().forget();
                self.send_to_client(&line)?;
                Ok(false)
            }
        }
    }

    pub(super) async fn attach_backend(&mut self) -> Result<(), Vec<u8>> {
        if self.backend.is_none() {
            self.backend = Some(self.acquire_backend().await?);
        }
        Ok(())
    }

    /// A backend that is what the client's connection is; else a line for the client.
    async fn acquire_backend(&mut self) -> Result<UsedConnection<RedisBackend>, Vec<u8>> {
        let (to, born) = (&self.context.upstream.destination, Instant::now());
        let deadline = born + to.egress.wait;
        let lease = match self
            .state
            .idle_pool
            .acquire(&self.context.upstream, self.session.identity(), deadline)
            .await
        {
            Ok(AcquireOutcome::Reused(kept)) => return Ok(kept),
            Ok(AcquireOutcome::New(lease)) => lease,
            Err(error) => return Err(error_line(&error)),
        };
        let made = async {
            let mut backend = RedisBackend {
                socket: nearpath_connpool::tls::wrap_lease(
                    lease,
                    to,
                    &self.context.upstream.adapters,
                )
                .await
                .map_err(|error| error_line(&error))?,
            };
            match backend.set_up(to, self.session.identity()).await {
                Ok(()) => Ok(backend),
                Err(RedisBackendError::Refused(line)) => Err([&line, &b"\r\n"[..]].concat()),
                Err(RedisBackendError::Broken(error)) => Err(error_line(&NoConnection::Refused {
                    to: to.key.host_port.clone(),
                    error,
                })),
            }
        };
        let late = || {
            error_line(&NoConnection::Refused {
                to: to.key.host_port.clone(),
                error: io::ErrorKind::TimedOut.into(),
            })
        };
        let backend = tokio::time::timeout_at(deadline.into(), made)
            .await
            .map_err(|_| late())??;
        Ok(UsedConnection::new(backend, born))
    }

    /// Gives the backend back as soon as nothing of the client is in it.
    pub(super) fn release_backend(&mut self) {
        let clean = self.session.is_free()
            && !self.input.is_streaming
            && self.to_backend.is_empty()
            && self.frames.is_between_values();
        if clean && let Some(backend) = self.backend.take() {
            self.state.idle_pool.give_back(
                &self.context.upstream,
                self.session.identity(),
                backend,
            );
        }
    }

    /// The client has left: what it left behind is removed, or goes with its backend.
    pub(super) async fn finish(mut self) {
        self.abandon_pending_replies();
        self.report_failure_later();
        self.release_backend();
        // The client need not wait for what happens to its backend.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.client).await;
        self.detach_backend().await;
    }

    pub(super) async fn detach_backend(&mut self) {
        let whole = !self.input.is_streaming
            && self.to_backend.is_empty()
            && self.frames.is_between_values();
        let Some(mut backend) = self.backend.take() else {
            return;
        };
        if self.session.residue() == SessionResidue::Unknown || !whole {
            return backend.connection.close();
        }
        let cleaning = backend
            .connection
            .clean(&self.context.upstream.destination, self.session.identity());
        match tokio::time::timeout(CLEAN_TIMEOUT, cleaning).await {
            Ok(Ok(())) => {
                DestinationCounters::increase(&self.context.upstream.counters.resets, 1);
                self.state.idle_pool.give_back(
                    &self.context.upstream,
                    self.session.identity(),
                    backend,
                );
            }
            _ => backend.connection.close(),
        }
    }
}

/// An error in the words of Redis, as far as it has some.
fn error_line(error: &NoConnection) -> Vec<u8> {
    match error {
        NoConnection::Exhausted { .. } => {
            format!("-ERR max number of clients reached: {error} (egress max=)\r\n")
        }
        NoConnection::Refused { .. } => format!("-ERR {error}\r\n")
            .replace('\n', " ")
            .replace("\r ", "\r\n"),
    }
    .into_bytes()
}
