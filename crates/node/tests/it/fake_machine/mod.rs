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
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_node::machine::{
    InstanceMachine, InstanceProcess, InstanceSpec, ProcessExit, ProcessUsage, StartedInstance,
};
use nearpath_node::{Node, NodeConfig, SettleHook};
use nearpath_types::{
    DesiredFunction, DesiredState, FunctionRoute, FunctionSpec, InstanceId, InstanceState,
    Revision, RoutingSnapshot,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// Behaviour of an instance after its launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Becomes ready, and ends when asked to.
    Serve,
    /// Becomes ready, and tells of a server of its own.
    OwnServer,
    /// Becomes ready, and ignores SIGTERM.
    Stubborn,
    /// Becomes ready, and survives the kill of a process for lack of memory, reported twice; a
    /// remark follows.
    OomKill,
    /// Becomes ready. Two of its processes are killed for lack of memory, each with a note, and a
    /// third without one.
    OomKills,
    /// Writes a line and exits with code 1.
    Crash,
    /// Has reported phases before the watchdog's; loses SIGTERM, as a process without a handler.
    Early,
    /// Runs without any note.
    Silent,
    /// Refused by the kernel.
    Refused,
    /// Becomes ready, and has calls for ever.
    Busy,
    /// Becomes ready, and cannot be thawed.
    Unthawable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvent {
    Launched,
    Terminated,
    Killed,
    Frozen,
    Thawed,
    Released,
}

#[derive(Clone)]
pub struct FakeMachine(Arc<FakeState>);

struct FakeState {
    /// By value of the environment variable `script`.
    scripts: Mutex<BTreeMap<String, Script>>,
    journal: watch::Sender<Vec<(Instant, InstanceId, ProcessEvent)>>,
    alive: Mutex<BTreeMap<InstanceId, Arc<FakeProcess>>>,
    blueprints: Mutex<Vec<InstanceSpec>>,
}

struct FakeProcess {
    id: InstanceId,
    script: Script,
    exit: watch::Sender<Option<ProcessExit>>,
    pipes: Mutex<Vec<PipeWriter>>,
    machine: FakeMachine,
}

impl FakeMachine {
    pub fn new() -> Self {
        Self(Arc::new(FakeState {
            scripts: Mutex::default(),
            journal: watch::Sender::default(),
            alive: Mutex::default(),
            blueprints: Mutex::default(),
        }))
    }

    /// Changes the behaviour of later instances with this `script`.
    pub fn script(&self, name: &str, script: Script) {
        self.0
            .scripts
            .lock()
            .unwrap()
            .insert(name.to_owned(), script);
    }

    fn record(&self, id: InstanceId, event: ProcessEvent) {
        self.0
            .journal
            .send_modify(|journal| journal.push((Instant::now(), id, event)));
    }

    /// Returns times and instances of an event.
    pub fn times(&self, what: ProcessEvent) -> Vec<(Instant, InstanceId)> {
        let journal = self.0.journal.borrow();
        journal
            .iter()
            .filter(|(_, _, event)| *event == what)
            .map(|(at, id, _)| (*at, *id))
            .collect()
    }

    pub fn count(&self, what: ProcessEvent) -> usize {
        self.times(what).len()
    }

    pub async fn until(&self, what: ProcessEvent, count: usize) {
        let mut journal = self.0.journal.subscribe();
        let enough = |all: &Vec<(Instant, InstanceId, ProcessEvent)>| {
            all.iter().filter(|e| e.2 == what).count() >= count
        };
        tokio::time::timeout(Duration::from_secs(3_600), journal.wait_for(enough))
            .await
            .expect("the event happens")
            .unwrap();
    }

    /// Ends an instance by itself.
    pub fn end(&self, id: InstanceId, exit: ProcessExit) {
        let process = self.0.alive.lock().unwrap()[&id].clone();
        process.end(exit);
    }

    pub fn blueprints(&self) -> Vec<InstanceSpec> {
        self.0.blueprints.lock().unwrap().clone()
    }
}

impl InstanceMachine for FakeMachine {
    fn launch_instance(&self, spec: &InstanceSpec) -> io::Result<StartedInstance> {
        let name = spec.environment.get("script").cloned().unwrap_or_default();
        let script = self
            .0
            .scripts
            .lock()
            .unwrap()
            .get(&name)
            .copied()
            .unwrap_or(Script::Serve);
        self.record(spec.id, ProcessEvent::Launched);
        self.0.blueprints.lock().unwrap().push(spec.clone());
        if script == Script::Refused {
            return Err(io::Error::other("no more namespaces"));
        }
        let (stdout, _) = io::pipe()?;
        let (stderr, mut err) = io::pipe()?;
        let (notes, mut note_writer) = io::pipe()?;
        let (_, identity) = UnixStream::pair()?; // never read
        match script {
            Script::Serve | Script::Stubborn | Script::Busy | Script::Unthawable => {
                note_writer.write_all(b"phase watchdog 1000\nready\n")?
            }
            Script::OwnServer => {
                note_writer.write_all(b"server 127.0.0.1:5000 0 \nphase watchdog 1000\nready\n")?
            }
            Script::OomKill => note_writer.write_all(
                b"phase watchdog 1000\nready\noom_kill\noom_kill\nremark it is a server\n",
            )?,
            Script::OomKills => {
                note_writer.write_all(b"phase watchdog 1000\nready\noom_kill\noom_kill\n")?
            }
            Script::Early => note_writer.write_all(b"phase root 1000\nphase lockdown 1000\n")?,
            Script::Crash => err.write_all(b"Traceback\nno module named cart\n")?,
            Script::Silent | Script::Refused => {}
        }
        let process = Arc::new(FakeProcess {
            id: spec.id,
            script,
            exit: watch::Sender::new(None),
            pipes: Mutex::new(vec![err, note_writer]),
            machine: self.clone(),
        });
        self.0
            .alive
            .lock()
            .unwrap()
            .insert(spec.id, process.clone());
        if script == Script::Crash {
            process.end(ProcessExit::Code(1));
        }
        let pid = 1_000 + spec.id.0 as u32;
        Ok(StartedInstance {
            gateway_listener: None,
            remarks: Vec::new(),
            pid,
            stdout: stdout.into(),
            stderr: stderr.into(),
            notes: notes.into(),
            identity: identity.into(),
            process,
        })
    }

    fn sweep_leftovers(&self) -> io::Result<()> {
        Ok(())
    }

    fn has_network(&self) -> bool {
        true
    }

    fn can_freeze(&self) -> bool {
        true
    }
}

impl FakeProcess {
    fn end(&self, exit: ProcessExit) {
        self.pipes.lock().unwrap().clear();
        self.exit
            .send_if_modified(|old| old.is_none() && old.replace(exit).is_none());
    }
}

impl InstanceProcess for FakeProcess {
    fn terminate(&self) {
        self.machine.record(self.id, ProcessEvent::Terminated);
        if !matches!(self.script, Script::Stubborn | Script::Early) {
            self.end(ProcessExit::Code(0));
        }
    }

    fn kill(&self) {
        self.machine.record(self.id, ProcessEvent::Killed);
        self.end(ProcessExit::Signal(9));
    }

    fn wait_exit(&self) -> BoxFuture<'_, ProcessExit> {
        let mut exit = self.exit.subscribe();
        async move { exit.wait_for(Option::is_some).await.unwrap().unwrap() }.boxed()
    }

    fn read_usage(&self) -> Option<ProcessUsage> {
        Some(ProcessUsage {
            cpu_nanos: 500_000_000,
            memory_bytes: 1 << 20,
        })
    }

    fn oom_kills(&self) -> Option<u64> {
        Some(match self.script {
            Script::OomKill => 1,
            Script::OomKills => 3,
            _ => 0,
        })
    }

    fn has_calls(&self) -> io::Result<bool> {
        Ok(self.script == Script::Busy)
    }

    fn freeze(&self) -> io::Result<()> {
        self.machine.record(self.id, ProcessEvent::Frozen);
        Ok(())
    }

    fn thaw(&self) -> io::Result<()> {
        if self.script == Script::Unthawable {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.machine.record(self.id, ProcessEvent::Thawed);
        Ok(())
    }

    fn release_resources(&self) {
        self.machine.record(self.id, ProcessEvent::Released);
        self.machine.0.alive.lock().unwrap().remove(&self.id);
    }
}

/// A node on a fake machine, with the folder of a function.
pub struct NodeFixture {
    pub machine: FakeMachine,
    pub node: Node,
    pub registry: MetricsRegistry,
    folder: tempfile::TempDir,
}

impl NodeFixture {
    pub async fn new(settle: SettleHook) -> Self {
        Self::with_config(|config| config.settle = settle).await
    }

    /// Starts with a changed configuration.
    pub async fn with_config(change: impl FnOnce(&mut NodeConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("code")).unwrap();
        let (machine, registry) = (FakeMachine::new(), MetricsRegistry::default());
        let mut config = NodeConfig::new(folder.path().join("data"), "/unused".into());
        config.gateway_ip = Ipv4Addr::new(10, 62, 0, 1);
        change(&mut config);
        let node = Node::start_on_machine(Arc::new(machine.clone()), config, &registry)
            .await
            .unwrap();
        Self {
            machine,
            node,
            registry,
            folder,
        }
    }

    /// Returns a desired state of `echo` whose instances follow the script named `script`.
    pub fn desired_echo(&self, revision: u64, replicas: u32, script: &str) -> DesiredState {
        self.desired(revision, replicas, self.echo_spec(script))
    }

    /// Returns the same with instances that are kept frozen.
    pub fn frozen_echo(&self, revision: u64, replicas: u32, script: &str) -> DesiredState {
        let mut spec = self.echo_spec(script);
        spec.annotations
            .insert("nearpath.io/frozen".into(), "10m".into());
        self.desired(revision, replicas, spec)
    }

    fn echo_spec(&self, script: &str) -> FunctionSpec {
        let mut spec = FunctionSpec::named("echo".parse().unwrap());
        spec.image = format!("file://{}", self.code().display());
        spec.env_vars.insert("script".into(), script.into());
        spec
    }

    fn desired(&self, revision: u64, replicas: u32, spec: FunctionSpec) -> DesiredState {
        let spec = Arc::new(spec);
        let one = DesiredFunction {
            spec,
            revision: Revision(revision),
            replicas,
            secrets: BTreeMap::new(),
        };
        DesiredState {
            functions: [one].into_iter().collect(),
            ..DesiredState::default()
        }
    }

    /// Returns the folder of `echo`.
    pub fn code(&self) -> PathBuf {
        self.folder.path().join("code")
    }

    /// Waits for a snapshot that matches.
    pub async fn until(&self, matches: impl Fn(&RoutingSnapshot) -> bool) -> Arc<RoutingSnapshot> {
        let mut snapshots = self.node.watch_snapshots();
        let matching = snapshots.wait_for(|snapshot| matches(snapshot));
        tokio::time::timeout(Duration::from_secs(3_600), matching)
            .await
            .expect("the snapshot is published")
            .unwrap()
            .clone()
    }

    pub async fn until_ready(&self, count: usize) -> Arc<RoutingSnapshot> {
        self.until(|snapshot| ready_ids(snapshot).len() == count)
            .await
    }

    pub async fn until_only_ready(&self, count: usize) -> Arc<RoutingSnapshot> {
        self.until(|snapshot| {
            ready_ids(snapshot).len() == count && echo_route(snapshot).instances.len() == count
        })
        .await
    }

    /// Waits for the start failure that the controller sees.
    pub async fn start_failure(&self) -> String {
        let mut observed = self.node.watch_observed();
        let observed_functions = observed
            .wait_for(|all| all.values().any(|one| one.start_failure.is_some()))
            .await
            .unwrap();
        let echo = observed_functions.first().unwrap();
        echo.start_failure.clone().unwrap()
    }
}

pub fn echo_route(snapshot: &RoutingSnapshot) -> &FunctionRoute {
    snapshot.functions.first().unwrap()
}

pub fn ready_ids(snapshot: &RoutingSnapshot) -> Vec<InstanceId> {
    let instances = snapshot
        .functions
        .values()
        .flat_map(|function| &function.instances);
    instances
        .filter(|one| one.state == InstanceState::Ready)
        .map(|one| one.id)
        .collect()
}
