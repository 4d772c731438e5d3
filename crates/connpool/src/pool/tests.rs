//! The keeper with real connections, on loopback.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::SocketCgroupGuard;
use nearpath_kernel::sockets::tcp_flow_info;
use nearpath_testkit::lab::{Lab, Link};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

use super::{Backends, Keeper, Lease, Need, NoConnection};
use crate::destination::{Destination, Key};

mod ready_slots;

/// A server that keeps what it accepts.
#[derive(Default, Clone)]
struct Server(Rc<RefCell<Vec<TcpStream>>>);

impl Server {
    async fn start() -> (Self, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (server, port) = (Self::default(), listener.local_addr().unwrap().port());
        let kept = server.clone();
        spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                kept.0.borrow_mut().push(client);
            }
        });
        (server, port)
    }

    async fn until(&self, count: usize) {
        eventually(&format!("{count} connections"), async || self.0.borrow().len() == count).await;
    }

    /// The end of a client's connection.
    async fn other_end(&self, client: &TcpStream) -> TcpStream {
        let client = client.local_addr().unwrap();
        let find = || self.clients().iter().position(|known| *known == client);
        eventually("it is accepted", async || find().is_some()).await;
        let found = find().unwrap();
        self.0.borrow_mut().remove(found)
    }

    fn clients(&self) -> Vec<SocketAddr> {
        self.0.borrow().iter().map(|client| client.peer_addr().unwrap()).collect()
    }
}

fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}

fn to(port: u16, settings: &str) -> Rc<Destination> {
    to_at(port, settings, 1)
}

fn to_at(port: u16, settings: &str, epoch: u64) -> Rc<Destination> {
    to_text(&format!("127.0.0.1:{port} {settings}"), epoch)
}

fn to_text(text: &str, epoch: u64) -> Rc<Destination> {
    let egress: nearpath_types::Egress = text.parse().unwrap();
    let key = Key { owner: "f.ns".into(), to: egress.to(), identity: String::new(), epoch };
    Rc::new(Destination { egress, stands: Ipv4Addr::LOCALHOST.into(), key, secrets: BTreeMap::new() })
}

fn asks(keeper: &Rc<Keeper>, function: &str) -> Rc<dyn Backends> {
    keeper.for_function(&function.parse().unwrap())
}

async fn get(backends: &dyn Backends, to: &Destination) -> Result<Lease, NoConnection> {
    backends.connect(to, Instant::now() + Duration::from_secs(20)).await
}

#[test]
fn what_is_expected_is_open_before_it_is_asked_for() {
    run(async {
        let (server, port) = Server::start().await;
        let (keeper, to) = (Keeper::start(), to(port, "warm=1"));
        keeper.expect(&to);
        server.until(1).await;
        let lease = get(&*asks(&keeper, "f"), &to).await.unwrap();
        assert_eq!(server.clients()[0], lease.stream.local_addr().unwrap(), "that one, and not another");
    });
}

#[test]
fn a_keeper_that_rests_serves_and_keeps_nothing_for_nobody() {
    run(async {
        let (server, port) = Server::start().await;
        let (keeper, to) = (Keeper::start(), to(port, "warm=1"));
        keeper.expect(&to);
        server.until(1).await;
        keeper.rest();
        let mut warm = server.0.borrow_mut().remove(0);
        assert_eq!(warm.read(&mut [0]).await.unwrap(), 0, "what was warm is closed");
        keeper.expect(&to_at(port, "warm=1", 2));
        let (first, second) = (asks(&keeper, "f"), asks(&keeper, "g"));
        let leases = (get(&*first, &to).await.unwrap(), get(&*second, &to).await.unwrap());
        server.until(2).await;
        drop(leases);
        for _ in 0..2 {
            let mut used = server.0.borrow_mut().remove(0);
            assert_eq!(used.read(&mut [0]).await.unwrap(), 0);
        }
        let none = async || keeper.report(Instant::now()).iter().all(|one| (one.open, one.connecting) == (0, 0));
        eventually("nothing is left", none).await;
        assert!(server.0.borrow().is_empty(), "and nothing follows");
    });
}

#[test]
fn one_that_its_server_has_closed_or_that_has_words_in_it_is_never_handed_out() {
    run(async {
        for says in [false, true] {
            let (server, port) = Server::start().await;
            let (keeper, to) = (Keeper::start(), to(port, "warm=1"));
            keeper.expect(&to);
            server.until(1).await;
            let mut first = server.0.borrow_mut().remove(0);
            if says {
                first.write_all(b"too early").await.unwrap();
            } else {
                drop(first);
            }
            let mut lease = get(&*asks(&keeper, "f"), &to).await.unwrap();
            let mut ours = server.other_end(&lease.stream).await;
            ours.write_all(b"right").await.unwrap();
            let mut heard = [0; 5];
            lease.stream.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"right");
        }
    });
}

#[test]
fn there_are_never_more_than_the_ceiling_and_who_waits_is_told_in_time() {
    run(async {
        let (server, port) = Server::start().await;
        let (keeper, to) = (Keeper::start(), to(port, "max=2 warm=0"));
        keeper.expect(&to);
        let backends = asks(&keeper, "f");
        let (first, _second) = (get(&*backends, &to).await.unwrap(), get(&*backends, &to).await.unwrap());
        let late = backends.connect(&to, Instant::now()).await.unwrap_err();
        assert!(matches!(&late, NoConnection::Exhausted { open: 2, .. }), "{late}");
        assert!(late.to_string().contains("max"), "it names the setting: {late}");
        let waits = get(&*backends, &to);
        let frees = async {
            eventually("somebody waits", async || backends.need(&to) == Need::Own).await;
            drop(first);
        };
        let (third, ()) = tokio::join!(waits, frees);
        third.unwrap();
        assert_eq!(server.0.borrow().len(), 3);
    });
}

#[test]
fn who_goes_while_it_waits_takes_nothing_from_others() {
    run(async {
        let (_server, port) = Server::start().await;
        let (keeper, to) = (Keeper::start(), to(port, "max=1 warm=0"));
        keeper.expect(&to);
        let backends = asks(&keeper, "f");
        let first = get(&*backends, &to).await.unwrap();
        for _ in 0..10 {
            let given_up = tokio::time::timeout(Duration::ZERO, get(&*backends, &to)).await;
            assert!(given_up.is_err());
        }
        assert_eq!(backends.need(&to), Need::Nobody);
        drop(first);
        get(&*backends, &to).await.unwrap();
    });
}

#[test]
fn a_destination_that_is_down_says_so_at_once() {
    run(async {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
        let (keeper, to) = (Keeper::start(), to(port, ""));
        keeper.expect(&to);
        let why = get(&*asks(&keeper, "f"), &to).await.unwrap_err();
        match &why {
            NoConnection::Refused { error, .. } => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{why}"),
            NoConnection::Exhausted { .. } => panic!("{why}"),
        }
        assert!(why.to_string().contains("127.0.0.1"), "{why}");
    });
}

#[test]
fn what_was_open_for_the_old_settings_or_for_nobody_is_closed() {
    run(async {
        let (server, port) = Server::start().await;
        let (keeper, before, after) = (Keeper::start(), to_at(port, "warm=1", 1), to_at(port, "warm=1", 2));
        keeper.expect(&before);
        server.until(1).await;
        keeper.expect(&after);
        server.until(2).await;
        let (mut first, mut second) = {
            let mut both = server.0.borrow_mut();
            (both.remove(0), both.remove(0))
        };
        assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "the old one is closed");
        assert!(keeper.take(&before).is_none() && keeper.id_of(&before.key), "its instances are there still");
        keeper.expect_no_more(&before);
        keeper.expect_no_more(&after);
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "and the new one with its last instance");
        assert!(get(&*asks(&keeper, "f"), &after).await.is_err(), "nobody may ask any more");
    });
}

#[test]
fn a_warm_one_is_taken_without_waiting_or_not_at_all() {
    run(async {
        let (server, port) = Server::start().await;
        let (keeper, to) = (Keeper::start(), to(port, "warm=1"));
        keeper.expect(&to);
        server.until(1).await;
        eventually("it is known to be open", async || keeper.take(&to).is_some()).await;
        assert!(keeper.take(&to).is_none());
    });
}

#[test]
fn what_was_counted_stays_when_settings_change_and_instances_go() {
    run(async {
        let (server, port) = Server::start().await;
        let (keeper, before, after) = (Keeper::start(), to_at(port, "warm=1", 1), to_at(port, "warm=1 max=7", 2));
        keeper.expect(&before);
        server.until(1).await;
        let backends = asks(&keeper, "f");
        let held = get(&*backends, &before).await.unwrap();
        keeper.ledger(&before).pinned("LISTEN");
        let report = |keeper: &Keeper| {
            let all = keeper.report(Instant::now());
            assert_eq!(all.len(), 1, "one line for all epochs: {all:?}");
            all.into_iter().next().unwrap()
        };
        let one = report(&keeper);
        assert_eq!((one.owner.as_str(), one.namespace.as_str(), one.hits, one.max), ("f.ns", "ns", 1, 100));
        assert_eq!((one.pins["LISTEN"], one.open >= 1, one.open_there), (1, true, one.open));
        keeper.expect(&after);
        assert_eq!(
            (report(&keeper).hits, report(&keeper).max),
            (1, 7),
            "the newest settings, and what was counted before"
        );
        drop(held);
        keeper.expect_no_more(&before);
        keeper.expect_no_more(&after);
        let one = report(&keeper);
        assert_eq!((one.hits, one.open, one.warm), (1, 0, 0));
    });
}

/// A link has a round trip to speak of: on loopback hardly anything is ever under way.
#[test]
fn a_connection_begins_with_what_the_one_before_it_showed() {
    nearpath_testkit::need_root!();
    let mut lab = Lab::new().unwrap();
    let (near, far) = (lab.node("near").unwrap(), lab.node("far").unwrap());
    let cable = lab.link(&near, &far, &Link { delay: Duration::from_millis(5), ..Link::default() }).unwrap();
    let listener = far.enter(|| std::net::TcpListener::bind((cable.second().v4, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            // Takes all, says that it has, and waits for the end.
            let all = io::copy(&mut io::Read::take(&mut client, 400_000), &mut io::sink());
            let _ = all
                .and_then(|_| io::Write::write_all(&mut client, b"."))
                .and_then(|()| io::copy(&mut client, &mut io::sink()));
        }
    });
    let text = format!("{}:{port} warm=0", cable.second().v4);
    let windows = near.enter(|| {
        let fence =
            SocketCgroupGuard::enter_current_thread().and_then(|fence| fence.check_window_programs().map(|()| fence));
        let _fence = fence.map_err(|why| why.to_string())?;
        let mut windows = Vec::new();
        run(async {
            let (keeper, to) = (Keeper::start(), to_text(&text, 1));
            keeper.open_windows();
            keeper.expect(&to);
            for _ in 0..3 {
                let Lease { mut stream, mut gone } = get(&*asks(&keeper, "f.ns"), &to).await.unwrap();
                windows.push(tcp_flow_info(&stream).unwrap().cwnd_segments);
                stream.write_all(&[7; 400_000]).await.unwrap();
                stream.read_u8().await.unwrap();
                stream.shutdown().await.unwrap();
                let _ = stream.read(&mut [0]).await; // the end was confirmed: what came last was nothing but that
                gone.look(&stream);
            }
            assert_eq!(keeper.ledger(&to).opened.get(), 2);
        });
        Ok::<_, String>(windows)
    });
    match windows {
        Ok(windows) => assert!(windows[0] == 10 && windows[1] > 20 && windows[2] > 20, "{windows:?}"),
        Err(why) => nearpath_testkit::skip!("no windows here: {why}"),
    }
}
