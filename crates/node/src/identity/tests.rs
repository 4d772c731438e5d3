use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use nearpath_types::FunctionPolicy;
use nearpath_types::frames::{self, CallTally, CalleePeer, HandshakeMessage, NodeFrame};
use nearpath_types::{Eip, FunctionRoute, InstanceLocality, InstanceRoute, InstanceState};
use tokio::sync::oneshot;

use super::*;
use crate::instance::InstanceTask;
use crate::machine::{DirectPathGuard, InstanceSpec, StartedInstance};

#[derive(Default)]
struct FakeIssuer {
    frames: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    gone: Mutex<Vec<String>>,
    edges: Mutex<BTreeMap<FunctionId, Vec<FunctionId>>>,
}

impl IdentityIssuer for FakeIssuer {
    fn serves_transport(&self, transport: CallTransport) -> bool {
        transport == CallTransport::Quic
    }

    fn issue_identity(
        &self,
        function: FunctionId,
        instance: InstanceId,
    ) -> BoxFuture<'static, Result<InstanceIdentity, String>> {
        if instance.0 == 0 {
            return Box::pin(std::future::ready(Err("no key".to_owned())));
        }
        let (sender, frames) = mpsc::channel(4);
        sender.try_send(b"first".to_vec()).unwrap();
        *self.frames.lock().unwrap() = Some(sender);
        Box::pin(std::future::ready(Ok(InstanceIdentity {
            name: format!("{instance}.{function}").into(),
            frames,
        })))
    }

    fn forget_instance(&self, name: &str) {
        self.gone.lock().unwrap().push(name.to_owned());
    }

    fn update_callers(&self, changed: BTreeMap<FunctionId, Vec<FunctionId>>) {
        self.edges.lock().unwrap().extend(changed);
    }

    fn open_half(&self, callee: &str, caller: SocketAddr) -> Option<Box<dyn HandshakeHalf>> {
        Some(Box::new(EchoHalf(format!("{callee} for {caller}"))))
    }
}

/// Returns its name once, and echoes the datagrams twice.
struct EchoHalf(String);

impl HandshakeHalf for EchoHalf {
    fn step(&mut self, datagrams: &[Vec<u8>]) -> HandshakeStep {
        let name = std::mem::take(&mut self.0);
        HandshakeStep {
            done: name.is_empty(),
            datagrams: [vec![name.into_bytes()], datagrams.to_vec()].concat(),
        }
    }
}

/// Has a direct path to instances with even addresses.
struct EvenMachine;

impl InstanceMachine for EvenMachine {
    fn launch_instance(&self, _: &InstanceSpec) -> io::Result<StartedInstance> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sweep_leftovers(&self) -> io::Result<()> {
        Ok(())
    }

    fn has_network(&self) -> bool {
        true
    }

    fn open_direct_path(&self, _: Eip, other: Eip) -> Option<DirectPathGuard> {
        other.0.octets()[3]
            .is_multiple_of(2)
            .then(|| Box::new(()) as DirectPathGuard)
    }
}

fn caller_instance(instance: u64) -> CallerInstance {
    let addr = Some(InstanceAddr(([10, 62, 0, 9], 8080).into()));
    CallerInstance {
        function: "echo".parse().unwrap(),
        instance: InstanceId(instance),
        addr,
    }
}

fn context() -> IdentityContext {
    IdentityContext {
        snapshots: watch::channel(Arc::default()).1,
        machine: Arc::new(EvenMachine),
        direct_stats: DirectStats::default(),
        direct: DirectRegistry::new(watch::channel(Arc::default()).1),
    }
}

/// Returns a snapshot of `echo`, which may call `other`, whose instances have these numbers as ids
/// and addresses.
fn snapshot_of(instances: &[u64]) -> Arc<RoutingSnapshot> {
    let route = |id: &str, calls: Vec<FunctionId>, instances| FunctionRoute {
        address: None,
        id: id.parse().unwrap(),
        policy: Arc::new(FunctionPolicy {
            calls,
            transport: CallTransport::Quic,
            ..FunctionPolicy::default()
        }),
        replicas: 1,
        instances,
        runs_here: true,
        remotes: Vec::new(),
        start_failure: None,
    };
    let instance = |&number: &u64| InstanceRoute {
        id: InstanceId(number),
        addr: InstanceAddr(([10, 62, 0, number as u8], 8080).into()),
        locality: InstanceLocality::SameNode,
        state: InstanceState::Ready,
        quic: Some(format!("i{number}").into()),
        transport: CallTransport::Quic,
        server: None,
    };
    let others = instances.iter().map(instance).collect();
    let functions = [
        route("echo", vec!["other".parse().unwrap()], Vec::new()),
        route("other", Vec::new(), others),
    ];
    Arc::new(RoutingSnapshot {
        version: 1,
        nodes: Arc::default(),
        functions: functions.into_iter().collect(),
    })
}

/// A session after its first frame, with the watchdog's end.
struct SessionFixture {
    watchdog: UnixStream,
    snapshots: watch::Sender<Arc<RoutingSnapshot>>,
    direct: DirectStats,
    _issuer: Arc<FakeIssuer>,
    _task: InstanceTask,
}

impl SessionFixture {
    async fn start() -> Self {
        let (issuer, (mut watchdog, node)) =
            (Arc::new(FakeIssuer::default()), UnixStream::pair().unwrap());
        watchdog
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let (snapshots, direct) = (
            watch::Sender::new(snapshot_of(&[2, 3])),
            DirectStats::default(),
        );
        let around = IdentityContext {
            snapshots: snapshots.subscribe(),
            machine: Arc::new(EvenMachine),
            direct_stats: direct.clone(),
            direct: DirectRegistry::new(watch::channel(Arc::default()).1),
        };
        let (known_sender, known_receiver) = oneshot::channel();
        let identities = IdentityService::from_issuer(issuer.clone());
        let task = InstanceTask::spawn(identities.run_session(
            caller_instance(7),
            node.into(),
            around,
            |name| known_sender.send(name).unwrap(),
        ));
        known_receiver.await.unwrap().unwrap();
        expect_bytes(&mut watchdog, b"first");
        Self {
            watchdog,
            snapshots,
            direct,
            _issuer: issuer,
            _task: task,
        }
    }

    fn next_frame(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.watchdog.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.watchdog.read_exact(&mut frame).unwrap();
        frame
    }

    /// Reads the instances of the next frame.
    fn next_peers(&mut self) -> Vec<CalleePeer> {
        match NodeFrame::read(&self.next_frame()).unwrap() {
            NodeFrame::Callees(mut all) => all.remove(0).peers,
            other => panic!("{other:?}"),
        }
    }

    fn handshake(&mut self, callee: &str) -> Vec<Vec<u8>> {
        let half = HandshakeMessage {
            callee: callee.into(),
            datagrams: vec![b"hello".to_vec()],
        };
        self.watchdog
            .write_all(&frames::handshake_frame(&half))
            .unwrap();
        match NodeFrame::read(&self.next_frame()).unwrap() {
            NodeFrame::Handshake(half) => half.datagrams,
            other => panic!("{other:?}"),
        }
    }

    fn send_tally(&mut self, callee: &str) {
        let tally = CallTally {
            ended: 3,
            failed: 1,
            open: 1,
            ..CallTally::for_callee(callee.parse().unwrap())
        };
        self.watchdog
            .write_all(&frames::tallies_frame(&[tally]))
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callees_are_sent_at_first_and_on_every_change() {
    let mut session = SessionFixture::start().await;
    let (locality, leaving) = (InstanceLocality::SameNode, false);
    let peer = |number: u8| CalleePeer {
        name: format!("i{number}"),
        addr: ([10, 62, 0, number], 8080).into(),
        locality,
        leaving,
    };
    assert_eq!(
        session.next_peers(),
        [peer(2)],
        "the other one is unreachable"
    );
    session.snapshots.send_replace(snapshot_of(&[2, 4]));
    assert_eq!(session.next_peers(), [peer(2), peer(4)]);
    // no change for this instance
    session
        .snapshots
        .send_modify(|snapshot| Arc::make_mut(snapshot).version += 1);
    session.snapshots.send_replace(snapshot_of(&[]));
    assert_eq!(session.next_peers(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_are_answered_only_for_permitted_callees() {
    let mut session = SessionFixture::start().await;
    session.next_peers();
    let half = HandshakeMessage {
        callee: "i3".into(),
        datagrams: vec![b"hello".to_vec()],
    };
    session
        .watchdog
        .write_all(&frames::handshake_frame(&half))
        .unwrap(); // ignored without a response
    assert_eq!(
        session.handshake("i2"),
        [&b"i2 for 10.62.0.9:8080"[..], b"hello"]
    );
    assert_eq!(
        session.handshake("i2"),
        [&b""[..], b"hello"],
        "the same half continues"
    );
    assert_eq!(
        session.handshake("i2"),
        [&b"i2 for 10.62.0.9:8080"[..], b"hello"],
        "the first half is done, so a new one begins"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tallies_count_until_an_invalid_frame() {
    let mut session = SessionFixture::start().await;
    session.next_peers();
    session.send_tally("other");
    session.send_tally("undeclared");
    session.handshake("i2"); // earlier frames were processed before this response
    let edges = session.direct.edge_status();
    let totals: Vec<_> = edges
        .iter()
        .map(|edge| (&*edge.callee, edge.requests, edge.failed, edge.in_flight))
        .collect();
    assert_eq!(totals, [("other.openfaas-fn", 3, 1, 1)]);
    session.watchdog.write_all(&[1, 0, 0, 0, 9]).unwrap();
    session.send_tally("other");
    session.snapshots.send_replace(snapshot_of(&[4]));
    assert_eq!(session.next_peers().len(), 1, "callees are still sent");
    assert_eq!(session.direct.edge_status()[0].requests, 3);
}

fn expect_bytes(socket: &mut UnixStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(got, wanted);
}

/// The blocking watchdog needs a thread of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_is_sent_updated_and_forgotten() {
    let (issuer, (mut reader, writer)) =
        (Arc::new(FakeIssuer::default()), UnixStream::pair().unwrap());
    let (known_sender, known_receiver) = tokio::sync::oneshot::channel();
    let task = IdentityService::from_issuer(issuer.clone()).run_session(
        caller_instance(7),
        writer.into(),
        context(),
        |name| {
            known_sender.send(name).unwrap();
        },
    );
    let task = tokio::spawn(task);
    assert_eq!(
        &*known_receiver.await.unwrap().unwrap(),
        "i7.echo.openfaas-fn"
    );
    expect_bytes(&mut reader, b"first");
    let sender = issuer.frames.lock().unwrap().clone().unwrap();
    sender.send(b"second".to_vec()).await.unwrap();
    let reader = tokio::task::spawn_blocking(move || {
        expect_bytes(&mut reader, b"second");
        reader
    });
    drop(reader.await.unwrap());
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(*issuer.gone.lock().unwrap(), ["i7.echo.openfaas-fn"]);
}

#[tokio::test]
async fn an_issuer_error_is_reported() {
    let (_reader, writer) = UnixStream::pair().unwrap();
    let mut totals = None;
    let issuer: Arc<dyn IdentityIssuer> = Arc::new(FakeIssuer::default());
    IdentityService::from_issuer(issuer)
        .run_session(caller_instance(0), writer.into(), context(), |name| {
            totals = Some(name)
        })
        .await;
    assert_eq!(totals.unwrap().unwrap_err(), "no key");
}

#[test]
fn callers_are_set_for_functions_with_certificates() {
    let id = |name: &str| name.parse::<FunctionId>().unwrap();
    let policy = |calls: &[&str], transport| FunctionPolicy {
        calls: calls.iter().map(|name| id(name)).collect(),
        transport,
        ..FunctionPolicy::default()
    };
    let functions = [
        (
            id("a"),
            policy(&["b", "plain", "nowhere"], CallTransport::Quic),
        ),
        (id("b"), policy(&[], CallTransport::Quic)),
        (id("c"), policy(&["b"], CallTransport::Quic)),
        (id("plain"), policy(&["b"], CallTransport::Auto)),
    ];
    let issuer = Arc::new(FakeIssuer::default());
    let identities = IdentityService::from_issuer(issuer.clone());
    let mut callers = DirectCallers::default();
    let mut changes: PolicyChanges = functions
        .map(|(id, policy)| (id, Some(policy.into())))
        .into();
    identities.update_callers(&mut callers, &changes);
    let callers_of = |name: &str| issuer.edges.lock().unwrap().get(&id(name)).cloned();
    assert_eq!(callers_of("b"), Some(vec![id("a"), id("c")]));
    assert_eq!(callers_of("plain"), Some(vec![]), "it has no certificate");
    changes.retain(|name, _| *name == id("c"));
    changes.values_mut().for_each(|policy| *policy = None);
    identities.update_callers(&mut callers, &changes);
    assert_eq!(callers_of("b"), Some(vec![id("a")]));
}
