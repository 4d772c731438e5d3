//! Attachment of a backend to a client, for as long as the backend is needed.

use std::io;
use std::time::Instant;

use super::backend::{CLEAN_TIMEOUT, RedisBackend, RedisBackendError};
use super::relay::RedisRelay;
use super::session::SessionResidue;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::NoConnection;

impl RedisRelay {
    /// Attaches a backend if there is none. On failure the client gets an error and is
    /// disconnected.
    pub(super) async fn ensure_attached(&mut self) -> io::Result<bool> {
        match self.attach_backend().await {
            Ok(()) => Ok(true),
            Err(line) => {
                self.is_closing = true;
                // The server may have changed meanwhile, so its remembered replies are no longer
                // trusted.
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

    /// Acquires a backend with the client's identity; on failure returns an error line for the
    /// client.
    async fn acquire_backend(&mut self) -> Result<UsedConnection<RedisBackend>, Vec<u8>> {
        let (to, started) = (&self.context.upstream.destination, Instant::now());
        let deadline = started + to.egress.wait;
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
        // The deadline covers waiting, TLS and setup: `wait` is what the function declared.
        let timed_out = || {
            error_line(&NoConnection::Refused {
                to: to.key.host_port.clone(),
                error: io::ErrorKind::TimedOut.into(),
            })
        };
        let backend = tokio::time::timeout_at(deadline.into(), made)
            .await
            .map_err(|_| timed_out())??;
        Ok(UsedConnection::new(backend, started))
    }

    /// Returns the backend to the pool as soon as it holds nothing of the client.
    pub(super) fn release_backend(&mut self) {
        // Besides the session's state no byte may be in transit: half a command or half a reply
        // would reach the next client.
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

    /// Cleans up after a client that has left: its backend is cleaned, or closed.
    pub(super) async fn finish(mut self) {
        // The order matters: abandoning the pending replies may add the failure that is then stored
        // for the function.
        self.abandon_pending_replies();
        self.report_failure_later();
        self.release_backend();
        // The client's socket is closed first, so that the client does not wait for the cleanup.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.client).await;
        self.detach_backend().await;
    }

    pub(super) async fn detach_backend(&mut self) {
        let nothing_in_transit = !self.input.is_streaming
            && self.to_backend.is_empty()
            && self.frames.is_between_values();
        let Some(mut backend) = self.backend.take() else {
            return;
        };
        // Unknown state cannot be reset: replies that are still outstanding would be taken for
        // those to the reset.
        if self.session.residue() == SessionResidue::Unknown || !nothing_in_transit {
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

/// Formats an error as a reply of Redis.
fn error_line(error: &NoConnection) -> Vec<u8> {
    match error {
        // Redis's own text for `maxclients`, which client libraries recognize.
        NoConnection::Exhausted { .. } => {
            format!("-ERR max number of clients reached: {error} (egress max=)\r\n")
        }
        // A line break would end the reply early, and the rest would be taken for further replies.
        NoConnection::Refused { .. } => format!("-ERR {error}\r\n")
            .replace('\n', " ")
            .replace("\r ", "\r\n"),
    }
    .into_bytes()
}
