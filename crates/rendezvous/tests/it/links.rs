//! Two workers from their tickets to bytes between them: rendezvous, relay, punching and TLS
//! together.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_p2p::control::PeerSession;
use nearpath_p2p::driver::{self, LocalPorts, RelayPolicy, SearchOutcome, SearchPlan};
use nearpath_p2p::link::P2pLink;
use nearpath_p2p::migrate::{StreamPath, StreamPaths};
use nearpath_p2p::punch::Transport;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::within;
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::p2p_tls::{PeerTlsConfig, worker_dns_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use nearpath_testkit::p2p::rendezvous::{
    RENDEZVOUS_TIMEOUT, TestRendezvous, TestWorker, worker_id,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Binds ports for an immediate search over these transports.
pub(crate) fn bound_ports(transports: &[Transport]) -> [LocalPorts; 2] {
    [(); 2].map(|()| LocalPorts::bind(transports).unwrap())
}

pub(crate) struct LinkJob {
    authority: Authority,
}

impl LinkJob {
    pub(crate) fn new() -> Self {
        Self {
            authority: Authority::new("job", SystemTime::now(), HOUR).unwrap(),
        }
    }

    pub(crate) fn pair(&self, me: &SpiffeId, peer: &SpiffeId) -> Arc<PeerTlsConfig> {
        let trust = Trust::new("job", &[self.authority.certificate().clone()]).unwrap();
        Arc::new(PeerTlsConfig::new(&self.credentials(me), &trust, peer.clone()).unwrap())
    }

    fn credentials(&self, id: &SpiffeId) -> Credentials {
        let (request, name) = (CertificateRequest::new().unwrap(), worker_dns_name(id));
        let issued = self
            .authority
            .issue(request.csr(), id, &name, SystemTime::now(), HOUR)
            .unwrap();
        request.into_credentials(id.clone(), name, issued)
    }

    pub(crate) async fn connect(
        &self,
        worker: &TestWorker,
        me: &str,
        session: PeerSession,
        search: impl Into<SearchPlan>,
        policy: RelayPolicy,
    ) -> std::io::Result<P2pLink> {
        let pair = self.pair(&worker_id(me), &session.grant.peer);
        let settings = driver::DriverSettings {
            loopback: true,
            relay_policy: policy,
            ..driver::DriverSettings::default()
        };
        worker
            .connection
            .connect(session, pair, search, settings)
            .await
    }

    async fn link_pair(&self, fixture: &TestRendezvous, transports: &[Transport]) -> [P2pLink; 2] {
        let workers = [
            fixture.connect_worker("sort", "a").await,
            fixture.connect_worker("sort", "b").await,
        ];
        self.connect_workers(
            workers,
            bound_ports(transports),
            RelayPolicy::default(),
            || (),
        )
        .await
        .unwrap()
    }

    /// Connects two workers, `a` and `b`. `after_grant`: called once there is a session.
    pub(crate) async fn connect_workers(
        &self,
        workers: [TestWorker; 2],
        searches: [impl Into<SearchPlan>; 2],
        policy: RelayPolicy,
        after_grant: impl FnOnce(),
    ) -> std::io::Result<[P2pLink; 2]> {
        let ([a, mut b], [near, far]) = (workers, searches);
        let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
            .await
            .unwrap();
        let others = b.next_call().await;
        let first = self.connect(&a, "a", own, near, policy);
        let second = self.connect(&b, "b", others, far, policy);
        after_grant();
        let links = within(async { tokio::try_join!(first, second) }).await?;
        // Their control connections stay open and are read.
        for mut worker in [a, b] {
            tokio::spawn(async move { while worker.events.recv().await.is_some() {} });
        }
        Ok([links.0, links.1])
    }
}

/// Sends bytes there and back.
pub(crate) async fn echo_bytes(from: &mut P2pLink, to: &mut P2pLink, count: usize) {
    let bytes: Vec<u8> = (0..count).map(|at| (at % 251) as u8).collect();
    let (mut there, mut back) = (vec![0; count], vec![0; count]);
    within(async {
        tokio::try_join!(
            async {
                from.write_all(&bytes).await?;
                from.flush().await
            },
            to.read_exact(&mut there)
        )
        .unwrap();
        tokio::try_join!(
            async {
                to.write_all(&there).await?;
                to.flush().await
            },
            from.read_exact(&mut back)
        )
        .unwrap();
    })
    .await;
    assert!(bytes == back, "something else came back");
}

/// Waits until both directions are direct; a stream moves when it is used.
pub(crate) async fn wait_until_direct(a: &mut P2pLink, b: &mut P2pLink) {
    let is_direct = |link: &P2pLink| {
        let places = *link.status().paths.borrow();
        places.outgoing == StreamPath::Direct && places.incoming == StreamPath::Direct
    };
    within(async {
        while !(is_direct(a) && is_direct(b)) {
            echo_bytes(a, b, 1000).await;
        }
    })
    .await;
}

/// Bytes flow over the relay, then directly, and continue after the rendezvous is killed.
#[tokio::test]
async fn links_move_to_a_direct_connection_and_outlive_the_rendezvous() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let fixture = TestRendezvous::start(RendezvousLimits::default());
        let [mut a, mut b] = LinkJob::new().link_pair(&fixture, &[transport]).await;
        echo_bytes(&mut a, &mut b, 10_000).await;
        wait_until_direct(&mut a, &mut b).await;
        let outcome = *a.status().outcome.borrow();
        assert!(
            matches!(outcome, SearchOutcome::Direct { transport: found, .. } if found == transport),
            "{outcome:?}"
        );
        drop(fixture);
        echo_bytes(&mut a, &mut b, 1 << 20).await;
    }
}

/// Both sides only wait for each other; the stream moves all the same.
#[tokio::test]
async fn idle_links_move() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    for transport in [Transport::Udp, Transport::Tcp].repeat(4) {
        let [a, b] = LinkJob::new().link_pair(&fixture, &[transport]).await;
        let status = [a.status().clone(), b.status().clone()];
        for link in [a, b] {
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(link);
                write.write_all(b"x").await.unwrap();
                write.flush().await.unwrap();
                let _ = read.read_exact(&mut [0; 2]).await;
            });
        }
        for mut known in status {
            let direct = |now: &StreamPaths| {
                now.outgoing == StreamPath::Direct && now.incoming == StreamPath::Direct
            };
            within(known.paths.wait_for(direct)).await.unwrap();
        }
    }
}

/// Two workers without ports stay on the relay, and report it.
#[tokio::test]
async fn without_a_direct_connection_the_relay_carries_everything() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let [mut a, mut b] = LinkJob::new().link_pair(&fixture, &[]).await;
    echo_bytes(&mut a, &mut b, 1 << 20).await;
    assert_eq!(a.status().paths.borrow().outgoing, StreamPath::Relay);
    assert!(fixture.metric_value("nearpath_relay_bytes_total") > 2 << 20);
}
