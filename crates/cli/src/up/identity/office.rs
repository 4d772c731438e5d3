//! Signs for instances and for the gateway, mints sessions between them, and renews in time. Does no I/O; time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_node::Identity;
use nearpath_types::{FunctionId, InstanceId, SpiffeId};
use nearpath_wire::early::{Entry, Provision, Register, Sessions, TokenKey, mint};
use nearpath_wire::identity::authority::Authority;
use nearpath_wire::identity::{Credentials, Renewals, Request, Revoked, Trust, renewal};
use nearpath_wire::quic::{Caller, config};
use tokio::sync::{mpsc, watch};

use super::Terms;

/// The trust domain of a process that is an installation of its own: its authority's key is nobody else's.
const DOMAIN: &str = "up.nearpath";
/// The authority outlives the process.
const FOREVER: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// After a renewal that failed.
const AGAIN: Duration = Duration::from_secs(10);
/// Frames that may wait for an instance to read them.
const FRAMES: usize = 4;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Now, by both clocks: certificates have the one, what is due the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
}

/// See the module's text.
pub(super) struct Office {
    authority: Authority,
    trust: Trust,
    terms: Terms,
    gateway: Gateway,
    /// A renewed gateway whose sessions are being minted.
    coming: Option<Coming>,
    caller: watch::Sender<Caller>,
    instances: BTreeMap<String, Instance>,
    /// Who may call whom, beside the gateway.
    callers: BTreeMap<FunctionId, Vec<FunctionId>>,
    /// Instances that may not call any more, of functions that may.
    ended: BTreeMap<FunctionId, Revoked>,
    renewals: Renewals<Due>,
    revoked: Revoked,
}

/// With what a session of an instance is made, and where its entry is then.
pub(super) type Config = (Arc<config::WorkerConfig>, Arc<Register>);

/// What is renewed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Gateway,
    Instance(String),
}

/// Who the gateway is, and what it knows of instances.
struct Gateway {
    caller: Caller,
    sessions: Arc<Sessions>,
}

struct Coming {
    gateway: Gateway,
    /// Instances without a session for it.
    left: Vec<String>,
}

struct Instance {
    function: FunctionId,
    id: InstanceId,
    credentials: Credentials,
    /// Of its address tokens: one for its life.
    key: TokenKey,
    frames: mpsc::Sender<Vec<u8>>,
}

impl Office {
    /// A new authority, and the gateway's first certificate.
    pub(super) fn open(terms: Terms, now: Moment) -> Result<(Self, watch::Receiver<Caller>), Error> {
        let authority = Authority::new(DOMAIN, now.wall, FOREVER)?;
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()])?;
        let gateway = Gateway::new(&authority, &trust, &terms, now)?;
        let (caller, known) = watch::channel(gateway.caller.clone());
        let mut renewals = Renewals::default();
        renewals.set(Due::Gateway, renewal(now.at, terms.lifetime));
        let (instances, callers, ended, revoked) = Default::default();
        let office = Self {
            authority,
            trust,
            terms,
            gateway,
            coming: None,
            caller,
            instances,
            callers,
            ended,
            renewals,
            revoked,
        };
        Ok((office, known))
    }

    /// Who an instance is that starts now.
    pub(super) fn issue(&mut self, function: FunctionId, id: InstanceId, now: Moment) -> Result<Identity, String> {
        self.sign(function, id, now).map_err(|error| error.to_string())
    }

    fn sign(&mut self, function: FunctionId, id: InstanceId, now: Moment) -> Result<Identity, Error> {
        let credentials = self.credentials(&function, id, now)?;
        let (frames, told) = mpsc::channel(FRAMES);
        let name = credentials.name.clone();
        let instance = Instance { function, id, credentials, key: TokenKey::random()?, frames };
        self.tell(&instance, &self.gateway, now)?;
        self.instances.insert(name.clone(), instance);
        self.renewals.set(Due::Instance(name.clone()), renewal(now.at, self.terms.lifetime));
        if let Some(coming) = &mut self.coming {
            coming.left.push(name.clone());
        }
        Ok(Identity { name: name.into(), frames: told })
    }

    fn credentials(&self, function: &FunctionId, id: InstanceId, now: Moment) -> Result<Credentials, Error> {
        let (spiffe, name) = (SpiffeId::instance(DOMAIN, function.clone(), id), format!("{id}.{DOMAIN}"));
        sign(&self.authority, spiffe, name, now, self.terms.lifetime)
    }

    /// Mints a session of an instance for a gateway, and tells the instance.
    fn tell(&self, instance: &Instance, gateway: &Gateway, now: Moment) -> Result<(), Error> {
        let mut provision = self.provision(instance, now);
        let (worker, register) = configured(instance, &provision)?;
        let (from, to) = (SocketAddr::new(self.terms.from, 9), SocketAddr::new(self.terms.from, 10)); // no packet goes there
        mint::mint(gateway.caller.config().clone(), worker, &instance.credentials.name, (from, to))?;
        provision.entries = register.drain();
        instance.frames.try_send(provision.write())?;
        Ok(())
    }

    fn provision(&self, instance: &Instance, now: Moment) -> Provision {
        let callers = self.callers.get(&instance.function).cloned().unwrap_or_default();
        let revoked = callers.iter().filter_map(|caller| self.ended.get(caller));
        let revoked = revoked.flat_map(|ended| ended.current(now.wall)).map(str::to_owned).collect();
        Provision {
            credentials: instance.credentials.clone(),
            authorities: vec![self.authority.certificate().clone()],
            callers,
            revoked,
            key: instance.key.clone(),
            entries: Vec::new(),
        }
    }

    /// Who may call whom from now on. Instances whose callers changed are told.
    pub(super) fn permit(&mut self, callers: BTreeMap<FunctionId, Vec<FunctionId>>, now: Moment) {
        let before = std::mem::replace(&mut self.callers, callers);
        self.ended.retain(|caller, _| self.callers.values().flatten().any(|one| one == caller));
        let changed = |function: &FunctionId| before.get(function) != self.callers.get(function);
        let names: Vec<_> =
            self.instances.iter().filter(|(_, one)| changed(&one.function)).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.repeat(name, Vec::new(), now));
    }

    /// The configuration of an instance that another one makes a session with.
    pub(super) fn worker(&self, callee: &str) -> Option<Config> {
        let instance = self.instances.get(callee)?;
        let now = Moment { at: Instant::now(), wall: SystemTime::now() };
        configured(instance, &self.provision(instance, now)).ok()
    }

    /// Hands an instance the entries of sessions that others made with it.
    pub(super) fn enter(&mut self, callee: &str, entries: Vec<Entry>, now: Moment) {
        self.repeat(callee, entries, now);
    }

    /// Tells an instance what holds now. One that has not read what it was told before is told everything soon.
    fn repeat(&mut self, name: &str, entries: Vec<Entry>, now: Moment) {
        let Some(instance) = self.instances.get(name) else { return };
        let provision = Provision { entries, ..self.provision(instance, now) };
        if instance.frames.try_send(provision.write()).is_err() {
            self.renewals.set(Due::Instance(name.to_owned()), now.at + AGAIN.min(self.terms.lifetime / 6));
        }
    }

    /// Instances that have ended: what is known of them is forgotten, and their certificates are taken back.
    pub(super) fn gone(&mut self, names: Vec<String>, now: Moment) {
        let mut callers = BTreeSet::new();
        for name in names {
            self.renewals.remove(&Due::Instance(name.clone()));
            let Some(instance) = self.instances.remove(&name) else { continue };
            self.gateway.forget(&name);
            if let Some(coming) = &self.coming {
                coming.gateway.forget(&name);
            }
            self.revoked.add(name.clone(), instance.credentials.not_after);
            if self.callers.values().flatten().any(|caller| *caller == instance.function) {
                self.ended.entry(instance.function.clone()).or_default().add(name, instance.credentials.not_after);
                callers.insert(instance.function);
            }
        }
        self.warn(&callers, now);
        self.trust = self.trust.without(self.revoked.names(now.wall));
        self.publish();
    }

    /// Those who may be called by these functions learn who of them was taken back.
    fn warn(&mut self, callers: &BTreeSet<FunctionId>, now: Moment) {
        let concerned = |one: &Instance| {
            let mut theirs = self.callers.get(&one.function).into_iter().flatten();
            theirs.any(|caller| callers.contains(caller))
        };
        let names: Vec<_> =
            self.instances.iter().filter(|(_, one)| concerned(one)).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.repeat(name, Vec::new(), now));
    }

    fn publish(&mut self) {
        self.gateway.caller = self.gateway.caller.trusting(self.trust.clone());
        self.caller.send_replace(self.gateway.caller.clone());
    }

    /// When there is something to do, asked at `now`.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        if self.coming.is_some() { Some(now) } else { self.renewals.next() }
    }

    /// Does one piece of what is due.
    pub(super) fn renew(&mut self, now: Moment) {
        match self.renewals.due(now.at) {
            Some(Due::Gateway) => self.renew_gateway(now),
            Some(Due::Instance(name)) => self.renew_instance(name, now),
            None => self.mint_next(now),
        }
    }

    fn renew_instance(&mut self, name: String, now: Moment) {
        let Some(mut instance) = self.instances.remove(&name) else { return };
        let renewed = self.credentials(&instance.function, instance.id, now).and_then(|credentials| {
            instance.credentials = credentials;
            self.gateway.forget(&name); // those of the old certificate end with it
            self.tell(&instance, &self.gateway, now)
        });
        let again = match renewed {
            Ok(()) => renewal(now.at, self.terms.lifetime),
            Err(error) => {
                tracing::warn!(instance = name, %error, "its certificate was not renewed; trying again");
                now.at + AGAIN.min(self.terms.lifetime / 6)
            }
        };
        if let Some(coming) = &mut self.coming {
            coming.gateway.forget(&name);
            coming.left.push(name.clone());
        }
        self.renewals.set(Due::Instance(name.clone()), again);
        self.instances.insert(name, instance);
    }

    /// The gateway keeps its certificate until every instance has a session for the new one.
    fn renew_gateway(&mut self, now: Moment) {
        let again = match Gateway::new(&self.authority, &self.trust, &self.terms, now) {
            Ok(gateway) => {
                self.coming = Some(Coming { gateway, left: self.instances.keys().cloned().collect() });
                renewal(now.at, self.terms.lifetime)
            }
            Err(error) => {
                tracing::warn!(%error, "the gateway's certificate was not renewed; trying again");
                now.at + AGAIN.min(self.terms.lifetime / 6)
            }
        };
        self.renewals.set(Due::Gateway, again);
    }

    /// One more session for the coming gateway; after the last it takes over.
    fn mint_next(&mut self, now: Moment) {
        let Some(mut coming) = self.coming.take() else { return };
        let Some(name) = coming.left.pop() else {
            self.gateway = coming.gateway;
            return self.publish();
        };
        if let Some(instance) = self.instances.get(&name)
            && let Err(error) = self.tell(instance, &coming.gateway, now)
        {
            tracing::debug!(instance = name, %error, "no session for the gateway's new certificate: the first call waits for a handshake");
        }
        self.coming = Some(coming);
    }
}

/// An instance's end of a connection, with a register of its own.
fn configured(instance: &Instance, provision: &Provision) -> Result<Config, Error> {
    let register = Arc::new(Register::new(None));
    let config = config::worker(&instance.credentials, &provision.trust()?, Arc::clone(&register), &instance.key)?;
    Ok((Arc::new(config), register))
}

impl Gateway {
    fn new(authority: &Authority, trust: &Trust, terms: &Terms, now: Moment) -> Result<Self, Error> {
        let (id, name) = (SpiffeId::gateway(DOMAIN, &terms.node), format!("gateway.{DOMAIN}"));
        let credentials = sign(authority, id, name, now, terms.lifetime)?;
        let sessions = Arc::new(Sessions::default());
        let caller = Caller::new(&credentials, trust.clone(), &sessions)?;
        Ok(Self { caller, sessions })
    }

    /// Whatever transport the sessions are for.
    fn forget(&self, name: &str) {
        self.sessions.forget(name);
        self.caller.tls().forget(name);
    }
}

/// A key that is made here and stays here, and its certificate.
fn sign(
    authority: &Authority,
    id: SpiffeId,
    name: String,
    now: Moment,
    lifetime: Duration,
) -> Result<Credentials, Error> {
    let request = Request::new()?;
    let issued = authority.issue(request.csr(), &id, &name, now.wall, lifetime)?;
    Ok(request.complete(id, name, issued))
}

#[cfg(test)]
mod tests;
