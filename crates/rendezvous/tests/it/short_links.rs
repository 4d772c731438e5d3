//! Short links use the control connection only; longer ones behave as before.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{ControlConnection, ControlEvent, ControlSettings};
use nearpath_p2p::driver::{LocalPorts, RelayPolicy, SearchOutcome, SearchPlan};
use nearpath_p2p::link::P2pLink;
use nearpath_p2p::message::{JobReport, MAX_RELAYED_FRAME_BYTES, RelayedFrame, RendezvousMessage};
use nearpath_p2p::punch::Transport;
use nearpath_rendezvous::{RateLimit, RendezvousLimits};
use nearpath_testkit::p2p::rendezvous::{RENDEZVOUS_TIMEOUT, TestRendezvous, worker_id};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use super::links::{LinkJob, echo_bytes, wait_until_direct};
use super::unauthorized::raw_connection;

fn on_demand_search(link_age: Duration) -> SearchPlan {
    let ports = Box::pin(async { LocalPorts::bind(&[Transport::Tcp, Transport::Udp]) });
    SearchPlan::OnDemand {
        ports,
        short_link_age: link_age,
    }
}

const LINK_AGE: Duration = Duration::from_secs(3600);

async fn link_pair(fixture: &TestRendezvous, link_age: Duration) -> [P2pLink; 2] {
    let workers = [
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    ];
    LinkJob::new()
        .connect_workers(
            workers,
            [(); 2].map(|()| on_demand_search(link_age)),
            RelayPolicy::default(),
            || (),
        )
        .await
        .unwrap()
}

/// Returns what links used at the rendezvous: relay ends, and responses of observers.
fn resources_used(fixture: &TestRendezvous) -> [u64; 2] {
    [
        "nearpath_relay_opened_total",
        "nearpath_rendezvous_binding_responses_total",
    ]
    .map(|name| fixture.metric_value(name))
}

#[tokio::test]
async fn a_short_link_uses_the_control_connection_only() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let [mut a, mut b] = link_pair(&fixture, LINK_AGE).await;
    echo_bytes(&mut a, &mut b, 60_000).await;
    let status = a.status().clone();
    assert_eq!(
        (*status.outcome.borrow(), status.path_name()),
        (SearchOutcome::NotNeeded, "relay")
    );
    let ends = async {
        let mut rest = Vec::new();
        b.read_to_end(&mut rest).await.unwrap();
        drop(b);
    };
    within(async { tokio::join!(a.close(), ends) })
        .await
        .0
        .unwrap();
    eventually("the session is over", async || {
        fixture.metric_value("nearpath_rendezvous_sessions") == 0
    })
    .await;
    assert_eq!(resources_used(&fixture), [0, 0]);
    assert!(
        fixture.metric_value("nearpath_relay_bytes_total") > 120_000,
        "they are counted as the relay's"
    );
}

#[tokio::test]
async fn a_link_that_carries_more_bytes_moves() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let [mut a, mut b] = link_pair(&fixture, LINK_AGE).await;
    echo_bytes(&mut a, &mut b, 2_000_000).await;
    wait_until_direct(&mut a, &mut b).await;
    echo_bytes(&mut a, &mut b, 2_000_000).await;
}

/// One side requests it, however few bytes there are.
#[tokio::test]
async fn a_long_lived_link_moves() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let workers = [
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    ];
    let searches = [
        on_demand_search(LINK_AGE),
        on_demand_search(Duration::from_millis(10)),
    ];
    let [mut a, mut b] = LinkJob::new()
        .connect_workers(workers, searches, RelayPolicy::default(), || ())
        .await
        .unwrap();
    wait_until_direct(&mut a, &mut b).await;
}

/// Frames in flight when the connection breaks go over the relay.
#[tokio::test]
async fn a_short_link_survives_a_restarted_rendezvous() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let addr = fixture.rendezvous.addr;
    let [mut a, mut b] = link_pair(&fixture, LINK_AGE).await;
    echo_bytes(&mut a, &mut b, 10_000).await;
    drop(fixture);
    let fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    a.write_all(&[7; 10_000]).await.unwrap();
    a.flush().await.unwrap();
    let mut received = vec![0; 10_000];
    // An unused stream does not reconnect, so both are read.
    let (reads, writes) = (b.read_exact(&mut received), a.read_u8());
    within(async {
        tokio::select! {
            read = reads => drop(read.unwrap()),
            other = writes => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(received, [7; 10_000]);
    assert_eq!(fixture.metric_value("nearpath_relay_opened_total"), 2);
}

/// An invalid frame ends the connection; a frame of another session is not forwarded.
#[tokio::test]
async fn frames_of_other_sessions_are_refused() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    for frame in [vec![], vec![7; 32], vec![7; MAX_RELAYED_FRAME_BYTES + 1]] {
        let mut connection = raw_connection(&fixture, "x").await;
        connection.send(Message::binary(frame)).await.unwrap();
        while let Some(Ok(message)) = within(connection.next()).await {
            assert!(!message.is_binary());
        }
    }
    let (a, mut b) = (
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let mut others = b.next_call().await;
    let relayed = RelayedFrame {
        session: own.grant.session,
        number: 0,
        acknowledged: 0,
        bytes: (&b"x"[..]).into(),
    };
    let mut other = raw_connection(&fixture, "c").await;
    other.send(Message::Binary(relayed.encode())).await.unwrap();
    let answer = within(other.next())
        .await
        .unwrap()
        .unwrap()
        .into_text()
        .unwrap();
    assert!(
        matches!(serde_json::from_str(&answer), Ok(RendezvousMessage::SessionClosed { session, .. }) if session == relayed.session)
    );
    drop(own);
    assert!(
        within(others.next_message()).await.is_none(),
        "nothing was passed on"
    );
}

/// Relayed frames on control connections count towards the job's rate.
#[tokio::test]
async fn control_connections_of_a_job_share_its_rate() {
    let rate = RateLimit {
        per_second: 1 << 20,
        burst: 32 << 10,
    };
    let fixture = TestRendezvous::start(RendezvousLimits {
        job_rate: Some(rate),
        ..RendezvousLimits::default()
    });
    let [mut a, mut b] = link_pair(&fixture, LINK_AGE).await;
    echo_bytes(&mut a, &mut b, 100_000).await;
    assert!(fixture.metric_value("nearpath_rendezvous_throttled_total") > 0);
}

/// Each worker writes megabytes before it reads: nothing in between may wait for both.
#[tokio::test]
async fn two_workers_that_write_much_at_once_both_receive() {
    const LINKS: usize = 250;
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (job, a, mut b) = (
        LinkJob::new(),
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let mut links = Vec::new();
    for _ in 0..LINKS {
        let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
            .await
            .unwrap();
        let others = b.next_call().await;
        let first = job.connect(
            &a,
            "a",
            own,
            on_demand_search(LINK_AGE),
            RelayPolicy::default(),
        );
        let second = job.connect(
            &b,
            "b",
            others,
            on_demand_search(LINK_AGE),
            RelayPolicy::default(),
        );
        links.extend(<[P2pLink; 2]>::from(
            within(async { tokio::try_join!(first, second) })
                .await
                .unwrap(),
        ));
    }
    for link in &mut links {
        link.write_all(&[7; 60_000]).await.unwrap();
        link.flush().await.unwrap();
    }
    within(async {
        for link in &mut links {
            link.read_exact(&mut [0; 60_000]).await.unwrap();
        }
    })
    .await;
    assert_eq!(fixture.metric_value("nearpath_rendezvous_slow_total"), 0);
}

/// A busy worker acknowledges nothing, so its peer opens the relay; both then meet there or
/// directly.
#[tokio::test]
async fn a_busy_peer_is_reached_again() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let workers = [
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    ];
    let policy = RelayPolicy {
        ack_timeout: Duration::from_millis(300),
        resume_timeout: Duration::from_secs(4),
        head_start: None,
    };
    let searches = [(); 2].map(|()| on_demand_search(LINK_AGE));
    let [mut a, mut b] = LinkJob::new()
        .connect_workers(workers, searches, policy, || ())
        .await
        .unwrap();
    a.write_all(&[7; 1000]).await.unwrap();
    a.flush().await.unwrap();
    wait_relay_end_opened(&fixture, &mut a).await;
    within(b.read_exact(&mut [0; 1000])).await.unwrap();
    wait_until_direct(&mut a, &mut b).await;
}

/// Waits until this end of a relay is open, without its peer.
async fn wait_relay_end_opened(fixture: &TestRendezvous, link: &mut P2pLink) {
    let mut nothing = [0];
    tokio::select! {
        read = link.read(&mut nothing) => panic!("{read:?}"),
        () = eventually("it is opened", async || fixture.metric_value("nearpath_relay_opened_total") == 1) => (),
    }
}

/// Queued messages survive a second connection that breaks before it has sent them all.
#[tokio::test]
async fn queued_messages_survive_a_broken_connection() {
    const REPORTS: usize = 500;
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let mut to = fixture.connect_worker("sort", "b").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let (connection, mut events) = ControlConnection::open(ControlSettings {
        url,
        ..fixture.control_settings(fixture.ticket("sort", "a"))
    });
    for _ in 0..REPORTS {
        connection.send_report(
            Some(worker_id("b")),
            JobReport::Other {
                body: "x".repeat(3000).into(),
            },
        );
    }
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let rendezvous = fixture.rendezvous.addr;
    tokio::spawn(async move {
        // The first connection breaks after 200 kB; the next one stays.
        for max_bytes in [200_000, u64::MAX] {
            let (near, far) = (
                listener.accept().await.unwrap().0,
                TcpStream::connect(rendezvous).await.unwrap(),
            );
            let ((from, mut back), (mut answers, mut to)) = (near.into_split(), far.into_split());
            let mut said = from.take(max_bytes);
            tokio::select! {
                _ = tokio::io::copy(&mut said, &mut to) => (),
                _ = tokio::io::copy(&mut answers, &mut back) => (),
            }
        }
    });
    let mut received = 0;
    within(async {
        // Data in the kernel's buffers of the first connection is lost.
        while received < REPORTS / 3 {
            received += usize::from(matches!(to.next_event().await, ControlEvent::Report { .. }));
        }
    })
    .await;
    let last = connection.welcome().await;
    assert!(last.is_some(), "the connection is open");
}
