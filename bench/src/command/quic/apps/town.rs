//! An application's functions, each behind a watchdog of its own, on the machines where they are called.
//!
//! Functions that call others are there twice: on the first machine, from where they call over a link, and at home, on the same machine as
//! those that they call.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nearpath_testkit::lab::Node;

use super::ground::{Ground, HERE, Hop};
use crate::apart::Error;
use crate::apart::caller::Callee;
use crate::apart::outward::{self, Manner};
use crate::apart::site::{Identity, Site, mint};
use crate::apart::worker::{Machine, Worker};
use crate::apps::{App, Function};
use crate::cpu;

/// More than a caller can be behind with those that each connection brings anew.
const SESSIONS: usize = 8;

/// A function as somebody reaches it.
pub(super) struct Seen {
    pub(super) callee: Callee,
    /// Processes of all workers that can have a part in a call: those that answer TLS over TCP, and those that answer the rest.
    tls: Vec<u32>,
    dogs: Vec<u32>,
    /// The way out of the machine.
    thread: Option<u32>,
}

/// See the module's text.
pub(super) struct Town {
    /// Who calls from outside.
    pub(super) gateway: Identity,
    pub(super) second: Node,
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

/// Functions that have been started, by name.
type Started = Vec<(&'static str, Worker)>;

impl Town {
    /// Starts every function and waits until each of them answers.
    pub(super) fn build(ground: &Ground, app: &App) -> Result<Self, Error> {
        let site = Site::new()?;
        let (gateway, inside) = (site.gateway()?, site.identity(&site.worker(0)?.credentials)?);
        let mut builder = Builder { site, gateway, inside, app, number: 0 };
        let (first, second) = (&*ground.machines.0, &*ground.machines.1);
        let callees = builder.callees(ground, second)?;
        let (far, far_thread) =
            builder.callers(first, &ground.first, (&callees, ground.between.to), Manner::New, ground.outside[0])?;
        let (near, near_thread) = builder.callers(second, &ground.second, (&callees, HERE.to), Manner::Kept, HERE)?;
        let away = seen(&[&callees, &far], far_thread, None);
        let home = seen(&[&callees, &near], near_thread, Some(HERE.to));
        let _workers = [callees, far, near].into_iter().flatten().map(|(_, worker)| worker).collect();
        Ok(Self { gateway: builder.gateway, second: ground.second.clone(), away, home, _workers })
    }

    /// A function, from outside.
    pub(super) fn away(&self, function: &str) -> Result<&Seen, Error> {
        self.away.get(function).ok_or_else(|| format!("{function} was not started").into())
    }

    /// The same for who is on the second machine.
    pub(super) fn home(&self, function: &str) -> Result<&Seen, Error> {
        self.home.get(function).ok_or_else(|| format!("{function} was not started").into())
    }
}

impl Seen {
    /// CPU time of the workers and of the way out.
    pub(super) fn spent(&self, tls: bool) -> Duration {
        let workers = if tls { &self.tls } else { &self.dogs };
        cpu::alone(workers) + cpu::of_threads(self.thread.as_slice())
    }
}

impl Builder<'_> {
    /// Those that call nobody.
    fn callees(&mut self, ground: &Ground, machine: &Machine) -> Result<Started, Error> {
        let callers = [(self.gateway.clone(), ground.outside[1]), (self.inside.clone(), ground.between)];
        let functions = self.app.functions.iter().filter(|function| !function.calls);
        functions.map(|function| self.start(function, machine, "", &callers)).collect()
    }

    /// Those that call `callees`, which they find at that address, and the thread that does it for them.
    fn callers(
        &mut self,
        machine: &Machine,
        node: &Node,
        (callees, at): (&Started, IpAddr),
        manner: Manner,
        from: Hop,
    ) -> Result<(Started, Option<u32>), Error> {
        let functions: Vec<&Function> = self.app.functions.iter().filter(|function| function.calls).collect();
        if functions.is_empty() {
            return Ok((Vec::new(), None));
        }
        let port = machine.ports(1);
        let callees = callees.iter().map(|(name, worker)| ((*name).to_owned(), worker.callee.at(at))).collect();
        let plan = outward::Plan { node: node.clone(), port, identity: self.inside.clone(), callees, manner };
        let thread = outward::start(plan)?;
        let (gateway, callers) = (format!("http://127.0.0.1:{port}"), [(self.gateway.clone(), from)]);
        let started = functions.into_iter().map(|function| self.start(function, machine, &gateway, &callers));
        Ok((started.collect::<Result<_, _>>()?, Some(thread)))
    }

    fn start(
        &mut self,
        function: &Function,
        machine: &Machine,
        gateway: &str,
        callers: &[(Identity, Hop)],
    ) -> Result<(&'static str, Worker), Error> {
        self.number += 1;
        let mut provision = self.site.worker(self.number)?;
        for (identity, hop) in callers {
            for _ in 0..SESSIONS {
                mint(&mut provision, identity, hop.from)?;
            }
        }
        let worker = machine.function(&provision, &self.app.code(function, machine, gateway), true);
        Ok((function.name, worker.map_err(|error| format!("{}: {error}", function.name))?))
    }
}

/// What is to be called, at the addresses that the workers have or at that one.
fn seen(started: &[&Started], thread: Option<u32>, at: Option<IpAddr>) -> BTreeMap<&'static str, Seen> {
    let all = || started.iter().flat_map(|some| some.iter());
    let pids = |tls| all().filter_map(|(_, worker)| worker.pid(tls)).collect::<Vec<_>>();
    let (tls, dogs) = (pids(true), pids(false));
    let one = |worker: &Worker| Seen {
        callee: at.map_or_else(|| worker.callee.clone(), |at| worker.callee.at(at)),
        tls: tls.clone(),
        dogs: dogs.clone(),
        thread,
    };
    all().map(|(name, worker)| (*name, one(worker))).collect()
}
