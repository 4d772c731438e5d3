//! Links that live on the relay: it is opened when it is needed, and comes back.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use nearpath_p2p::Transport;
use nearpath_p2p::driver::RelayPolicy;
use nearpath_p2p::link::P2pLink;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, free_port};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::task::JoinHandle;

use crate::links::{LinkJob, bound_ports, echo_bytes, wait_until_direct};
use crate::proxy::{ConnectionKind, TestProxy};
use crate::relays::joined_relay;

const MEGABYTE: usize = 1 << 20;
/// The direct way is waited for as long as it takes.
const LONG_HEAD_START: RelayPolicy = RelayPolicy {
    head_start: Some(Duration::from_secs(300)),
    ack_timeout: Duration::from_secs(1),
    resume_timeout: Duration::from_secs(60),
};

fn resume_within(patience: Duration) -> RelayPolicy {
    RelayPolicy {
        resume_timeout: patience,
        ..RelayPolicy::default()
    }
}

/// Links over the relay alone.
async fn relayed_links(house: &TestRendezvous, policy: RelayPolicy) -> [P2pLink; 2] {
    let workers = [
        house.connect_worker("sort", "a").await,
        house.connect_worker("sort", "b").await,
    ];
    LinkJob::new()
        .connect_workers(workers, bound_ports(&[]), policy, || ())
        .await
        .unwrap()
}

/// So many bytes each way at once, then an end; what each side then knows.
fn exchange_bytes(links: [P2pLink; 2], megabytes: usize) -> JoinHandle<io::Result<()>> {
    let all: Vec<u8> = (0..megabytes * MEGABYTE)
        .map(|at| (at % 251) as u8 ^ (at >> 13) as u8)
        .collect();
    let run = async move |link: P2pLink, all: &[u8]| -> io::Result<()> {
        let (mut read, mut write) = split(link);
        let mut received = Vec::with_capacity(all.len());
        let writes = async {
            write.write_all(all).await?;
            write.flush().await?;
            write.shutdown().await
        };
        tokio::try_join!(writes, read.read_to_end(&mut received))?;
        assert!(received == all, "something else came");
        read.unsplit(write).close().await
    };
    tokio::spawn(async move {
        let [a, b] = links;
        tokio::try_join!(run(a, &all), run(b, &all)).map(drop)
    })
}

/// A busy machine may take its time.
async fn wait_exchanged(exchanged: JoinHandle<io::Result<()>>) {
    tokio::time::timeout(Duration::from_secs(180), exchanged)
        .await
        .expect("it hung")
        .unwrap()
        .unwrap();
}

/// Until so much has gone over the relay.
async fn wait_relayed(house: &TestRendezvous, megabytes: usize) {
    let bytes = (megabytes * MEGABYTE) as u64;
    eventually("bytes flow", async || {
        house.metric_value("nearpath_relay_bytes_total") > bytes
    })
    .await;
}

/// Killed twice in the middle, and started anew with the same key: every byte arrives, once and in order, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_breaks_no_relayed_link() {
    let addr = free_port();
    let mut house = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let links = relayed_links(&house, RelayPolicy::default()).await;
    let (mut plain_relay, _other) = joined_relay(&house, "bare").await;
    let exchanged = exchange_bytes(links, 50);
    for _ in 0..2 {
        wait_relayed(&house, 10).await;
        drop(house);
        assert!(!exchanged.is_finished());
        house = TestRendezvous::start_at(addr, RendezvousLimits::default());
    }
    within(plain_relay.next())
        .await
        .unwrap()
        .expect_err("the control: a connection that nobody opens anew is over");
    wait_exchanged(exchanged).await;
    assert!(house.metric_value("nearpath_relay_bytes_total") > 10 * MEGABYTE as u64);
    eventually("nothing is left of it", async || {
        house.metric_value("nearpath_relay_open") == 0
    })
    .await;
}

/// The connection of one end is cut: the other end's is good, and has to come anew, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cutting_one_end_breaks_no_link() {
    let house = TestRendezvous::start(RendezvousLimits::default());
    let proxy = TestProxy::start(house.rendezvous.addr).await;
    let workers = [
        proxy.worker(&house, "a").await,
        house.connect_worker("sort", "b").await,
    ];
    let links = LinkJob::new()
        .connect_workers(workers, bound_ports(&[]), RelayPolicy::default(), || ())
        .await
        .unwrap();
    let exchanged = exchange_bytes(links, 20);
    for turn in 1..=3 {
        wait_relayed(&house, 5 * turn).await; // perhaps before the last cut: that both are there again is another thing
        eventually("both are there", async || {
            house.metric_value("nearpath_relay_opened_total") == 2 * turn as u64
        })
        .await;
        assert_eq!(proxy.cut_all(ConnectionKind::Relays), 1);
    }
    wait_exchanged(exchanged).await;
    assert_eq!(
        house.metric_value("nearpath_relay_opened_total"),
        8,
        "four times two"
    );
}

/// A NAT forgets: the rendezvous hears nothing of it, and takes the old connection for good until the new one is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnected_end_replaces_its_dead_connection() {
    let house = TestRendezvous::start(RendezvousLimits::default());
    let proxy = TestProxy::start(house.rendezvous.addr).await;
    let workers = [
        house.connect_worker("sort", "a").await,
        proxy.worker(&house, "b").await,
    ];
    let links = LinkJob::new()
        .connect_workers(workers, bound_ports(&[]), RelayPolicy::default(), || ())
        .await
        .unwrap();
    let exchanged = exchange_bytes(links, 20);
    wait_relayed(&house, 5).await;
    assert_eq!(proxy.forget_all(ConnectionKind::Relays), 1);
    wait_exchanged(exchanged).await;
    assert_eq!(house.metric_value("nearpath_relay_rejoined_total"), 1);
}

/// Both ends say so, and for how long it was tried.
#[tokio::test]
async fn a_rendezvous_that_stays_unreachable_is_reported() {
    let house = TestRendezvous::start(RendezvousLimits::default());
    let mut links = relayed_links(&house, resume_within(Duration::from_millis(1500))).await;
    let [a, b] = &mut links;
    echo_bytes(a, b, 100_000).await;
    drop(house);
    let (first, second) = within(async { tokio::join!(a.read_u8(), b.read_u8()) }).await;
    for error in [first.unwrap_err(), second.unwrap_err()] {
        let text = error.to_string();
        assert!(
            text.contains("did not come back within 1.5s: cannot connect to the rendezvous"),
            "{text}"
        );
    }
}

/// Relays go on while the rendezvous drains, and with the next one when it has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_drain_links_resume_at_the_next_rendezvous() {
    let addr = free_port();
    let mut house = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let [mut a, mut b] = relayed_links(&house, RelayPolicy::default()).await;
    echo_bytes(&mut a, &mut b, 100_000).await;
    let drained = tokio::spawn(house.drain());
    eventually("lines are gone", async || {
        house.metric_value("nearpath_rendezvous_lines") == 0
    })
    .await;
    let before = house.metric_value("nearpath_relay_bytes_total");
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert!(house.metric_value("nearpath_relay_bytes_total") > before && !drained.is_finished());
    drop(house);
    let house = TestRendezvous::start_at(addr, RendezvousLimits::default());
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert_eq!(house.metric_value("nearpath_relay_opened_total"), 2);
}

/// They shake hands, speak, move and end, and the relay hears nothing of it.
#[tokio::test]
async fn a_link_that_moves_early_opens_no_relay() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let house = TestRendezvous::start(RendezvousLimits::default());
        let workers = [
            house.connect_worker("sort", "a").await,
            house.connect_worker("sort", "b").await,
        ];
        let [mut a, mut b] = LinkJob::new()
            .connect_workers(workers, bound_ports(&[transport]), LONG_HEAD_START, || ())
            .await
            .unwrap();
        wait_until_direct(&mut a, &mut b).await;
        echo_bytes(&mut a, &mut b, MEGABYTE).await;
        eventually("its session is over", async || {
            house.metric_value("nearpath_rendezvous_sessions") == 0
        })
        .await;
        within(async { tokio::try_join!(a.close(), b.close()) })
            .await
            .unwrap();
        assert_eq!(house.metric_value("nearpath_relay_opened_total"), 0);
    }
}

/// The control. Nobody waits for a direct way that nobody looks for.
#[tokio::test]
async fn a_link_without_a_direct_connection_opens_a_relay() {
    let house = TestRendezvous::start(RendezvousLimits::default());
    let [mut a, mut b] = relayed_links(&house, LONG_HEAD_START).await;
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert_eq!(house.metric_value("nearpath_relay_opened_total"), 2);
    assert_eq!(house.metric_value("nearpath_relay_joined_total"), 1);
}

/// The line of one side breaks while the two shake hands: what it lost the relay carries.
#[tokio::test]
async fn losing_the_control_connection_early_breaks_no_link() {
    let policy = RelayPolicy {
        head_start: Some(Duration::from_secs(2)),
        ..RelayPolicy::default()
    };
    for side in ["a", "b"] {
        let house = TestRendezvous::start(RendezvousLimits::default());
        let proxy = TestProxy::start(house.rendezvous.addr).await;
        let (a, b) = match side {
            "a" => (
                proxy.worker(&house, "a").await,
                house.connect_worker("sort", "b").await,
            ),
            _ => (
                house.connect_worker("sort", "a").await,
                proxy.worker(&house, "b").await,
            ),
        };
        let cut = || proxy.refuse_new(ConnectionKind::Control);
        let [mut a, mut b] = LinkJob::new()
            .connect_workers([a, b], bound_ports(&[]), policy, cut)
            .await
            .unwrap();
        echo_bytes(&mut a, &mut b, 100_000).await;
        assert_eq!(house.metric_value("nearpath_relay_joined_total"), 1);
    }
}

/// The control: with the relay gone as well, nothing does.
#[tokio::test]
async fn without_control_connection_and_relay_linking_fails() {
    let house = TestRendezvous::start(RendezvousLimits::default());
    let proxy = TestProxy::start(house.rendezvous.addr).await;
    let workers = [
        proxy.worker(&house, "a").await,
        house.connect_worker("sort", "b").await,
    ];
    let cut = || {
        proxy.refuse_new(ConnectionKind::Control);
        proxy.refuse_new(ConnectionKind::Relays);
    };
    let made = LinkJob::new()
        .connect_workers(
            workers,
            bound_ports(&[]),
            resume_within(Duration::from_secs(1)),
            cut,
        )
        .await;
    let text = made.unwrap_err().to_string();
    assert!(text.contains("did not come back within 1s"), "{text}");
}
