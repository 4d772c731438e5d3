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
use crate::handle::AdmissionRequest;
use crate::policy::EgressPolicy;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::{ConnectionLease, ConnectionSource, LeaseGuard};

struct PendingSource;

impl ConnectionSource for PendingSource {
    fn connect<'a>(
        &'a self,
        _: &'a EgressDestination,
        _: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>> {
        Box::pin(std::future::pending())
    }
}

const INSTANCE_EIP: Eip = Eip(Ipv4Addr::new(10, 62, 0, 2));

/// An instance with a pass to a destination whose writes are asynchronous.
fn policy_and_permit(settings: &str) -> (EgressPolicy, ConnectionPermit) {
    let egress: nearpath_types::EgressSpec =
        format!("log:514 writes=async {settings}").parse().unwrap();
    let key = PoolKey {
        owner: "f".into(),
        host_port: egress.host_port(),
        identity: String::new(),
        epoch: 1,
    };
    let stands = Ipv4Addr::new(10, 61, 0, 2);
    let to = EgressDestination {
        egress,
        visible_ip: stands.into(),
        key,
        secrets: BTreeMap::new(),
    };
    let (function, secrets) = ("f".parse().unwrap(), BTreeMap::new());
    let who = AdmissionRequest {
        instance: InstanceId(1),
        function,
        chain: None,
        eip: INSTANCE_EIP,
        egress: Vec::new(),
        secrets,
    };
    let mut guests = EgressPolicy::default();
    guests.admit_instance(who, vec![to], Rc::new(PendingSource));
    let pass = guests
        .check_connection(INSTANCE_EIP.0, SocketAddrV4::new(stands, 514))
        .ok()
        .unwrap();
    (guests, pass)
}

async fn connected_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    (one, listener.accept().await.unwrap().0)
}

/// A connection that is there when it is let in.
fn delayed_connect(stream: TcpStream) -> (oneshot::Sender<()>, ConnectFuture<'static>) {
    let (let_in, waits) = oneshot::channel();
    let connect = async move {
        let _ = waits.await;
        Ok(UpstreamSocket::from_lease(ConnectionLease {
            stream,
            guard: LeaseGuard::on_drop(|| {}),
        }))
    };
    (let_in, Box::pin(connect))
}

#[tokio::test]
async fn bytes_written_before_the_connect_arrive_after_the_function_closed() {
    within(async {
        let (_guests, pass) = policy_and_permit("");
        let ((mut function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (let_in, connect) = delayed_connect(out);
        function.write_all(&[7; 300_000]).await.unwrap();
        drop(function);
        let (ledger, mut got) = (DestinationCounters::default(), Vec::new());
        let carrier = WriteForwarder::new(&node, &pass, &ledger).run(connect);
        let reading = async {
            let_in.send(()).unwrap();
            server.read_to_end(&mut got).await.unwrap();
            drop(server);
        };
        let (carried, ()) = tokio::join!(carrier, reading);
        assert!(carried.is_ok());
        assert_eq!(got, [7; 300_000]);
        assert_eq!(
            (ledger.sent_bytes.get(), ledger.early_writes.get()),
            (300_000, 1)
        );
    })
    .await;
}

#[tokio::test]
async fn bytes_of_an_ended_instance_arrive_even_if_the_server_stays_open() {
    within(async {
        let (mut guests, pass) = policy_and_permit("");
        let ((mut function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (let_in, connect) = delayed_connect(out);
        function.write_all(b"the last words").await.unwrap();
        drop(function);
        guests.remove_instance(InstanceId(1), INSTANCE_EIP);
        let ledger = DestinationCounters::default();
        let carrier = WriteForwarder::new(&node, &pass, &ledger).run(connect);
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
async fn bytes_of_an_ended_instance_are_accepted_while_they_arrive() {
    within(async {
        let (mut guests, pass) = policy_and_permit("");
        let ((mut function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (let_in, connect) = delayed_connect(out);
        let left = guests.remove_instance(InstanceId(1), INSTANCE_EIP).unwrap();
        let ledger = DestinationCounters::default();
        let carrier = WriteForwarder::new(&node, &pass, &ledger).run(connect);
        let dying = async {
            let_in.send(()).unwrap();
            tokio::time::sleep(DELIVERY_CHECK_INTERVAL).await; // the carrier knows that it has ended
            function.write_all(&[7; 300_000]).await.unwrap();
            drop(function);
            left.writes_expected.closed().await;
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
async fn truncated_writes_are_reported() {
    within(async {
        let (mut guests, pass) = policy_and_permit("flush=600s");
        let ((mut function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (let_in, connect) = delayed_connect(out);
        let_in.send(()).unwrap();
        function.write_all(b"half a").await.unwrap();
        let (ledger, mut got) = (DestinationCounters::default(), [0; 6]);
        let carrier = WriteForwarder::new(&node, &pass, &ledger).run(connect);
        let ends = async {
            server.read_exact(&mut got).await.unwrap();
            drop(guests.remove_instance(InstanceId(1), INSTANCE_EIP));
            assert_eq!(
                server.read(&mut [0]).await.unwrap(),
                0,
                "as far as it goes, it ends in good order"
            );
        };
        let (carried, ()) = tokio::join!(carrier, ends);
        let lost = carried.unwrap_err();
        assert!(
            lost.was_accepted && lost.client_gone && lost.reason == TRUNCATED_MESSAGE,
            "{lost:?}"
        );
        assert_eq!(&got, b"half a");
    })
    .await;
}

#[tokio::test]
async fn an_instance_that_wrote_nothing_is_not_waited_for() {
    within(async {
        let (mut guests, pass) = policy_and_permit("flush=600s");
        let ((_function, node), (out, _server)) = (connected_pair().await, connected_pair().await);
        let (_never, connect) = delayed_connect(out);
        drop(guests.remove_instance(InstanceId(1), INSTANCE_EIP));
        let lost = WriteForwarder::new(&node, &pass, &DestinationCounters::default())
            .run(connect)
            .await
            .unwrap_err();
        assert!(!lost.was_accepted && lost.client_gone, "{lost:?}");
    })
    .await;
}

/// A function writes and is killed with an answer unread, which resets its connection; the thread hears that first when it has one answer more for it.
#[tokio::test]
async fn an_unread_answer_loses_no_written_bytes() {
    within(async {
        let (_guests, pass) = policy_and_permit("");
        let ((function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let ledger = DestinationCounters::default();
        let mut carrier = WriteForwarder::new(&node, &pass, &ledger);
        node.writable().await.unwrap();
        carrier.accept_bytes(); // nothing is there, and that is known
        carrier.write_to_client(&mut BytesMut::from("unread"));
        function.writable().await.unwrap();
        assert_eq!(function.try_write(&[7; 1000]).unwrap(), 1000);
        drop(function);
        carrier.write_to_client(&mut BytesMut::from("nobody takes this"));
        assert!(carrier.client_gone);
        let (let_in, connect) = delayed_connect(out);
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
async fn bytes_go_both_ways_and_a_half_close_waits_for_its_answer() {
    within(async {
        let (_guests, pass) = policy_and_permit("flush=200ms");
        let ((mut function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (let_in, connect) = delayed_connect(out);
        let_in.send(()).unwrap();
        let ledger = DestinationCounters::default();
        let carrier = WriteForwarder::new(&node, &pass, &ledger).run(connect);
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
async fn a_failed_delivery_is_reported_later_only_if_the_client_was_gone() {
    within(async {
        let refused = || -> ConnectFuture<'static> {
            let error = io::ErrorKind::ConnectionRefused.into();
            Box::pin(async {
                Err(NoConnection::Refused {
                    to: "log:514".into(),
                    error,
                })
            })
        };
        let (_guests, pass) = policy_and_permit("");
        let ledger = DestinationCounters::default();
        let (_function, node) = connected_pair().await;
        let lost = WriteForwarder::new(&node, &pass, &ledger)
            .run(refused())
            .await
            .unwrap_err();
        assert!(
            !lost.was_accepted && !lost.client_gone,
            "it sees a reset, and had written nothing: {lost:?}"
        );
        let ((mut function, node), (out, _server)) =
            (connected_pair().await, connected_pair().await);
        function.write_all(b"x").await.unwrap();
        drop(function);
        let (_never, connect) = delayed_connect(out);
        let (_guests, hurried) = policy_and_permit("flush=1ms");
        let lost = WriteForwarder::new(&node, &hurried, &ledger)
            .run(connect)
            .await
            .unwrap_err();
        assert!(
            lost.was_accepted && lost.client_gone && lost.reason.contains("`flush`"),
            "{lost:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn no_more_than_the_bound_is_buffered() {
    within(async {
        let (_guests, pass) = policy_and_permit("");
        let ((mut function, node), (out, _server)) =
            (connected_pair().await, connected_pair().await);
        let (_never, connect) = delayed_connect(out);
        let ledger = DestinationCounters::default();
        let mut carrier = WriteForwarder::new(&node, &pass, &ledger);
        let filling = async {
            let piece = vec![0; 64 << 10];
            while tokio::time::timeout(Duration::from_millis(300), function.write_all(&piece))
                .await
                .is_ok()
            {}
        };
        tokio::select! {
            _ = carrier.wait_connected(connect) => panic!("it was let in"),
            () = filling => {}
        }
        assert_eq!(carrier.buffered.len(), MAX_BUFFERED_BYTES);
    })
    .await;
}

/// A server that says its end, reads nothing, and dies: its machine has not confirmed what was written.
#[tokio::test]
async fn a_reset_confirms_nothing() {
    within(async {
        const MUCH: usize = 900_000; // more than is taken in for a program that does not read
        let (_guests, pass) = policy_and_permit("flush=20s");
        let ledger = DestinationCounters::default();
        let ((mut function, node), (out, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (let_in, connect) = delayed_connect(out);
        let_in.send(()).unwrap();
        let writes = async {
            server.shutdown().await.unwrap();
            let (more, many) = (vec![b'x'; MUCH], MUCH as u64);
            function.write_all(&more).await.unwrap();
            drop(function);
            while ledger.sent_bytes.get() < many {
                tokio::time::sleep(DELIVERY_CHECK_INTERVAL).await;
            }
            tokio::time::sleep(DELIVERY_CHECK_INTERVAL * 3).await; // it has looked, and waits
            server.set_zero_linger().unwrap();
            drop(server);
        };
        let (run, ()) = tokio::join!(
            WriteForwarder::new(&node, &pass, &ledger).run(connect),
            writes
        );
        let lost = run.expect_err("what was reset was not delivered");
        assert!(lost.was_accepted && lost.client_gone, "{lost:?}");
    })
    .await;
}
