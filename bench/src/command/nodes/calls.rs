//! Calls from the gateway of one machine to a warm, unmodified function on another one.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Map, json};

use super::target::{LoadTarget, TargetPairs, WITHOUT_HANDLER};
use super::{NodesArgs, delay_name, figure, max_goal, on_first_machine};
use crate::compare::BenchComparison;
use crate::nodes::app_folder::function_entry;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::nginx_tls::{self, TlsConnections, TlsFiles};
use crate::nodes::node_set::{BETWEEN_NODES, NodeRole, NodeSet};
use crate::peers::PeerProcess;
use crate::peers::nginx::NginxServer;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;

const KEPT: &str = "nginx, kept TLS 1.3";
const NEW: &str = "nginx, new TLS 1.3";
const NEARPATH: &str = "nearpath";
/// Handlers of `default` that are measured here.
const LANGUAGES: [HandlerLanguage; 2] = [HandlerLanguage::C, HandlerLanguage::Go];
/// Port of a handler: in an instance, and the first one of those on a machine.
const HANDLER_PORT: u16 = 5000;
/// Ports of nginx: for clients with kept and with new connections behind it, and for machines.
pub(super) const KEPT_PORT: u16 = 9080;
pub(super) const NEW_PORT: u16 = 9081;
pub(super) const TLS_PORT: u16 = 8443;
/// Goal: CPU time of nearpath on both machines, in microseconds per call, 32 calls at a time.
const GOAL_CPU_US: f64 = 45.0;

/// Handlers and nginx on both machines.
pub(super) struct NginxPair {
    pub(super) handlers: Vec<PeerProcess>,
    front: NginxServer,
    back: NginxServer,
    _files: TlsFiles,
}

/// Measures all cases of a delay.
pub(super) fn measure(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&["m0", "m1"], delay)?;
    on_first_machine(&lab, async || {
        let handlers = build_handlers()?;
        let nodes = start_nodes(lab.machines(), &handlers).await?;
        let nginx = NginxPair::start(lab.machines(), &handlers).await?;
        for (place, language) in LANGUAGES.into_iter().enumerate() {
            let targets = [
                nginx.target(KEPT, KEPT_PORT, place),
                nginx.target(NEW, NEW_PORT, place),
                nearpath_target(&nodes, place),
            ];
            for target in &targets {
                target.check_response().await?;
            }
            for &callers in &args.connections {
                let case = format!(
                    "call, {}, {callers}, {}",
                    language.name(),
                    delay_name(delay)
                );
                measure_case(args, &targets, (&case, callers), comparison).await?;
            }
        }
        Ok(())
    })
}

async fn measure_case(
    args: &NodesArgs,
    targets: &[LoadTarget],
    (case, callers): (&str, usize),
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let pairs = TargetPairs::new(targets);
    let names = pairs.row_names();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let one = async |row: usize| pairs.measure_row(row, args, callers).await;
    comparison.measure_loads(case, &names, one).await?;
    add_goals(comparison, case, callers);
    Ok(())
}

fn add_goals(comparison: &mut BenchComparison, case: &str, callers: usize) {
    let goal = if callers > 1 { 1.0 } else { 1.2 };
    let name = format!("p50, {case}, nearpath/nginx, kept TLS");
    comparison.add_ratio(
        &name,
        case,
        NEARPATH,
        KEPT,
        max_goal(|row| row.p50_us, goal),
    );
    if callers == 1 {
        return;
    }
    let platform = format!("{NEARPATH}{WITHOUT_HANDLER}");
    let cpu = comparison.row_value(case, &platform, |row| row.cpu_us_per_request);
    let name = format!("CPU of both nodes, µs per call, {case}");
    comparison.add_figure(figure(name, cpu.unwrap_or(f64::NAN), GOAL_CPU_US));
    comparison.add_ratio(
        &format!("CPU of both machines, {case}, nearpath/nginx, kept TLS"),
        case,
        &platform,
        &format!("{KEPT}{WITHOUT_HANDLER}"),
        max_goal(|row| row.cpu_us_per_request, 1.0),
    );
}

pub(super) fn build_handlers() -> Result<Vec<PlainHandler>, BenchError> {
    let built = LANGUAGES.into_iter().map(PlainHandler::build);
    Ok(built.collect::<Result<_, _>>()?)
}

/// Returns the name of the function of a handler.
fn function_name(place: usize) -> String {
    format!("handler-{place}")
}

/// Starts a node on each machine. The functions run on the second one.
async fn start_nodes(
    machines: &[Machine],
    handlers: &[PlainHandler],
) -> Result<NodeSet, BenchError> {
    let functions: Map<_, _> = handlers
        .iter()
        .enumerate()
        .map(|(place, handler)| {
            let command = handler.command_line(HANDLER_PORT);
            let entry = function_entry(handler.folder(), &command, HANDLER_PORT, &["m1"]);
            (function_name(place), entry)
        })
        .collect();
    let roles = [
        NodeRole::new("m0", &machines[0], 0),
        NodeRole::new("m1", &machines[1], 0),
    ];
    let nodes = NodeSet::start(&roles, &json!({ "functions": functions })).await?;
    for place in 0..handlers.len() {
        let name = function_name(place);
        nodes.node("m1")?.wait_available(&name).await?;
        nodes
            .wait_callable(nodes.entry(), &name, &BETWEEN_NODES)
            .await?;
    }
    Ok(nodes)
}

fn nearpath_target(nodes: &NodeSet, place: usize) -> LoadTarget {
    LoadTarget {
        name: NEARPATH,
        addr: nodes.entry().addr(),
        path: format!("/function/{}", function_name(place)),
        pids: nodes.pids(),
        handlers: nodes.handler_pids("./bench-handler"),
        settles: true,
    }
}

impl NginxPair {
    /// Starts the handlers and nginx on the second machine, and nginx on the first.
    pub(super) async fn start(
        machines: &[Machine],
        handlers: &[PlainHandler],
    ) -> Result<Self, BenchError> {
        let [near, far] = [&machines[0], &machines[1]];
        let (mut started, mut upstreams, mut locations) =
            (Vec::new(), String::new(), String::new());
        for (place, handler) in handlers.iter().enumerate() {
            let port = HANDLER_PORT + u16::try_from(place)?;
            let handler = handler.start_on(&far.node, port, None).await?;
            let name = function_name(place);
            upstreams += &nginx_tls::upstream(&name, handler.addr);
            locations += &nginx_tls::function_locations(&name, &name);
            started.push(handler);
        }
        let files = TlsFiles::create()?;
        let back_addr = far.socket_addr(TLS_PORT);
        let back = upstreams + &files.tls_server(back_addr, &locations);
        let back = NginxServer::start_on(&far.node, &back, back_addr).await?;
        let front = start_front(near, &files, back_addr, "").await?;
        Ok(Self {
            handlers: started,
            front,
            back,
            _files: files,
        })
    }

    /// Returns the processes of both machines.
    pub(super) fn pids(&self) -> Vec<u32> {
        let nginx = [self.front.peer.pid(), self.back.peer.pid()];
        let handlers = self.handlers.iter().map(PeerProcess::pid);
        nginx.into_iter().chain(handlers).collect()
    }

    fn target(&self, name: &'static str, port: u16, place: usize) -> LoadTarget {
        LoadTarget {
            name,
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            path: format!("/function/{}", function_name(place)),
            pids: self.pids(),
            handlers: self.handlers.iter().map(PeerProcess::pid).collect(),
            settles: false,
        }
    }
}

/// Starts nginx with a port for each kind of connection to the other machine, and with a setting.
pub(super) async fn start_front(
    machine: &Machine,
    files: &TlsFiles,
    back: SocketAddr,
    setting: &str,
) -> Result<NginxServer, BenchError> {
    let listen = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let kept = files.tls_location("/", "far", TlsConnections::Kept);
    let new = files.tls_location("/", &back.to_string(), TlsConnections::New13);
    let servers = setting.to_owned()
        + &nginx_tls::upstream("far", back)
        + &nginx_tls::plain_server(listen(KEPT_PORT), &kept)
        + &nginx_tls::plain_server(listen(NEW_PORT), &new);
    Ok(NginxServer::start_on(&machine.node, &servers, listen(KEPT_PORT)).await?)
}
