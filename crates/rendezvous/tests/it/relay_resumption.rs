//! Links on the relay: opened on demand, and resumed.

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
/// Waits for the direct connection as long as it takes.
const LONG_HEAD_START: RelayPolicy = RelayPolicy {
    head_start: Some(Duration::from_secs(300)),
    ack_timeout: Duration::from_secs(1),
    resume_timeout: Duration::from_secs(60),
};

fn resume_within(resume_timeout: Duration) -> RelayPolicy {
    RelayPolicy {
        resume_timeout,
        ..RelayPolicy::default()
    }
}

/// Connects two workers over the relay alone.
async fn relayed_links(fixture: &TestRendezvous, policy: RelayPolicy) -> [P2pLink; 2] {
    let workers = [
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    ];
    LinkJob::new()
        .connect_workers(workers, bound_ports(&[]), policy, || ())
        .await
        .unwrap()
}

/// Sends bytes both ways and ends; returns each side's result.
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

/// Waits for an exchange; a busy machine may be slow.
async fn wait_exchanged(exchanged: JoinHandle<io::Result<()>>) {
    tokio::time::timeout(Duration::from_secs(180), exchanged)
        .await
        .expect("it hung")
        .unwrap()
        .unwrap();
}

/// Waits until so many bytes were relayed.
async fn wait_relayed(fixture: &TestRendezvous, megabytes: usize) {
    let bytes = (megabytes * MEGABYTE) as u64;
    eventually("bytes flow", async || {
        fixture.metric_value("nearpath_relay_bytes_total") > bytes
    })
    .await;
}

/// Killed twice in the middle and restarted with the same key: every byte arrives, once and in
/// order, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_breaks_no_relayed_link() {
    let addr = free_port();
    let mut fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let links = relayed_links(&fixture, RelayPolicy::default()).await;
    let (mut plain_relay, _other) = joined_relay(&fixture, "bare").await;
    let exchanged = exchange_bytes(links, 50);
    for _ in 0..2 {
        wait_relayed(&fixture, 10).await;
        drop(fixture);
        assert!(!exchanged.is_finished());
        fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    }
    within(plain_relay.next())
        .await
        .unwrap()
        .expect_err("the control: a connection that nobody opens anew is over");
    wait_exchanged(exchanged).await;
    assert!(fixture.metric_value("nearpath_relay_bytes_total") > 10 * MEGABYTE as u64);
    eventually("nothing is left of it", async || {
        fixture.metric_value("nearpath_relay_open") == 0
    })
    .await;
}

/// One end's connection is cut; the other end must reconnect, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cutting_one_end_breaks_no_link() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let proxy = TestProxy::start(fixture.rendezvous.addr).await;
    let workers = [
        proxy.worker(&fixture, "a").await,
        fixture.connect_worker("sort", "b").await,
    ];
    let links = LinkJob::new()
        .connect_workers(workers, bound_ports(&[]), RelayPolicy::default(), || ())
        .await
        .unwrap();
    let exchanged = exchange_bytes(links, 20);
    for turn in 1..=3 {
        wait_relayed(&fixture, 5 * turn).await; // may hold before the last cut: the reconnects are awaited below
        eventually("both are there", async || {
            fixture.metric_value("nearpath_relay_opened_total") == 2 * turn as u64
        })
        .await;
        assert_eq!(proxy.cut_all(ConnectionKind::Relays), 1);
    }
    wait_exchanged(exchanged).await;
    assert_eq!(
        fixture.metric_value("nearpath_relay_opened_total"),
        8,
        "four times two"
    );
}

/// The rendezvous does not notice a forgotten NAT mapping, and keeps the old connection until the
/// new one arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnected_end_replaces_its_dead_connection() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let proxy = TestProxy::start(fixture.rendezvous.addr).await;
    let workers = [
        fixture.connect_worker("sort", "a").await,
        proxy.worker(&fixture, "b").await,
    ];
    let links = LinkJob::new()
        .connect_workers(workers, bound_ports(&[]), RelayPolicy::default(), || ())
        .await
        .unwrap();
    let exchanged = exchange_bytes(links, 20);
    wait_relayed(&fixture, 5).await;
    assert_eq!(proxy.forget_all(ConnectionKind::Relays), 1);
    wait_exchanged(exchanged).await;
    assert_eq!(fixture.metric_value("nearpath_relay_rejoined_total"), 1);
}

/// Both ends report it, with the duration of the retries.
#[tokio::test]
async fn a_rendezvous_that_stays_unreachable_is_reported() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let mut links = relayed_links(&fixture, resume_within(Duration::from_millis(1500))).await;
    let [a, b] = &mut links;
    echo_bytes(a, b, 100_000).await;
    drop(fixture);
    let (first, second) = within(async { tokio::join!(a.read_u8(), b.read_u8()) }).await;
    for error in [first.unwrap_err(), second.unwrap_err()] {
        let text = error.to_string();
        assert!(
            text.contains("not restored within 1.5s: cannot connect to the rendezvous"),
            "{text}"
        );
    }
}

/// Relays continue while the rendezvous drains, and resume at the next process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_drain_links_resume_at_the_next_rendezvous() {
    let addr = free_port();
    let mut fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let [mut a, mut b] = relayed_links(&fixture, RelayPolicy::default()).await;
    echo_bytes(&mut a, &mut b, 100_000).await;
    let drained = tokio::spawn(fixture.drain());
    eventually("lines are gone", async || {
        fixture.metric_value("nearpath_rendezvous_control_connections") == 0
    })
    .await;
    let before = fixture.metric_value("nearpath_relay_bytes_total");
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert!(fixture.metric_value("nearpath_relay_bytes_total") > before && !drained.is_finished());
    drop(fixture);
    let fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert_eq!(fixture.metric_value("nearpath_relay_opened_total"), 2);
}

/// A handshake, some bytes, a move and an end use no relay.
#[tokio::test]
async fn a_link_that_moves_early_opens_no_relay() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let fixture = TestRendezvous::start(RendezvousLimits::default());
        let workers = [
            fixture.connect_worker("sort", "a").await,
            fixture.connect_worker("sort", "b").await,
        ];
        let [mut a, mut b] = LinkJob::new()
            .connect_workers(workers, bound_ports(&[transport]), LONG_HEAD_START, || ())
            .await
            .unwrap();
        wait_until_direct(&mut a, &mut b).await;
        echo_bytes(&mut a, &mut b, MEGABYTE).await;
        eventually("its session is over", async || {
            fixture.metric_value("nearpath_rendezvous_sessions") == 0
        })
        .await;
        within(async { tokio::try_join!(a.close(), b.close()) })
            .await
            .unwrap();
        assert_eq!(fixture.metric_value("nearpath_relay_opened_total"), 0);
    }
}

/// Control: without a search the head start does not delay the relay.
#[tokio::test]
async fn a_link_without_a_direct_connection_opens_a_relay() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let [mut a, mut b] = relayed_links(&fixture, LONG_HEAD_START).await;
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert_eq!(fixture.metric_value("nearpath_relay_opened_total"), 2);
    assert_eq!(fixture.metric_value("nearpath_relay_joined_total"), 1);
}

/// One side loses its control connection during the handshake: the relay carries the lost frames.
#[tokio::test]
async fn losing_the_control_connection_early_breaks_no_link() {
    let policy = RelayPolicy {
        head_start: Some(Duration::from_secs(2)),
        ..RelayPolicy::default()
    };
    for side in ["a", "b"] {
        let fixture = TestRendezvous::start(RendezvousLimits::default());
        let proxy = TestProxy::start(fixture.rendezvous.addr).await;
        let (a, b) = match side {
            "a" => (
                proxy.worker(&fixture, "a").await,
                fixture.connect_worker("sort", "b").await,
            ),
            _ => (
                fixture.connect_worker("sort", "a").await,
                proxy.worker(&fixture, "b").await,
            ),
        };
        let cut = || proxy.refuse_new(ConnectionKind::Control);
        let [mut a, mut b] = LinkJob::new()
            .connect_workers([a, b], bound_ports(&[]), policy, cut)
            .await
            .unwrap();
        echo_bytes(&mut a, &mut b, 100_000).await;
        assert_eq!(fixture.metric_value("nearpath_relay_joined_total"), 1);
    }
}

/// Control: without the relay as well, nothing connects.
#[tokio::test]
async fn without_control_connection_and_relay_linking_fails() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let proxy = TestProxy::start(fixture.rendezvous.addr).await;
    let workers = [
        proxy.worker(&fixture, "a").await,
        fixture.connect_worker("sort", "b").await,
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
    assert!(text.contains("not restored within 1s"), "{text}");
}
