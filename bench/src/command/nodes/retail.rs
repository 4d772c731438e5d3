//! The three chains of Hello, Retail! over three machines, with the database on another one.
//!
//! nearpath runs them as examples/retail declares them: the node keeps the connections to the database.
//! A second variant opens a connection for each access, as the functions do behind nginx. Between both
//! is the part of the calls.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use http::{Request, Response, Uri};
use http_body_util::Full;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::pool::database::copy_folder;
use super::chain::{CentralGateway, PlacedFunction};
use super::{NodesArgs, delay_name, max_goal, on_first_machine};
use crate::apps::requirements::{MissingRequirement, PythonEnv};
use crate::apps::retail::{self, RetailDatabase};
use crate::apps::{AppCase, CaseCalls};
use crate::compare::{BenchComparison, RoundSample};
use crate::cpu::CpuSnapshot;
use crate::load::connection;
use crate::nodes::app_folder::function_entry;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::node_set::{NodeRole, NodeSet};
use crate::peers::PeerProcess;
use crate::remote::call::RemoteCall;
use crate::remote::{BenchError, RemoteTransport};
use crate::tally::{RequestFailure, RequestTally};

const MACHINES: [&str; 5] = ["m0", "m1", "m2", "m3", "database"];
const NEARPATH: &str = "nearpath";
const UNPOOLED: &str = "nearpath, a database connection per access";
const CENTRAL: &str = "nginx, central gateway, new TLS 1.2";
const VARIANTS: [&str; 3] = [NEARPATH, UNPOOLED, CENTRAL];
/// Services of the example.
pub(in super::super) const SERVICES_FOLDER: &str = "examples/retail/services";
/// Name of the secret with the password of the database.
pub(in super::super) const SECRET_NAME: &str = "retail-password";
/// Port of a function in its instance, and before the first one of those on a machine.
const FUNCTION_PORT: u16 = 5000;

/// Functions by chain: name, place of the machine, and whether it uses the database. The first one of a
/// chain calls the others, which are on other machines.
pub(in super::super) const CHAINS: [[(&str, usize, bool); 4]; 3] = [
    [
        ("photo-request", 1, false),
        ("photo-assign", 2, true),
        ("photo-message", 3, false),
        ("photo-record", 3, true),
    ],
    [
        ("photo-acquire", 2, false),
        ("photo-receive", 3, true),
        ("photo-success", 1, false),
        ("photo-report", 1, true),
    ],
    [
        ("product-purchase", 3, false),
        ("product-purchase-get-price", 1, true),
        ("product-purchase-authorize-cc", 2, true),
        ("product-purchase-publish", 1, false),
    ],
];

/// Database, functions and platforms.
struct RetailFixture {
    pooled: NodeSet,
    unpooled: NodeSet,
    central: CentralGateway,
    functions: Vec<PeerProcess>,
    database: RetailDatabase,
    _image: TempDir,
}

/// Measures the chains. A missing dependency is a remark below the table.
pub(super) fn measure(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    match measure_chains(args, delay, comparison) {
        // Other errors end the run.
        Err(error) if error.is::<MissingRequirement>() => {
            let place = delay_name(delay);
            comparison.add_remark(format!("omitted: retail chains, {place}: {error}"));
            Ok(())
        }
        done => done,
    }
}

fn measure_chains(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let python = PythonEnv::with_packages("retail")?;
    let lab = MachineLab::new(&MACHINES, delay)?;
    on_first_machine(&lab, async || {
        let fixture = RetailFixture::start(lab.machines(), &python).await?;
        let cases = retail::retail_cases().into_iter();
        for case in cases.filter(|case| case.name.starts_with("chain")) {
            let name = format!("retail {}, {}", case.name, delay_name(delay));
            let one = async |variant: usize| fixture.measure(args.least, variant, &case).await;
            comparison.measure_case(&name, &VARIANTS, one).await?;
            let goal = if delay.is_zero() { 0.6 } else { 0.5 };
            let ratio = format!("p50, {name}, nearpath/central gateway");
            let goal = max_goal(|row| row.p50_us, goal);
            comparison.add_ratio(&ratio, &name, NEARPATH, CENTRAL, goal);
        }
        Ok(())
    })
}

/// A variant: its address for clients, and its processes.
pub(in super::super) struct RetailTarget {
    pub(in super::super) name: &'static str,
    pub(in super::super) addr: SocketAddr,
    pub(in super::super) pids: Vec<u32>,
}

impl RetailTarget {
    /// Makes one call after the other. The first one is not counted: it fills caches of the functions.
    pub(in super::super) async fn measure(
        &self,
        database: &RetailDatabase,
        least: usize,
        case: &AppCase,
    ) -> Result<RoundSample, BenchError> {
        // Calls change the database, and its size changes their time.
        database.load_seed()?;
        let calls = prepare_calls(self.addr, case, least + 1).await?;
        let (mut tally, mut time) = (RequestTally::default(), Duration::ZERO);
        let mut before = CpuSnapshot::default();
        for (number, call) in calls.iter().enumerate() {
            let begun = Instant::now();
            let outcome = send_call(self.addr, case.function, call).await;
            let took = begun.elapsed();
            match number {
                0 => before = CpuSnapshot::read_now(&self.pids),
                _ => {
                    time += took;
                    tally.record_outcome(outcome.map(|_| took));
                }
            }
        }
        let cpu = before.spent_until(&CpuSnapshot::read_now(&self.pids));
        if tally.failed_count() > 0 {
            eprintln!("{}: {:?}", self.name, tally.failures_by_kind());
        }
        Ok(RoundSample::from_tally(&tally, time, cpu))
    }
}

/// Returns each function once, with its place in the list as the offset of its port.
pub(in super::super) fn placed_functions() -> Vec<(PlacedFunction, bool)> {
    let all = CHAINS.iter().flatten();
    (FUNCTION_PORT + 1..)
        .zip(all)
        .map(|(port, (name, machine, is_stored))| {
            let function = PlacedFunction {
                name: (*name).to_owned(),
                machine: *machine,
                port,
            };
            (function, *is_stored)
        })
        .collect()
}

impl RetailFixture {
    async fn start(machines: &[Machine], python: &PythonEnv) -> Result<Self, BenchError> {
        let (machines, far) = machines.split_at(machines.len() - 1);
        let far = far.first().ok_or("no machine for the database")?;
        let (database, variables) = RetailDatabase::start_database(&far.node, Some(far.addr))?;
        let image = tempfile::tempdir()?;
        copy_folder(Path::new(SERVICES_FOLDER), image.path())?;
        copy_folder(python.packages_folder(), &image.path().join("packages"))?;
        let start = async |place: u16, is_pooled: bool| {
            let stack = stack_of(image.path(), &variables, is_pooled);
            start_nodes(machines, place, (&stack, variable(&variables, "PASS"))).await
        };
        let (pooled, unpooled) = (start(0, true).await?, start(1, false).await?);
        let placed: Vec<_> = placed_functions().into_iter().map(|(one, _)| one).collect();
        Ok(Self {
            pooled,
            unpooled,
            central: CentralGateway::start(machines, &placed).await?,
            functions: start_functions(machines, python, &variables).await?,
            database,
            _image: image,
        })
    }

    async fn measure(
        &self,
        least: usize,
        variant: usize,
        case: &AppCase,
    ) -> Result<RoundSample, BenchError> {
        let target = RetailTarget {
            name: VARIANTS[variant],
            addr: self.addr(variant),
            pids: self.pids(variant),
        };
        target.measure(&self.database, least, case).await
    }

    fn addr(&self, variant: usize) -> SocketAddr {
        match VARIANTS[variant] {
            NEARPATH => self.pooled.entry().addr(),
            UNPOOLED => self.unpooled.entry().addr(),
            _ => CentralGateway::client_addr(),
        }
    }

    fn pids(&self, variant: usize) -> Vec<u32> {
        let functions = self.functions.iter().map(PeerProcess::pid);
        match VARIANTS[variant] {
            NEARPATH => self.pooled.pids(),
            UNPOOLED => self.unpooled.pids(),
            _ => self.central.pids().chain(functions).collect(),
        }
    }
}

/// Returns the calls of a measurement.
async fn prepare_calls(
    addr: SocketAddr,
    case: &AppCase,
    count: usize,
) -> Result<Vec<RemoteCall>, BenchError> {
    let mut calls = Vec::with_capacity(count);
    while calls.len() < count {
        calls.push(match &case.calls {
            CaseCalls::Same(call) => call.clone(),
            CaseCalls::Acquire => assigned_call(addr).await?,
        });
    }
    Ok(calls)
}

/// Returns a call that ends an assignment, which is made for it.
async fn assigned_call(addr: SocketAddr) -> Result<RemoteCall, BenchError> {
    let send = async |function: &'static str, call: &RemoteCall| {
        let sent = send_call(addr, function, call).await;
        sent.map_err(|failure| BenchError::from(format!("{function}: {failure}")))
    };
    let assigned = send(retail::ASSIGNERS[0], &retail::assign_call()).await?;
    let [record, acquire] = retail::acquire_calls(&assigned)?;
    send(retail::ASSIGNERS[1], &record).await?;
    Ok(acquire)
}

/// Sends a call of a function, and returns the body of its response.
async fn send_call(
    addr: SocketAddr,
    function: &str,
    call: &RemoteCall,
) -> Result<bytes::Bytes, RequestFailure> {
    let mut request: Request<_> = call.build_request(RemoteTransport::Tcp).map(Full::new);
    let path = format!("/function/{function}{}", request.uri());
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| RequestFailure::Generator)?;
    let answer = connection::send_once(addr, request).await?;
    let mut response = Response::new(answer.body);
    *response.status_mut() = answer.status;
    call.check_response(&response)?;
    Ok(response.into_body())
}

pub(in super::super) fn variable<'a>(variables: &'a [(String, String)], name: &str) -> &'a str {
    let found = variables.iter().find(|(own, _)| own == name);
    found.map_or("", |(_, value)| value)
}

/// Returns the functions as examples/retail/stack.yml declares them, each on its node.
fn stack_of(image: &Path, variables: &[(String, String)], is_pooled: bool) -> Value {
    let node_of = |function: &PlacedFunction| MACHINES[function.machine];
    stack_on(image, variables, is_pooled, node_of)
}

/// Returns the functions, each on the node that `node_of` names.
pub(in super::super) fn stack_on(
    image: &Path,
    variables: &[(String, String)],
    is_pooled: bool,
    node_of: impl Fn(&PlacedFunction) -> &'static str,
) -> Value {
    let (mut functions, mut chains) = (Map::new(), Map::new());
    for (function, is_stored) in placed_functions() {
        let command = format!("python3 {}.py", function.name);
        let node = node_of(&function);
        let mut entry = function_entry(image, &command, FUNCTION_PORT, &[node]);
        entry["limits"] = json!({ "memory": "128Mi" });
        if is_stored {
            let environment = variables
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            for (name, value) in environment.chain([("PYTHONPATH", "./packages")]) {
                entry["environment"][name] = json!(value);
            }
            entry["egress"] = json!([egress_of(variable(variables, "HOST"), is_pooled)]);
        }
        functions.insert(function.name, entry);
    }
    for [(caller, ..), callees @ ..] in &CHAINS {
        let callees: Vec<_> = callees.iter().map(|(name, ..)| name).collect();
        chains.insert(
            (*caller).to_owned(),
            json!({ "edges": { *caller: callees } }),
        );
    }
    json!({ "functions": functions, "chains": chains })
}

fn egress_of(database: &str, is_pooled: bool) -> Value {
    match is_pooled {
        true => json!({
            "to": database, "protocol": "postgres", "user": "retail", "database": "retail",
            "password": format!("secret:{SECRET_NAME}"), "max": 20,
        }),
        false => json!({ "to": database, "protocol": "tcp", "warm": 0 }),
    }
}

async fn start_nodes(
    machines: &[Machine],
    place: u16,
    (stack, password): (&Value, &str),
) -> Result<NodeSet, BenchError> {
    let roles: Vec<_> = MACHINES
        .iter()
        .zip(machines)
        .map(|(name, machine)| NodeRole::new(name, machine, place))
        .collect();
    let secrets = [(SECRET_NAME, password)];
    let nodes = NodeSet::start_with_secrets(&roles, stack, &secrets).await?;
    for (function, _) in placed_functions() {
        let node = nodes.node(MACHINES[function.machine])?;
        node.wait_available(&function.name).await?;
    }
    Ok(nodes)
}

/// Starts the functions as plain processes.
async fn start_functions(
    machines: &[Machine],
    python: &PythonEnv,
    variables: &[(String, String)],
) -> Result<Vec<PeerProcess>, BenchError> {
    let mut started = Vec::new();
    for (function, _) in placed_functions() {
        let script = PathBuf::from(SERVICES_FOLDER).join(format!("{}.py", function.name));
        let mut command = python.script_command(&script.canonicalize()?);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.env("PORT", function.port.to_string());
        let gateway = format!("http://{}", CentralGateway::client_addr());
        command.env("gateway_url", gateway);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, function.port));
        let node = &machines[function.machine].node;
        started.push(PeerProcess::start_on(node, command, addr).await?);
    }
    Ok(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_callee_is_on_another_machine_than_its_caller() {
        for [(caller, own, _), callees @ ..] in CHAINS {
            let is_away = callees.iter().all(|(_, machine, _)| *machine != own);
            assert!(is_away, "{caller}");
        }
    }
}
