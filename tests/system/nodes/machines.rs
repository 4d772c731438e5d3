//! Machines with one node each: network namespaces around a router, in which the test's own thread
//! is. Certificates are from `nearpath ca`, and all read one folder.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use nearpath_kernel::namespace;
use nearpath_testkit::lab::{LabLink, LabNode, LinkConditions, NetworkLab};
use nearpath_testkit::{eventually, program};
use rustix::process::Signal;
use tokio::task::JoinHandle;

use super::executions::ExecutionLog;
use crate::test_server::{TestResponse, TestServer, send_request};

/// Ports on each machine.
const GATEWAY_PORT: u16 = 8080;
const ADMIN_PORT: u16 = 8082;
/// Port between nodes.
pub(super) const NODE_PORT: u16 = 8444;

/// All machines, and the folder that they read.
pub(super) struct Machines {
    pub(super) machines: Vec<Machine>,
    pub(super) executions: ExecutionLog,
    /// Further options of all nodes.
    pub(super) options: Vec<&'static str>,
    router: LabNode,
    folder: tempfile::TempDir,
    _lab: NetworkLab,
}

/// A machine with its node.
pub(super) struct Machine {
    pub(super) name: &'static str,
    pub(super) address: Ipv4Addr,
    /// Link to the router, which is its first end.
    pub(super) link: LabLink,
    pub(super) namespace: LabNode,
    server: Option<TestServer>,
    /// Folder that it reads; `None`: that of all.
    own_source: Option<PathBuf>,
    /// Logs of ended runs.
    earlier_logs: String,
}

impl Machines {
    /// Creates machines without running nodes, and moves the calling thread to the router.
    pub(super) fn new(names: &[&'static str]) -> Self {
        let mut lab = NetworkLab::new().unwrap();
        let router = lab.add_node("router").unwrap();
        router.enable_forwarding().unwrap();
        let machine = |name| Machine::create(&mut lab, &router, name);
        let machines: Vec<_> = names.iter().copied().map(machine).collect();
        namespace::enter_netns(&router).unwrap();
        let folder = tempfile::Builder::new()
            .prefix("nearpath-nodes-")
            // Not in `/tmp`: functions see this folder, and `/tmp` is their own.
            .tempdir_in("/opt")
            .unwrap();
        let executions = ExecutionLog::create(&folder.path().join("shared"));
        let all = Self {
            machines,
            executions,
            options: Vec::new(),
            router,
            folder,
            _lab: lab,
        };
        all.write_node_list();
        all.issue_certificates(names);
        all
    }

    fn write_node_list(&self) {
        let nodes = self.machines.iter().map(|one| {
            let (name, address) = (one.name, one.address);
            format!("  {name}: {{address: \"{address}:{NODE_PORT}\"}}\n")
        });
        self.write(
            "nodes.yml",
            &format!("nodes:\n{}", nodes.collect::<String>()),
        );
    }

    fn issue_certificates(&self, names: &[&str]) {
        let dir = self.authority();
        run_ca(&["init", "--dir", dir.to_str().unwrap()], &[]);
        run_ca(&["issue", "--dir", dir.to_str().unwrap()], names);
    }

    /// Folder of everything.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Folder of the authority of all nodes.
    pub(super) fn authority(&self) -> PathBuf {
        self.folder.path().join("authority")
    }

    /// Folder that all nodes read.
    pub(super) fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Writes a file of the source.
    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.source().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Gives a machine a copy of the source as it is now, which later changes do not reach.
    pub(super) fn copy_source(&mut self, at: usize) {
        let copy = self.folder.path().join(format!("source-{at}"));
        let mut command = Command::new("cp");
        let output = command.arg("-r").arg(self.source()).arg(&copy).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        self.machines[at].own_source = Some(copy);
    }

    /// Renames the source, as a mount that is lost.
    pub(super) fn take_source_away(&self) {
        fs::rename(self.source(), self.folder.path().join("away")).unwrap();
    }

    /// Brings the source back.
    pub(super) fn bring_source_back(&self) {
        fs::rename(self.folder.path().join("away"), self.source()).unwrap();
    }

    /// Starts all nodes, and waits until each has connections to the others.
    pub(super) async fn start_all(&mut self) {
        for at in 0..self.machines.len() {
            self.start(at).await;
        }
        for at in 0..self.machines.len() {
            self.wait_peers_up(at, self.machines.len() - 1).await;
        }
    }

    /// Starts the node of a machine, and waits until it listens.
    pub(super) async fn start(&mut self, at: usize) {
        let server = self.spawn(at);
        let machine = &mut self.machines[at];
        if let Some(before) = machine.server.take() {
            machine.earlier_logs += &before.log();
        }
        machine.server.insert(server).wait_ready().await;
    }

    /// Starts a process that takes over from that of a machine, and waits until it has. Returns the old
    /// one, which ends its calls.
    pub(super) async fn take_over(&mut self, at: usize) -> TestServer {
        let mut successor = self.spawn_with(at, &["--take-over"]);
        successor.wait_taken_over().await;
        let old = self.machines[at].server.replace(successor);
        old.unwrap()
    }

    fn spawn(&self, at: usize) -> TestServer {
        self.spawn_with(at, &[])
    }

    fn spawn_with(&self, at: usize, options: &[&str]) -> TestServer {
        let machine = &self.machines[at];
        let mut command = Command::new(program("nearpath"));
        let data_dir = self.data_dir(at);
        let certificates = self.authority().join("nodes").join(machine.name);
        let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        command
            .args(["node", "--name", machine.name, "--data-dir"])
            .arg(&data_dir)
            .arg("--source")
            .arg(machine.own_source.clone().unwrap_or_else(|| self.source()))
            .arg("--node-certificates")
            .arg(certificates)
            .arg("--share-dir")
            .arg(self.folder.path().join("shared"))
            .args(["--listen", &any(GATEWAY_PORT).to_string()])
            .args(["--admin-listen", &any(ADMIN_PORT).to_string()])
            .args(&self.options)
            .args(options);
        let addrs = (machine.gateway(), machine.addr(ADMIN_PORT));
        let start = |command: &mut Command| machine.namespace.spawn(command);
        TestServer::start_command(&mut command, start, addrs, &data_dir)
    }

    /// Ends the node of a machine, and waits for its end.
    pub(super) fn end(&mut self, at: usize, signal: Signal) {
        let server = self.machines[at].server.as_mut().unwrap();
        server.end_with(signal);
    }

    /// Waits until a node has connections to this many others.
    pub(super) async fn wait_peers_up(&self, at: usize, count: usize) {
        let server = self.server(at);
        let what = format!(
            "{} knows {count} nodes\n{}",
            self.machines[at].name,
            server.log()
        );
        eventually(&what, async || {
            let metrics = server.read_metrics().await;
            let up = metrics
                .lines()
                .filter(|line| line.starts_with("nearpath_peer_up{") && line.ends_with(" 1.0"));
            up.count() == count
        })
        .await;
    }

    /// Reads a metric of a node, with its labels.
    pub(super) async fn metric(&self, at: usize, series: &str) -> f64 {
        let metrics = self.server(at).read_metrics().await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    pub(super) fn server(&self, at: usize) -> &TestServer {
        self.machines[at].server.as_ref().unwrap()
    }

    /// Waits until a machine answers calls of a function.
    pub(super) async fn wait_answered(&self, at: usize, path: &str) {
        let what = format!(
            "{path} answers at {}\n{}",
            self.machines[at].name,
            self.logs()
        );
        eventually(&what, async || self.get(at, path).await.status() == 200).await;
    }

    /// Calls a function at the gateway of a machine.
    pub(super) async fn get(&self, at: usize, path: &str) -> TestResponse {
        let request = Request::get(path)
            .header("host", "test")
            .header("x-nearpath-path", "1");
        let request = request.body(Default::default()).unwrap();
        self.send(at, request).await
    }

    /// Sends a request to the gateway of a machine.
    pub(super) async fn send(&self, at: usize, request: Request<Full<Bytes>>) -> TestResponse {
        let addr = self.machines[at].gateway();
        nearpath_testkit::within(send_request(addr, request))
            .await
            .unwrap()
    }

    /// Waits until a node has a ready instance.
    pub(super) async fn wait_instance(&self, at: usize) {
        let series = "nearpath_instances{state=\"ready\"}";
        let what = format!("an instance is ready\n{}", self.logs());
        eventually(&what, async || self.metric(at, series).await > 0.0).await;
    }

    /// Starts a call of a function at the gateway of a machine.
    pub(super) fn start_call(&self, at: usize, path: &str) -> JoinHandle<TestResponse> {
        let (addr, request) = (self.machines[at].gateway(), Request::get(path));
        let request = request.header("host", "test").body(Default::default());
        tokio::spawn(async move { send_request(addr, request.unwrap()).await.unwrap() })
    }

    /// Removes the data directory of a node that has ended.
    pub(super) fn forget_state(&self, at: usize) {
        fs::remove_dir_all(self.data_dir(at)).unwrap();
    }

    fn data_dir(&self, at: usize) -> PathBuf {
        let name = self.machines[at].name;
        self.folder.path().join(format!("data-{name}"))
    }

    /// Keeps the log of a process that has ended.
    pub(super) fn keep_log(&mut self, at: usize, ended: &TestServer) {
        self.machines[at].earlier_logs += &ended.log();
    }

    /// Runs a command of `nearpath` against a node, as its administrator, and returns the output.
    pub(super) fn run_command(&self, at: usize, arguments: &[&str]) -> String {
        let gateway = format!("http://{}", self.machines[at].gateway());
        let password = self.data_dir(at).join("basic-auth-password");
        let mut command = Command::new(program("nearpath"));
        let command = command.args(arguments).args(["--gateway", &gateway]);
        let output = command.arg("--password-file").arg(password).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the logs of all nodes.
    pub(super) fn logs(&self) -> String {
        let log = |machine: &Machine| {
            let now = machine.server.as_ref().map(TestServer::log);
            let (name, earlier) = (machine.name, &machine.earlier_logs);
            format!("== {name}\n{earlier}{}\n", now.unwrap_or_default())
        };
        self.machines.iter().map(log).collect()
    }

    /// Runs nft(8) on the router, through which all packets between machines pass.
    pub(super) fn filter(&self, rules: &str) {
        let mut nft = Command::new("nft");
        let output = self.router.run_program(nft.arg(rules)).unwrap();
        assert!(output.status.success(), "{rules}: {output:?}");
    }
}

impl Machine {
    fn create(lab: &mut NetworkLab, router: &LabNode, name: &'static str) -> Self {
        let namespace = lab.add_node(name).unwrap();
        let conditions = LinkConditions::default();
        let link = lab.connect_nodes(router, &namespace, &conditions).unwrap();
        let end = link.second_end();
        let (address, via) = (end.v4, link.first_end().v4.into());
        let everywhere = (Ipv4Addr::UNSPECIFIED.into(), 0);
        namespace
            .add_route(everywhere, Some(via), &end.device)
            .unwrap();
        Self {
            name,
            address,
            link,
            namespace,
            server: None,
            own_source: None,
            earlier_logs: String::new(),
        }
    }

    fn addr(&self, port: u16) -> SocketAddr {
        (self.address, port).into()
    }

    /// Address of the gateway for clients.
    pub(super) fn gateway(&self) -> SocketAddr {
        self.addr(GATEWAY_PORT)
    }

    /// Address for other nodes.
    pub(super) fn node_port(&self) -> SocketAddr {
        self.addr(NODE_PORT)
    }
}

/// Runs `nearpath ca`.
pub(super) fn run_ca(arguments: &[&str], more: &[&str]) {
    let mut command = Command::new(program("nearpath"));
    let output = command.arg("ca").args(arguments).args(more).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Folder of a node's certificates.
pub(super) fn certificates(authority: &Path, node: &str) -> PathBuf {
    authority.join("nodes").join(node)
}
