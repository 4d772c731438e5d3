//! Accepted bytes are delivered, or their loss is reported.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use nearpath_testkit::within;
use nearpath_types::{Eip, InstanceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::admission::AdmissionRequest;
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

/// Returns a policy with one instance, and its permit to a destination with async writes.
fn policy_and_permit(settings: &str) -> (EgressPolicy, ConnectionPermit) {
    let egress: nearpath_types::EgressSpec =
        format!("log:514 writes=async {settings}").parse().unwrap();
    let key = PoolKey {
        owner: "f".into(),
        host_port: egress.host_port(),
        identity: String::new(),
        epoch: 1,
    };
    let address = Ipv4Addr::new(10, 61, 0, 2);
    let to = EgressDestination {
        wildcard: None,
        egress,
        visible_ip: address.into(),
        key,
        secrets: BTreeMap::new(),
    };
    let (function, secrets) = ("f".parse().unwrap(), BTreeMap::new());
    let request = AdmissionRequest {
        instance: InstanceId(1),
        function,
        chain: None,
        eip: INSTANCE_EIP,
        egress: Vec::new(),
        secrets,
        requires_tls: false,
    };
    let mut policy = EgressPolicy::default();
    policy.admit_instance(request, vec![to], Rc::new(PendingSource));
    let permit = policy
        .check_connection(INSTANCE_EIP.0, SocketAddrV4::new(address, 514))
        .ok()
        .unwrap();
    (policy, permit)
}

async fn connected_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let first = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    (first, listener.accept().await.unwrap().0)
}

/// Returns a connect that completes when the sender is used.
fn delayed_connect(stream: TcpStream) -> (oneshot::Sender<()>, ConnectFuture<'static>) {
    let (open_gate, gate) = oneshot::channel();
    let connect = async move {
        let _ = gate.await;
        Ok(UpstreamSocket::from_lease(ConnectionLease {
            stream,
            guard: LeaseGuard::on_drop(|| {}),
        }))
    };
    (open_gate, Box::pin(connect))
}

#[tokio::test]
async fn bytes_written_before_the_connect_arrive_after_the_function_closed() {
    within(async {
        let (_policy, permit) = policy_and_permit("");
        let ((mut client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (open_gate, connect) = delayed_connect(outgoing);
        client.write_all(&[7; 300_000]).await.unwrap();
        drop(client);
        let (counters, mut received) = (DestinationCounters::default(), Vec::new());
        let forwarder = WriteForwarder::new(&proxy_end, &permit, &counters).run(connect);
        let reading = async {
            open_gate.send(()).unwrap();
            server.read_to_end(&mut received).await.unwrap();
            drop(server);
        };
        let (forwarded, ()) = tokio::join!(forwarder, reading);
        assert!(forwarded.is_ok());
        assert_eq!(received, [7; 300_000]);
        assert_eq!(
            (counters.sent_bytes.get(), counters.early_writes.get()),
            (300_000, 1)
        );
    })
    .await;
}

#[tokio::test]
async fn bytes_of_an_ended_instance_arrive_even_if_the_server_stays_open() {
    within(async {
        let (mut policy, permit) = policy_and_permit("");
        let ((mut client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (open_gate, connect) = delayed_connect(outgoing);
        client.write_all(b"the last words").await.unwrap();
        drop(client);
        policy.remove_instance(InstanceId(1), INSTANCE_EIP);
        let counters = DestinationCounters::default();
        let forwarder = WriteForwarder::new(&proxy_end, &permit, &counters).run(connect);
        let reading = async {
            open_gate.send(()).unwrap();
            let mut received = String::new();
            server.read_to_string(&mut received).await.unwrap();
            received
        };
        let (forwarded, received) = tokio::join!(forwarder, reading);
        assert!(forwarded.is_ok(), "{forwarded:?}");
        assert_eq!(received, "the last words");
    })
    .await;
}

/// A killed function's last bytes may still be in its own socket when the node learns of its death.
/// The kernel sends them as long as there is a route.
#[tokio::test]
async fn bytes_of_an_ended_instance_are_accepted_while_they_arrive() {
    within(async {
        let (mut policy, permit) = policy_and_permit("");
        let ((mut client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (open_gate, connect) = delayed_connect(outgoing);
        let released = policy.remove_instance(InstanceId(1), INSTANCE_EIP).unwrap();
        let counters = DestinationCounters::default();
        let forwarder = WriteForwarder::new(&proxy_end, &permit, &counters).run(connect);
        let dying = async {
            open_gate.send(()).unwrap();
            // The forwarder learns that the instance has ended.
            tokio::time::sleep(DELIVERY_CHECK_INTERVAL).await;
            client.write_all(&[7; 300_000]).await.unwrap();
            drop(client);
            released.writes_expected.closed().await;
            let mut received = Vec::new();
            server.read_to_end(&mut received).await.unwrap();
            received
        };
        let (forwarded, received) = tokio::join!(forwarder, dying);
        assert!(forwarded.is_ok(), "{forwarded:?}");
        assert_eq!(received, [7; 300_000]);
    })
    .await;
}

/// Its connection is still open when the grace ends: bytes may have been left behind.
#[tokio::test]
async fn truncated_writes_are_reported() {
    within(async {
        let (mut policy, permit) = policy_and_permit("flush=600s");
        let ((mut client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (open_gate, connect) = delayed_connect(outgoing);
        open_gate.send(()).unwrap();
        client.write_all(b"half a").await.unwrap();
        let (counters, mut received) = (DestinationCounters::default(), [0; 6]);
        let forwarder = WriteForwarder::new(&proxy_end, &permit, &counters).run(connect);
        let ends = async {
            server.read_exact(&mut received).await.unwrap();
            drop(policy.remove_instance(InstanceId(1), INSTANCE_EIP));
            assert_eq!(
                server.read(&mut [0]).await.unwrap(),
                0,
                "the delivered part ends in order"
            );
        };
        let (forwarded, ()) = tokio::join!(forwarder, ends);
        let failure = forwarded.unwrap_err();
        assert!(
            failure.was_accepted && failure.client_gone && failure.reason == TRUNCATED_MESSAGE,
            "{failure:?}"
        );
        assert_eq!(&received, b"half a");
    })
    .await;
}

#[tokio::test]
async fn an_instance_that_wrote_nothing_is_not_waited_for() {
    within(async {
        let (mut policy, permit) = policy_and_permit("flush=600s");
        let ((_client, proxy_end), (outgoing, _server)) =
            (connected_pair().await, connected_pair().await);
        let (_gate, connect) = delayed_connect(outgoing);
        drop(policy.remove_instance(InstanceId(1), INSTANCE_EIP));
        let failure = WriteForwarder::new(&proxy_end, &permit, &DestinationCounters::default())
            .run(connect)
            .await
            .unwrap_err();
        assert!(!failure.was_accepted && failure.client_gone, "{failure:?}");
    })
    .await;
}

/// A function writes and is killed with an unread answer, which resets its connection. The proxy
/// notices the reset only when it writes one more answer.
#[tokio::test]
async fn an_unread_answer_loses_no_written_bytes() {
    within(async {
        let (_policy, permit) = policy_and_permit("");
        let ((client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let counters = DestinationCounters::default();
        let mut forwarder = WriteForwarder::new(&proxy_end, &permit, &counters);
        proxy_end.writable().await.unwrap();
        forwarder.accept_bytes(); // nothing is there, and the runtime knows it
        forwarder.write_to_client(&mut BytesMut::from("unread"));
        client.writable().await.unwrap();
        assert_eq!(client.try_write(&[7; 1000]).unwrap(), 1000);
        drop(client);
        forwarder.write_to_client(&mut BytesMut::from("never read"));
        assert!(forwarder.client_gone);
        let (open_gate, connect) = delayed_connect(outgoing);
        open_gate.send(()).unwrap();
        let reading = async {
            let mut received = Vec::new();
            server.read_to_end(&mut received).await.unwrap();
            received.len()
        };
        let (_, received) = tokio::join!(forwarder.run(connect), reading);
        assert_eq!(received, 1000);
    })
    .await;
}

#[tokio::test]
async fn bytes_go_both_ways_and_a_half_close_waits_for_its_answer() {
    within(async {
        let (_policy, permit) = policy_and_permit("flush=200ms");
        let ((mut client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (open_gate, connect) = delayed_connect(outgoing);
        open_gate.send(()).unwrap();
        let counters = DestinationCounters::default();
        let forwarder = WriteForwarder::new(&proxy_end, &permit, &counters).run(connect);
        let talking = async {
            client.write_all(b"what?").await.unwrap();
            client.shutdown().await.unwrap();
            let mut question = String::new();
            server.read_to_string(&mut question).await.unwrap();
            // Longer than `flush`, which does not bound this wait.
            tokio::time::sleep(Duration::from_millis(500)).await;
            server.write_all(b"this").await.unwrap();
            drop(server);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            (question, answer)
        };
        let (forwarded, conversation) = tokio::join!(forwarder, talking);
        assert!(forwarded.is_ok(), "{forwarded:?}");
        assert_eq!(conversation, ("what?".to_owned(), "this".to_owned()));
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
        let (_policy, permit) = policy_and_permit("");
        let counters = DestinationCounters::default();
        let (_client, proxy_end) = connected_pair().await;
        let failure = WriteForwarder::new(&proxy_end, &permit, &counters)
            .run(refused())
            .await
            .unwrap_err();
        assert!(
            !failure.was_accepted && !failure.client_gone,
            "the client sees a reset and had written nothing: {failure:?}"
        );
        let ((mut client, proxy_end), (outgoing, _server)) =
            (connected_pair().await, connected_pair().await);
        client.write_all(b"x").await.unwrap();
        drop(client);
        let (_gate, connect) = delayed_connect(outgoing);
        let (_policy, short_permit) = policy_and_permit("flush=1ms");
        let failure = WriteForwarder::new(&proxy_end, &short_permit, &counters)
            .run(connect)
            .await
            .unwrap_err();
        assert!(
            failure.was_accepted && failure.client_gone && failure.reason.contains("`flush`"),
            "{failure:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn no_more_than_the_bound_is_buffered() {
    within(async {
        let (_policy, permit) = policy_and_permit("");
        let ((mut client, proxy_end), (outgoing, _server)) =
            (connected_pair().await, connected_pair().await);
        let (_gate, connect) = delayed_connect(outgoing);
        let counters = DestinationCounters::default();
        let mut forwarder = WriteForwarder::new(&proxy_end, &permit, &counters);
        let filling = async {
            let piece = vec![0; 64 << 10];
            while tokio::time::timeout(Duration::from_millis(300), client.write_all(&piece))
                .await
                .is_ok()
            {}
        };
        tokio::select! {
            _ = forwarder.wait_connected(connect) => panic!("the connect completed"),
            () = filling => {}
        }
        assert_eq!(forwarder.buffered.len(), MAX_BUFFERED_BYTES);
    })
    .await;
}

/// A server closes its write side, reads nothing and dies: its machine has not acknowledged the
/// bytes.
#[tokio::test]
async fn a_reset_confirms_nothing() {
    within(async {
        // More than the kernel buffers for a program that does not read.
        const MUCH: usize = 900_000;
        let (_policy, permit) = policy_and_permit("flush=20s");
        let counters = DestinationCounters::default();
        let ((mut client, proxy_end), (outgoing, mut server)) =
            (connected_pair().await, connected_pair().await);
        let (open_gate, connect) = delayed_connect(outgoing);
        open_gate.send(()).unwrap();
        let writes = async {
            server.shutdown().await.unwrap();
            let (more, many) = (vec![b'x'; MUCH], MUCH as u64);
            client.write_all(&more).await.unwrap();
            drop(client);
            while counters.sent_bytes.get() < many {
                tokio::time::sleep(DELIVERY_CHECK_INTERVAL).await;
            }
            tokio::time::sleep(DELIVERY_CHECK_INTERVAL * 3).await; // it has checked once and waits
            server.set_zero_linger().unwrap();
            drop(server);
        };
        let (result, ()) = tokio::join!(
            WriteForwarder::new(&proxy_end, &permit, &counters).run(connect),
            writes
        );
        let failure = result.expect_err("a reset delivers nothing");
        assert!(failure.was_accepted && failure.client_gone, "{failure:?}");
    })
    .await;
}
