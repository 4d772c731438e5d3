//! An application's functions, each behind its own watchdog, on their machines.
//!
//! Functions with callees run twice: on the first machine, from which they call over a link or
//! through the gateway, and on their callees' machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nearpath_testkit::lab::LabNode;
use nearpath_wire::zero_rtt::Provision;

use super::network::{AppNetwork, LOOPBACK_HOP, LinkHop};
use crate::apps::{AppFunction, ExampleApp};
use crate::cpu;
use crate::remote::BenchError;
use crate::remote::all_transports;
use crate::remote::caller::CalleeAddress;
use crate::remote::identities::{BenchAuthority, CallIdentity, mint_session};
use crate::remote::outbound::{self, ConnectionPolicy};
use crate::remote::worker::{StartedWorker, WorkerMachine};

/// Initial sessions: more than a caller uses before new sessions arrive.
const SESSION_COUNT: usize = 8;

/// A function at the address for a caller.
pub(super) struct ReachableFunction {
    pub(super) callee: CalleeAddress,
    /// Processes of all workers in a call: the TLS fronts, and the watchdogs.
    fronts: Vec<u32>,
    dogs: Vec<u32>,
    /// Threads of the outbound proxy and of the gateway.
    threads: Vec<u32>,
}

/// Machines, identities and workers of one application.
pub(super) struct AppFixture {
    /// Identity of callers from outside.
    pub(super) gateway: CallIdentity,
    pub(super) second: LabNode,
    away: BTreeMap<&'static str, ReachableFunction>,
    local: BTreeMap<&'static str, ReachableFunction>,
    _workers: Vec<StartedWorker>,
}

/// Parts that a fixture is built with.
struct FixtureBuilder<'a> {
    site: BenchAuthority,
    gateway: CallIdentity,
    /// Identity of calls between functions.
    inside: CallIdentity,
    app: &'a ExampleApp,
    number: u64,
}

/// Location of the calling functions, and their path to callees.
struct CallerSide<'a> {
    machine: &'a WorkerMachine,
    node: &'a LabNode,
    /// Link of calls to them.
    outside: LinkHop,
    /// Address of their callees.
    callees: IpAddr,
    policy: ConnectionPolicy,
    /// Address of the gateway, if calls go through it.
    gateway: Option<CalleeAddress>,
}

/// Functions that have been started, by name.
type StartedFunctions = Vec<(&'static str, StartedWorker)>;

impl AppFixture {
    /// Starts every function and waits until each of them responds.
    pub(super) fn build(network: &AppNetwork, app: &ExampleApp) -> Result<Self, BenchError> {
        let site = BenchAuthority::new()?;
        let (gateway, inside) = (
            site.gateway_identity()?,
            site.caller_identity(&site.worker_provision(0)?.credentials)?,
        );
        let mut builder = FixtureBuilder {
            site,
            gateway,
            inside,
            app,
            number: 0,
        };
        let (first, second) = (&*network.machines.0, &*network.machines.1);
        // Callees first: callers are started with their addresses.
        let callees = builder.start_callees(network, second)?;
        let (gateway, between) = builder.start_gateway(network, &callees)?.unzip();
        let far = CallerSide {
            machine: first,
            node: &network.first,
            outside: network.outside[0],
            callees: network.between.to,
            policy: ConnectionPolicy::New,
            gateway,
        };
        let (far, mut threads) = builder.start_callers(&far, &callees)?;
        threads.extend(between);
        let near = CallerSide {
            machine: second,
            node: &network.second,
            outside: LOOPBACK_HOP,
            callees: LOOPBACK_HOP.to,
            policy: ConnectionPolicy::Kept,
            gateway: None,
        };
        let (near, near_threads) = builder.start_callers(&near, &callees)?;
        let away = reachable_functions(&[&callees, &far], &threads, None);
        let local = reachable_functions(&[&callees, &near], &near_threads, Some(LOOPBACK_HOP.to));
        let _workers = [callees, far, near]
            .into_iter()
            .flatten()
            .map(|(_, worker)| worker)
            .collect();
        Ok(Self {
            gateway: builder.gateway,
            second: network.second.clone(),
            away,
            local,
            _workers,
        })
    }

    /// Returns a function for external callers.
    pub(super) fn remote_function(&self, function: &str) -> Result<&ReachableFunction, BenchError> {
        self.away
            .get(function)
            .ok_or_else(|| format!("{function} was not started").into())
    }

    /// Returns a function for callers on the second machine.
    pub(super) fn local_function(&self, function: &str) -> Result<&ReachableFunction, BenchError> {
        self.local
            .get(function)
            .ok_or_else(|| format!("{function} was not started").into())
    }
}

impl ReachableFunction {
    /// Returns the CPU time of the workers, the outbound proxy and the gateway.
    pub(super) fn cpu_spent(&self, front: bool) -> Duration {
        let workers = if front { &self.fronts } else { &self.dogs };
        cpu::processes_cpu(workers) + cpu::threads_cpu(&self.threads)
    }
}

impl FixtureBuilder<'_> {
    /// Starts the functions without callees.
    fn start_callees(
        &mut self,
        network: &AppNetwork,
        machine: &WorkerMachine,
    ) -> Result<StartedFunctions, BenchError> {
        let callers = [
            (self.gateway.clone(), network.outside[1]),
            (self.inside.clone(), network.between),
        ];
        let functions = self.app.functions.iter().filter(|function| !function.calls);
        functions
            .map(|function| self.start_function(function, machine, "", &callers))
            .collect()
    }

    /// Starts the functions that call `callees`, and their outbound proxy's thread.
    fn start_callers(
        &mut self,
        side: &CallerSide<'_>,
        callees: &StartedFunctions,
    ) -> Result<(StartedFunctions, Vec<u32>), BenchError> {
        let functions: Vec<&AppFunction> = self
            .app
            .functions
            .iter()
            .filter(|function| function.calls)
            .collect();
        // Without callers no proxy is needed, and its idle thread would count as theirs.
        if functions.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let port = side.machine.allocate_ports(1);
        let plan = outbound::OutboundPlan {
            node: side.node.clone(),
            identity: self.inside.clone(),
            callees: callee_directory(callees, side.callees),
            policy: side.policy,
            gateway: side.gateway.clone(),
        };
        let thread = outbound::start_outbound(plan, port)?;
        let (gateway, callers) = (
            format!("http://127.0.0.1:{port}"),
            [(self.gateway.clone(), side.outside)],
        );
        let started = functions
            .into_iter()
            .map(|function| self.start_function(function, side.machine, &gateway, &callers));
        Ok((started.collect::<Result<_, _>>()?, vec![thread]))
    }

    /// Starts a gateway on the external callers' machine for calls between functions. Returns its
    /// address and its thread.
    fn start_gateway(
        &mut self,
        network: &AppNetwork,
        callees: &StartedFunctions,
    ) -> Result<Option<(CalleeAddress, u32)>, BenchError> {
        if !self.app.functions.iter().any(|function| function.calls) {
            return Ok(None);
        }
        let hop = network.outside[0].reverse_hop();
        let provision = self.new_provision(&[(self.inside.clone(), hop)])?;
        let plan = outbound::OutboundPlan {
            node: network.caller.clone(),
            identity: self.gateway.clone(),
            callees: callee_directory(callees, network.outside[1].to),
            policy: ConnectionPolicy::New,
            gateway: None,
        };
        let callee = all_transports::callee_address(hop.to, &provision);
        Ok(Some((callee, outbound::start_gateway(plan, provision)?)))
    }

    /// Creates the provision of a new worker, with sessions for those callers.
    fn new_provision(
        &mut self,
        callers: &[(CallIdentity, LinkHop)],
    ) -> Result<Provision, BenchError> {
        self.number += 1;
        let mut provision = self.site.worker_provision(self.number)?;
        for (identity, hop) in callers {
            for _ in 0..SESSION_COUNT {
                mint_session(&mut provision, identity, hop.from)?;
            }
        }
        Ok(provision)
    }

    fn start_function(
        &mut self,
        function: &AppFunction,
        machine: &WorkerMachine,
        gateway: &str,
        callers: &[(CallIdentity, LinkHop)],
    ) -> Result<(&'static str, StartedWorker), BenchError> {
        let provision = self.new_provision(callers)?;
        let worker = machine.start_function(
            &provision,
            &self.app.function_code(function, machine, gateway),
            true,
        );
        Ok((
            function.name,
            worker.map_err(|error| format!("{}: {error}", function.name))?,
        ))
    }
}

/// Returns the addresses of the callees on that machine.
fn callee_directory(callees: &StartedFunctions, at: IpAddr) -> BTreeMap<String, CalleeAddress> {
    callees
        .iter()
        .map(|(name, worker)| ((*name).to_owned(), worker.callee.at_address(at)))
        .collect()
}

/// Returns the callable functions, at the workers' addresses or at `at`.
fn reachable_functions(
    started: &[&StartedFunctions],
    threads: &[u32],
    at: Option<IpAddr>,
) -> BTreeMap<&'static str, ReachableFunction> {
    let all = || started.iter().flat_map(|some| some.iter());
    let pids = |front| {
        all()
            .filter_map(|(_, worker)| worker.pid(front))
            .collect::<Vec<_>>()
    };
    let (fronts, dogs) = (pids(true), pids(false));
    let one = |worker: &StartedWorker| ReachableFunction {
        callee: at.map_or_else(|| worker.callee.clone(), |at| worker.callee.at_address(at)),
        fronts: fronts.clone(),
        dogs: dogs.clone(),
        threads: threads.to_vec(),
    };
    all().map(|(name, worker)| (*name, one(worker))).collect()
}
