//! The chains of Hello, Retail! over two workers: the caller is on one, its callees are on the other.
//!
//! Both variants of nearpath keep the connections to the database, as examples/retail declares. The
//! functions behind nginx open one for each access. The goals compare nearpath's variants.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::nodes::chain::PlacedFunction;
use super::super::nodes::retail::{
    self as retail_nodes, CHAINS, RetailTarget, SECRET_NAME, SERVICES_FOLDER, placed_functions,
};
use super::super::nodes::{delay_name, max_goal, on_first_machine};
use super::super::pool::database::copy_folder;
use super::DirectArgs;
use super::chains::chain_goal;
use crate::apps::requirements::{MissingRequirement, PythonEnv};
use crate::apps::retail::{self, RetailDatabase};
use crate::by_name::chain_fixture::{self, ChainWay};
use crate::compare::BenchComparison;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::nginx_tls;
use crate::nodes::node_set::{NodeRole, NodeSet};
use crate::peers::PeerProcess;
use crate::peers::nginx::NginxServer;
use crate::remote::BenchError;

const MACHINES: [&str; 4] = ["control", "worker-1", "worker-2", "database"];
/// Port of nginx.
const NGINX_PORT: u16 = 9080;
/// Ports of the control nodes' gateways.
const GATEWAY_PORTS: [u16; 2] = [8080, 8180];
/// Address at which a function listens, and the one for a machine without nearpath.
const LISTEN_ADDRESSES: [&str; 2] = ["127.0.0.1", "0.0.0.0"];

/// Database, functions and platforms.
struct RetailChains {
    targets: [RetailTarget; 3],
    database: RetailDatabase,
    _nodes: [NodeSet; 2],
    _plain: PlainRetail,
    _image: TempDir,
}

/// nginx, and functions as plain processes.
struct PlainRetail {
    nginx: NginxServer,
    functions: Vec<PeerProcess>,
    _scripts: TempDir,
}

/// Measures the chains of a delay. A missing dependency is a remark below the table.
pub(super) fn measure(
    args: &DirectArgs,
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
    args: &DirectArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let python = PythonEnv::with_packages("retail")?;
    let lab = MachineLab::new(&MACHINES, delay)?;
    on_first_machine(&lab, async || {
        let chains = RetailChains::start(lab.machines(), &python).await?;
        let names = chains.targets.each_ref().map(|target| target.name);
        let cases = retail::retail_cases().into_iter();
        for case in cases.filter(|case| case.name.starts_with("chain")) {
            let name = format!("retail {}, {}", case.name, delay_name(delay));
            let one = async |variant: usize| {
                let target = &chains.targets[variant];
                target
                    .measure(&chains.database, args.repetitions(), &case)
                    .await
            };
            comparison.measure_case(&name, &names, one).await?;
            let ratio = format!("p50, {name}, by name/gateway");
            let goal = max_goal(|row| row.p50_us, chain_goal(delay));
            comparison.add_ratio(&ratio, &name, names[0], names[1], goal);
        }
        Ok(())
    })
}

/// Returns the place of a function's machine: callers and callees are on different workers.
fn machine_of(function: &PlacedFunction) -> usize {
    let is_caller = CHAINS
        .iter()
        .any(|[(caller, ..), ..]| *caller == function.name);
    if is_caller { 1 } else { 2 }
}

impl RetailChains {
    async fn start(machines: &[Machine], python: &PythonEnv) -> Result<Self, BenchError> {
        let (machines, far) = machines.split_at(machines.len() - 1);
        let far = far.first().ok_or("no machine for the database")?;
        let (database, variables) = RetailDatabase::start_database(&far.node, Some(far.addr))?;
        let (image, control) = (tempfile::tempdir()?, machines[0].addr);
        copy_folder(Path::new(SERVICES_FOLDER), image.path())?;
        copy_folder(python.packages_folder(), &image.path().join("packages"))?;
        // By name, functions call the gateway inside their instance, unmodified.
        let stack = retail_nodes::stack_on(image.path(), &variables, true, |function| {
            MACHINES[machine_of(function)]
        });
        let password = retail_nodes::variable(&variables, "PASS");
        let by_name = start_nodes(machines, 0, (&stack, password)).await?;
        // Names of functions are in their code: the second way needs nodes of its own.
        let stack = through_gateway(stack, control);
        let by_gateway = start_nodes(machines, 1, (&stack, password)).await?;
        let plain = PlainRetail::start(machines, python, &variables).await?;
        let target = |way: ChainWay, port, pids| RetailTarget {
            name: way.name(),
            addr: SocketAddr::from((control, port)),
            pids,
        };
        Ok(Self {
            targets: [
                target(ChainWay::ByName, GATEWAY_PORTS[0], by_name.pids()),
                target(ChainWay::Gateway, GATEWAY_PORTS[1], by_gateway.pids()),
                target(ChainWay::Nginx, NGINX_PORT, plain.pids()),
            ],
            database,
            _nodes: [by_name, by_gateway],
            _plain: plain,
            _image: image,
        })
    }
}

/// Sends the callers' calls to the gateway of the control node.
fn through_gateway(mut stack: Value, control: Ipv4Addr) -> Value {
    let port = GATEWAY_PORTS[1];
    for [(caller, ..), ..] in CHAINS {
        let entry = &mut stack["functions"][caller];
        entry["environment"]["gateway_url"] = json!(format!("http://{control}:{port}"));
        entry["egress"] = json!([chain_fixture::egress_to(control, port)]);
    }
    stack
}

async fn start_nodes(
    machines: &[Machine],
    place: u16,
    (stack, password): (&Value, &str),
) -> Result<NodeSet, BenchError> {
    let mut roles: Vec<_> = MACHINES
        .iter()
        .zip(machines)
        .map(|(name, machine)| NodeRole::new(name, machine, place))
        .collect();
    roles[0].listen = machines[0].addr;
    let secrets = [(SECRET_NAME, password)];
    let nodes = NodeSet::start_with_secrets(&roles, stack, &secrets).await?;
    for (function, _) in placed_functions() {
        let node = nodes.node(MACHINES[machine_of(&function)])?;
        node.wait_available(&function.name).await?;
    }
    Ok(nodes)
}

impl PlainRetail {
    async fn start(
        machines: &[Machine],
        python: &PythonEnv,
        variables: &[(String, String)],
    ) -> Result<Self, BenchError> {
        let scripts = tempfile::tempdir()?;
        copy_folder(Path::new(SERVICES_FOLDER), scripts.path())?;
        listen_at_all(&scripts.path().join("web.py"))?;
        let listen = SocketAddr::from((machines[0].addr, NGINX_PORT));
        let (mut functions, mut upstreams, mut locations) =
            (Vec::new(), String::new(), String::new());
        for (function, _) in placed_functions() {
            let machine = &machines[machine_of(&function)];
            let (name, addr) = (&function.name, machine.socket_addr(function.port));
            let mut command = python.script_command(&scripts.path().join(format!("{name}.py")));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.env("PORT", addr.port().to_string());
            command.env("gateway_url", format!("http://{listen}"));
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            functions.push(PeerProcess::start_on(&machine.node, command, addr).await?);
            upstreams += &nginx_tls::upstream(name, addr);
            locations += &nginx_tls::function_locations(name, name);
        }
        let servers = upstreams + &nginx_tls::plain_server(listen, &locations);
        Ok(Self {
            nginx: NginxServer::start_on(&machines[0].node, &servers, listen).await?,
            functions,
            _scripts: scripts,
        })
    }

    fn pids(&self) -> Vec<u32> {
        let functions = self.functions.iter().map(PeerProcess::pid);
        functions.chain([self.nginx.peer.pid()]).collect()
    }
}

/// Changes the address of a server's script: nginx reaches it from another machine.
fn listen_at_all(script: &Path) -> Result<(), BenchError> {
    let ([own, all], text) = (LISTEN_ADDRESSES, fs::read_to_string(script)?);
    Ok(fs::write(script, text.replace(own, all))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_callees_are_on_the_other_worker() {
        let machines = placed_functions().into_iter();
        let machines = machines.map(|(function, _)| (machine_of(&function), function.name));
        for (machine, name) in machines {
            let is_caller = CHAINS.iter().any(|[(caller, ..), ..]| *caller == name);
            assert_eq!(machine == 1, is_caller, "{name}");
        }
    }
}
