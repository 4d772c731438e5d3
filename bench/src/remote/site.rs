//! An installation in small: one authority, who calls and who is called.

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

use super::{Error, tls};

const DOMAIN: &str = "bench.nearpath";
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// What every instance here is one of.
const FUNCTION: &str = "echo";

/// See the module's text.
pub(crate) struct Site {
    authority: Authority,
    trust: Trust,
}

/// Who calls, and all that it has to call with. Clones share their sessions.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) trust: Trust,
    /// For calls with a session.
    pub(crate) early: (ClientConfig, Arc<CallerSessions>),
    /// For calls without: what it gets of them is forgotten.
    pub(crate) full: (ClientConfig, Arc<CallerSessions>),
    /// Over TCP, likewise.
    pub(crate) tls_resumed: MtlsConnector,
    pub(crate) tls_full: (MtlsConnector, Arc<CallerSessions>),
    /// Over TCP, without showing a certificate.
    pub(crate) nameless: tls::Callers,
}

impl Site {
    pub(crate) fn new() -> Result<Self, Error> {
        let authority = Authority::new(DOMAIN, SystemTime::now(), LIFETIME)?;
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()])?;
        Ok(Self { authority, trust })
    }

    /// A gateway.
    pub(crate) fn gateway(&self) -> Result<Identity, Error> {
        self.identity(&self.credentials(
            SpiffeId::for_gateway(DOMAIN, "gateway"),
            "gateway".to_owned(),
        )?)
    }

    /// What shows these credentials when it calls.
    pub(crate) fn identity(&self, credentials: &Credentials) -> Result<Identity, Error> {
        let new = || {
            let sessions = Arc::new(CallerSessions::default());
            config::caller_config(credentials, &self.trust, &sessions)
                .map(|config| (config, sessions))
        };
        let sessions = Arc::new(CallerSessions::default());
        Ok(Identity {
            trust: self.trust.clone(),
            early: new()?,
            full: new()?,
            tls_resumed: MtlsConnector::new(credentials, &self.trust, &Arc::default())?,
            tls_full: (
                MtlsConnector::new(credentials, &self.trust, &sessions)?,
                sessions,
            ),
            nameless: tls::Callers::new(self.authority.certificate())?,
        })
    }

    /// What the worker of that number is started with; no sessions yet.
    pub(crate) fn worker(&self, number: u64) -> Result<Provision, Error> {
        let id = SpiffeId::for_instance(DOMAIN, FUNCTION.parse()?, InstanceId(number));
        Ok(Provision {
            credentials: self.credentials(id, format!("i{number}.{DOMAIN}"))?,
            authorities: vec![self.authority.certificate().clone()],
            callers: vec![FUNCTION.parse()?],
            revoked: Vec::new(),
            token_key: TokenKey([7; 32]),
            sessions: Vec::new(),
        })
    }

    fn credentials(&self, id: SpiffeId, name: String) -> Result<Credentials, Error> {
        let request = CertificateRequest::new()?;
        let issued =
            self.authority
                .issue(request.csr(), &id, &name, SystemTime::now(), LIFETIME)?;
        Ok(request.into_credentials(id, name, issued))
    }
}

/// Mints a session: one half stays with the caller, who will call from address `from`, the other goes into the provision.
pub(crate) fn mint(
    provision: &mut Provision,
    caller: &Identity,
    from: IpAddr,
) -> Result<(), Error> {
    Ok(mint::mint_for_worker(
        provision,
        caller.early.0.clone(),
        from,
    )?)
}
