//! An internet, a rendezvous in it that is the real one, and what workers need to get to it.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nearpath_ca::Authority;
use nearpath_daemon::drain;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_dataflow::remote::identity::{self, WorkerIdentity};
use nearpath_p2p::control::{self, ControlSettings};
use nearpath_p2p::ticket::{JobName, RendezvousKey, WorkerTicket};
use nearpath_rendezvous::{ObserverBinding, RateLimit, RendezvousLimits};
use nearpath_testkit::lab::LinkConditions;
use nearpath_testkit::lab::nat::{IpFamily, LabInternet};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::p2p_tls::{PeerTlsConfig, worker_dns_name};
use rustls::{ClientConfig, ServerConfig};

use super::machine::Machine;
use crate::remote::Error;

/// Where lines and relays are taken, and observers asked.
const LINES: u16 = 8443;
const OBSERVERS: u16 = 3478;
const HOUR: Duration = Duration::from_secs(3600);
const JOB: &str = "bench";
/// The rendezvous'.
pub(crate) const KEY: [u8; 32] = [5; 32];
/// The lab asks more of one rendezvous, from few addresses, than workers anywhere would.
const MANY: RateLimit = RateLimit {
    per_second: 100_000,
    burst: 100_000,
};

/// How lines and relays are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    /// `ws`: a round trip less.
    Plain,
    /// `wss`, as anywhere outside a lab.
    Tls,
}

/// See the module. All of it ends with this value.
pub(crate) struct Town {
    _rendezvous: Machine,
    authority: Authority,
    trust: Trust,
    key: RendezvousKey,
    tls: Arc<ClientConfig>,
    /// The rendezvous' certificate.
    pub(crate) pem: String,
    _drain: drain::DrainTrigger,
    /// Last: what runs in it ends before it.
    pub(crate) internet: LabInternet,
}

impl Town {
    /// `line`: between the rendezvous and the internet.
    pub(crate) async fn new(line: &LinkConditions) -> Result<Self, Error> {
        let internet = LabInternet::new(line)?;
        let rendezvous = Machine::start(&internet.rendezvous)?;
        let authority = Authority::new(JOB, SystemTime::now(), 24 * HOUR)?;
        let trust = Trust::new(JOB, &[authority.certificate().clone()])?;
        let (key, (trigger, drain)) = (RendezvousKey::new(KEY), drain::channel());
        let addresses =
            [IpFamily::V4, IpFamily::V6].map(|family| internet.rendezvous_addresses(family)[0]);
        let (pem, server) = certificate(&addresses)?;
        let tls = control::client_config(Some(pem.as_bytes()))?;
        for (lines, tls) in [(Lines::Plain, None), (Lines::Tls, Some(server))] {
            let (key, drain) = (key.clone(), drain.clone());
            rendezvous
                .run(async move { serve(lines, tls, key, addresses, drain) })
                .await?;
        }
        Ok(Self {
            _rendezvous: rendezvous,
            authority,
            trust,
            key,
            tls,
            pem,
            _drain: trigger,
            internet,
        })
    }

    /// What a worker is given to get to the rendezvous; `family`: that its machine has.
    pub(crate) fn settings(
        &self,
        you: &SpiffeId,
        lines: Lines,
        family: IpFamily,
    ) -> Result<ControlSettings, Error> {
        let until = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 12 * HOUR.as_secs();
        let ticket = WorkerTicket {
            you: you.clone(),
            job: job(),
            leader: false,
            until,
        };
        let place = self.place(lines, family).parse()?;
        Ok(ControlSettings {
            url: place,
            ticket: ticket.mint(&self.key),
            tls: Some(self.tls.clone()),
        })
    }

    /// Where lines are opened.
    pub(crate) fn place(&self, lines: Lines, family: IpFamily) -> String {
        let at = SocketAddr::new(self.internet.rendezvous_addresses(family)[0], lines.port());
        format!("{}://{at}", if lines == Lines::Tls { "wss" } else { "ws" })
    }

    /// What a worker of a job shows to peers.
    pub(crate) fn identity(&self, worker: &str) -> Result<WorkerIdentity, Error> {
        Ok(WorkerIdentity::from_json(&identity::issue_identity(
            &self.authority,
            &job(),
            worker,
            12 * HOUR,
        )?)?)
    }

    /// The same for one that is in no job's graph.
    pub(crate) fn credentials(&self, id: &SpiffeId) -> Result<Credentials, Error> {
        let (request, name) = (CertificateRequest::new()?, worker_dns_name(id));
        let issued =
            self.authority
                .issue(request.csr(), id, &name, SystemTime::now(), 12 * HOUR)?;
        Ok(request.into_credentials(id.clone(), name, issued))
    }

    /// How one who shows `credentials` proves itself to a peer.
    pub(crate) fn pair(
        &self,
        credentials: &Credentials,
        peer: &SpiffeId,
    ) -> Result<Arc<PeerTlsConfig>, Error> {
        Ok(Arc::new(PeerTlsConfig::new(
            credentials,
            &self.trust,
            peer.clone(),
        )?))
    }
}

/// Whose workers all are.
pub(crate) fn job() -> JobName {
    JOB.parse().expect("letters name a job")
}

impl Lines {
    /// Each kind has a rendezvous of its own.
    fn port(self) -> u16 {
        if self == Self::Tls { LINES } else { LINES + 1 }
    }

    fn observers(self) -> u16 {
        if self == Self::Tls {
            OBSERVERS
        } else {
            OBSERVERS + 2
        }
    }
}

/// Takes lines and relays on both families, and tells on one address of each how workers are seen.
fn serve(
    lines: Lines,
    tls: Option<Arc<ServerConfig>>,
    key: RendezvousKey,
    addresses: [IpAddr; 2],
    drain: drain::DrainWatch,
) -> Result<(), Error> {
    // As the program binds it: in the standard library's backlog there is room for 128, and here all come at once.
    let mut listeners = nearpath_wire::sockets::bind_tcp(
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), lines.port()),
        1,
    )?;
    let listener = listeners.pop().ok_or("no socket was opened for lines")?;
    let place = |ip| ObserverBinding {
        bind: SocketAddr::new(ip, lines.observers()),
        public: None,
    };
    let limits = RendezvousLimits {
        message_rate: MANY,
        arrival_rate: MANY,
        observer_rate: MANY,
        ..RendezvousLimits::default()
    };
    let settings = nearpath_rendezvous::RendezvousSettings {
        key,
        listener,
        tls,
        observers: addresses.map(place).to_vec(),
        limits,
        drain,
    };
    nearpath_rendezvous::start_rendezvous(settings, &MetricsRegistry::default())?;
    Ok(())
}

/// For a server at these addresses, as PEM, and what the server has of it.
fn certificate(addresses: &[IpAddr]) -> Result<(String, Arc<ServerConfig>), Error> {
    let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let (made, folder) = (
        rcgen::generate_simple_self_signed(names)?,
        tempfile::tempdir()?,
    );
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    fs::write(&cert, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    Ok((
        made.cert.pem(),
        nearpath_wire::tls::load_config(&cert, &key)?,
    ))
}
