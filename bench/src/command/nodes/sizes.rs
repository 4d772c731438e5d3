//! Request bodies and responses by size: by QUIC and by TLS between nodes, and by nginx.
//!
//! Three nodes on the first machine call the second one. They differ in `NEARPATH_NODE_BULK_BYTES`, the
//! size from which a body goes over TLS, and in `NEARPATH_NODE_CONNECTIONS`, by which complete requests do.
//! One has the defaults, one uses TLS alone, one QUIC alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::json;
use tempfile::TempDir;

use super::super::measure::measure_cpu_apart;
use super::calls::{KEPT_PORT, TLS_PORT, start_front};
use super::{NodesArgs, delay_name, max_goal, on_first_machine};
use crate::compare::{BenchComparison, RoundSample};
use crate::load::RequestTemplate;
use crate::load::closed::{ConnectionReuse, run_closed};
use crate::nodes::app_folder::function_entry;
use crate::nodes::host_program;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::nginx_tls::{self, TlsFiles};
use crate::nodes::node_set::{BETWEEN_NODES, NodeRole, NodeSet};
use crate::peers::PeerProcess;
use crate::peers::chain::program_folder;
use crate::peers::nginx::NginxServer;
use crate::remote::BenchError;

/// Options of nodes, as variables.
const BULK_VARIABLE: &str = "NEARPATH_NODE_BULK_BYTES";
const CONNECTIONS_VARIABLE: &str = "NEARPATH_NODE_CONNECTIONS";
/// Nodes on the first machine, with their options.
const CALLERS: [(&str, &[(&str, u64)]); 3] = [
    ("m0", &[]),
    ("m0-tls", &[(BULK_VARIABLE, 0)]),
    (
        "m0-quic",
        &[(BULK_VARIABLE, u64::MAX), (CONNECTIONS_VARIABLE, 0)],
    ),
];
const DEFAULT: &str = "nearpath";
const QUIC: &str = "nearpath by QUIC";
const TLS: &str = "nearpath by TLS 1.3";
const NGINX: &str = "nginx, kept TLS 1.3";
/// Variants, with the place of their node in [`CALLERS`].
const VARIANTS: [(&str, Option<usize>); 4] = [
    (DEFAULT, Some(0)),
    (QUIC, Some(2)),
    (TLS, Some(1)),
    (NGINX, None),
];
const KIB: usize = 1_024;
const SIZES: [usize; 7] = [
    KIB,
    4 * KIB,
    16 * KIB,
    64 * KIB,
    256 * KIB,
    KIB * KIB,
    4 * KIB * KIB,
];
/// Size of the response with a goal of its own.
const LARGE_BYTES: usize = 1_000_000;
/// Size from which a body goes over TLS by default (`GatewaySettings::MIN_BULK_BYTES`).
const BULK_BYTES: usize = 16 * KIB;
const HANDLER_PORT: u16 = 5000;
/// Part of the command line of a handler by which its processes are found.
const HANDLER_COMMAND: &str = "quic-handler --listen 127.0.0.1:5000";

/// nginx passes bodies on as they come, as nodes do. Otherwise it writes them to files, and sends the head
/// and the body in two parts, of which the second waits 40 ms for the acknowledgement of the first.
const STREAM_SETTING: &str = "  proxy_request_buffering off;\n";

/// A request with a body, or one for a response, of some size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizedKind {
    Body,
    Response,
}

/// Nodes and nginx with the same handler behind them.
struct SizesFixture {
    nodes: NodeSet,
    nginx: [NginxServer; 2],
    handler: PeerProcess,
    _files: TlsFiles,
    /// Image of the function.
    _image: TempDir,
}

/// Measures all cases of a delay.
pub(super) fn measure(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&["m0", "m1"], delay)?;
    on_first_machine(&lab, async || {
        let fixture = SizesFixture::start(lab.machines()).await?;
        let large = (SizedKind::Response, LARGE_BYTES);
        let all = [SizedKind::Body, SizedKind::Response]
            .into_iter()
            .flat_map(|kind| SIZES.map(|bytes| (kind, bytes)))
            .chain([large]);
        for sized in all {
            let case = case_name(sized, delay);
            let names = VARIANTS.map(|(name, _)| name);
            let one = async |variant: usize| fixture.measure(args, variant, sized).await;
            comparison.measure_case(&case, &names, one).await?;
        }
        add_goals(comparison, delay);
        Ok(())
    })
}

fn case_name((kind, bytes): (SizedKind, usize), delay: Duration) -> String {
    let size = match bytes {
        LARGE_BYTES => "1 MB".to_owned(),
        _ if bytes >= KIB * KIB => format!("{} MiB", bytes / KIB / KIB),
        _ => format!("{} KiB", bytes / KIB),
    };
    let kind = match kind {
        SizedKind::Body => "body",
        SizedKind::Response => "response",
    };
    format!("{kind} of {size}, {}", delay_name(delay))
}

fn add_goals(comparison: &mut BenchComparison, delay: Duration) {
    let case = case_name((SizedKind::Response, LARGE_BYTES), delay);
    let name = format!("p50, {case}, nearpath/nginx, kept TLS");
    comparison.add_ratio(
        &name,
        &case,
        DEFAULT,
        NGINX,
        max_goal(|row| row.p50_us, 1.1),
    );
    // From this size on, TLS has to be worth a handshake.
    let case = case_name((SizedKind::Body, BULK_BYTES), delay);
    let name = format!("CPU, {case}, {TLS}/{QUIC}");
    let goal = max_goal(|row| row.cpu_us_per_request, 1.0);
    comparison.add_ratio(&name, &case, TLS, QUIC, goal);
    for kind in [SizedKind::Body, SizedKind::Response] {
        add_crossover(comparison, kind, delay);
    }
}

/// Adds a remark with the size from which TLS takes less CPU time than QUIC, for all larger sizes too.
fn add_crossover(comparison: &mut BenchComparison, kind: SizedKind, delay: Duration) {
    let cpu = |bytes, variant| {
        let case = case_name((kind, bytes), delay);
        comparison.row_value(&case, variant, |row| row.cpu_us_per_request)
    };
    let tls_is_less = |bytes: &usize| cpu(*bytes, TLS) < cpu(*bytes, QUIC);
    let from = SIZES.into_iter().rev().take_while(tls_is_less).last();
    let from = from.map_or("no measured size".to_owned(), |bytes| {
        format!("{} KiB", bytes / KIB)
    });
    let what = if kind == SizedKind::Body {
        "bodies"
    } else {
        "responses"
    };
    let place = delay_name(delay);
    comparison.add_remark(format!(
        "TLS takes less CPU time than QUIC for {what} from: {from}, {place}"
    ));
}

impl SizesFixture {
    async fn start(machines: &[Machine]) -> Result<Self, BenchError> {
        let [near, far] = [&machines[0], &machines[1]];
        let image = tempfile::tempdir()?;
        let nodes = start_nodes(near, far, image.path()).await?;
        let handler = start_handler(far).await?;
        let files = TlsFiles::create()?;
        let back_addr = far.socket_addr(TLS_PORT);
        let back = STREAM_SETTING.to_owned()
            + &nginx_tls::upstream("sized", handler.addr)
            + &files.tls_server(back_addr, &nginx_tls::function_locations("sized", "sized"));
        let back = NginxServer::start_on(&far.node, &back, back_addr).await?;
        let front = start_front(near, &files, back_addr, STREAM_SETTING).await?;
        Ok(Self {
            nodes,
            nginx: [front, back],
            handler,
            _files: files,
            _image: image,
        })
    }

    async fn measure(
        &self,
        args: &NodesArgs,
        variant: usize,
        sized: (SizedKind, usize),
    ) -> Result<RoundSample, BenchError> {
        let (addr, pids, handlers) = self.target(variant)?;
        let template = sized_request(addr, sized)?;
        let window = args.measure.start_window();
        let load = run_closed(&template, 1, ConnectionReuse::KeepAlive, window);
        // Handlers do not differ, and would hide the transports behind their copies.
        let (tally, (all, own)) = measure_cpu_apart(load, window, &pids, &handlers).await;
        if tally.failed_count() > 0 {
            eprintln!("{}: {:?}", VARIANTS[variant].0, tally.failures_by_kind());
        }
        let cpu = all.saturating_sub(own);
        Ok(RoundSample::from_tally(&tally, window.length(), cpu))
    }

    /// Returns the address of a variant, its processes, and those of the functions among them.
    fn target(&self, variant: usize) -> Result<(SocketAddr, Vec<u32>, Vec<u32>), BenchError> {
        let Some(place) = VARIANTS[variant].1 else {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, KEPT_PORT));
            let nginx = self.nginx.iter().map(|nginx| nginx.peer.pid());
            let pids = nginx.chain([self.handler.pid()]).collect();
            return Ok((addr, pids, vec![self.handler.pid()]));
        };
        let caller = self.nodes.node(CALLERS[place].0)?;
        let pids = vec![caller.pid(), self.nodes.node("m1")?.pid()];
        let handlers =
            host_program::find_processes(&pids, &format!("./function {HANDLER_COMMAND}"));
        Ok((caller.addr(), pids, handlers))
    }
}

/// Starts the node of the function and its callers.
async fn start_nodes(near: &Machine, far: &Machine, image: &Path) -> Result<NodeSet, BenchError> {
    let program = program_folder(image)?;
    let command = format!("./function {HANDLER_COMMAND}");
    let entry = function_entry(program.as_ref(), &command, HANDLER_PORT, &["m1"]);
    let mut roles = Vec::new();
    for (place, (name, options)) in (0..).zip(CALLERS) {
        let variable = |(name, value): &(_, u64)| (*name, value.to_string());
        roles.push(NodeRole {
            variables: options.iter().map(variable).collect(),
            ..NodeRole::new(name, near, place)
        });
    }
    roles.push(NodeRole::new("m1", far, 0));
    let nodes = NodeSet::start(&roles, &json!({ "functions": { "sized": entry } })).await?;
    nodes.node("m1")?.wait_available("sized").await?;
    let paths: [(_, &[&str]); 3] = [
        ("m0", &BETWEEN_NODES),
        ("m0-tls", &["tls"]),
        ("m0-quic", &["quic"]),
    ];
    for (name, paths) in paths {
        nodes
            .wait_callable(nodes.node(name)?, "sized", paths)
            .await?;
    }
    Ok(nodes)
}

async fn start_handler(machine: &Machine) -> Result<PeerProcess, BenchError> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(HANDLER_COMMAND.split(' '));
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, HANDLER_PORT));
    command.stdout(std::process::Stdio::null());
    Ok(PeerProcess::start_on(&machine.node, command, addr).await?)
}

/// The handler reads a PUT's body and sends none; a GET's path is the length of the response.
fn sized_request(
    addr: SocketAddr,
    (kind, bytes): (SizedKind, usize),
) -> Result<RequestTemplate, BenchError> {
    let length = if kind == SizedKind::Body { 0 } else { bytes };
    let template = RequestTemplate::for_get(addr, &format!("/function/sized/{length}"))?;
    Ok(match kind {
        SizedKind::Response => template,
        SizedKind::Body => RequestTemplate {
            method: Method::PUT,
            body: Bytes::from(vec![b'x'; bytes]),
            ..template
        },
    })
}
