//! Admission, and the ends of forwarded connections.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use nearpath_testkit::within;
use nearpath_types::{Eip, InstanceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::forward::{forward_both_ways, reset_at_close};
use crate::admission::AdmissionRequest;
use crate::policy::{EgressPolicy, EgressRefusal};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::{ConnectionLease, ConnectionSource, NoConnection};

const NAME_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 61, 0, 2);

/// A source that is never used.
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
        requires_tls: false,
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
        wildcard: None,
        egress,
        visible_ip: NAME_ADDRESS.into(),
        key,
        secrets: BTreeMap::new(),
    }
}

#[test]
fn an_instance_reaches_its_declared_destinations_and_no_others() {
    let mut policy = EgressPolicy::default();
    policy.admit_instance(
        admission(1, "a", 2),
        vec![db_destination(5432)],
        Rc::new(UnusedSource),
    );
    policy.admit_instance(
        admission(2, "b", 3),
        vec![db_destination(6379)],
        Rc::new(UnusedSource),
    );
    let may = |last: u8, to: Ipv4Addr, port| {
        policy
            .check_connection(instance_eip(last).0, SocketAddrV4::new(to, port))
            .map(|permit| permit.destination.key.host_port.clone())
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
    let message = may(2, NAME_ADDRESS, 6379).unwrap_err().to_string();
    assert!(
        message.contains("db:6379") && message.contains("a.openfaas-fn"),
        "reported by the declared name: {message}"
    );
}

#[test]
fn an_ended_instance_loses_its_permits_and_its_address() {
    let mut policy = EgressPolicy::default();
    policy.admit_instance(
        admission(1, "a", 2),
        vec![db_destination(5432)],
        Rc::new(UnusedSource),
    );
    let to = SocketAddrV4::new(NAME_ADDRESS, 5432);
    let permit = policy.check_connection(instance_eip(2).0, to).ok().unwrap();
    assert!(permit.alive.has_changed().is_ok(), "the instance is alive");
    policy.remove_instance(InstanceId(1), instance_eip(2));
    assert!(
        permit.alive.has_changed().is_err(),
        "its connections learn of the end"
    );
    assert!(policy.check_connection(instance_eip(2).0, to).is_err());
    policy.admit_instance(
        admission(7, "b", 2),
        vec![db_destination(5432)],
        Rc::new(UnusedSource),
    );
    assert!(
        policy
            .remove_instance(InstanceId(1), instance_eip(2))
            .is_none(),
        "a late removal of the previous instance"
    );
    assert!(policy.check_connection(instance_eip(2).0, to).is_ok());
}

#[test]
fn instances_of_a_function_share_a_limit_that_others_do_not_feel() {
    let mut policy = EgressPolicy::default();
    for (instance, function, last) in [(1, "a", 2), (2, "a", 3), (3, "b", 4)] {
        policy.admit_instance(
            admission(instance, function, last),
            vec![db_destination(5432)],
            Rc::new(UnusedSource),
        );
    }
    let to = SocketAddrV4::new(NAME_ADDRESS, 5432);
    let mut open = Vec::new();
    for number in 0.. {
        match policy.check_connection(instance_eip(2 + (number % 2) as u8).0, to) {
            Ok(permit) => open.push(permit),
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
    assert!(policy.check_connection(instance_eip(4).0, to).is_ok());
    open.pop();
    assert!(policy.check_connection(instance_eip(3).0, to).is_ok());
}

/// Two connections; their middle ends are to be connected by forwarding.
async fn connected_pairs() -> [(TcpStream, TcpStream); 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let pair = async || {
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(connect, listener.accept());
        (client.unwrap(), server.unwrap().0)
    };
    [pair().await, pair().await]
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let [(mut client, at_client), (mut server, at_server)] = connected_pairs().await;
    let counters = DestinationCounters::default();
    let exchange = async {
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        server.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "request", "the half-close is forwarded");
        server.write_all(b"answer").await.unwrap();
        server.shutdown().await.unwrap();
        received.clear();
        client.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "answer", "the other direction is still open");
    };
    let (forwarded, ()) = within(async {
        tokio::join!(
            forward_both_ways(&at_client, &at_server, &counters),
            exchange
        )
    })
    .await;
    forwarded.unwrap();
    assert_eq!(
        (counters.sent_bytes.get(), counters.received_bytes.get()),
        (7, 6)
    );
}

#[tokio::test]
async fn more_than_the_buffers_hold_waits_for_the_reader() {
    let [(mut client, at_client), (mut server, at_server)] = connected_pairs().await;
    let (counters, all) = (DestinationCounters::default(), vec![7u8; 8 << 20]);
    let exchange = async {
        let writes = async {
            client.write_all(&all).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let reads = async {
            let mut received = Vec::new();
            server.read_to_end(&mut received).await.unwrap();
            assert!(received == all);
            drop(server);
        };
        tokio::join!(writes, reads);
    };
    let (forwarded, ((), ())) = within(async {
        tokio::join!(
            forward_both_ways(&at_client, &at_server, &counters),
            async { (exchange.await, ()) }
        )
    })
    .await;
    forwarded.unwrap();
    assert_eq!(counters.sent_bytes.get(), all.len() as u64);
}

#[tokio::test]
async fn a_reset_is_forwarded_as_a_reset() {
    for client_resets in [true, false] {
        let [(client, at_client), (server, at_server)] = connected_pairs().await;
        let (sender, mut receiver) = if client_resets {
            (client, server)
        } else {
            (server, client)
        };
        let counters = DestinationCounters::default();
        reset_at_close(&sender);
        drop(sender);
        let forwarded = within(forward_both_ways(&at_client, &at_server, &counters)).await;
        assert!(forwarded.is_err());
        drop((at_client, at_server));
        let received = within(receiver.read(&mut [0])).await;
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn an_aborted_forward_resets_both_sides() {
    let [(mut client, at_client), (mut server, at_server)] = connected_pairs().await;
    let counters = DestinationCounters::default();
    client.write_all(b"half").await.unwrap();
    let given_up = async {
        let mut received = [0; 4];
        server.read_exact(&mut received).await.unwrap();
    };
    within(async {
        tokio::select! {
            _ = forward_both_ways(&at_client, &at_server, &counters) => panic!("no side has ended"),
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
