//! A small installation: one authority, callers and callees.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::mtls::MtlsConnector;
use nearpath_wire::quic::config;
use nearpath_wire::zero_rtt::{CallerSessions, Provision, TokenKey, mint};
use quinn::ClientConfig;

use super::{BenchError, tls};

const TRUST_DOMAIN: &str = "bench.nearpath";
const CREDENTIAL_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Function of every instance here.
const FUNCTION_NAME: &str = "echo";

/// Certificate authority of one measurement.
pub(crate) struct BenchAuthority {
    authority: Authority,
    trust: Trust,
}

/// Caller's credentials and configurations. Clones share their sessions.
#[derive(Clone)]
pub(crate) struct CallIdentity {
    pub(crate) trust: Trust,
    /// Configuration for calls with a session.
    pub(crate) early: (ClientConfig, Arc<CallerSessions>),
    /// Configuration for calls without a session: new sessions are dropped.
    pub(crate) full: (ClientConfig, Arc<CallerSessions>),
    /// Configuration for TLS over TCP, also without sessions.
    pub(crate) tls_resumed: MtlsConnector,
    pub(crate) tls_full: (MtlsConnector, Arc<CallerSessions>),
    /// Configuration for TLS over TCP without a caller's certificate.
    pub(crate) nameless: tls::CallerTlsConfigs,
}

impl BenchAuthority {
    pub(crate) fn new() -> Result<Self, BenchError> {
        let authority = Authority::new(TRUST_DOMAIN, SystemTime::now(), CREDENTIAL_LIFETIME)?;
        let trust = Trust::new(TRUST_DOMAIN, &[authority.certificate().clone()])?;
        Ok(Self { authority, trust })
    }

    /// Creates the identity of a gateway.
    pub(crate) fn gateway_identity(&self) -> Result<CallIdentity, BenchError> {
        self.caller_identity(&self.issue_credentials(
            SpiffeId::for_gateway(TRUST_DOMAIN, "gateway"),
            "gateway".to_owned(),
        )?)
    }

    /// Creates the identity of a caller with these credentials.
    pub(crate) fn caller_identity(
        &self,
        credentials: &Credentials,
    ) -> Result<CallIdentity, BenchError> {
        let new = || {
            // A store for each configuration: resumption in one must not affect the other.
            let sessions = Arc::new(CallerSessions::default());
            config::caller_config(credentials, &self.trust, &sessions)
                .map(|config| (config, sessions))
        };
        let sessions = Arc::new(CallerSessions::default());
        Ok(CallIdentity {
            trust: self.trust.clone(),
            early: new()?,
            full: new()?,
            // Its session store is not shared, so each identity begins with a full handshake.
            tls_resumed: MtlsConnector::new(credentials, &self.trust, &Arc::default())?,
            tls_full: (
                MtlsConnector::new(credentials, &self.trust, &sessions)?,
                sessions,
            ),
            nameless: tls::CallerTlsConfigs::new(self.authority.certificate())?,
        })
    }

    /// Creates the provision of worker `number`, without sessions.
    pub(crate) fn worker_provision(&self, number: u64) -> Result<Provision, BenchError> {
        let id = SpiffeId::for_instance(TRUST_DOMAIN, FUNCTION_NAME.parse()?, InstanceId(number));
        Ok(Provision {
            credentials: self.issue_credentials(id, format!("i{number}.{TRUST_DOMAIN}"))?,
            authorities: vec![self.authority.certificate().clone()],
            callers: vec![FUNCTION_NAME.parse()?],
            revoked: Vec::new(),
            foreign: Vec::new(),
            // Any fixed key: no one forges address tokens here.
            token_key: TokenKey([7; 32]),
            sessions: Vec::new(),
        })
    }

    fn issue_credentials(&self, id: SpiffeId, name: String) -> Result<Credentials, BenchError> {
        let request = CertificateRequest::new()?;
        let issued = self.authority.issue(
            request.csr(),
            &id,
            &name,
            SystemTime::now(),
            CREDENTIAL_LIFETIME,
        )?;
        Ok(request.into_credentials(id, name, issued))
    }
}

/// Mints a session. The caller, at address `from`, keeps one half; the provision gets the other.
pub(crate) fn mint_session(
    provision: &mut Provision,
    caller: &CallIdentity,
    from: IpAddr,
) -> Result<(), BenchError> {
    Ok(mint::mint_for_worker(
        provision,
        caller.early.0.clone(),
        from,
    )?)
}
