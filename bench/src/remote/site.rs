//! An installation in small: one authority, who calls and who is called.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::early::{Provision, Sessions, TokenKey, mint};
use nearpath_wire::identity::{Credentials, Request, Trust};
use nearpath_wire::mutual::Connector;
use nearpath_wire::quic::config;
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
    pub(crate) early: (ClientConfig, Arc<Sessions>),
    /// For calls without: what it gets of them is forgotten.
    pub(crate) full: (ClientConfig, Arc<Sessions>),
    /// Over TCP, likewise.
    pub(crate) tls_resumed: Connector,
    pub(crate) tls_full: (Connector, Arc<Sessions>),
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
        self.identity(&self.credentials(SpiffeId::gateway(DOMAIN, "gateway"), "gateway".to_owned())?)
    }

    /// What shows these credentials when it calls.
    pub(crate) fn identity(&self, credentials: &Credentials) -> Result<Identity, Error> {
        let new = || {
            let sessions = Arc::new(Sessions::default());
            config::caller(credentials, &self.trust, &sessions).map(|config| (config, sessions))
        };
        let sessions = Arc::new(Sessions::default());
        Ok(Identity {
            trust: self.trust.clone(),
            early: new()?,
            full: new()?,
            tls_resumed: Connector::new(credentials, &self.trust, &Arc::default())?,
            tls_full: (Connector::new(credentials, &self.trust, &sessions)?, sessions),
            nameless: tls::Callers::new(self.authority.certificate())?,
        })
    }

    /// What the worker of that number is started with; no sessions yet.
    pub(crate) fn worker(&self, number: u64) -> Result<Provision, Error> {
        let id = SpiffeId::instance(DOMAIN, FUNCTION.parse()?, InstanceId(number));
        Ok(Provision {
            credentials: self.credentials(id, format!("i{number}.{DOMAIN}"))?,
            authorities: vec![self.authority.certificate().clone()],
            callers: vec![FUNCTION.parse()?],
            revoked: Vec::new(),
            key: TokenKey([7; 32]),
            entries: Vec::new(),
        })
    }

    fn credentials(&self, id: SpiffeId, name: String) -> Result<Credentials, Error> {
        let request = Request::new()?;
        let issued = self.authority.issue(request.csr(), &id, &name, SystemTime::now(), LIFETIME)?;
        Ok(request.complete(id, name, issued))
    }
}

/// Mints a session: one half stays with the caller, who will call from address `from`, the other goes into the provision.
pub(crate) fn mint(provision: &mut Provision, caller: &Identity, from: IpAddr) -> Result<(), Error> {
    Ok(mint::for_worker(provision, caller.early.0.clone(), from)?)
}
