//! Who calls, as all threads of a process share it: one configuration, hence one set of sessions.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use quinn::{ClientConfig, Endpoint, EndpointConfig, TokioRuntime};

use super::config::{self, TlsConfigError};
use super::dialer::Dialer;
use super::udp;
use crate::identity::{Credentials, Trust};
use crate::mtls::MtlsConnector;
use crate::zero_rtt::CallerSessions;

/// See the module's text. Cheap to clone; a renewal is another one.
#[derive(Debug, Clone)]
pub struct CallerConfig {
    config: Arc<ClientConfig>,
    connector: MtlsConnector,
    trust: Trust,
}

impl CallerConfig {
    /// One that shows these credentials, trusts `trust` and keeps what it learns in `sessions`. What was minted or learned with
    /// other credentials is no good for it: clear the sessions first.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(
        credentials: &Credentials,
        trust: Trust,
        sessions: &Arc<CallerSessions>,
    ) -> Result<Self, TlsConfigError> {
        let tls = MtlsConnector::new(credentials, &trust, &Arc::default())?;
        Ok(Self {
            config: Arc::new(config::caller_config(credentials, &trust, sessions)?),
            connector: tls,
            trust,
        })
    }

    /// The same with the same sessions, that trusts others: somebody was taken back.
    #[must_use]
    pub fn with_trust(&self, trust: Trust) -> Self {
        Self {
            config: Arc::clone(&self.config),
            connector: self.connector.with_trust(trust.clone()),
            trust,
        }
    }

    /// Whether both show the same certificate. Connections of one that does not are not to be used for new calls.
    pub fn has_same_certificate(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }

    /// With which sessions are minted.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// For connections with TLS over TCP, which have sessions of their own.
    pub fn mtls_connector(&self) -> &MtlsConnector {
        &self.connector
    }

    /// Whom it trusts.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Opens connections from this socket, which stays in the network namespace that it was made in. Must run inside a runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn open_dialer(&self, socket: UdpSocket) -> io::Result<Dialer> {
        udp::request_buffers(&socket);
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            None,
            socket,
            Arc::new(TokioRuntime),
        )?;
        Ok(Dialer::new(
            endpoint,
            self.config().clone(),
            self.trust.clone(),
        ))
    }

    /// The same socket as `dialer`, as this caller.
    pub fn rebind_dialer(&self, dialer: &Dialer) -> Dialer {
        dialer.with_caller(self.config().clone(), self.trust.clone())
    }
}
