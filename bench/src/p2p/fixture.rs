//! An internet with a real rendezvous, and the settings of workers.

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
/// Key of the rendezvous.
pub(crate) const RENDEZVOUS_KEY: [u8; 32] = [5; 32];
/// Rate limit of the lab: few addresses make more requests to the rendezvous than real workers.
const LAB_RATE_LIMIT: RateLimit = RateLimit {
    per_second: 100_000,
    burst: 100_000,
};

/// Transports of control connections and relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlTransport {
    /// `ws`: one round trip less.
    Plain,
    /// `wss`, as outside a lab.
    Tls,
}

/// A rendezvous and the machines around it. Dropping the value ends all of them.
pub(crate) struct RendezvousSetup {
    _rendezvous: NodeThread,
    authority: Authority,
    trust: Trust,
    key: RendezvousKey,
    tls: Arc<ClientConfig>,
    /// Certificate of the rendezvous.
    pub(crate) pem: String,
    _drain: drain::DrainTrigger,
    /// Last field: the programs in it stop before it.
    pub(crate) internet: LabInternet,
}

impl RendezvousSetup {
    /// Creates the fixture; `line` is the link between the rendezvous and the internet.
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
        for (transport, tls) in [
            (ControlTransport::Plain, None),
            (ControlTransport::Tls, Some(server)),
        ] {
            let (key, drain) = (key.clone(), drain.clone());
            rendezvous
                .run_in_node(async move { serve_rendezvous(transport, tls, key, addresses, drain) })
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

    /// Returns the settings of a worker's control connection; `family` is that of its machine.
    pub(crate) fn control_settings(
        &self,
        worker: &SpiffeId,
        transport: ControlTransport,
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
        let place = self.control_address(transport, family).parse()?;
        Ok(ControlSettings {
            url: place,
            ticket: ticket.mint(&self.key),
            tls: Some(self.tls.clone()),
        })
    }

    /// Returns the URL of the control connections.
    pub(crate) fn control_address(&self, transport: ControlTransport, family: IpFamily) -> String {
        let at = SocketAddr::new(
            self.internet.rendezvous_addresses(family)[0],
            transport.control_port(),
        );
        format!(
            "{}://{at}",
            if transport == ControlTransport::Tls {
                "wss"
            } else {
                "ws"
            }
        )
    }

    /// Returns the identity of a job's worker for its peers.
    pub(crate) fn worker_identity(&self, worker: &str) -> Result<WorkerIdentity, BenchError> {
        Ok(WorkerIdentity::from_json(&identity::issue_identity(
            &self.authority,
            &job_name(),
            worker,
            12 * CREDENTIAL_LIFETIME,
        )?)?)
    }

    /// Issues credentials for a worker outside of a job's graph.
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

    /// Returns the TLS configuration of the owner of `credentials` towards a peer.
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

/// Returns the name of the job of all workers.
pub(crate) fn job_name() -> JobName {
    JOB_NAME.parse().expect("a valid job name")
}

impl ControlTransport {
    /// Returns the port; each transport has its own rendezvous.
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

/// Serves control connections and relays on both address families, and reflexive-address probes on
/// one address of each.
fn serve_rendezvous(
    transport: ControlTransport,
    tls: Option<Arc<ServerConfig>>,
    key: RendezvousKey,
    addresses: [IpAddr; 2],
    drain: drain::DrainWatch,
) -> Result<(), BenchError> {
    // As the program binds it: in the standard library's backlog there is room for 128, and here all come at once.
    let mut listeners = nearpath_wire::sockets::bind_tcp(
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), transport.control_port()),
        1,
    )?;
    let listener = listeners
        .pop()
        .ok_or("no socket was opened for control connections")?;
    let place = |ip| ObserverBinding {
        bind: SocketAddr::new(ip, transport.observer_port()),
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

/// Issues a certificate for a server at these addresses, as PEM, with the server's key.
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
