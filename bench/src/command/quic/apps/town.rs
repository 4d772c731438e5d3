//! An application's functions, each behind a watchdog of its own, on the machines where they are called.
//!
//! Functions that call others are there twice: on the first machine, from where they call over a link, directly or through the gateway, and
//! at home, on the same machine as those that they call.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nearpath_testkit::lab::LabNode;
use nearpath_wire::zero_rtt::Provision;

use super::ground::{Ground, HERE, Hop};
use crate::apps::{App, Function};
use crate::cpu;
use crate::remote::Error;
use crate::remote::caller::Callee;
use crate::remote::everywhere;
use crate::remote::outward::{self, Manner};
use crate::remote::site::{Identity, Site, mint};
use crate::remote::worker::{Machine, Worker};

/// More than a caller can be behind with those that each connection brings anew.
const SESSIONS: usize = 8;

/// A function as somebody reaches it.
pub(super) struct Seen {
    pub(super) callee: Callee,
    /// Processes of all workers that can have a part in a call: those that answer where callers show no certificate, and those
    /// that answer the rest.
    fronts: Vec<u32>,
    dogs: Vec<u32>,
    /// The way out of the machine, and the gateway.
    threads: Vec<u32>,
}

/// See the module's text.
pub(super) struct Town {
    /// Who calls from outside.
    pub(super) gateway: Identity,
    pub(super) second: LabNode,
    away: BTreeMap<&'static str, Seen>,
    home: BTreeMap<&'static str, Seen>,
    _workers: Vec<Worker>,
}

/// What a town is built with.
struct Builder<'a> {
    site: Site,
    gateway: Identity,
    /// Who calls from function to function.
    inside: Identity,
    app: &'a App,
    number: u64,
}

/// Where functions that call others are, and how they do so.
struct Side<'a> {
    machine: &'a Machine,
    node: &'a LabNode,
    /// How they are called.
    outside: Hop,
    /// Where they find those that they call.
    callees: IpAddr,
    manner: Manner,
    /// Where they find the gateway.
    gateway: Option<Callee>,
}

/// Functions that have been started, by name.
type Started = Vec<(&'static str, Worker)>;

impl Town {
    /// Starts every function and waits until each of them answers.
    pub(super) fn build(ground: &Ground, app: &App) -> Result<Self, Error> {
        let site = Site::new()?;
        let (gateway, inside) = (
            site.gateway()?,
            site.identity(&site.worker(0)?.credentials)?,
        );
        let mut builder = Builder {
            site,
            gateway,
            inside,
            app,
            number: 0,
        };
        let (first, second) = (&*ground.machines.0, &*ground.machines.1);
        let callees = builder.callees(ground, second)?;
        let (gateway, between) = builder.between(ground, &callees)?.unzip();
        let far = Side {
            machine: first,
            node: &ground.first,
            outside: ground.outside[0],
            callees: ground.between.to,
            manner: Manner::New,
            gateway,
        };
        let (far, mut threads) = builder.callers(&far, &callees)?;
        threads.extend(between);
        let near = Side {
            machine: second,
            node: &ground.second,
            outside: HERE,
            callees: HERE.to,
            manner: Manner::Kept,
            gateway: None,
        };
        let (near, near_threads) = builder.callers(&near, &callees)?;
        let away = seen(&[&callees, &far], &threads, None);
        let home = seen(&[&callees, &near], &near_threads, Some(HERE.to));
        let _workers = [callees, far, near]
            .into_iter()
            .flatten()
            .map(|(_, worker)| worker)
            .collect();
        Ok(Self {
            gateway: builder.gateway,
            second: ground.second.clone(),
            away,
            home,
            _workers,
        })
    }

    /// A function, from outside.
    pub(super) fn away(&self, function: &str) -> Result<&Seen, Error> {
        self.away
            .get(function)
            .ok_or_else(|| format!("{function} was not started").into())
    }

    /// The same for who is on the second machine.
    pub(super) fn home(&self, function: &str) -> Result<&Seen, Error> {
        self.home
            .get(function)
            .ok_or_else(|| format!("{function} was not started").into())
    }
}

impl Seen {
    /// CPU time of the workers, of the way out and of the gateway.
    pub(super) fn spent(&self, front: bool) -> Duration {
        let workers = if front { &self.fronts } else { &self.dogs };
        cpu::alone(workers) + cpu::of_threads(&self.threads)
    }
}

impl Builder<'_> {
    /// Those that call nobody.
    fn callees(&mut self, ground: &Ground, machine: &Machine) -> Result<Started, Error> {
        let callers = [
            (self.gateway.clone(), ground.outside[1]),
            (self.inside.clone(), ground.between),
        ];
        let functions = self.app.functions.iter().filter(|function| !function.calls);
        functions
            .map(|function| self.start(function, machine, "", &callers))
            .collect()
    }

    /// Those that call `callees`, and the thread that does it for them.
    fn callers(
        &mut self,
        side: &Side<'_>,
        callees: &Started,
    ) -> Result<(Started, Vec<u32>), Error> {
        let functions: Vec<&Function> = self
            .app
            .functions
            .iter()
            .filter(|function| function.calls)
            .collect();
        if functions.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let port = side.machine.ports(1);
        let plan = outward::Plan {
            node: side.node.clone(),
            identity: self.inside.clone(),
            callees: directory(callees, side.callees),
            manner: side.manner,
            gateway: side.gateway.clone(),
        };
        let thread = outward::start(plan, port)?;
        let (gateway, callers) = (
            format!("http://127.0.0.1:{port}"),
            [(self.gateway.clone(), side.outside)],
        );
        let started = functions
            .into_iter()
            .map(|function| self.start(function, side.machine, &gateway, &callers));
        Ok((started.collect::<Result<_, _>>()?, vec![thread]))
    }

    /// A gateway where calls come from outside, for those between functions; as they find it, and its thread.
    fn between(
        &mut self,
        ground: &Ground,
        callees: &Started,
    ) -> Result<Option<(Callee, u32)>, Error> {
        if !self.app.functions.iter().any(|function| function.calls) {
            return Ok(None);
        }
        let hop = ground.outside[0].back();
        let provision = self.provision(&[(self.inside.clone(), hop)])?;
        let plan = outward::Plan {
            node: ground.caller.clone(),
            identity: self.gateway.clone(),
            callees: directory(callees, ground.outside[1].to),
            manner: Manner::New,
            gateway: None,
        };
        let callee = everywhere::callee(hop.to, &provision);
        Ok(Some((callee, outward::start_gateway(plan, provision)?)))
    }

    /// A new worker's, with sessions for those callers.
    fn provision(&mut self, callers: &[(Identity, Hop)]) -> Result<Provision, Error> {
        self.number += 1;
        let mut provision = self.site.worker(self.number)?;
        for (identity, hop) in callers {
            for _ in 0..SESSIONS {
                mint(&mut provision, identity, hop.from)?;
            }
        }
        Ok(provision)
    }

    fn start(
        &mut self,
        function: &Function,
        machine: &Machine,
        gateway: &str,
        callers: &[(Identity, Hop)],
    ) -> Result<(&'static str, Worker), Error> {
        let provision = self.provision(callers)?;
        let worker = machine.function(&provision, &self.app.code(function, machine, gateway), true);
        Ok((
            function.name,
            worker.map_err(|error| format!("{}: {error}", function.name))?,
        ))
    }
}

/// Who is found where at that address.
fn directory(callees: &Started, at: IpAddr) -> BTreeMap<String, Callee> {
    callees
        .iter()
        .map(|(name, worker)| ((*name).to_owned(), worker.callee.at(at)))
        .collect()
}

/// What is to be called, at the addresses that the workers have or at that one.
fn seen(started: &[&Started], threads: &[u32], at: Option<IpAddr>) -> BTreeMap<&'static str, Seen> {
    let all = || started.iter().flat_map(|some| some.iter());
    let pids = |front| {
        all()
            .filter_map(|(_, worker)| worker.pid(front))
            .collect::<Vec<_>>()
    };
    let (fronts, dogs) = (pids(true), pids(false));
    let one = |worker: &Worker| Seen {
        callee: at.map_or_else(|| worker.callee.clone(), |at| worker.callee.at(at)),
        fronts: fronts.clone(),
        dogs: dogs.clone(),
        threads: threads.to_vec(),
    };
    all().map(|(name, worker)| (*name, one(worker))).collect()
}
