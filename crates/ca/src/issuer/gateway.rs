//! The gateway's identity, and its successor while sessions for it are being minted.

use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::SpiffeId;
use nearpath_wire::identity::Trust;
use nearpath_wire::quic::CallerConfig;
use nearpath_wire::zero_rtt::CallerSessions;

use super::{BoxError, TimePoint, sign};
use crate::authority::Authority;
use crate::trust_domain::trust_domain;
use crate::types::IssuerSettings;

/// The gateway as a caller, with its sessions to instances.
pub(super) struct GatewayIdentity {
    pub(super) caller: CallerConfig,
    pub(super) sessions: Arc<CallerSessions>,
    /// End of its certificate's validity.
    pub(super) expires_at: SystemTime,
}

/// A renewed identity that takes over once every instance has a session for it.
pub(super) struct PendingGateway {
    pub(super) gateway: GatewayIdentity,
    /// Names of instances without a session for it.
    pub(super) unminted: Vec<String>,
}

impl GatewayIdentity {
    pub(super) fn new(
        authority: &Authority,
        trust: &Trust,
        settings: &IssuerSettings,
        now: TimePoint,
    ) -> Result<Self, BoxError> {
        let domain = trust_domain(settings);
        let (id, name) = (
            SpiffeId::for_gateway(&domain, &settings.node),
            format!("gateway.{domain}"),
        );
        let credentials = sign(authority, id, name, now, settings.lifetime)?;
        let sessions = Arc::new(CallerSessions::default());
        let caller = CallerConfig::new(&credentials, trust.clone(), &sessions)?;
        Ok(Self {
            caller,
            sessions,
            expires_at: credentials.not_after,
        })
    }

    /// Drops the sessions with an instance, over QUIC and over TLS.
    pub(super) fn forget(&self, name: &str) {
        self.sessions.forget_worker(name);
        self.caller.mtls_connector().forget_sessions(name);
    }
}
