//! Configuration of a caller that all threads of a process share, and with it one set of sessions.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use quinn::{ClientConfig, Endpoint, EndpointConfig};

use super::config::{self, TlsConfigError};
use super::datagram_socket::open_endpoint;
use super::dialer::Dialer;
use super::udp;
use crate::identity::{Credentials, Trust};
use crate::mtls::MtlsConnector;
use crate::zero_rtt::CallerSessions;

/// Credentials, trust and sessions of a caller. Cheap to clone. A renewed certificate needs a new
/// one.
#[derive(Debug, Clone)]
pub struct CallerConfig {
    config: Arc<ClientConfig>,
    connector: MtlsConnector,
    trust: Trust,
}

impl CallerConfig {
    /// Creates a caller with these credentials that trusts `trust` and stores sessions in
    /// `sessions`. Sessions of other credentials cannot be used: clear them first.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(
        credentials: &Credentials,
        trust: Trust,
        sessions: &Arc<CallerSessions>,
    ) -> Result<Self, TlsConfigError> {
        // Sessions of their own: rustls keys them by name only, and QUIC's have other parameters.
        let tls = MtlsConnector::new(credentials, &trust, &Arc::default())?;
        Ok(Self {
            config: Arc::new(config::caller_config(credentials, &trust, sessions)?),
            connector: tls,
            trust,
        })
    }

    /// Returns a caller with the same sessions and another trust, after a revocation.
    #[must_use]
    pub fn with_trust(&self, trust: Trust) -> Self {
        Self {
            config: Arc::clone(&self.config),
            connector: self.connector.with_trust(trust.clone()),
            trust,
        }
    }

    /// Returns true if both have the same certificate. Connections of another one must not be used
    /// for new calls.
    pub fn has_same_certificate(&self, other: &Self) -> bool {
        // A renewed certificate always comes with a new configuration.
        Arc::ptr_eq(&self.config, &other.config)
    }

    /// Client configuration to mint sessions with.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Connector for TLS over TCP, which has sessions of its own.
    pub fn mtls_connector(&self) -> &MtlsConnector {
        &self.connector
    }

    /// Trust in workers.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Opens connections from this socket, which stays in the network namespace that it was created
    /// in. Must run inside a runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn open_dialer(&self, socket: UdpSocket) -> io::Result<Dialer> {
        udp::request_buffers(&socket);
        let endpoint = open_endpoint(EndpointConfig::default(), None, socket)?;
        Ok(Dialer::new(
            endpoint,
            self.config().clone(),
            self.trust.clone(),
        ))
    }

    /// Opens connections from an endpoint that may serve others, too.
    pub fn dialer_on(&self, endpoint: &Endpoint) -> Dialer {
        Dialer::new(endpoint.clone(), self.config().clone(), self.trust.clone())
    }

    /// Returns a dialer on the same socket with this caller's configuration.
    pub fn rebind_dialer(&self, dialer: &Dialer) -> Dialer {
        dialer.with_caller(self.config().clone(), self.trust.clone())
    }
}
