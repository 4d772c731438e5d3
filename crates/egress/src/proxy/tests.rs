//! Who is let out, and how what is carried ends.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use nearpath_testkit::within;
use nearpath_types::{Eip, InstanceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::forward::{carry, reset_at_close};
use crate::handle::Admission;
use crate::policy::{Guests, Refusal};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::destination::{Destination, Key};
use nearpath_connpool::pool::{Backends, Lease, NoConnection};

const STANDS: Ipv4Addr = Ipv4Addr::new(10, 61, 0, 2);

/// Never asked.
struct Nothing;

impl Backends for Nothing {
    fn connect<'a>(
        &'a self,
        _: &'a Destination,
        _: std::time::Instant,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>> {
        Box::pin(std::future::pending())
    }
}

fn eip(last: u8) -> Eip {
    Eip(Ipv4Addr::new(10, 62, 0, last))
}

fn admission(instance: u64, function: &str, last: u8) -> Admission {
    let (function, egress, secrets) = (function.parse().unwrap(), Vec::new(), BTreeMap::new());
    Admission { instance: InstanceId(instance), function, chain: None, eip: eip(last), egress, secrets }
}

fn db(port: u16) -> Destination {
    let egress: nearpath_types::Egress = format!("db:{port}").parse().unwrap();
    let key = Key { owner: "f".into(), to: egress.to(), identity: String::new(), epoch: 1 };
    Destination { egress, stands: STANDS.into(), key, secrets: BTreeMap::new() }
}

#[test]
fn everybody_gets_where_they_declared_and_nowhere_else() {
    let mut guests = Guests::default();
    guests.admit(admission(1, "a", 2), vec![db(5432)], Rc::new(Nothing));
    guests.admit(admission(2, "b", 3), vec![db(6379)], Rc::new(Nothing));
    let may = |last: u8, to: Ipv4Addr, port| {
        guests.judge(eip(last).0, SocketAddrV4::new(to, port)).map(|pass| pass.to.key.to.clone())
    };
    assert_eq!(may(2, STANDS, 5432).unwrap(), "db:5432");
    assert_eq!(may(3, STANDS, 6379).unwrap(), "db:6379");
    for (last, to, port) in
        [(2, STANDS, 6379), (3, STANDS, 5432), (2, Ipv4Addr::new(10, 61, 0, 3), 5432), (2, eip(1).0, 5432)]
    {
        assert!(matches!(may(last, to, port), Err(Refusal::Undeclared(..))), "{last} {to}:{port}");
    }
    assert!(matches!(may(4, STANDS, 5432), Err(Refusal::Stranger)));
    let told = may(2, STANDS, 6379).unwrap_err().to_string();
    assert!(told.contains("db:6379") && told.contains("a.openfaas-fn"), "by the name that it knows: {told}");
}

#[test]
fn an_instance_that_is_gone_is_nobody_and_its_address_another_ones() {
    let mut guests = Guests::default();
    guests.admit(admission(1, "a", 2), vec![db(5432)], Rc::new(Nothing));
    let to = SocketAddrV4::new(STANDS, 5432);
    let pass = guests.judge(eip(2).0, to).ok().unwrap();
    assert!(pass.here.has_changed().is_ok(), "it is here");
    guests.leave(InstanceId(1), eip(2));
    assert!(pass.here.has_changed().is_err(), "what it has open hears of it");
    assert!(guests.judge(eip(2).0, to).is_err());
    guests.admit(admission(7, "b", 2), vec![db(5432)], Rc::new(Nothing));
    assert!(guests.leave(InstanceId(1), eip(2)).is_none(), "a late word about the one before");
    assert!(guests.judge(eip(2).0, to).is_ok());
}

#[test]
fn the_instances_of_a_function_together_have_a_limit_and_others_do_not_feel_it() {
    let mut guests = Guests::default();
    for (instance, function, last) in [(1, "a", 2), (2, "a", 3), (3, "b", 4)] {
        guests.admit(admission(instance, function, last), vec![db(5432)], Rc::new(Nothing));
    }
    let to = SocketAddrV4::new(STANDS, 5432);
    let mut open = Vec::new();
    for number in 0.. {
        match guests.judge(eip(2 + (number % 2) as u8).0, to) {
            Ok(pass) => open.push(pass),
            Err(refusal) => {
                assert!(matches!(&refusal, Refusal::Crowded(..)), "{refusal}");
                break;
            }
        }
    }
    assert_eq!(open.len(), 1_024, "they all wait");
    assert!(guests.judge(eip(4).0, to).is_ok());
    open.pop();
    assert!(guests.judge(eip(3).0, to).is_ok());
}

/// Two connections, of which the middle ends are to be carried from one to the other.
async fn pairs() -> [(TcpStream, TcpStream); 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let pair = async || {
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (there, here) = tokio::join!(connect, listener.accept());
        (there.unwrap(), here.unwrap().0)
    };
    [pair().await, pair().await]
}

#[tokio::test]
async fn each_side_ends_by_itself() {
    let [(mut client, at_client), (mut server, at_server)] = pairs().await;
    let ledger = Ledger::default();
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
    let (carried, ()) = within(async { tokio::join!(carry(&at_client, &at_server, &ledger), talk) }).await;
    carried.unwrap();
    assert_eq!((ledger.sent.get(), ledger.received.get()), (7, 6));
}

#[tokio::test]
async fn more_than_fits_waits_for_its_reader() {
    let [(mut client, at_client), (mut server, at_server)] = pairs().await;
    let (ledger, all) = (Ledger::default(), vec![7u8; 8 << 20]);
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
    let (carried, ((), ())) =
        within(async { tokio::join!(carry(&at_client, &at_server, &ledger), async { (talk.await, ()) }) }).await;
    carried.unwrap();
    assert_eq!(ledger.sent.get(), all.len() as u64);
}

#[tokio::test]
async fn a_reset_goes_on_as_a_reset() {
    for client_resets in [true, false] {
        let [(client, at_client), (server, at_server)] = pairs().await;
        let (resets, mut hears) = if client_resets { (client, server) } else { (server, client) };
        let ledger = Ledger::default();
        reset_at_close(&resets);
        drop(resets);
        let carried = within(carry(&at_client, &at_server, &ledger)).await;
        assert!(carried.is_err());
        drop((at_client, at_server));
        let heard = within(hears.read(&mut [0])).await;
        assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn what_is_given_up_half_way_is_reset() {
    let [(mut client, at_client), (mut server, at_server)] = pairs().await;
    let ledger = Ledger::default();
    client.write_all(b"half").await.unwrap();
    let given_up = async {
        let mut heard = [0; 4];
        server.read_exact(&mut heard).await.unwrap();
    };
    within(async {
        tokio::select! {
            _ = carry(&at_client, &at_server, &ledger) => panic!("nobody has ended"),
            () = given_up => {}
        }
    })
    .await;
    drop((at_client, at_server));
    for end in [&mut client, &mut server] {
        assert_eq!(within(end.read(&mut [0])).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
