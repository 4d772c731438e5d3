//! The pool with real connections on loopback.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::SocketCgroupGuard;
use nearpath_kernel::sockets::tcp_flow_info;
use nearpath_testkit::lab::{LinkConditions, NetworkLab};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

use super::{ConnectionLease, ConnectionPool, ConnectionSource, NextWaiter, NoConnection};
use crate::destination::{EgressDestination, PoolKey};

mod near_connect;
mod peer_name;
mod ready_slots;

/// A server that keeps what it accepts.
#[derive(Default, Clone)]
struct KeepingServer(Rc<RefCell<Vec<TcpStream>>>);

impl KeepingServer {
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

    async fn wait_for_count(&self, count: usize) {
        eventually(&format!("{count} connections"), async || {
            self.0.borrow().len() == count
        })
        .await;
    }

    /// Takes the server's end of a client's connection.
    async fn take_peer(&self, client: &TcpStream) -> TcpStream {
        let client = client.local_addr().unwrap();
        let find = || {
            self.client_addresses()
                .iter()
                .position(|known| *known == client)
        };
        eventually("it is accepted", async || find().is_some()).await;
        let found = find().unwrap();
        self.0.borrow_mut().remove(found)
    }

    fn client_addresses(&self) -> Vec<SocketAddr> {
        self.0
            .borrow()
            .iter()
            .map(|client| client.peer_addr().unwrap())
            .collect()
    }
}

fn run_local<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}

fn destination_at(port: u16, settings: &str) -> Rc<EgressDestination> {
    destination_at_epoch(port, settings, 1)
}

fn destination_at_epoch(port: u16, settings: &str, epoch: u64) -> Rc<EgressDestination> {
    parse_destination(&format!("127.0.0.1:{port} {settings}"), epoch)
}

fn parse_destination(text: &str, epoch: u64) -> Rc<EgressDestination> {
    let egress: nearpath_types::EgressSpec = text.parse().unwrap();
    let key = PoolKey {
        owner: "f.ns".into(),
        host_port: egress.host_port(),
        identity: String::new(),
        epoch,
    };
    Rc::new(EgressDestination {
        wildcard: None,
        egress,
        visible_ip: Ipv4Addr::LOCALHOST.into(),
        key,
        secrets: BTreeMap::new(),
    })
}

fn source_of(pool: &Rc<ConnectionPool>, function: &str) -> Rc<dyn ConnectionSource> {
    pool.source_for(&function.parse().unwrap())
}

async fn connect_within_20s(
    source: &dyn ConnectionSource,
    to: &EgressDestination,
) -> Result<ConnectionLease, NoConnection> {
    source
        .connect(to, Instant::now() + Duration::from_secs(20))
        .await
}

#[test]
fn a_declared_destination_is_open_before_the_first_request() {
    run_local(async {
        let (server, port) = KeepingServer::start().await;
        let (pool, to) = (ConnectionPool::start(), destination_at(port, "warm=1"));
        pool.retain_destination(&to);
        server.wait_for_count(1).await;
        let lease = connect_within_20s(&*source_of(&pool, "f"), &to)
            .await
            .unwrap();
        assert_eq!(
            server.client_addresses()[0],
            lease.stream.local_addr().unwrap(),
            "that one, and not another"
        );
    });
}

#[test]
fn a_draining_pool_serves_requests_and_keeps_nothing_idle() {
    run_local(async {
        let (server, port) = KeepingServer::start().await;
        let (pool, to) = (ConnectionPool::start(), destination_at(port, "warm=1"));
        pool.retain_destination(&to);
        server.wait_for_count(1).await;
        pool.drain_idle();
        let mut warm = server.0.borrow_mut().remove(0);
        assert_eq!(
            warm.read(&mut [0]).await.unwrap(),
            0,
            "the warm connection is closed"
        );
        pool.retain_destination(&destination_at_epoch(port, "warm=1", 2));
        let (first, second) = (source_of(&pool, "f"), source_of(&pool, "g"));
        let leases = (
            connect_within_20s(&*first, &to).await.unwrap(),
            connect_within_20s(&*second, &to).await.unwrap(),
        );
        server.wait_for_count(2).await;
        drop(leases);
        for _ in 0..2 {
            let mut used = server.0.borrow_mut().remove(0);
            assert_eq!(used.read(&mut [0]).await.unwrap(), 0);
        }
        let none = async || {
            pool.report(Instant::now())
                .iter()
                .all(|one| (one.open, one.connecting) == (0, 0))
        };
        eventually("nothing is left", none).await;
        assert!(server.0.borrow().is_empty(), "and nothing follows");
    });
}

#[test]
fn a_connection_that_was_closed_or_has_unread_bytes_is_never_handed_out() {
    run_local(async {
        for says in [false, true] {
            let (server, port) = KeepingServer::start().await;
            let (pool, to) = (ConnectionPool::start(), destination_at(port, "warm=1"));
            pool.retain_destination(&to);
            server.wait_for_count(1).await;
            let mut first = server.0.borrow_mut().remove(0);
            if says {
                first.write_all(b"too early").await.unwrap();
            } else {
                drop(first);
            }
            let mut lease = connect_within_20s(&*source_of(&pool, "f"), &to)
                .await
                .unwrap();
            let mut peer = server.take_peer(&lease.stream).await;
            peer.write_all(b"right").await.unwrap();
            let mut received = [0; 5];
            lease.stream.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"right");
        }
    });
}

#[test]
fn the_limit_is_never_exceeded_and_waiters_are_refused_in_time() {
    run_local(async {
        let (server, port) = KeepingServer::start().await;
        let (pool, to) = (
            ConnectionPool::start(),
            destination_at(port, "max=2 warm=0"),
        );
        pool.retain_destination(&to);
        let source = source_of(&pool, "f");
        let (first, _second) = (
            connect_within_20s(&*source, &to).await.unwrap(),
            connect_within_20s(&*source, &to).await.unwrap(),
        );
        let late = source.connect(&to, Instant::now()).await.unwrap_err();
        assert!(
            matches!(&late, NoConnection::Exhausted { open: 2, .. }),
            "{late}"
        );
        assert!(
            late.to_string().contains("max"),
            "it names the setting: {late}"
        );
        let waits = connect_within_20s(&*source, &to);
        let frees = async {
            eventually("a client waits", async || {
                source.next_waiter(&to) == NextWaiter::SameKey
            })
            .await;
            drop(first);
        };
        let (third, ()) = tokio::join!(waits, frees);
        third.unwrap();
        assert_eq!(server.0.borrow().len(), 3);
    });
}

#[test]
fn a_waiter_that_gives_up_takes_nothing_from_others() {
    run_local(async {
        let (_server, port) = KeepingServer::start().await;
        let (pool, to) = (
            ConnectionPool::start(),
            destination_at(port, "max=1 warm=0"),
        );
        pool.retain_destination(&to);
        let source = source_of(&pool, "f");
        let first = connect_within_20s(&*source, &to).await.unwrap();
        for _ in 0..10 {
            let given_up =
                tokio::time::timeout(Duration::ZERO, connect_within_20s(&*source, &to)).await;
            assert!(given_up.is_err());
        }
        assert_eq!(source.next_waiter(&to), NextWaiter::None);
        drop(first);
        connect_within_20s(&*source, &to).await.unwrap();
    });
}

#[test]
fn a_destination_that_is_down_is_reported_at_once() {
    run_local(async {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let (pool, to) = (ConnectionPool::start(), destination_at(port, ""));
        pool.retain_destination(&to);
        let why = connect_within_20s(&*source_of(&pool, "f"), &to)
            .await
            .unwrap_err();
        match &why {
            NoConnection::Refused { error, .. } => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{why}")
            }
            NoConnection::Exhausted { .. } => panic!("{why}"),
        }
        assert!(why.to_string().contains("127.0.0.1"), "{why}");
    });
}

#[test]
fn connections_of_old_settings_and_of_no_instance_are_closed() {
    run_local(async {
        let (server, port) = KeepingServer::start().await;
        let (pool, before, after) = (
            ConnectionPool::start(),
            destination_at_epoch(port, "warm=1", 1),
            destination_at_epoch(port, "warm=1", 2),
        );
        pool.retain_destination(&before);
        server.wait_for_count(1).await;
        pool.retain_destination(&after);
        server.wait_for_count(2).await;
        let (mut first, mut second) = {
            let mut both = server.0.borrow_mut();
            (both.remove(0), both.remove(0))
        };
        assert_eq!(
            first.read(&mut [0]).await.unwrap(),
            0,
            "the old one is closed"
        );
        assert!(
            pool.take_warm(&before).is_none() && pool.is_declared(&before.key),
            "its instances are there still"
        );
        pool.release_destination(&before);
        pool.release_destination(&after);
        assert_eq!(
            second.read(&mut [0]).await.unwrap(),
            0,
            "and the new one with its last instance"
        );
        assert!(
            connect_within_20s(&*source_of(&pool, "f"), &after)
                .await
                .is_err(),
            "the key is not declared any more"
        );
    });
}

#[test]
fn a_warm_connection_is_taken_without_waiting_or_not_at_all() {
    run_local(async {
        let (server, port) = KeepingServer::start().await;
        let (pool, to) = (ConnectionPool::start(), destination_at(port, "warm=1"));
        pool.retain_destination(&to);
        server.wait_for_count(1).await;
        eventually("it is known to be open", async || {
            pool.take_warm(&to).is_some()
        })
        .await;
        assert!(pool.take_warm(&to).is_none());
    });
}

#[test]
fn counters_outlive_settings_and_instances() {
    run_local(async {
        let (server, port) = KeepingServer::start().await;
        let (pool, before, after) = (
            ConnectionPool::start(),
            destination_at_epoch(port, "warm=1", 1),
            destination_at_epoch(port, "warm=1 max=7", 2),
        );
        pool.retain_destination(&before);
        server.wait_for_count(1).await;
        let source = source_of(&pool, "f");
        let lease = connect_within_20s(&*source, &before).await.unwrap();
        pool.counters_for(&before).count_pin("LISTEN");
        let report = |pool: &ConnectionPool| {
            let all = pool.report(Instant::now());
            assert_eq!(all.len(), 1, "one line for all epochs: {all:?}");
            all.into_iter().next().unwrap()
        };
        let one = report(&pool);
        assert_eq!(
            (
                one.owner.as_str(),
                one.namespace.as_str(),
                one.hits,
                one.max
            ),
            ("f.ns", "ns", 1, 100)
        );
        assert_eq!(
            (one.pins["LISTEN"], one.open >= 1, one.open_in_group),
            (1, true, one.open)
        );
        pool.retain_destination(&after);
        assert_eq!(
            (report(&pool).hits, report(&pool).max),
            (1, 7),
            "the newest settings, and the earlier counts"
        );
        drop(lease);
        pool.release_destination(&before);
        pool.release_destination(&after);
        let one = report(&pool);
        assert_eq!((one.hits, one.open, one.warm), (1, 0, 0));
    });
}

/// A link has a round trip worth measuring: on loopback almost nothing is ever in flight.
#[test]
fn a_connection_begins_with_the_window_that_its_predecessor_proved() {
    nearpath_testkit::need_root!();
    let mut lab = NetworkLab::new().unwrap();
    let (near, far) = (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
    let link = lab
        .connect_nodes(
            &near,
            &far,
            &LinkConditions {
                delay: Duration::from_millis(5),
                ..LinkConditions::default()
            },
        )
        .unwrap();
    let listener = far
        .enter(|| std::net::TcpListener::bind((link.second_end().v4, 0)))
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            // Reads everything, acknowledges it, and waits for the end.
            let all = io::copy(&mut io::Read::take(&mut client, 400_000), &mut io::sink());
            let _ = all
                .and_then(|_| io::Write::write_all(&mut client, b"."))
                .and_then(|()| io::copy(&mut client, &mut io::sink()));
        }
    });
    let text = format!("{}:{port} warm=0", link.second_end().v4);
    let segments = near.enter(|| {
        let guard = SocketCgroupGuard::enter_current_thread()
            .and_then(|guard| guard.check_window_programs().map(|()| guard));
        let _fence = guard.map_err(|why| why.to_string())?;
        let mut segments = Vec::new();
        run_local(async {
            let (pool, to) = (ConnectionPool::start(), parse_destination(&text, 1));
            pool.enable_cwnd_cache();
            pool.retain_destination(&to);
            for _ in 0..3 {
                let ConnectionLease {
                    mut stream,
                    guard: mut lease_guard,
                } = connect_within_20s(&*source_of(&pool, "f.ns"), &to)
                    .await
                    .unwrap();
                segments.push(tcp_flow_info(&stream).unwrap().cwnd_segments);
                stream.write_all(&[7; 400_000]).await.unwrap();
                stream.read_u8().await.unwrap();
                stream.shutdown().await.unwrap();
                // The end was confirmed, so the last segment was the FIN alone.
                let _ = stream.read(&mut [0]).await;
                lease_guard.sample_flow(&stream);
            }
            assert_eq!(pool.counters_for(&to).windows_opened.get(), 2);
        });
        Ok::<_, String>(segments)
    });
    match segments {
        Ok(segments) => assert!(
            segments[0] == 10 && segments[1] > 20 && segments[2] > 20,
            "{segments:?}"
        ),
        Err(why) => nearpath_testkit::skip!("no windows here: {why}"),
    }
}
