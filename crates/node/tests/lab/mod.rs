//! A real node: real sandboxes, the real watchdog, and a caller that stands where the gateway stands.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::metrics::Registry;
use nearpath_kernel::cgroup::Cgroups;
use nearpath_kernel::sandbox::Isolation;
use nearpath_kernel::switch::Switch;
use nearpath_node::{Config, Node, Settle};
use nearpath_testkit::{program, within};
use nearpath_types::{
    Desired, DesiredFunction, FunctionRoute, FunctionSpec, InstanceId, InstanceState, ObservedInstance, Revision,
    Snapshot,
};

pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);

pub struct Lab {
    pub node: Node,
    pub name: Name,
    pub switch: Option<Arc<Switch>>,
    pub folder: tempfile::TempDir,
}

/// The node's name, unique on the machine. When it is dropped, the name's cgroup folders go.
pub struct Name(pub String);

impl Drop for Name {
    fn drop(&mut self) {
        Cgroups::detect(&self.0).leave();
    }
}

impl Lab {
    pub async fn new(isolation: Isolation, settle: Settle) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("code")).unwrap();
        let mut config = Config::new(folder.path().join("data"), program("nearpath-watchdog"));
        config.node = format!("test-{}-{}", std::process::id(), folder.path().file_name().unwrap().display());
        config.switch = (isolation == Isolation::Root).then(|| Arc::new(Switch::create(GATEWAY).unwrap()));
        (config.isolation, config.settle) = (isolation, settle);
        config.init = Some(program("examples/node_instance"));
        let (name, switch) = (Name(config.node.clone()), config.switch.clone());
        let node = within(Node::start(config, &Registry::default())).await.unwrap();
        Self { node, name, switch, folder }
    }

    pub fn file(&self, name: &str, content: &str) {
        std::fs::write(self.folder.path().join("code").join(name), content).unwrap();
    }

    /// A wish for `echo` with these variables.
    pub fn echo(&self, revision: u64, replicas: u32, variables: &[(&str, &str)]) -> Desired {
        let mut spec = FunctionSpec::named("echo".parse().unwrap());
        spec.image = format!("file://{}", self.folder.path().join("code").display());
        spec.env_vars = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let spec = Arc::new(spec);
        let one = DesiredFunction { spec, revision: Revision(revision), replicas, secrets: BTreeMap::new() };
        Desired { functions: vec![one] }
    }

    pub async fn until(&self, fits: impl Fn(&FunctionRoute) -> bool) -> Arc<Snapshot> {
        let mut snapshots = self.node.snapshots();
        let fitting = snapshots.wait_for(|snapshot| snapshot.functions.first().is_some_and(&fits));
        within(fitting).await.unwrap().clone()
    }

    pub fn instances(&self) -> Vec<ObservedInstance> {
        self.node.observed().borrow().iter().flat_map(|function| function.instances.clone()).collect()
    }

    /// Calls an instance from the gateway's place. Blocks.
    pub fn call(switch: Option<&Switch>, addr: SocketAddr, body: &str) -> io::Result<String> {
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                switch.map_or(Ok(()), Switch::enter)?;
                post(addr, body)
            });
            caller.join().unwrap()
        })
    }
}

/// One request on a connection of its own; the answer's head and body.
pub fn post(addr: SocketAddr, body: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = body.len();
    write!(stream, "POST / HTTP/1.1\r\nhost: echo\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once(' ').is_some_and(|(_, rest)| rest.starts_with("200 ")) {
        true => Ok(answer),
        false => Err(io::Error::other(format!("unexpected answer {answer:?}"))),
    }
}

pub fn ready(function: &FunctionRoute) -> Vec<(InstanceId, SocketAddr)> {
    let ready = function.instances.iter().filter(|one| one.state == InstanceState::Ready);
    ready.map(|one| (one.id, one.addr.0)).collect()
}

/// Folders of instances in the node's cgroups.
pub fn cgroups(node: &str) -> Vec<PathBuf> {
    let below = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect()
    };
    let mut found = Vec::new();
    let mut left = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((path, depth)) = left.pop() {
        match path.file_name().is_some_and(|name| name == node) {
            true => found.extend(below(&path)),
            false if depth < 6 => left.extend(below(&path).into_iter().map(|path| (path, depth + 1))),
            false => {}
        }
    }
    found
}

/// Network devices in the switch.
pub fn devices(switch: &Switch) -> Vec<String> {
    let list = std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            switch.enter().unwrap();
            std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()
        });
        read.join().unwrap()
    });
    list.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}
