//! A chain of functions over a control node and two workers: each call goes to the other worker.
//!
//! The same platform has each function twice. One calls the next by its name. The other sends its calls
//! to the control node's gateway, an external destination, as OpenFaaS does. Without nearpath, nginx on
//! the control node is the gateway of plain processes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Map, Value, json};

use super::chain_program::ChainProgram;
use crate::nodes::machines::Machine;
use crate::nodes::nginx_tls;
use crate::nodes::node_set::{BETWEEN_NODES, NodeRole, NodeSet};
use crate::peers::PeerProcess;
use crate::peers::nginx::NginxServer;
use crate::remote::BenchError;

/// Machines: the control node, and the workers.
pub(crate) const MACHINES: [&str; 3] = ["control", "worker-1", "worker-2"];
/// Port of the control node's gateway.
const GATEWAY_PORT: u16 = 8080;
/// Ports of nginx, and of the first plain process.
const NGINX_PORT: u16 = 9080;
const PLAIN_PORT: u16 = 9100;

/// Ways of the calls between functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainWay {
    /// By name, over the nearest path.
    ByName,
    /// Through the gateway of the control node.
    Gateway,
    /// Through nginx on the control node, without nearpath.
    Nginx,
}

/// The chains of all ways.
pub(crate) struct ChainFixture {
    nodes: NodeSet,
    plain: Option<PlainChain>,
    program: ChainProgram,
    control: Ipv4Addr,
}

/// nginx and plain processes.
struct PlainChain {
    nginx: NginxServer,
    functions: Vec<PeerProcess>,
}

impl ChainWay {
    /// Returns the name of a variant.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ByName => "nearpath, by name",
            Self::Gateway => "nearpath, gateway of the control node",
            Self::Nginx => "nginx on the control node",
        }
    }

    fn function(self, place: usize) -> String {
        let prefix = match self {
            Self::ByName => "near",
            Self::Gateway => "far",
            Self::Nginx => "plain",
        };
        format!("{prefix}-{place}")
    }

    /// Returns the URL at which a function calls another one.
    fn url(self, control: Ipv4Addr, place: usize) -> String {
        let function = self.function(place);
        match self {
            Self::ByName => format!("http://{function}"),
            // By address: an instance has no name for another machine.
            Self::Gateway => format!("http://{control}:{GATEWAY_PORT}/function/{function}"),
            Self::Nginx => format!("http://{control}:{NGINX_PORT}/function/{function}"),
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::ByName | Self::Gateway => GATEWAY_PORT,
            Self::Nginx => NGINX_PORT,
        }
    }
}

/// Returns the place of a function's machine: both workers in turn.
fn machine_of(place: usize) -> usize {
    // The control node runs no function.
    1 + place % (MACHINES.len() - 1)
}

impl ChainFixture {
    /// Starts everything. The thread is on the first machine.
    ///
    /// # Errors
    /// When a node or program does not start.
    pub(crate) async fn start(
        machines: &[Machine],
        program: ChainProgram,
    ) -> Result<Self, BenchError> {
        let control = machines[0].addr;
        let nodes = start_nodes(machines, &program).await?;
        let plain = match program {
            ChainProgram::Nested(_) => Some(PlainChain::start(machines, &program).await?),
            // Its program listens at 127.0.0.1 alone.
            ChainProgram::Compiled(_) => None,
        };
        Ok(Self {
            nodes,
            plain,
            program,
            control,
        })
    }

    /// Returns the address for clients.
    pub(crate) fn client_addr(&self, way: ChainWay) -> SocketAddr {
        SocketAddr::from((self.control, way.port()))
    }

    /// Returns the path of a call that starts a chain.
    pub(crate) fn client_path(&self, way: ChainWay, length: usize) -> String {
        let query = self.program.query(length);
        format!("/function/{}{query}", way.function(0))
    }

    /// Returns the processes of a way, or their ancestors.
    pub(crate) fn pids(&self, way: ChainWay) -> Vec<u32> {
        match (way, &self.plain) {
            (ChainWay::Nginx, Some(plain)) => {
                let functions = plain.functions.iter().map(PeerProcess::pid);
                functions.chain([plain.nginx.peer.pid()]).collect()
            }
            // Both ways share the platform, and are measured one after the other.
            _ => self.nodes.pids(),
        }
    }

    /// Returns the process of the control node.
    pub(crate) fn control_pids(&self) -> Vec<u32> {
        vec![self.nodes.entry().pid()]
    }

    /// Returns the processes of the workers' nodes, the ancestors of all instances.
    pub(crate) fn worker_pids(&self) -> Vec<u32> {
        let control = self.nodes.entry().pid();
        let all = self.nodes.pids().into_iter();
        // Instances are descendants of their node.
        all.filter(|pid| *pid != control).collect()
    }

    /// Returns the processes of the functions' own programs on the nodes.
    pub(crate) fn handler_pids(&self) -> Vec<u32> {
        self.nodes.handler_pids(self.program.process_name())
    }
}

fn stack_of(program: &ChainProgram, control: Ipv4Addr) -> Value {
    let mut functions = Map::new();
    for way in [ChainWay::ByName, ChainWay::Gateway] {
        for place in 0..program.function_count() {
            let next = program.next_place(place);
            let url = next.map(|next| way.url(control, next));
            let mut entry = program.entry(url.as_deref(), MACHINES[machine_of(place)]);
            match (way, next) {
                (ChainWay::ByName, Some(next)) => {
                    entry["annotations"] = json!({ "nearpath.io/calls": way.function(next) });
                }
                (ChainWay::Gateway, Some(_)) => {
                    entry["egress"] = json!([egress_to(control, GATEWAY_PORT)])
                }
                _ => {}
            }
            functions.insert(way.function(place), entry);
        }
    }
    json!({ "functions": functions })
}

/// Returns the destination of a gateway, with a new connection for each of the function's own.
pub(crate) fn egress_to(control: Ipv4Addr, port: u16) -> Value {
    json!({ "to": format!("{control}:{port}"), "protocol": "tcp", "warm": 0 })
}

async fn start_nodes(machines: &[Machine], program: &ChainProgram) -> Result<NodeSet, BenchError> {
    let control = machines[0].addr;
    let mut roles: Vec<_> = MACHINES
        .iter()
        .zip(machines)
        .map(|(name, machine)| NodeRole::new(name, machine, 0))
        .collect();
    // Functions on workers reach it there, as an external destination.
    roles[0].listen = control;
    let nodes = NodeSet::start(&roles, &stack_of(program, control)).await?;
    for way in [ChainWay::ByName, ChainWay::Gateway] {
        for place in 0..program.function_count() {
            let node = nodes.node(MACHINES[machine_of(place)])?;
            let function = way.function(place);
            node.wait_available(&function).await?;
            // Each by itself: a chain works only when all its functions are known to the control node.
            nodes
                .wait_callable(nodes.entry(), &function, &BETWEEN_NODES)
                .await?;
        }
    }
    Ok(nodes)
}

impl PlainChain {
    async fn start(machines: &[Machine], program: &ChainProgram) -> io::Result<Self> {
        let (mut functions, way) = (Vec::new(), ChainWay::Nginx);
        let control = machines[0].addr;
        let (mut upstreams, mut locations) = (String::new(), String::new());
        for (port, place) in (PLAIN_PORT..).zip(0..program.function_count()) {
            let machine = &machines[machine_of(place)];
            let (addr, name) = (machine.socket_addr(port), way.function(place));
            let next = program.next_place(place).unwrap_or_default();
            let command = program.plain_command(addr, &way.url(control, next));
            functions.push(PeerProcess::start_on(&machine.node, command, addr).await?);
            upstreams += &nginx_tls::upstream(&name, addr);
            locations += &nginx_tls::function_locations(&name, &name);
        }
        let listen = SocketAddr::from((control, NGINX_PORT));
        let servers = upstreams + &nginx_tls::plain_server(listen, &locations);
        let nginx = NginxServer::start_on(&machines[0].node, &servers, listen).await?;
        Ok(Self { nginx, functions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_goes_to_the_other_worker() {
        let program = ChainProgram::Nested(tempfile::tempdir().unwrap());
        for place in 0..program.function_count() {
            let next = program.next_place(place).unwrap();
            assert_ne!(machine_of(place), machine_of(next));
        }
    }

    #[test]
    fn only_calls_through_the_gateway_leave_the_platform() {
        let program = ChainProgram::Nested(tempfile::tempdir().unwrap());
        let stack = stack_of(&program, Ipv4Addr::new(10, 78, 0, 1));
        let functions = &stack["functions"];
        assert_eq!(
            functions["near-0"]["annotations"]["nearpath.io/calls"],
            "near-1"
        );
        assert_eq!(functions["near-0"]["egress"], Value::Null);
        assert_eq!(functions["far-1"]["egress"][0]["to"], "10.78.0.1:8080");
        let url = &functions["far-1"]["environment"]["gateway_url"];
        assert_eq!(url, "http://10.78.0.1:8080/function/far-0");
    }
}
