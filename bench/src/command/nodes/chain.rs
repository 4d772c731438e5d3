//! A chain of six unmodified functions over three machines: each hop leaves its machine.
//!
//! In the published architecture (QFaaS) each call between functions goes through the central gateway:
//! a new TLS 1.2 connection to it, and another one from it to the callee's machine.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::target::{LoadTarget, TargetPairs};
use super::{NodesArgs, delay_name, max_goal, on_first_machine};
use crate::compare::BenchComparison;
use crate::nodes::app_folder::function_entry;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::nginx_tls::{self, TlsConnections, TlsFiles};
use crate::nodes::node_set::{BETWEEN_NODES, NodeRole, NodeSet};
use crate::peers::PeerProcess;
use crate::peers::nginx::NginxServer;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;

use super::calls::TLS_PORT;

pub(super) const MACHINES: [&str; 4] = ["m0", "m1", "m2", "m3"];
const LENGTH: usize = 6;
const NEARPATH: &str = "nearpath";
const CENTRAL: &str = "nginx, central gateway, new TLS 1.2";
/// Port of a function in its instance, and before the first one of those on a machine.
const HANDLER_PORT: u16 = 5000;
/// Port of the gateway for functions on their machine, and for clients.
pub(super) const LOCAL_PORT: u16 = 9090;

/// A function on a machine, as the central gateway finds it.
pub(in super::super) struct PlacedFunction {
    pub(in super::super) name: String,
    /// Place of its machine.
    pub(in super::super) machine: usize,
    /// Port on the loopback of its machine.
    pub(in super::super) port: u16,
}

/// nginx on each machine: the central gateway on the first one, and for the functions on others.
pub(super) struct CentralGateway {
    nginx: Vec<NginxServer>,
    _files: TlsFiles,
}

/// Measures the case of a delay.
pub(super) fn measure(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&MACHINES, delay)?;
    on_first_machine(&lab, async || {
        let handler = PlainHandler::build(HandlerLanguage::Go)?;
        let nodes = start_nodes(lab.machines(), &handler).await?;
        let functions: Vec<_> = (0..LENGTH).map(placed_function).collect();
        let central = CentralGateway::start(lab.machines(), &functions).await?;
        let handlers = start_functions(lab.machines(), &handler, &functions).await?;
        let targets = [nearpath_target(&nodes), central_target(&central, &handlers)];
        for target in &targets {
            target.check_response().await?;
        }
        let case = format!("chain of {LENGTH}, {}", delay_name(delay));
        let pairs = TargetPairs::new(&targets);
        let names = pairs.row_names();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let one = async |row: usize| pairs.measure_row(row, args, 1).await;
        comparison.measure_loads(&case, &names, one).await?;
        let name = format!("p50, {case}, nearpath/central gateway");
        let goal = max_goal(|row| row.p50_us, 0.4);
        comparison.add_ratio(&name, &case, NEARPATH, CENTRAL, goal);
        Ok(())
    })
}

fn function_name(place: usize) -> String {
    format!("f{}", place + 1)
}

/// Returns the place of a function's machine: 1, 2, 3, 1, …
fn machine_of(place: usize) -> usize {
    1 + place % (MACHINES.len() - 1)
}

fn placed_function(place: usize) -> PlacedFunction {
    let offset = u16::try_from(place).unwrap_or_default();
    PlacedFunction {
        name: function_name(place),
        machine: machine_of(place),
        port: HANDLER_PORT + 1 + offset,
    }
}

fn stack_of(handler: &PlainHandler) -> Value {
    let (mut functions, mut edges) = (Map::new(), Map::new());
    for place in 0..LENGTH {
        let mut command = handler.command_line(HANDLER_PORT);
        if place + 1 < LENGTH {
            let next = function_name(place + 1);
            command += &format!(" http://gateway:8080/function/{next}");
            edges.insert(function_name(place), json!([next]));
        }
        let node = MACHINES[machine_of(place)];
        let entry = function_entry(handler.folder(), &command, HANDLER_PORT, &[node]);
        functions.insert(function_name(place), entry);
    }
    json!({ "functions": functions, "chains": { "bench": { "edges": edges } } })
}

async fn start_nodes(machines: &[Machine], handler: &PlainHandler) -> Result<NodeSet, BenchError> {
    let roles: Vec<_> = MACHINES
        .iter()
        .zip(machines)
        .map(|(name, machine)| NodeRole::new(name, machine, 0))
        .collect();
    let nodes = NodeSet::start(&roles, &stack_of(handler)).await?;
    for place in 0..LENGTH {
        let node = nodes.node(MACHINES[machine_of(place)])?;
        node.wait_available(&function_name(place)).await?;
    }
    let entry = nodes.entry();
    nodes
        .wait_callable(entry, &function_name(0), &BETWEEN_NODES)
        .await?;
    Ok(nodes)
}

fn nearpath_target(nodes: &NodeSet) -> LoadTarget {
    LoadTarget {
        name: NEARPATH,
        addr: nodes.entry().addr(),
        path: format!("/function/{}", function_name(0)),
        pids: nodes.pids(),
        handlers: nodes.handler_pids("./bench-handler"),
        settles: true,
    }
}

/// Starts the same functions as plain processes.
async fn start_functions(
    machines: &[Machine],
    handler: &PlainHandler,
    functions: &[PlacedFunction],
) -> Result<Vec<PeerProcess>, BenchError> {
    let mut started = Vec::new();
    for (place, function) in functions.iter().enumerate() {
        let next = functions.get(place + 1);
        let next = next.map(|next| format!("http://127.0.0.1:{LOCAL_PORT}/function/{}", next.name));
        let node = &machines[function.machine].node;
        started.push(
            handler
                .start_on(node, function.port, next.as_deref())
                .await?,
        );
    }
    Ok(started)
}

fn central_target(central: &CentralGateway, handlers: &[PeerProcess]) -> LoadTarget {
    let own: Vec<_> = handlers.iter().map(PeerProcess::pid).collect();
    LoadTarget {
        name: CENTRAL,
        addr: CentralGateway::client_addr(),
        path: format!("/function/{}", function_name(0)),
        pids: central.pids().chain(own.iter().copied()).collect(),
        handlers: own,
        settles: false,
    }
}

impl CentralGateway {
    /// Starts nginx on all machines. The functions may start later.
    pub(super) async fn start(
        machines: &[Machine],
        functions: &[PlacedFunction],
    ) -> Result<Self, BenchError> {
        let files = TlsFiles::create()?;
        let (gateway, others) = machines.split_first().ok_or("no machines")?;
        let mut nginx = Vec::new();
        let text = central_servers(machines, functions, &files);
        nginx.push(NginxServer::start_on(&gateway.node, &text, Self::client_addr()).await?);
        for (place, machine) in (1..).zip(others) {
            let own = functions.iter().filter(|one| one.machine == place);
            let text = machine_servers(machine, gateway, own, &files);
            nginx.push(NginxServer::start_on(&machine.node, &text, Self::client_addr()).await?);
        }
        Ok(Self {
            nginx,
            _files: files,
        })
    }

    /// Returns the address for clients on the first machine, and for functions on theirs.
    pub(super) fn client_addr() -> std::net::SocketAddr {
        std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, LOCAL_PORT))
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.nginx.iter().map(|nginx| nginx.peer.pid())
    }
}

/// Returns the servers of the central gateway: one for clients on its machine, one for other machines.
fn central_servers(machines: &[Machine], functions: &[PlacedFunction], files: &TlsFiles) -> String {
    let mut locations = String::new();
    for function in functions {
        let target = machines[function.machine].socket_addr(TLS_PORT).to_string();
        for path in [
            format!("= /function/{}", function.name),
            format!("/function/{}/", function.name),
        ] {
            locations += &files.tls_location(&path, &target, TlsConnections::New12);
        }
    }
    files.tls_server(machines[0].socket_addr(TLS_PORT), &locations)
        + &nginx_tls::plain_server(CentralGateway::client_addr(), &locations)
}

/// Returns the servers of a machine of functions: for calls of the gateway, and for its functions.
fn machine_servers<'a>(
    machine: &Machine,
    gateway: &Machine,
    functions: impl Iterator<Item = &'a PlacedFunction>,
    files: &TlsFiles,
) -> String {
    let (mut upstreams, mut locations) = (String::new(), String::new());
    for function in functions {
        let addr = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, function.port));
        upstreams += &nginx_tls::upstream(&function.name, addr);
        locations += &nginx_tls::function_locations(&function.name, &function.name);
    }
    let target = gateway.socket_addr(TLS_PORT).to_string();
    let outgoing = files.tls_location("/", &target, TlsConnections::New12);
    upstreams
        + &files.tls_server(machine.socket_addr(TLS_PORT), &locations)
        + &nginx_tls::plain_server(CentralGateway::client_addr(), &outgoing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hop_leaves_its_machine() {
        let machines: Vec<_> = (0..LENGTH).map(machine_of).collect();
        assert_eq!(machines, [1, 2, 3, 1, 2, 3]);
    }
}
