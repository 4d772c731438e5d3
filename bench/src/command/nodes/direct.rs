//! A hot edge between two machines: direct calls against calls by the nodes.
//!
//! The client runs in the network namespace of the calling instance, as its function would. So only
//! the edge is measured.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use nearpath_kernel::namespace;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;

use super::target::{LoadTarget, TargetPairs, WITHOUT_HANDLER};
use super::{NodesArgs, delay_name, max_goal, on_first_machine};
use crate::compare::BenchComparison;
use crate::load::connection::LoadConnection;
use crate::nodes::app_folder::function_entry;
use crate::nodes::host_program;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::node_set::{BETWEEN_NODES, NodeRole, NodeSet};
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;

const DIRECT: &str = "nearpath, direct";
const BY_NODES: &str = "nearpath, by the nodes";
const AUTO: &str = "nearpath, by the nodes, transport auto";
/// Variable of `--direct-ports`.
const PORTS_VARIABLE: &str = "NEARPATH_DIRECT_PORTS";
/// Port of a handler in its instance.
const HANDLER_PORT: u16 = 5000;
/// Address of the gateway in an instance.
const LOCAL_GATEWAY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 8080);
/// Calls after which an edge is hot, and some more.
const WARM_CALLS: usize = 40;

/// A variant: its nodes, and the network of the calling instance.
struct EdgeVariant {
    name: &'static str,
    nodes: NodeSet,
    netns: File,
}

/// Measures all cases of a delay.
pub(super) fn measure(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&["m0", "m1"], delay)?;
    on_first_machine(&lab, async || {
        let handler = PlainHandler::build(HandlerLanguage::C)?;
        let machines = lab.machines();
        let variants = [
            EdgeVariant::start(DIRECT, machines, 0, &handler).await?,
            EdgeVariant::start(BY_NODES, machines, 1, &handler).await?,
            EdgeVariant::start(AUTO, machines, 2, &handler).await?,
        ];
        for variant in &variants {
            variant.check_path().await?;
        }
        for &callers in &args.connections {
            let case = format!("hot edge, {callers}, {}", delay_name(delay));
            measure_case(args, &variants, (&case, callers), comparison).await?;
        }
        Ok(())
    })
}

async fn measure_case(
    args: &NodesArgs,
    variants: &[EdgeVariant],
    (case, callers): (&str, usize),
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let targets: Vec<_> = variants.iter().map(EdgeVariant::target).collect();
    let pairs = TargetPairs::new(&targets);
    let names = pairs.row_names();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let machine = File::open("/proc/thread-self/ns/net")?;
    let one = async |row: usize| {
        namespace::enter_netns(&variants[row % variants.len()].netns)?;
        let measured = pairs.measure_row(row, args, callers).await;
        namespace::enter_netns(&machine)?;
        measured
    };
    comparison.measure_loads(case, &names, one).await?;
    let name = format!("p50, {case}, direct/by the nodes");
    comparison.add_ratio(
        &name,
        case,
        DIRECT,
        BY_NODES,
        max_goal(|row| row.p50_us, 0.8),
    );
    let [direct, by_nodes] = [DIRECT, BY_NODES].map(|name| format!("{name}{WITHOUT_HANDLER}"));
    comparison.add_ratio(
        &format!("CPU of both machines, {case}, direct/by the nodes"),
        case,
        &direct,
        &by_nodes,
        max_goal(|row| row.cpu_us_per_request, 0.7),
    );
    Ok(())
}

/// Returns a stack with `front` on the first machine, which may call `back` on the second.
fn stack_of(handler: &PlainHandler, transport: &str) -> Value {
    let mut functions = Map::new();
    for (name, calls, node) in [("front", "back", "m0"), ("back", "", "m1")] {
        let command = handler.command_line(HANDLER_PORT);
        let mut entry = function_entry(handler.folder(), &command, HANDLER_PORT, &[node]);
        entry["annotations"] = json!({
            "nearpath.io/transport": transport,
            "nearpath.io/calls": calls,
        });
        functions.insert(name.to_owned(), entry);
    }
    json!({ "functions": functions })
}

impl EdgeVariant {
    async fn start(
        name: &'static str,
        machines: &[Machine],
        place: u16,
        handler: &PlainHandler,
    ) -> Result<Self, BenchError> {
        let mut roles = [
            NodeRole::new("m0", &machines[0], place),
            NodeRole::new("m1", &machines[1], place),
        ];
        if name == DIRECT {
            for role in &mut roles {
                role.variables
                    .push((PORTS_VARIABLE, "8600-8609".to_owned()));
            }
        }
        let transport = if name == AUTO { "auto" } else { "quic" };
        let nodes = NodeSet::start(&roles, &stack_of(handler, transport)).await?;
        nodes.node("m0")?.wait_available("front").await?;
        nodes.node("m1")?.wait_available("back").await?;
        let entry = nodes.entry();
        nodes.wait_callable(entry, "back", &BETWEEN_NODES).await?;
        let callers = host_program::find_processes(&[nodes.entry().pid()], "./bench-handler");
        let caller = callers
            .first()
            .ok_or("the calling instance has no process")?;
        let netns = File::open(format!("/proc/{caller}/ns/net"))?;
        Ok(Self { name, nodes, netns })
    }

    /// Calls until the edge is hot, and checks that calls then take the path of the variant.
    async fn check_path(&self) -> Result<(), BenchError> {
        let mut connection = LoadConnection::over(self.connect()?)
            .await
            .map_err(|failure| failure.to_string())?;
        let mut path = String::new();
        for _ in 0..WARM_CALLS {
            let request = Request::get("/function/back")
                .header("host", "bench")
                .header("x-nearpath-path", "tell")
                .body(Full::<Bytes>::default())?;
            let answer = connection.send_request(request).await;
            let answer = answer.and_then(|answer| answer.require_success());
            path = answer.map_err(|failure| failure.to_string())?.path;
            // The first connection takes a handshake, for which no call waits.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match path.contains("instance=") == (self.name == DIRECT) {
            true => Ok(()),
            false => Err(format!("{}: calls take the path {path:?}", self.name).into()),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let connect = || {
            let stream = std::net::TcpStream::connect(LOCAL_GATEWAY)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        TcpStream::from_std(namespace::run_in_netns(&self.netns, connect)?)
    }

    fn target(&self) -> LoadTarget {
        LoadTarget {
            name: self.name,
            addr: LOCAL_GATEWAY,
            path: "/function/back".to_owned(),
            pids: self.nodes.pids(),
            handlers: self.nodes.handler_pids("./bench-handler"),
            settles: true,
        }
    }
}
