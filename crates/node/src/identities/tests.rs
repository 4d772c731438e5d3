use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use nearpath_types::frames::{self, FromNode, Handshake, Peer, Tally};
use nearpath_types::{Eip, FunctionRoute, Instance, InstanceState};
use tokio::sync::oneshot;

use super::*;
use crate::machine::{Blueprint, Launched, Way};

#[derive(Default)]
struct Fake {
    frames: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    gone: Mutex<Vec<String>>,
    edges: Mutex<BTreeMap<FunctionId, Vec<FunctionId>>>,
}

impl Issuer for Fake {
    fn serves(&self, transport: Transport) -> bool {
        transport == Transport::Quic
    }

    fn issue(&self, function: FunctionId, instance: InstanceId) -> BoxFuture<'static, Result<Identity, String>> {
        if instance.0 == 0 {
            return Box::pin(std::future::ready(Err("no key".to_owned())));
        }
        let (sender, frames) = mpsc::channel(4);
        sender.try_send(b"first".to_vec()).unwrap();
        *self.frames.lock().unwrap() = Some(sender);
        Box::pin(std::future::ready(Ok(Identity { name: format!("{instance}.{function}").into(), frames })))
    }

    fn gone(&self, name: &str) {
        self.gone.lock().unwrap().push(name.to_owned());
    }

    fn edges(&self, callers: BTreeMap<FunctionId, Vec<FunctionId>>) {
        *self.edges.lock().unwrap() = callers;
    }

    fn answerer(&self, callee: &str, caller: SocketAddr) -> Option<Box<dyn Answerer>> {
        Some(Box::new(Half(format!("{callee} for {caller}"))))
    }
}

/// Says once who it is and twice what it heard.
struct Half(String);

impl Answerer for Half {
    fn step(&mut self, datagrams: &[Vec<u8>]) -> Step {
        let name = std::mem::take(&mut self.0);
        Step { done: name.is_empty(), datagrams: [vec![name.into_bytes()], datagrams.to_vec()].concat() }
    }
}

/// Has a way to instances whose address is even.
struct Ways;

impl Machine for Ways {
    fn launch(&self, _: &Blueprint) -> io::Result<Launched> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sweep(&self) -> io::Result<()> {
        Ok(())
    }

    fn has_network(&self) -> bool {
        true
    }

    fn way(&self, _: Eip, other: Eip) -> Option<Way> {
        other.0.octets()[3].is_multiple_of(2).then(|| Box::new(()) as Way)
    }
}

fn caller(instance: u64) -> Caller {
    let addr = Some(InstanceAddr(([10, 62, 0, 9], 8080).into()));
    Caller { function: "echo".parse().unwrap(), instance: InstanceId(instance), addr }
}

fn around() -> Surroundings {
    Surroundings { snapshots: watch::channel(Arc::default()).1, machine: Arc::new(Ways), direct: Direct::default() }
}

/// `echo`, which may call `other`, of which there are instances with these numbers, called so and at these addresses.
fn snapshot(instances: &[u64]) -> Arc<Snapshot> {
    let route = |id: &str, calls: Vec<FunctionId>, instances| FunctionRoute {
        id: id.parse().unwrap(),
        policy: Arc::new(Policy { calls, transport: Transport::Quic, ..Policy::default() }),
        replicas: 1,
        instances,
        trouble: None,
    };
    let instance = |&number: &u64| Instance {
        id: InstanceId(number),
        addr: InstanceAddr(([10, 62, 0, number as u8], 8080).into()),
        state: InstanceState::Ready,
        quic: Some(format!("i{number}").into()),
        transport: Transport::Quic,
    };
    let others = instances.iter().map(instance).collect();
    let functions = vec![route("echo", vec!["other".parse().unwrap()], Vec::new()), route("other", Vec::new(), others)];
    Arc::new(Snapshot { version: 1, functions })
}

/// A talk in which the first was said, with this end of it.
struct Talking {
    watchdog: UnixStream,
    snapshots: watch::Sender<Arc<Snapshot>>,
    direct: Direct,
    _fake: Arc<Fake>,
    _telling: Telling,
}

impl Talking {
    async fn begin() -> Self {
        let (fake, (mut watchdog, node)) = (Arc::new(Fake::default()), UnixStream::pair().unwrap());
        watchdog.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (snapshots, direct) = (watch::Sender::new(snapshot(&[2, 3])), Direct::default());
        let around = Surroundings { snapshots: snapshots.subscribe(), machine: Arc::new(Ways), direct: direct.clone() };
        let (known, knowing) = oneshot::channel();
        let identities = Identities::from(fake.clone());
        let telling = Telling::begin(identities.tell(caller(7), node.into(), around, |name| known.send(name).unwrap()));
        knowing.await.unwrap().unwrap();
        read(&mut watchdog, b"first");
        Self { watchdog, snapshots, direct, _fake: fake, _telling: telling }
    }

    fn next(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.watchdog.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.watchdog.read_exact(&mut frame).unwrap();
        frame
    }

    /// The instances that it is told of.
    fn peers(&mut self) -> Vec<Peer> {
        match FromNode::read(&self.next()).unwrap() {
            FromNode::Callees(mut all) => all.remove(0).peers,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, callee: &str) -> Vec<Vec<u8>> {
        let half = Handshake { callee: callee.into(), datagrams: vec![b"hello".to_vec()] };
        self.watchdog.write_all(&frames::handshake(&half)).unwrap();
        match FromNode::read(&self.next()).unwrap() {
            FromNode::Handshake(half) => half.datagrams,
            other => panic!("{other:?}"),
        }
    }

    fn count(&mut self, callee: &str) {
        let tally = Tally { ended: 3, failed: 1, open: 1, ..Tally::of(callee.parse().unwrap()) };
        self.watchdog.write_all(&frames::tallies(&[tally])).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_told_whom_it_may_call_and_again_when_that_changes() {
    let mut talking = Talking::begin().await;
    let peer =
        |number: u8| Peer { name: format!("i{number}"), addr: ([10, 62, 0, number], 8080).into(), leaving: false };
    assert_eq!(talking.peers(), [peer(2)], "to the other there is no way");
    talking.snapshots.send_replace(snapshot(&[2, 4]));
    assert_eq!(talking.peers(), [peer(2), peer(4)]);
    talking.snapshots.send_modify(|snapshot| Arc::make_mut(snapshot).version += 1); // nothing for it
    talking.snapshots.send_replace(snapshot(&[]));
    assert_eq!(talking.peers(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_handshakes_are_answered_with_whom_it_may_call_and_with_nobody_else() {
    let mut talking = Talking::begin().await;
    talking.peers();
    let half = Handshake { callee: "i3".into(), datagrams: vec![b"hello".to_vec()] };
    talking.watchdog.write_all(&frames::handshake(&half)).unwrap(); // not even refused
    assert_eq!(talking.ask("i2"), [&b"i2 for 10.62.0.9:8080"[..], b"hello"]);
    assert_eq!(talking.ask("i2"), [&b""[..], b"hello"], "the same half");
    assert_eq!(talking.ask("i2"), [&b"i2 for 10.62.0.9:8080"[..], b"hello"], "it was done: a new one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_calls_along_its_edges_are_counted_until_it_says_what_is_no_frame() {
    let mut talking = Talking::begin().await;
    talking.peers();
    talking.count("other");
    talking.count("undeclared");
    talking.ask("i2"); // what came before was heard before
    let edges = talking.direct.edges();
    let told: Vec<_> = edges.iter().map(|edge| (&*edge.callee, edge.requests, edge.failed, edge.in_flight)).collect();
    assert_eq!(told, [("other.openfaas-fn", 3, 1, 1)]);
    talking.watchdog.write_all(&[1, 0, 0, 0, 9]).unwrap();
    talking.count("other");
    talking.snapshots.send_replace(snapshot(&[4]));
    assert_eq!(talking.peers().len(), 1, "it is still told what it must know");
    assert_eq!(talking.direct.edges()[0].requests, 3);
}

fn read(socket: &mut UnixStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(got, wanted);
}

/// A watchdog that blocks cannot be on the thread of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_said_once_and_again_when_it_changes_and_forgotten_in_the_end() {
    let (fake, (mut reader, writer)) = (Arc::new(Fake::default()), UnixStream::pair().unwrap());
    let (known, knowing) = tokio::sync::oneshot::channel();
    let telling = Identities::from(fake.clone()).tell(caller(7), writer.into(), around(), |name| {
        known.send(name).unwrap();
    });
    let telling = tokio::spawn(telling);
    assert_eq!(&*knowing.await.unwrap().unwrap(), "i7.echo.openfaas-fn");
    read(&mut reader, b"first");
    let sender = fake.frames.lock().unwrap().clone().unwrap();
    sender.send(b"second".to_vec()).await.unwrap();
    let reader = tokio::task::spawn_blocking(move || {
        read(&mut reader, b"second");
        reader
    });
    drop(reader.await.unwrap());
    telling.abort();
    assert!(telling.await.unwrap_err().is_cancelled());
    assert_eq!(*fake.gone.lock().unwrap(), ["i7.echo.openfaas-fn"]);
}

#[tokio::test]
async fn why_there_is_none_is_told() {
    let (_reader, writer) = UnixStream::pair().unwrap();
    let mut told = None;
    let fake: Arc<dyn Issuer> = Arc::new(Fake::default());
    Identities::from(fake).tell(caller(0), writer.into(), around(), |name| told = Some(name)).await;
    assert_eq!(told.unwrap().unwrap_err(), "no key");
}

#[test]
fn who_may_call_whom_is_said_of_those_who_show_certificates() {
    let id = |name: &str| name.parse::<FunctionId>().unwrap();
    let policy = |calls: &[&str], transport| Policy {
        calls: calls.iter().map(|name| id(name)).collect(),
        transport,
        ..Policy::default()
    };
    let functions = [
        (id("a"), policy(&["b", "plain", "nowhere"], Transport::Quic)),
        (id("b"), policy(&[], Transport::Quic)),
        (id("c"), policy(&["b"], Transport::Quic)),
        (id("plain"), policy(&["b"], Transport::Auto)),
    ];
    let fake = Arc::new(Fake::default());
    Identities::from(fake.clone()).permit(functions.iter().map(|(id, policy)| (id, policy)));
    assert_eq!(*fake.edges.lock().unwrap(), BTreeMap::from([(id("b"), vec![id("a"), id("c")])]));
}
