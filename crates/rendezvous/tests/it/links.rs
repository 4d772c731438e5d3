//! Two workers from their tickets to bytes between them: rendezvous, relay, punching and TLS together.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_p2p::control::Meeting;
use nearpath_p2p::driver::{self, Ports, Relaying, Search, Verdict};
use nearpath_p2p::link::Link;
use nearpath_p2p::migrate::{Place, Places};
use nearpath_p2p::punch::Transport;
use nearpath_rendezvous::Limits;
use nearpath_testkit::within;
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{Credentials, Request, Trust};
use nearpath_wire::pair::{Pair, name_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use nearpath_testkit::p2p::rendezvous::{House, SOON, Worker, id};

const HOUR: Duration = Duration::from_secs(3600);

/// Both look from the beginning, over these.
pub(crate) fn at_once(transports: &[Transport]) -> [Ports; 2] {
    [(); 2].map(|()| Ports::bind(transports).unwrap())
}

pub(crate) struct Job {
    authority: Authority,
}

impl Job {
    pub(crate) fn new() -> Self {
        Self { authority: Authority::new("job", SystemTime::now(), HOUR).unwrap() }
    }

    pub(crate) fn pair(&self, me: &SpiffeId, peer: &SpiffeId) -> Arc<Pair> {
        let trust = Trust::new("job", &[self.authority.certificate().clone()]).unwrap();
        Arc::new(Pair::new(&self.credentials(me), &trust, peer.clone()).unwrap())
    }

    fn credentials(&self, id: &SpiffeId) -> Credentials {
        let (request, name) = (Request::new().unwrap(), name_of(id));
        let issued = self.authority.issue(request.csr(), id, &name, SystemTime::now(), HOUR).unwrap();
        request.complete(id.clone(), name, issued)
    }

    pub(crate) async fn connect(
        &self,
        worker: &Worker,
        me: &str,
        meeting: Meeting,
        search: impl Into<Search>,
        relaying: Relaying,
    ) -> std::io::Result<Link> {
        let pair = self.pair(&id(me), &meeting.granted.peer);
        let settings = driver::Settings { loopback: true, relaying, ..driver::Settings::default() };
        worker.line.connect(meeting, pair, search, settings).await
    }

    async fn links(&self, house: &House, transports: &[Transport]) -> [Link; 2] {
        let workers = [house.worker("sort", "a").await, house.worker("sort", "b").await];
        self.between(workers, at_once(transports), Relaying::default(), || ()).await.unwrap()
    }

    /// Links between two workers, `a` and `b`. `met`: once there is a session.
    pub(crate) async fn between(
        &self,
        workers: [Worker; 2],
        searches: [impl Into<Search>; 2],
        relaying: Relaying,
        met: impl FnOnce(),
    ) -> std::io::Result<[Link; 2]> {
        let ([a, mut b], [near, far]) = (workers, searches);
        let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
        let others = b.called().await;
        let first = self.connect(&a, "a", own, near, relaying);
        let second = self.connect(&b, "b", others, far, relaying);
        met();
        let links = within(async { tokio::try_join!(first, second) }).await?;
        // Their lines stay, and are heard.
        for mut worker in [a, b] {
            tokio::spawn(async move { while worker.heard.recv().await.is_some() {} });
        }
        Ok([links.0, links.1])
    }
}

/// So many bytes there and back.
pub(crate) async fn echo(from: &mut Link, to: &mut Link, count: usize) {
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

/// Until both directions are direct; a way moves when it is used.
pub(crate) async fn moved(a: &mut Link, b: &mut Link) {
    let is_direct = |link: &Link| {
        let places = *link.known().places.borrow();
        places.out == Place::Direct && places.inward == Place::Direct
    };
    within(async {
        while !(is_direct(a) && is_direct(b)) {
            echo(a, b, 1000).await;
        }
    })
    .await;
}

/// Bytes flow over the relay, then directly, and go on when the rendezvous is killed.
#[tokio::test]
async fn links_move_to_a_direct_way_and_need_the_rendezvous_no_longer() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let house = House::start(Limits::default());
        let [mut a, mut b] = Job::new().links(&house, &[transport]).await;
        echo(&mut a, &mut b, 10_000).await;
        moved(&mut a, &mut b).await;
        let verdict = *a.known().verdict.borrow();
        assert!(matches!(verdict, Verdict::Direct { transport: found, .. } if found == transport), "{verdict:?}");
        drop(house);
        echo(&mut a, &mut b, 1 << 20).await;
    }
}

/// Both only wait for each other: a way moves all the same, whenever the connection is found.
#[tokio::test]
async fn links_on_which_nothing_goes_move() {
    let house = House::start(Limits::default());
    for transport in [Transport::Udp, Transport::Tcp].repeat(4) {
        let [a, b] = Job::new().links(&house, &[transport]).await;
        let known = [a.known().clone(), b.known().clone()];
        for link in [a, b] {
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(link);
                write.write_all(b"x").await.unwrap();
                write.flush().await.unwrap();
                let _ = read.read_exact(&mut [0; 2]).await;
            });
        }
        for mut known in known {
            let direct = |now: &Places| now.out == Place::Direct && now.inward == Place::Direct;
            within(known.places.wait_for(direct)).await.unwrap();
        }
    }
}

/// Without a port of their own two workers stay on the relay, and can say so.
#[tokio::test]
async fn without_a_direct_way_the_relay_carries_all() {
    let house = House::start(Limits::default());
    let [mut a, mut b] = Job::new().links(&house, &[]).await;
    echo(&mut a, &mut b, 1 << 20).await;
    assert_eq!(a.known().places.borrow().out, Place::Relay);
    assert!(house.metric("nearpath_relay_bytes_total") > 2 << 20);
}
