//! Who is let out, and how what is carried ends.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use nearpath_testkit::within;
use nearpath_types::{Eip, InstanceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::forward::{forward_both_ways, reset_at_close};
use crate::handle::AdmissionRequest;
use crate::policy::{EgressPolicy, EgressRefusal};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::{ConnectionLease, ConnectionSource, NoConnection};

const NAME_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 61, 0, 2);

/// Never asked.
struct UnusedSource;

impl ConnectionSource for UnusedSource {
    fn connect<'a>(
        &'a self,
        _: &'a EgressDestination,
        _: std::time::Instant,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>> {
        Box::pin(std::future::pending())
    }
}

fn instance_eip(last: u8) -> Eip {
    Eip(Ipv4Addr::new(10, 62, 0, last))
}

fn admission(instance: u64, function: &str, last: u8) -> AdmissionRequest {
    let (function, egress, secrets) = (function.parse().unwrap(), Vec::new(), BTreeMap::new());
    AdmissionRequest {
        instance: InstanceId(instance),
        function,
        chain: None,
        eip: instance_eip(last),
        egress,
        secrets,
    }
}

fn db_destination(port: u16) -> EgressDestination {
    let egress: nearpath_types::EgressSpec = format!("db:{port}").parse().unwrap();
    let key = PoolKey {
        owner: "f".into(),
        host_port: egress.host_port(),
        identity: String::new(),
        epoch: 1,
    };
    EgressDestination {
        egress,
        visible_ip: NAME_ADDRESS.into(),
        key,
        secrets: BTreeMap::new(),
    }
}

#[test]
fn an_instance_reaches_its_declared_destinations_and_no_others() {
    let mut guests = EgressPolicy::default();
    guests.admit_instance(
        admission(1, "a", 2),
        vec![db_destination(5432)],
        Rc::new(UnusedSource),
    );
    guests.admit_instance(
        admission(2, "b", 3),
        vec![db_destination(6379)],
        Rc::new(UnusedSource),
    );
    let may = |last: u8, to: Ipv4Addr, port| {
        guests
            .check_connection(instance_eip(last).0, SocketAddrV4::new(to, port))
            .map(|pass| pass.destination.key.host_port.clone())
    };
    assert_eq!(may(2, NAME_ADDRESS, 5432).unwrap(), "db:5432");
    assert_eq!(may(3, NAME_ADDRESS, 6379).unwrap(), "db:6379");
    for (last, to, port) in [
        (2, NAME_ADDRESS, 6379),
        (3, NAME_ADDRESS, 5432),
        (2, Ipv4Addr::new(10, 61, 0, 3), 5432),
        (2, instance_eip(1).0, 5432),
    ] {
        assert!(
            matches!(may(last, to, port), Err(EgressRefusal::Undeclared(..))),
            "{last} {to}:{port}"
        );
    }
    assert!(matches!(
        may(4, NAME_ADDRESS, 5432),
        Err(EgressRefusal::UnknownInstance)
    ));
    let told = may(2, NAME_ADDRESS, 6379).unwrap_err().to_string();
    assert!(
        told.contains("db:6379") && told.contains("a.openfaas-fn"),
        "by the name that it knows: {told}"
    );
}

#[test]
fn an_ended_instance_loses_its_permits_and_its_address() {
    let mut guests = EgressPolicy::default();
    guests.admit_instance(
        admission(1, "a", 2),
        vec![db_destination(5432)],
        Rc::new(UnusedSource),
    );
    let to = SocketAddrV4::new(NAME_ADDRESS, 5432);
    let pass = guests.check_connection(instance_eip(2).0, to).ok().unwrap();
    assert!(pass.alive.has_changed().is_ok(), "it is here");
    guests.remove_instance(InstanceId(1), instance_eip(2));
    assert!(
        pass.alive.has_changed().is_err(),
        "what it has open hears of it"
    );
    assert!(guests.check_connection(instance_eip(2).0, to).is_err());
    guests.admit_instance(
        admission(7, "b", 2),
        vec![db_destination(5432)],
        Rc::new(UnusedSource),
    );
    assert!(
        guests
            .remove_instance(InstanceId(1), instance_eip(2))
            .is_none(),
        "a late word about the one before"
    );
    assert!(guests.check_connection(instance_eip(2).0, to).is_ok());
}

#[test]
fn instances_of_a_function_share_a_limit_that_others_do_not_feel() {
    let mut guests = EgressPolicy::default();
    for (instance, function, last) in [(1, "a", 2), (2, "a", 3), (3, "b", 4)] {
        guests.admit_instance(
            admission(instance, function, last),
            vec![db_destination(5432)],
            Rc::new(UnusedSource),
        );
    }
    let to = SocketAddrV4::new(NAME_ADDRESS, 5432);
    let mut open = Vec::new();
    for number in 0.. {
        match guests.check_connection(instance_eip(2 + (number % 2) as u8).0, to) {
            Ok(pass) => open.push(pass),
            Err(refusal) => {
                assert!(
                    matches!(&refusal, EgressRefusal::TooManyConnections(..)),
                    "{refusal}"
                );
                break;
            }
        }
    }
    assert_eq!(open.len(), 1_024, "they all wait");
    assert!(guests.check_connection(instance_eip(4).0, to).is_ok());
    open.pop();
    assert!(guests.check_connection(instance_eip(3).0, to).is_ok());
}

/// Two connections, of which the middle ends are to be carried from one to the other.
async fn connected_pairs() -> [(TcpStream, TcpStream); 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let pair = async || {
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (there, here) = tokio::join!(connect, listener.accept());
        (there.unwrap(), here.unwrap().0)
    };
    [pair().await, pair().await]
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let [(mut client, at_client), (mut server, at_server)] = connected_pairs().await;
    let ledger = DestinationCounters::default();
    let talk = async {
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = String::new();
        server.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "request", "the end goes on");
        server.write_all(b"answer").await.unwrap();
        server.shutdown().await.unwrap();
        heard.clear();
        client.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "answer", "the other way is open still");
    };
    let (carried, ()) =
        within(async { tokio::join!(forward_both_ways(&at_client, &at_server, &ledger), talk) })
            .await;
    carried.unwrap();
    assert_eq!(
        (ledger.sent_bytes.get(), ledger.received_bytes.get()),
        (7, 6)
    );
}

#[tokio::test]
async fn more_than_fits_waits_for_its_reader() {
    let [(mut client, at_client), (mut server, at_server)] = connected_pairs().await;
    let (ledger, all) = (DestinationCounters::default(), vec![7u8; 8 << 20]);
    let talk = async {
        let writes = async {
            client.write_all(&all).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let reads = async {
            let mut heard = Vec::new();
            server.read_to_end(&mut heard).await.unwrap();
            assert!(heard == all);
            drop(server);
        };
        tokio::join!(writes, reads);
    };
    let (carried, ((), ())) = within(async {
        tokio::join!(forward_both_ways(&at_client, &at_server, &ledger), async {
            (talk.await, ())
        })
    })
    .await;
    carried.unwrap();
    assert_eq!(ledger.sent_bytes.get(), all.len() as u64);
}

#[tokio::test]
async fn a_reset_goes_on_as_a_reset() {
    for client_resets in [true, false] {
        let [(client, at_client), (server, at_server)] = connected_pairs().await;
        let (resets, mut hears) = if client_resets {
            (client, server)
        } else {
            (server, client)
        };
        let ledger = DestinationCounters::default();
        reset_at_close(&resets);
        drop(resets);
        let carried = within(forward_both_ways(&at_client, &at_server, &ledger)).await;
        assert!(carried.is_err());
        drop((at_client, at_server));
        let heard = within(hears.read(&mut [0])).await;
        assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn an_aborted_forward_resets_both_sides() {
    let [(mut client, at_client), (mut server, at_server)] = connected_pairs().await;
    let ledger = DestinationCounters::default();
    client.write_all(b"half").await.unwrap();
    let given_up = async {
        let mut heard = [0; 4];
        server.read_exact(&mut heard).await.unwrap();
    };
    within(async {
        tokio::select! {
            _ = forward_both_ways(&at_client, &at_server, &ledger) => panic!("nobody has ended"),
            () = given_up => {}
        }
    })
    .await;
    drop((at_client, at_server));
    for end in [&mut client, &mut server] {
        assert_eq!(
            within(end.read(&mut [0])).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }
}
