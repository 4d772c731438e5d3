//! A machine without a kernel: instances are pipes and a script.

use std::collections::BTreeMap;
use std::io::{self, PipeWriter, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_daemon::metrics::Registry;
use nearpath_node::machine::{Blueprint, Consumed, Exit, Launched, Machine, Process};
use nearpath_node::{Config, Node, Settle};
use nearpath_types::{
    Desired, DesiredFunction, FunctionRoute, FunctionSpec, InstanceId, InstanceState, Revision, Snapshot,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// What an instance does after its launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Gets ready, and ends when asked to.
    Serve,
    /// Gets ready, and does not listen to SIGTERM.
    Stubborn,
    /// Writes a line and ends with code 1.
    Crash,
    /// Runs and never says anything.
    Silent,
    /// The kernel refuses it.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Launched,
    Terminated,
    Killed,
    Released,
}

#[derive(Clone)]
pub struct FakeMachine(Arc<Inner>);

struct Inner {
    /// By the value of the environment variable `script`.
    scripts: Mutex<BTreeMap<String, Script>>,
    journal: watch::Sender<Vec<(Instant, InstanceId, Event)>>,
    alive: Mutex<BTreeMap<InstanceId, Arc<FakeProcess>>>,
    blueprints: Mutex<Vec<Blueprint>>,
}

struct FakeProcess {
    id: InstanceId,
    script: Script,
    exit: watch::Sender<Option<Exit>>,
    pipes: Mutex<Vec<PipeWriter>>,
    machine: FakeMachine,
}

impl FakeMachine {
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            scripts: Mutex::default(),
            journal: watch::Sender::default(),
            alive: Mutex::default(),
            blueprints: Mutex::default(),
        }))
    }

    /// Changes what the next instances with this `script` do.
    pub fn script(&self, name: &str, script: Script) {
        self.0.scripts.lock().unwrap().insert(name.to_owned(), script);
    }

    fn note(&self, id: InstanceId, event: Event) {
        self.0.journal.send_modify(|journal| journal.push((Instant::now(), id, event)));
    }

    /// When and to which instance this happened.
    pub fn times(&self, what: Event) -> Vec<(Instant, InstanceId)> {
        let journal = self.0.journal.borrow();
        journal.iter().filter(|(_, _, event)| *event == what).map(|(at, id, _)| (*at, *id)).collect()
    }

    pub fn count(&self, what: Event) -> usize {
        self.times(what).len()
    }

    pub async fn until(&self, what: Event, count: usize) {
        let mut journal = self.0.journal.subscribe();
        let enough = |all: &Vec<(Instant, InstanceId, Event)>| all.iter().filter(|e| e.2 == what).count() >= count;
        tokio::time::timeout(Duration::from_secs(3_600), journal.wait_for(enough)).await.expect("it happens").unwrap();
    }

    /// An instance ends by itself.
    pub fn end(&self, id: InstanceId, exit: Exit) {
        let process = self.0.alive.lock().unwrap()[&id].clone();
        process.end(exit);
    }

    pub fn blueprints(&self) -> Vec<Blueprint> {
        self.0.blueprints.lock().unwrap().clone()
    }
}

impl Machine for FakeMachine {
    fn launch(&self, blueprint: &Blueprint) -> io::Result<Launched> {
        let name = blueprint.environment.get("script").cloned().unwrap_or_default();
        let script = self.0.scripts.lock().unwrap().get(&name).copied().unwrap_or(Script::Serve);
        self.note(blueprint.id, Event::Launched);
        self.0.blueprints.lock().unwrap().push(blueprint.clone());
        if script == Script::Refused {
            return Err(io::Error::other("no more namespaces"));
        }
        let (stdout, _) = io::pipe()?;
        let (stderr, mut err) = io::pipe()?;
        let (notes, mut note) = io::pipe()?;
        let (_, identity) = UnixStream::pair()?; // nobody reads it
        match script {
            Script::Serve | Script::Stubborn => note.write_all(b"phase watchdog 1000\nready\n")?,
            Script::Crash => err.write_all(b"Traceback\nno module named cart\n")?,
            Script::Silent | Script::Refused => {}
        }
        let process = Arc::new(FakeProcess {
            id: blueprint.id,
            script,
            exit: watch::Sender::new(None),
            pipes: Mutex::new(vec![err, note]),
            machine: self.clone(),
        });
        self.0.alive.lock().unwrap().insert(blueprint.id, process.clone());
        if script == Script::Crash {
            process.end(Exit::Code(1));
        }
        let pid = 1_000 + blueprint.id.0 as u32;
        Ok(Launched {
            remarks: Vec::new(),
            pid,
            stdout: stdout.into(),
            stderr: stderr.into(),
            notes: notes.into(),
            identity: identity.into(),
            process,
        })
    }

    fn sweep(&self) -> io::Result<()> {
        Ok(())
    }

    fn has_network(&self) -> bool {
        true
    }
}

impl FakeProcess {
    fn end(&self, exit: Exit) {
        self.pipes.lock().unwrap().clear();
        self.exit.send_if_modified(|old| old.is_none() && old.replace(exit).is_none());
    }
}

impl Process for FakeProcess {
    fn terminate(&self) {
        self.machine.note(self.id, Event::Terminated);
        if self.script != Script::Stubborn {
            self.end(Exit::Code(0));
        }
    }

    fn kill(&self) {
        self.machine.note(self.id, Event::Killed);
        self.end(Exit::Signal(9));
    }

    fn exited(&self) -> BoxFuture<'_, Exit> {
        let mut exit = self.exit.subscribe();
        async move { exit.wait_for(Option::is_some).await.unwrap().unwrap() }.boxed()
    }

    fn consumed(&self) -> Option<Consumed> {
        Some(Consumed { cpu_nanos: 500_000_000, memory_bytes: 1 << 20 })
    }

    fn release(&self) {
        self.machine.note(self.id, Event::Released);
        self.machine.0.alive.lock().unwrap().remove(&self.id);
    }
}

/// A node on a fake machine, with the folder of a function.
pub struct Bench {
    pub machine: FakeMachine,
    pub node: Node,
    pub registry: Registry,
    folder: tempfile::TempDir,
}

impl Bench {
    pub async fn new(settle: Settle) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("code")).unwrap();
        let (machine, registry) = (FakeMachine::new(), Registry::default());
        let mut config = Config::new(folder.path().join("data"), "/unused".into());
        (config.settle, config.gateway_ip) = (settle, Ipv4Addr::new(10, 62, 0, 1));
        let node = Node::start_on(Arc::new(machine.clone()), config, &registry).await.unwrap();
        Self { machine, node, registry, folder }
    }

    /// A wish for `echo` whose instances follow the script named `script`.
    pub fn echo(&self, revision: u64, replicas: u32, script: &str) -> Desired {
        let mut spec = FunctionSpec::named("echo".parse().unwrap());
        spec.image = format!("file://{}", self.code().display());
        spec.env_vars.insert("script".into(), script.into());
        let spec = Arc::new(spec);
        let one = DesiredFunction { spec, revision: Revision(revision), replicas, secrets: BTreeMap::new() };
        Desired { functions: vec![one] }
    }

    /// The folder that `echo` is made of.
    pub fn code(&self) -> PathBuf {
        self.folder.path().join("code")
    }

    /// Waits for a snapshot that fits.
    pub async fn until(&self, fits: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let mut snapshots = self.node.snapshots();
        let fitting = snapshots.wait_for(|snapshot| fits(snapshot));
        tokio::time::timeout(Duration::from_secs(3_600), fitting).await.expect("it comes").unwrap().clone()
    }

    pub async fn until_ready(&self, count: usize) -> Arc<Snapshot> {
        self.until(|snapshot| ready(snapshot).len() == count).await
    }

    pub async fn until_only_ready(&self, count: usize) -> Arc<Snapshot> {
        self.until(|snapshot| ready(snapshot).len() == count && echo(snapshot).instances.len() == count).await
    }

    /// The trouble that the controller sees, when it comes.
    pub async fn trouble(&self) -> String {
        let mut observed = self.node.observed();
        let told = observed.wait_for(|all| all.iter().any(|one| one.trouble.is_some())).await.unwrap();
        told[0].trouble.clone().unwrap()
    }
}

pub fn echo(snapshot: &Snapshot) -> &FunctionRoute {
    &snapshot.functions[0]
}

pub fn ready(snapshot: &Snapshot) -> Vec<InstanceId> {
    let instances = snapshot.functions.iter().flat_map(|function| &function.instances);
    instances.filter(|one| one.state == InstanceState::Ready).map(|one| one.id).collect()
}
