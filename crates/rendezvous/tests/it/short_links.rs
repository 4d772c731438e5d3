//! Links that carry little take the line, and look for nothing better; others do not notice the difference.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{Heard, Line, Settings};
use nearpath_p2p::driver::{Ports, Relaying, Search, Verdict};
use nearpath_p2p::link::Link;
use nearpath_p2p::message::{LONGEST_PARCEL, Parcel, Report, Told};
use nearpath_p2p::punch::Transport;
use nearpath_rendezvous::{Limits, Rate};
use nearpath_testkit::p2p::rendezvous::{House, SOON, id};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use super::links::{Job, echo, moved};
use super::unauthorized::raw;

fn when_worth(lasts: Duration) -> Search {
    let ports = Box::pin(async { Ports::bind(&[Transport::Tcp, Transport::Udp]) });
    Search::WhenWorth { ports, lasts }
}

const LASTS: Duration = Duration::from_secs(3600);

async fn links(house: &House, lasts: Duration) -> [Link; 2] {
    let workers = [house.worker("sort", "a").await, house.worker("sort", "b").await];
    Job::new().between(workers, [(); 2].map(|()| when_worth(lasts)), Relaying::default(), || ()).await.unwrap()
}

/// What a link took from the rendezvous: ends of relays, and answers of observers.
fn taken(house: &House) -> [u64; 2] {
    ["nearpath_relay_opened_total", "nearpath_rendezvous_observed_total"].map(|name| house.metric(name))
}

#[tokio::test]
async fn a_short_link_asks_for_nothing_but_the_line() {
    let house = House::start(Limits::default());
    let [mut a, mut b] = links(&house, LASTS).await;
    echo(&mut a, &mut b, 60_000).await;
    let known = a.known().clone();
    assert_eq!((*known.verdict.borrow(), known.path()), (Verdict::Unneeded, "relay"));
    let ends = async {
        let mut rest = Vec::new();
        b.read_to_end(&mut rest).await.unwrap();
        drop(b);
    };
    within(async { tokio::join!(a.close(), ends) }).await.0.unwrap();
    eventually("the session is over", async || house.metric("nearpath_rendezvous_sessions") == 0).await;
    assert_eq!(taken(&house), [0, 0]);
    assert!(house.metric("nearpath_relay_bytes_total") > 120_000, "they are counted as the relay's");
}

#[tokio::test]
async fn a_link_that_carries_more_moves() {
    let house = House::start(Limits::default());
    let [mut a, mut b] = links(&house, LASTS).await;
    echo(&mut a, &mut b, 2_000_000).await;
    moved(&mut a, &mut b).await;
    echo(&mut a, &mut b, 2_000_000).await;
}

/// One of them wants to, however little there is to carry.
#[tokio::test]
async fn a_link_that_lasts_moves() {
    let house = House::start(Limits::default());
    let workers = [house.worker("sort", "a").await, house.worker("sort", "b").await];
    let searches = [when_worth(LASTS), when_worth(Duration::from_millis(10))];
    let [mut a, mut b] = Job::new().between(workers, searches, Relaying::default(), || ()).await.unwrap();
    moved(&mut a, &mut b).await;
}

/// What has not come when the line breaks goes over the relay.
#[tokio::test]
async fn a_short_link_survives_the_rendezvous() {
    let house = House::start(Limits::default());
    let addr = house.rendezvous.addr;
    let [mut a, mut b] = links(&house, LASTS).await;
    echo(&mut a, &mut b, 10_000).await;
    drop(house);
    let house = House::start_at(addr, Limits::default());
    a.write_all(&[7; 10_000]).await.unwrap();
    a.flush().await.unwrap();
    let mut came = vec![0; 10_000];
    // A way that nobody reads or writes does not come back: both are read.
    let (reads, writes) = (b.read_exact(&mut came), a.read_u8());
    within(async {
        tokio::select! {
            read = reads => drop(read.unwrap()),
            other = writes => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(came, [7; 10_000]);
    assert_eq!(house.metric("nearpath_relay_opened_total"), 2);
}

/// What is no parcel ends the line; a parcel of somebody else's session is not passed on.
#[tokio::test]
async fn parcels_are_of_ones_own_sessions() {
    let house = House::start(Limits::default());
    for frame in [vec![], vec![7; 32], vec![7; LONGEST_PARCEL + 1]] {
        let mut line = raw(&house, "x").await;
        line.send(Message::binary(frame)).await.unwrap();
        while let Some(Ok(message)) = within(line.next()).await {
            assert!(!message.is_binary());
        }
    }
    let (a, mut b) = (house.worker("sort", "a").await, house.worker("sort", "b").await);
    let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let mut others = b.called().await;
    let parcel = Parcel { session: own.granted.session, piece: 0, has: 0, bytes: (&b"x"[..]).into() };
    let mut stranger = raw(&house, "c").await;
    stranger.send(Message::Binary(parcel.write())).await.unwrap();
    let answer = within(stranger.next()).await.unwrap().unwrap().into_text().unwrap();
    assert!(matches!(serde_json::from_str(&answer), Ok(Told::HungUp { session, .. }) if session == parcel.session));
    drop(own);
    assert!(within(others.hear()).await.is_none(), "nothing was passed on");
}

/// What goes over lines is the job's, too.
#[tokio::test]
async fn a_jobs_lines_share_its_rate() {
    let rate = Rate { per_second: 1 << 20, burst: 32 << 10 };
    let house = House::start(Limits { job_rate: Some(rate), ..Limits::default() });
    let [mut a, mut b] = links(&house, LASTS).await;
    echo(&mut a, &mut b, 100_000).await;
    assert!(house.metric("nearpath_rendezvous_throttled_total") > 0);
}

/// Each sends the other megabytes over lines before it reads any of its links: what stands between never waits for both.
#[tokio::test]
async fn two_that_write_much_at_once_both_hear() {
    const LINKS: usize = 250;
    let house = House::start(Limits::default());
    let (job, a, mut b) = (Job::new(), house.worker("sort", "a").await, house.worker("sort", "b").await);
    let mut links = Vec::new();
    for _ in 0..LINKS {
        let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
        let others = b.called().await;
        let first = job.connect(&a, "a", own, when_worth(LASTS), Relaying::default());
        let second = job.connect(&b, "b", others, when_worth(LASTS), Relaying::default());
        links.extend(<[Link; 2]>::from(within(async { tokio::try_join!(first, second) }).await.unwrap()));
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
    assert_eq!(house.metric("nearpath_rendezvous_slow_total"), 0);
}

/// Who is busy for a while has acknowledged nothing, and so its peer needs the relay; both come to it, or to something better.
#[tokio::test]
async fn a_peer_that_was_busy_is_met_again() {
    let house = House::start(Limits::default());
    let workers = [house.worker("sort", "a").await, house.worker("sort", "b").await];
    let relaying = Relaying { heard: Duration::from_millis(300), patience: Duration::from_secs(4), head_start: None };
    let searches = [(); 2].map(|()| when_worth(LASTS));
    let [mut a, mut b] = Job::new().between(workers, searches, relaying, || ()).await.unwrap();
    a.write_all(&[7; 1000]).await.unwrap();
    a.flush().await.unwrap();
    eventually_opened(&house, &mut a).await;
    within(b.read_exact(&mut [0; 1000])).await.unwrap();
    moved(&mut a, &mut b).await;
}

/// Until this end of a relay is there, with nobody at the other one.
async fn eventually_opened(house: &House, link: &mut Link) {
    let mut nothing = [0];
    tokio::select! {
        read = link.read(&mut nothing) => panic!("{read:?}"),
        () = eventually("it is opened", async || house.metric("nearpath_relay_opened_total") == 1) => (),
    }
}

/// What waits while the line is away is still there when the next line breaks before it has taken all.
#[tokio::test]
async fn what_was_not_said_outlives_a_line() {
    const REPORTS: usize = 500;
    let house = House::start(Limits::default());
    let mut to = house.worker("sort", "b").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (line, mut heard) = Line::open(Settings { place, ..house.settings(house.ticket("sort", "a")) });
    for _ in 0..REPORTS {
        line.report(Some(id("b")), Report::Other { body: "x".repeat(3000).into() });
    }
    tokio::spawn(async move { while heard.recv().await.is_some() {} });
    let rendezvous = house.rendezvous.addr;
    tokio::spawn(async move {
        // The first line is there for as long as it takes to say 200 kB; the next one stays.
        for most in [200_000, u64::MAX] {
            let (near, far) = (listener.accept().await.unwrap().0, TcpStream::connect(rendezvous).await.unwrap());
            let ((from, mut back), (mut answers, mut to)) = (near.into_split(), far.into_split());
            let mut said = from.take(most);
            tokio::select! {
                _ = tokio::io::copy(&mut said, &mut to) => (),
                _ = tokio::io::copy(&mut answers, &mut back) => (),
            }
        }
    });
    let mut came = 0;
    within(async {
        // What the kernel had taken of the first line is gone.
        while came < REPORTS / 3 {
            came += usize::from(matches!(to.next().await, Heard::Report { .. }));
        }
    })
    .await;
    let last = line.welcome().await;
    assert!(last.is_some(), "the line is there");
}
