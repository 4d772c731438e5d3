//! Links that live on the relay: it is opened when it is needed, and comes back.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use nearpath_p2p::Transport;
use nearpath_p2p::driver::Relaying;
use nearpath_p2p::link::Link;
use nearpath_rendezvous::Limits;
use nearpath_testkit::p2p::rendezvous::{House, free};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::task::JoinHandle;

use crate::links::{Job, at_once, echo, moved};
use crate::proxy::{Proxy, What};
use crate::relays::joined;

const MEGABYTE: usize = 1 << 20;
/// The direct way is waited for as long as it takes.
const PATIENT: Relaying = Relaying {
    head_start: Some(Duration::from_secs(300)),
    heard: Duration::from_secs(1),
    patience: Duration::from_secs(60),
};

fn within_a(patience: Duration) -> Relaying {
    Relaying { patience, ..Relaying::default() }
}

/// Links over the relay alone.
async fn relayed(house: &House, relaying: Relaying) -> [Link; 2] {
    let workers = [house.worker("sort", "a").await, house.worker("sort", "b").await];
    Job::new().between(workers, at_once(&[]), relaying, || ()).await.unwrap()
}

/// So many bytes each way at once, then an end; what each side then knows.
fn exchange(links: [Link; 2], megabytes: usize) -> JoinHandle<io::Result<()>> {
    let all: Vec<u8> = (0..megabytes * MEGABYTE).map(|at| (at % 251) as u8 ^ (at >> 13) as u8).collect();
    let run = async move |link: Link, all: &[u8]| -> io::Result<()> {
        let (mut read, mut write) = split(link);
        let mut came = Vec::with_capacity(all.len());
        let writes = async {
            write.write_all(all).await?;
            write.flush().await?;
            write.shutdown().await
        };
        tokio::try_join!(writes, read.read_to_end(&mut came))?;
        assert!(came == all, "something else came");
        read.unsplit(write).close().await
    };
    tokio::spawn(async move {
        let [a, b] = links;
        tokio::try_join!(run(a, &all), run(b, &all)).map(drop)
    })
}

/// A busy machine may take its time.
async fn through(exchanged: JoinHandle<io::Result<()>>) {
    tokio::time::timeout(Duration::from_secs(180), exchanged).await.expect("it hung").unwrap().unwrap();
}

/// Until so much has gone over the relay.
async fn under_way(house: &House, megabytes: usize) {
    let bytes = (megabytes * MEGABYTE) as u64;
    eventually("bytes flow", async || house.metric("nearpath_relay_bytes_total") > bytes).await;
}

/// Killed twice in the middle, and started anew with the same key: every byte arrives, once and in order, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_breaks_no_relayed_link() {
    let addr = free();
    let mut house = House::start_at(addr, Limits::default());
    let links = relayed(&house, Relaying::default()).await;
    let (mut bare, _other) = joined(&house, "bare").await;
    let exchanged = exchange(links, 50);
    for _ in 0..2 {
        under_way(&house, 10).await;
        drop(house);
        assert!(!exchanged.is_finished());
        house = House::start_at(addr, Limits::default());
    }
    within(bare.next()).await.unwrap().expect_err("the control: a connection that nobody opens anew is over");
    through(exchanged).await;
    assert!(house.metric("nearpath_relay_bytes_total") > 10 * MEGABYTE as u64);
    eventually("nothing is left of it", async || house.metric("nearpath_relay_open") == 0).await;
}

/// The connection of one end is cut: the other end's is good, and has to come anew, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_end_that_is_cut_breaks_no_link() {
    let house = House::start(Limits::default());
    let proxy = Proxy::to(house.rendezvous.addr).await;
    let workers = [proxy.worker(&house, "a").await, house.worker("sort", "b").await];
    let links = Job::new().between(workers, at_once(&[]), Relaying::default(), || ()).await.unwrap();
    let exchanged = exchange(links, 20);
    for turn in 1..=3 {
        under_way(&house, 5 * turn).await; // perhaps before the last cut: that both are there again is another thing
        eventually("both are there", async || house.metric("nearpath_relay_opened_total") == 2 * turn as u64).await;
        assert_eq!(proxy.cut(What::Relays), 1);
    }
    through(exchanged).await;
    assert_eq!(house.metric("nearpath_relay_opened_total"), 8, "four times two");
}

/// A NAT forgets: the rendezvous hears nothing of it, and takes the old connection for good until the new one is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_comes_anew_takes_the_place_of_its_dead_one() {
    let house = House::start(Limits::default());
    let proxy = Proxy::to(house.rendezvous.addr).await;
    let workers = [house.worker("sort", "a").await, proxy.worker(&house, "b").await];
    let links = Job::new().between(workers, at_once(&[]), Relaying::default(), || ()).await.unwrap();
    let exchanged = exchange(links, 20);
    under_way(&house, 5).await;
    assert_eq!(proxy.forget(What::Relays), 1);
    through(exchanged).await;
    assert_eq!(house.metric("nearpath_relay_rejoined_total"), 1);
}

/// Both ends say so, and for how long it was tried.
#[tokio::test]
async fn a_rendezvous_that_stays_away_is_told() {
    let house = House::start(Limits::default());
    let mut links = relayed(&house, within_a(Duration::from_millis(1500))).await;
    let [a, b] = &mut links;
    echo(a, b, 100_000).await;
    drop(house);
    let (first, second) = within(async { tokio::join!(a.read_u8(), b.read_u8()) }).await;
    for error in [first.unwrap_err(), second.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("did not come back within 1.5s: cannot connect to the rendezvous"), "{text}");
    }
}

/// Relays go on while the rendezvous drains, and with the next one when it has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_drain_links_go_on_elsewhere() {
    let addr = free();
    let mut house = House::start_at(addr, Limits::default());
    let [mut a, mut b] = relayed(&house, Relaying::default()).await;
    echo(&mut a, &mut b, 100_000).await;
    let drained = tokio::spawn(house.drain());
    eventually("lines are gone", async || house.metric("nearpath_rendezvous_lines") == 0).await;
    let before = house.metric("nearpath_relay_bytes_total");
    echo(&mut a, &mut b, 100_000).await;
    assert!(house.metric("nearpath_relay_bytes_total") > before && !drained.is_finished());
    drop(house);
    let house = House::start_at(addr, Limits::default());
    echo(&mut a, &mut b, 100_000).await;
    assert_eq!(house.metric("nearpath_relay_opened_total"), 2);
}

/// They shake hands, speak, move and end, and the relay hears nothing of it.
#[tokio::test]
async fn a_link_that_goes_direct_opens_no_relay() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let house = House::start(Limits::default());
        let workers = [house.worker("sort", "a").await, house.worker("sort", "b").await];
        let [mut a, mut b] = Job::new().between(workers, at_once(&[transport]), PATIENT, || ()).await.unwrap();
        moved(&mut a, &mut b).await;
        echo(&mut a, &mut b, MEGABYTE).await;
        eventually("its session is over", async || house.metric("nearpath_rendezvous_sessions") == 0).await;
        within(async { tokio::try_join!(a.close(), b.close()) }).await.unwrap();
        assert_eq!(house.metric("nearpath_relay_opened_total"), 0);
    }
}

/// The control. Nobody waits for a direct way that nobody looks for.
#[tokio::test]
async fn a_link_without_a_direct_way_opens_one() {
    let house = House::start(Limits::default());
    let [mut a, mut b] = relayed(&house, PATIENT).await;
    echo(&mut a, &mut b, 100_000).await;
    assert_eq!(house.metric("nearpath_relay_opened_total"), 2);
    assert_eq!(house.metric("nearpath_relay_joined_total"), 1);
}

/// The line of one side breaks while the two shake hands: what it lost the relay carries.
#[tokio::test]
async fn a_line_that_breaks_at_first_breaks_no_link() {
    let relaying = Relaying { head_start: Some(Duration::from_secs(2)), ..Relaying::default() };
    for side in ["a", "b"] {
        let house = House::start(Limits::default());
        let proxy = Proxy::to(house.rendezvous.addr).await;
        let (a, b) = match side {
            "a" => (proxy.worker(&house, "a").await, house.worker("sort", "b").await),
            _ => (house.worker("sort", "a").await, proxy.worker(&house, "b").await),
        };
        let cut = || proxy.refuse(What::Lines);
        let [mut a, mut b] = Job::new().between([a, b], at_once(&[]), relaying, cut).await.unwrap();
        echo(&mut a, &mut b, 100_000).await;
        assert_eq!(house.metric("nearpath_relay_joined_total"), 1);
    }
}

/// The control: with the relay gone as well, nothing does.
#[tokio::test]
async fn without_a_line_and_a_relay_there_is_no_link() {
    let house = House::start(Limits::default());
    let proxy = Proxy::to(house.rendezvous.addr).await;
    let workers = [proxy.worker(&house, "a").await, house.worker("sort", "b").await];
    let cut = || {
        proxy.refuse(What::Lines);
        proxy.refuse(What::Relays);
    };
    let made = Job::new().between(workers, at_once(&[]), within_a(Duration::from_secs(1)), cut).await;
    let text = made.unwrap_err().to_string();
    assert!(text.contains("did not come back within 1s"), "{text}");
}
