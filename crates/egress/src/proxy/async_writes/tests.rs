//! What is taken gets there, or it is said that it did not.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use nearpath_testkit::within;
use nearpath_types::{Eip, InstanceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::handle::Admission;
use crate::policy::Guests;
use nearpath_connpool::destination::{Destination, Key};
use nearpath_connpool::pool::{Backends, Gone, Lease};

struct Never;

impl Backends for Never {
    fn connect<'a>(
        &'a self,
        _: &'a Destination,
        _: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>> {
        Box::pin(std::future::pending())
    }
}

const EIP: Eip = Eip(Ipv4Addr::new(10, 62, 0, 2));

/// An instance with a pass to a destination whose writes are asynchronous.
fn guests(settings: &str) -> (Guests, Pass) {
    let egress: nearpath_types::Egress = format!("log:514 writes=async {settings}").parse().unwrap();
    let key = Key { owner: "f".into(), to: egress.to(), identity: String::new(), epoch: 1 };
    let stands = Ipv4Addr::new(10, 61, 0, 2);
    let to = Destination { egress, stands: stands.into(), key, secrets: BTreeMap::new() };
    let (function, secrets) = ("f".parse().unwrap(), BTreeMap::new());
    let who = Admission { instance: InstanceId(1), function, chain: None, eip: EIP, egress: Vec::new(), secrets };
    let mut guests = Guests::default();
    guests.admit(who, vec![to], Rc::new(Never));
    let pass = guests.judge(EIP.0, SocketAddrV4::new(stands, 514)).ok().unwrap();
    (guests, pass)
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (one, listener.accept().await.unwrap().0)
}

/// A connection that is there when it is let in.
fn later(stream: TcpStream) -> (oneshot::Sender<()>, Connect<'static>) {
    let (let_in, waits) = oneshot::channel();
    let connect = async move {
        let _ = waits.await;
        Ok(Socket::plain(Lease { stream, gone: Gone::then(|| {}) }))
    };
    (let_in, Box::pin(connect))
}

#[tokio::test]
async fn what_was_written_before_there_was_a_connection_arrives_after_the_function_has_closed() {
    within(async {
        let (_guests, pass) = guests("");
        let ((mut function, node), (out, mut server)) = (pair().await, pair().await);
        let (let_in, connect) = later(out);
        function.write_all(&[7; 300_000]).await.unwrap();
        drop(function);
        let (ledger, mut got) = (Ledger::default(), Vec::new());
        let carrier = Carrier::new(&node, &pass, &ledger).run(connect);
        let reading = async {
            let_in.send(()).unwrap();
            server.read_to_end(&mut got).await.unwrap();
            drop(server);
        };
        let (carried, ()) = tokio::join!(carrier, reading);
        assert!(carried.is_ok());
        assert_eq!(got, [7; 300_000]);
        assert_eq!((ledger.sent.get(), ledger.early.get()), (300_000, 1));
    })
    .await;
}

#[tokio::test]
async fn an_instance_that_ends_leaves_what_it_wrote_and_the_server_need_not_close() {
    within(async {
        let (mut guests, pass) = guests("");
        let ((mut function, node), (out, mut server)) = (pair().await, pair().await);
        let (let_in, connect) = later(out);
        function.write_all(b"the last words").await.unwrap();
        drop(function);
        guests.leave(InstanceId(1), EIP);
        let ledger = Ledger::default();
        let carrier = Carrier::new(&node, &pass, &ledger).run(connect);
        let reading = async {
            let_in.send(()).unwrap();
            let mut got = String::new();
            server.read_to_string(&mut got).await.unwrap();
            got
        };
        let (carried, got) = tokio::join!(carrier, reading);
        assert!(carried.is_ok(), "{carried:?}");
        assert_eq!(got, "the last words");
    })
    .await;
}

/// A killed function's last bytes may still be in its own socket when the node hears of its death: the kernel sends them as long as there is a way.
#[tokio::test]
async fn what_an_instance_wrote_is_taken_for_as_long_as_it_comes() {
    within(async {
        let (mut guests, pass) = guests("");
        let ((mut function, node), (out, mut server)) = (pair().await, pair().await);
        let (let_in, connect) = later(out);
        let left = guests.leave(InstanceId(1), EIP).unwrap();
        let ledger = Ledger::default();
        let carrier = Carrier::new(&node, &pass, &ledger).run(connect);
        let dying = async {
            let_in.send(()).unwrap();
            tokio::time::sleep(LOOK).await; // the carrier knows that it has ended
            function.write_all(&[7; 300_000]).await.unwrap();
            drop(function);
            left.tail.closed().await;
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            got
        };
        let (carried, got) = tokio::join!(carrier, dying);
        assert!(carried.is_ok(), "{carried:?}");
        assert_eq!(got, [7; 300_000]);
    })
    .await;
}

/// Its connection is still open when its time is up: something may have been left behind.
#[tokio::test]
async fn what_comes_no_more_is_told() {
    within(async {
        let (mut guests, pass) = guests("flush=600s");
        let ((mut function, node), (out, mut server)) = (pair().await, pair().await);
        let (let_in, connect) = later(out);
        let_in.send(()).unwrap();
        function.write_all(b"half a").await.unwrap();
        let (ledger, mut got) = (Ledger::default(), [0; 6]);
        let carrier = Carrier::new(&node, &pass, &ledger).run(connect);
        let ends = async {
            server.read_exact(&mut got).await.unwrap();
            drop(guests.leave(InstanceId(1), EIP));
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "as far as it goes, it ends in good order");
        };
        let (carried, ()) = tokio::join!(carrier, ends);
        let lost = carried.unwrap_err();
        assert!(lost.taken && lost.gone && lost.why == SHORT, "{lost:?}");
        assert_eq!(&got, b"half a");
    })
    .await;
}

#[tokio::test]
async fn who_wrote_nothing_leaves_nothing_to_wait_for() {
    within(async {
        let (mut guests, pass) = guests("flush=600s");
        let ((_function, node), (out, _server)) = (pair().await, pair().await);
        let (_never, connect) = later(out);
        drop(guests.leave(InstanceId(1), EIP));
        let lost = Carrier::new(&node, &pass, &Ledger::default()).run(connect).await.unwrap_err();
        assert!(!lost.taken && lost.gone, "{lost:?}");
    })
    .await;
}

/// A function writes and is killed with an answer unread, which resets its connection; the thread hears that first when it has one answer more for it.
#[tokio::test]
async fn an_answer_that_nobody_takes_costs_nothing_that_was_written() {
    within(async {
        let (_guests, pass) = guests("");
        let ((function, node), (out, mut server)) = (pair().await, pair().await);
        let ledger = Ledger::default();
        let mut carrier = Carrier::new(&node, &pass, &ledger);
        node.writable().await.unwrap();
        carrier.take(); // nothing is there, and that is known
        carrier.tell(&mut BytesMut::from("unread"));
        function.writable().await.unwrap();
        assert_eq!(function.try_write(&[7; 1000]).unwrap(), 1000);
        drop(function);
        carrier.tell(&mut BytesMut::from("nobody takes this"));
        assert!(carrier.gone);
        let (let_in, connect) = later(out);
        let_in.send(()).unwrap();
        let reading = async {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            got.len()
        };
        let (_, got) = tokio::join!(carrier.run(connect), reading);
        assert_eq!(got, 1000);
    })
    .await;
}

#[tokio::test]
async fn a_conversation_goes_both_ways_and_a_half_close_waits_for_its_answer() {
    within(async {
        let (_guests, pass) = guests("flush=200ms");
        let ((mut function, node), (out, mut server)) = (pair().await, pair().await);
        let (let_in, connect) = later(out);
        let_in.send(()).unwrap();
        let ledger = Ledger::default();
        let carrier = Carrier::new(&node, &pass, &ledger).run(connect);
        let talking = async {
            function.write_all(b"what?").await.unwrap();
            function.shutdown().await.unwrap();
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await; // longer than `flush`, which is not for this
            server.write_all(b"this").await.unwrap();
            drop(server);
            let mut answer = String::new();
            function.read_to_string(&mut answer).await.unwrap();
            (asked, answer)
        };
        let (carried, said) = tokio::join!(carrier, talking);
        assert!(carried.is_ok(), "{carried:?}");
        assert_eq!(said, ("what?".to_owned(), "this".to_owned()));
    })
    .await;
}

#[tokio::test]
async fn what_does_not_get_there_is_owed_only_if_nobody_saw_it() {
    within(async {
        let refused = || -> Connect<'static> {
            let error = io::ErrorKind::ConnectionRefused.into();
            Box::pin(async { Err(NoConnection::Refused { to: "log:514".into(), error }) })
        };
        let (_guests, pass) = guests("");
        let ledger = Ledger::default();
        let (_function, node) = pair().await;
        let lost = Carrier::new(&node, &pass, &ledger).run(refused()).await.unwrap_err();
        assert!(!lost.taken && !lost.gone, "it sees a reset, and had written nothing: {lost:?}");
        let ((mut function, node), (out, _server)) = (pair().await, pair().await);
        function.write_all(b"x").await.unwrap();
        drop(function);
        let (_never, connect) = later(out);
        let (_guests, hurried) = guests("flush=1ms");
        let lost = Carrier::new(&node, &hurried, &ledger).run(connect).await.unwrap_err();
        assert!(lost.taken && lost.gone && lost.why.contains("`flush`"), "{lost:?}");
    })
    .await;
}

#[tokio::test]
async fn no_more_is_held_than_its_bound() {
    within(async {
        let (_guests, pass) = guests("");
        let ((mut function, node), (out, _server)) = (pair().await, pair().await);
        let (_never, connect) = later(out);
        let ledger = Ledger::default();
        let mut carrier = Carrier::new(&node, &pass, &ledger);
        let filling = async {
            let piece = vec![0; 64 << 10];
            while tokio::time::timeout(Duration::from_millis(300), function.write_all(&piece)).await.is_ok() {}
        };
        tokio::select! {
            _ = carrier.connected(connect) => panic!("it was let in"),
            () = filling => {}
        }
        assert_eq!(carrier.held.len(), MOST);
    })
    .await;
}

/// A server that says its end, reads nothing, and dies: its machine has not confirmed what was written.
#[tokio::test]
async fn a_reset_confirms_nothing() {
    within(async {
        const MUCH: usize = 900_000; // more than is taken in for a program that does not read
        let (_guests, pass) = guests("flush=20s");
        let ledger = Ledger::default();
        let ((mut function, node), (out, mut server)) = (pair().await, pair().await);
        let (let_in, connect) = later(out);
        let_in.send(()).unwrap();
        let writes = async {
            server.shutdown().await.unwrap();
            let (more, many) = (vec![b'x'; MUCH], MUCH as u64);
            function.write_all(&more).await.unwrap();
            drop(function);
            while ledger.sent.get() < many {
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(LOOK * 3).await; // it has looked, and waits
            server.set_zero_linger().unwrap();
            drop(server);
        };
        let (run, ()) = tokio::join!(Carrier::new(&node, &pass, &ledger).run(connect), writes);
        let lost = run.expect_err("what was reset was not delivered");
        assert!(lost.taken && lost.gone, "{lost:?}");
    })
    .await;
}
