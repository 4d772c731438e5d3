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

use super::node_thread::NodeThread;
use crate::remote::BenchError;

/// Ports of the control connections and relays, and of the observers.
const CONTROL_PORT: u16 = 8443;
const OBSERVER_PORT: u16 = 3478;
const CREDENTIAL_LIFETIME: Duration = Duration::from_secs(3600);
const JOB_NAME: &str = "bench";
/// The rendezvous'.
pub(crate) const RENDEZVOUS_KEY: [u8; 32] = [5; 32];
/// The lab asks more of one rendezvous, from few addresses, than workers anywhere would.
const LAB_RATE_LIMIT: RateLimit = RateLimit {
    per_second: 100_000,
    burst: 100_000,
};

/// Transports of control connections and relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlTransport {
    /// `ws`: a round trip less.
    Plain,
    /// `wss`, as anywhere outside a lab.
    Tls,
}

/// A rendezvous and the machines around it. Dropping the value ends all of them.
pub(crate) struct RendezvousSetup {
    _rendezvous: NodeThread,
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

impl RendezvousSetup {
    /// `line`: between the rendezvous and the internet.
    pub(crate) async fn new(line: &LinkConditions) -> Result<Self, BenchError> {
        let internet = LabInternet::new(line)?;
        let rendezvous = NodeThread::start(&internet.rendezvous)?;
        let authority = Authority::new(JOB_NAME, SystemTime::now(), 24 * CREDENTIAL_LIFETIME)?;
        let trust = Trust::new(JOB_NAME, &[authority.certificate().clone()])?;
        let (key, (trigger, drain)) = (RendezvousKey::new(RENDEZVOUS_KEY), drain::channel());
        let addresses =
            [IpFamily::V4, IpFamily::V6].map(|family| internet.rendezvous_addresses(family)[0]);
        let (pem, server) = issue_certificate(&addresses)?;
        let tls = control::client_config(Some(pem.as_bytes()))?;
        for (lines, tls) in [
            (ControlTransport::Plain, None),
            (ControlTransport::Tls, Some(server)),
        ] {
            let (key, drain) = (key.clone(), drain.clone());
            rendezvous
                .run_in_node(async move { serve_rendezvous(lines, tls, key, addresses, drain) })
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

    /// Settings of a worker's control connection; `family` is that of its machine.
    pub(crate) fn control_settings(
        &self,
        worker: &SpiffeId,
        lines: ControlTransport,
        family: IpFamily,
    ) -> Result<ControlSettings, BenchError> {
        // Longer than any run: a ticket that expires within a round would look like a broken path.
        let until = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs()
            + 12 * CREDENTIAL_LIFETIME.as_secs();
        let ticket = WorkerTicket {
            worker: worker.clone(),
            job: job_name(),
            leader: false,
            until,
        };
        let place = self.control_address(lines, family).parse()?;
        Ok(ControlSettings {
            url: place,
            ticket: ticket.mint(&self.key),
            tls: Some(self.tls.clone()),
        })
    }

    /// URL of the control connections.
    pub(crate) fn control_address(&self, lines: ControlTransport, family: IpFamily) -> String {
        let at = SocketAddr::new(
            self.internet.rendezvous_addresses(family)[0],
            lines.control_port(),
        );
        format!(
            "{}://{at}",
            if lines == ControlTransport::Tls {
                "wss"
            } else {
                "ws"
            }
        )
    }

    /// Identity that a job's worker shows to peers.
    pub(crate) fn worker_identity(&self, worker: &str) -> Result<WorkerIdentity, BenchError> {
        Ok(WorkerIdentity::from_json(&identity::issue_identity(
            &self.authority,
            &job_name(),
            worker,
            12 * CREDENTIAL_LIFETIME,
        )?)?)
    }

    /// The same for one that is in no job's graph.
    pub(crate) fn issue_credentials(&self, id: &SpiffeId) -> Result<Credentials, BenchError> {
        let (request, name) = (CertificateRequest::new()?, worker_dns_name(id));
        let issued = self.authority.issue(
            request.csr(),
            id,
            &name,
            SystemTime::now(),
            12 * CREDENTIAL_LIFETIME,
        )?;
        Ok(request.into_credentials(id.clone(), name, issued))
    }

    /// TLS configuration of the owner of `credentials` towards a peer.
    pub(crate) fn peer_tls(
        &self,
        credentials: &Credentials,
        peer: &SpiffeId,
    ) -> Result<Arc<PeerTlsConfig>, BenchError> {
        Ok(Arc::new(PeerTlsConfig::new(
            credentials,
            &self.trust,
            peer.clone(),
        )?))
    }
}

/// Name of the job of all workers.
pub(crate) fn job_name() -> JobName {
    JOB_NAME.parse().expect("letters name a job")
}

impl ControlTransport {
    /// Each kind has a rendezvous of its own.
    fn control_port(self) -> u16 {
        if self == Self::Tls {
            CONTROL_PORT
        } else {
            // A rendezvous for each transport, so that their sessions do not mix.
            CONTROL_PORT + 1
        }
    }

    fn observer_port(self) -> u16 {
        if self == Self::Tls {
            OBSERVER_PORT
        } else {
            // An observer takes two ports, the given one and the next.
            OBSERVER_PORT + 2
        }
    }
}

/// Takes lines and relays on both families, and tells on one address of each how workers are seen.
fn serve_rendezvous(
    lines: ControlTransport,
    tls: Option<Arc<ServerConfig>>,
    key: RendezvousKey,
    addresses: [IpAddr; 2],
    drain: drain::DrainWatch,
) -> Result<(), BenchError> {
    // As the program binds it: in the standard library's backlog there is room for 128, and here all come at once.
    let mut listeners = nearpath_wire::sockets::bind_tcp(
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), lines.control_port()),
        1,
    )?;
    let listener = listeners.pop().ok_or("no socket was opened for lines")?;
    let place = |ip| ObserverBinding {
        bind: SocketAddr::new(ip, lines.observer_port()),
        public: None,
    };
    let limits = RendezvousLimits {
        message_rate: LAB_RATE_LIMIT,
        arrival_rate: LAB_RATE_LIMIT,
        observer_rate: LAB_RATE_LIMIT,
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
fn issue_certificate(addresses: &[IpAddr]) -> Result<(String, Arc<ServerConfig>), BenchError> {
    // The lab has no DNS: the certificate names the addresses.
    let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let (made, folder) = (
        rcgen::generate_simple_self_signed(names)?,
        tempfile::tempdir()?,
    );
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    fs::write(&cert, made.cert.pem())?;
    // Files, since the loader of the real program reads files.
    fs::write(&key, made.signing_key.serialize_pem())?;
    Ok((
        made.cert.pem(),
        nearpath_wire::tls::load_config(&cert, &key)?,
    ))
}
