//! A node's certificate, key and roots after all checks.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::{NodeName, SpiffeId};
use rustls::pki_types::CertificateDer;

use super::{CERTIFICATE_FILE, NodeCredentialsError, NodeFiles, checks};
use crate::identity::{
    Credentials, PeerRefusal, RootCertificate, Trust, parse_certificate, system_time,
};
use crate::mtls::{self, TlsConfigError};
use crate::quic::{CallerConfig, config};
use crate::zero_rtt::{CallerSessions, TokenKey, WorkerSessions};

/// Certificate, key and roots of a node, which fit together.
#[derive(Debug, Clone)]
pub struct NodeCredentials {
    node: NodeName,
    credentials: Credentials,
    not_before: SystemTime,
    roots: Vec<RootCertificate>,
    trust: Trust,
}

impl NodeCredentials {
    /// Reads and checks the files of a folder. Warns of a key that every user of the machine can
    /// read.
    ///
    /// # Errors
    /// See [`NodeCredentialsError`].
    pub fn load(folder: &Path, now: SystemTime) -> Result<Self, NodeCredentialsError> {
        super::files::warn_if_key_exposed(folder);
        Self::from_files(folder, &NodeFiles::read(folder)?, now)
    }

    /// Checks the contents of a folder's files at this time. Errors name files of `folder`, which
    /// is not read.
    ///
    /// # Errors
    /// See [`NodeCredentialsError`].
    pub fn from_files(
        folder: &Path,
        files: &NodeFiles,
        now: SystemTime,
    ) -> Result<Self, NodeCredentialsError> {
        let credentials = checks::parse_credentials(folder, files)?;
        // Read from the certificate before, so it cannot fail.
        let own = parse_certificate(&credentials.chain[0]).map_err(|error| {
            NodeCredentialsError::Unreadable {
                path: folder.join(CERTIFICATE_FILE),
                why: error.to_string(),
            }
        })?;
        let node = checks::node_name(folder, &own)?;
        let not_before = system_time(own.not_before);
        checks::check_key(folder, &node, &credentials)?;
        checks::check_validity(folder, &node, (not_before, credentials.not_after), now)?;
        let roots = checks::parse_roots(folder, &files.roots, now)?;
        let trust = checks::node_trust(folder, &own.id.trust_domain, &roots)?;
        checks::check_issuer(folder, &node, &credentials, &trust, now)?;
        Ok(Self {
            node,
            credentials,
            not_before,
            roots,
            trust,
        })
    }

    /// Name of the node, which is its TLS server name too.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Identity of the node's gateway.
    pub fn id(&self) -> &SpiffeId {
        &self.credentials.id
    }

    /// Start and end of the certificate's validity.
    pub fn validity(&self) -> (SystemTime, SystemTime) {
        (self.not_before, self.credentials.not_after)
    }

    /// Roots that the node accepts.
    pub fn roots(&self) -> &[RootCertificate] {
        &self.roots
    }

    /// Private key of the certificate, DER.
    pub(super) fn private_key(&self) -> &[u8] {
        &self.credentials.key
    }

    /// Trust in other nodes, for servers and dialers.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Checks the certificates of a peer after a handshake, and returns the name of the node.
    /// rustls has verified chain and signature, now or when the session began.
    ///
    /// # Errors
    /// See [`PeerRefusal`]; its text may be sent to the peer.
    pub fn admit_node(
        &self,
        certificates: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<NodeName, PeerRefusal> {
        self.trust.admit_node(certificates, now)
    }

    /// Builds the configuration to dial other nodes with, over QUIC and over TLS. The name to dial
    /// is the name of the node.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn caller_config(
        &self,
        sessions: &Arc<CallerSessions>,
    ) -> Result<CallerConfig, TlsConfigError> {
        CallerConfig::new(&self.credentials, self.trust.clone(), sessions)
    }

    /// Builds the configuration to serve other nodes over TLS 1.3, with HTTP/2 or HTTP/1.1.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn tls_server_config(
        &self,
        sessions: Arc<WorkerSessions>,
    ) -> Result<rustls::ServerConfig, TlsConfigError> {
        mtls::tls13_server_config(&self.credentials, &self.trust, sessions)
    }

    /// Builds the configuration to serve other nodes over QUIC. `key` protects address tokens.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn quic_server_config(
        &self,
        sessions: Arc<WorkerSessions>,
        key: &TokenKey,
    ) -> Result<quinn::ServerConfig, TlsConfigError> {
        config::worker_config(&self.credentials, &self.trust, sessions, key)
    }
}
