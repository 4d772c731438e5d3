//! Renewal of certificates and sessions, one step at a time so that waiting instances come first.

use std::time::{Duration, Instant};

use super::{GatewayIdentity, Issuer, PendingGateway, TimePoint};
use crate::renewal_queue::renewal_time;

/// Delay before a failed renewal is repeated.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RenewalTarget {
    Gateway,
    Instance(String),
}

impl Issuer {
    /// Renews everything if the wall clock was set, or the machine was suspended.
    ///
    /// Renewals are due by the monotonic clock, which is never set and stands still during a suspend
    /// (clock_gettime(2)). Certificates expire by the wall clock.
    pub(crate) fn follow_clock(&mut self, now: TimePoint) {
        let expected = self.clock_base.wall + now.at.saturating_duration_since(self.clock_base.at);
        let jump = now
            .wall
            .duration_since(expected)
            .unwrap_or_else(|backward| backward.duration());
        if jump < self.settings.lifetime / 6 {
            return;
        }
        tracing::warn!(?jump, "the wall clock jumped: renewing all certificates");
        self.clock_base = now;
        // First: no instance accepts a certificate that is expired or not valid yet.
        self.replace_gateway(now);
        for name in self.instances.keys() {
            self.renewals
                .schedule(RenewalTarget::Instance(name.clone()), now.at);
        }
    }

    /// Replaces a gateway identity that expired before its renewal: no handshake succeeds with it.
    pub(super) fn replace_expired_gateway(&mut self, now: TimePoint) {
        if now.wall >= self.gateway.expires_at {
            self.replace_gateway(now);
        }
    }

    /// Replaces the gateway's identity at once. Its sessions with instances end; each instance gets
    /// a new one with its next renewal.
    fn replace_gateway(&mut self, now: TimePoint) {
        match GatewayIdentity::new(&self.authority, &self.trust, &self.settings, now) {
            Ok(gateway) => {
                (self.gateway, self.pending_gateway) = (gateway, None);
                let next = renewal_time(now.at, self.settings.lifetime);
                self.renewals.schedule(RenewalTarget::Gateway, next);
                self.publish_gateway();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot replace the gateway's expired certificate");
            }
        }
    }

    /// Time of the next renewal step.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        if self.pending_gateway.is_some() {
            Some(now)
        } else {
            self.renewals.next_due()
        }
    }

    /// Does one renewal step.
    pub(crate) fn renew_next(&mut self, now: TimePoint) {
        match self.renewals.pop_due(now.at) {
            Some(RenewalTarget::Gateway) => self.renew_gateway(now),
            Some(RenewalTarget::Instance(name)) => self.renew_instance(name, now),
            None => self.mint_for_pending_gateway(now),
        }
    }

    /// Time of another attempt; several fit into the third of the lifetime that a renewal has.
    pub(super) fn retry_time(&self, now: TimePoint) -> Instant {
        now.at + RETRY_INTERVAL.min(self.settings.lifetime / 6)
    }

    fn renew_instance(&mut self, name: String, now: TimePoint) {
        self.replace_expired_gateway(now);
        // Taken out, because signing borrows the whole issuer; put back below in every case.
        let Some(mut instance) = self.instances.remove(&name) else {
            return;
        };
        let renewed = self
            .sign_instance(&instance.function, instance.id, now)
            .and_then(|credentials| {
                instance.credentials = credentials;
                // A resumed session must not outlive the certificate it began with.
                self.gateway.forget(&name);
                self.provision_instance(&instance, now)
            });
        let next = match renewed {
            Ok(()) => renewal_time(now.at, self.settings.lifetime),
            Err(error) => {
                tracing::warn!(instance = name, %error, "cannot renew the instance's certificate, retrying");
                self.retry_time(now)
            }
        };
        if let Some(pending) = &mut self.pending_gateway {
            pending.gateway.forget(&name);
            // Its session with the next identity was made with the certificate that ends now.
            pending.unminted.push(name.clone());
        }
        self.renewals
            .schedule(RenewalTarget::Instance(name.clone()), next);
        self.instances.insert(name, instance);
    }

    /// Signs the gateway's next identity. The current one stays in use until every instance has a
    /// session for the next.
    fn renew_gateway(&mut self, now: TimePoint) {
        let next = match GatewayIdentity::new(&self.authority, &self.trust, &self.settings, now) {
            Ok(gateway) => {
                let unminted = self.instances.keys().cloned().collect();
                self.pending_gateway = Some(PendingGateway { gateway, unminted });
                renewal_time(now.at, self.settings.lifetime)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot renew the gateway's certificate, retrying");
                self.retry_time(now)
            }
        };
        self.renewals.schedule(RenewalTarget::Gateway, next);
    }

    /// Mints one session for the pending gateway identity, or puts it into use after the last one.
    fn mint_for_pending_gateway(&mut self, now: TimePoint) {
        let Some(mut pending) = self.pending_gateway.take() else {
            return;
        };
        let Some(name) = pending.unminted.pop() else {
            self.gateway = pending.gateway;
            return self.publish_gateway();
        };
        if let Some(instance) = self.instances.get(&name)
            && let Err(error) = self.provision_with_session(instance, &pending.gateway, now)
        {
            tracing::debug!(instance = name, %error, "no session for the gateway's next certificate: the first call needs a handshake");
        }
        // One session per step: instances that start are served between two of them.
        self.pending_gateway = Some(pending);
    }
}
