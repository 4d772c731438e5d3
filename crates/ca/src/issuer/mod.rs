//! The issuer's state machine: signs for instances and the gateway, mints sessions between them,
//! revokes and renews.
//!
//! It does no I/O and takes time as an argument; frames for instances go into bounded channels.

mod gateway;
mod renewal;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_types::direct::ForeignAuthority;
use nearpath_types::{FunctionId, InstanceId, SpiffeId};
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::quic::{CallerConfig, config};
use nearpath_wire::zero_rtt::{Provision, SessionEntry, TokenKey, WorkerSessions, mint};
use tokio::sync::{mpsc, watch};

use crate::authority::Authority;
use crate::renewal_queue::{RenewalQueue, renewal_time};
use crate::revocations::Revocations;
use crate::trust_domain::trust_domain;
use crate::types::{InstanceIdentity, IssuerSettings};
use gateway::{GatewayIdentity, PendingGateway};
use renewal::RenewalTarget;

/// Lifetime of the authority's certificate: longer than any process runs, so that it needs no
/// renewal.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// Frames that may wait until an instance reads them.
// An early renewal repairs a full queue (`send_provision`), so a few are enough.
const MAX_QUEUED_FRAMES: usize = 4;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One moment on both clocks: certificates carry wall time, timers use the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimePoint {
    pub(crate) at: Instant,
    pub(crate) wall: SystemTime,
}

impl TimePoint {
    /// Reads both clocks.
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

/// The callee's configuration for a session, and the register that receives the session's entry.
pub(crate) type WorkerSetup = (Arc<config::WorkerConfig>, Arc<WorkerSessions>);

/// The authority of one process with everything it has issued.
pub(crate) struct Issuer {
    authority: Authority,
    trust: Trust,
    trust_domain: String,
    settings: IssuerSettings,
    gateway: GatewayIdentity,
    /// The gateway's next identity while its sessions are being minted.
    pending_gateway: Option<PendingGateway>,
    caller: watch::Sender<CallerConfig>,
    /// By the instance's name.
    instances: BTreeMap<String, IssuedInstance>,
    /// Functions that may call each function, besides the gateway.
    callers: BTreeMap<FunctionId, Vec<FunctionId>>,
    /// Revoked instances of functions that may call others.
    revoked_callers: BTreeMap<FunctionId, Revocations>,
    renewals: RenewalQueue<RenewalTarget>,
    revocations: Revocations,
    /// Both clocks at the last jump between them.
    clock_base: TimePoint,
}

struct IssuedInstance {
    function: FunctionId,
    id: InstanceId,
    credentials: Credentials,
    /// Key of its address tokens; unlike its certificate it lasts as long as the instance.
    key: TokenKey,
    frames: mpsc::Sender<Vec<u8>>,
    /// Authorities of other nodes that it trusts.
    foreign: Vec<ForeignAuthority>,
}

impl Issuer {
    /// Creates an authority and the gateway's first certificate.
    pub(crate) fn new(
        settings: IssuerSettings,
        now: TimePoint,
    ) -> Result<(Self, watch::Receiver<CallerConfig>), BoxError> {
        let domain = trust_domain(&settings);
        let authority = Authority::new(&domain, now.wall, AUTHORITY_LIFETIME)?;
        let trust = Trust::new(&domain, &[authority.certificate().clone()])?;
        let gateway = GatewayIdentity::new(&authority, &trust, &settings, now)?;
        let (caller, updates) = watch::channel(gateway.caller.clone());
        let mut renewals = RenewalQueue::default();
        renewals.schedule(
            RenewalTarget::Gateway,
            renewal_time(now.at, settings.lifetime),
        );
        let issuer = Self {
            authority,
            trust,
            trust_domain: domain,
            settings,
            gateway,
            pending_gateway: None,
            caller,
            instances: BTreeMap::new(),
            callers: BTreeMap::new(),
            revoked_callers: BTreeMap::new(),
            renewals,
            revocations: Revocations::default(),
            clock_base: now,
        };
        Ok((issuer, updates))
    }

    /// Issues the identity of a starting instance.
    pub(crate) fn issue(
        &mut self,
        function: FunctionId,
        id: InstanceId,
        now: TimePoint,
    ) -> Result<InstanceIdentity, BoxError> {
        self.replace_expired_gateway(now);
        let credentials = self.sign_instance(&function, id, now)?;
        let (frames, updates) = mpsc::channel(MAX_QUEUED_FRAMES);
        let name = credentials.name.clone();
        let instance = IssuedInstance {
            function,
            id,
            credentials,
            key: TokenKey::generate()?,
            frames,
            foreign: Vec::new(),
        };
        // Before the instance is registered: a failure leaves nothing to undo.
        self.provision_instance(&instance, now)?;
        self.instances.insert(name.clone(), instance);
        self.renewals.schedule(
            RenewalTarget::Instance(name.clone()),
            renewal_time(now.at, self.settings.lifetime),
        );
        // The gateway is being renewed: the new instance needs a session for that identity too.
        if let Some(pending) = &mut self.pending_gateway {
            pending.unminted.push(name.clone());
        }
        Ok(InstanceIdentity {
            name: name.into(),
            frames: updates,
        })
    }

    fn sign_instance(
        &self,
        function: &FunctionId,
        id: InstanceId,
        now: TimePoint,
    ) -> Result<Credentials, BoxError> {
        let domain = &self.trust_domain;
        let spiffe_id = SpiffeId::for_instance(domain, function.clone(), id);
        sign(
            &self.authority,
            spiffe_id,
            format!("{id}.{domain}"),
            now,
            self.settings.lifetime,
        )
    }

    /// Sends an instance its credentials, with a session for the gateway's first call if possible.
    fn provision_instance(
        &self,
        instance: &IssuedInstance,
        now: TimePoint,
    ) -> Result<(), BoxError> {
        // Without a session the first call needs a handshake; without credentials there is no call.
        self.provision_with_session(instance, &self.gateway, now)
            .or_else(|error| {
                let name = &instance.credentials.name;
                tracing::warn!(instance = name, %error, "no session for the gateway: the first call needs a handshake");
                let provision = self.provision(instance, now).encode();
                Ok(instance.frames.try_send(provision)?)
            })
    }

    /// Mints a session between an instance and a gateway, and sends the instance its half.
    fn provision_with_session(
        &self,
        instance: &IssuedInstance,
        gateway: &GatewayIdentity,
        now: TimePoint,
    ) -> Result<(), BoxError> {
        let mut provision = self.provision(instance, now);
        let (worker, register) = worker_setup(instance, &provision)?;
        // The handshake runs in memory: no packet is ever sent to these two ports. The address
        // matters, as tokens are bound to it.
        let (from, to) = (
            SocketAddr::new(self.settings.gateway_ip, 9),
            SocketAddr::new(self.settings.gateway_ip, 10),
        );
        mint::mint_session(
            gateway.caller.config().clone(),
            worker,
            &instance.credentials.name,
            (from, to),
        )?;
        provision.sessions = register.drain_entries();
        // Never waits: one instance that does not read must not stop the issuer.
        instance.frames.try_send(provision.encode())?;
        Ok(())
    }

    fn provision(&self, instance: &IssuedInstance, now: TimePoint) -> Provision {
        let callers = self
            .callers
            .get(&instance.function)
            .cloned()
            .unwrap_or_default();
        let revoked = callers
            .iter()
            .filter_map(|caller| self.revoked_callers.get(caller));
        let revoked = revoked
            .flat_map(|names| names.current(now.wall))
            .map(str::to_owned)
            .collect();
        Provision {
            credentials: instance.credentials.clone(),
            authorities: vec![self.authority.certificate().clone()],
            callers,
            revoked,
            foreign: instance.foreign.clone(),
            token_key: instance.key.clone(),
            sessions: Vec::new(),
        }
    }

    /// Replaces the permitted callers of some functions, and updates the instances whose callers
    /// changed. An empty list means that the function has no caller.
    pub(crate) fn update_callers(
        &mut self,
        changed: BTreeMap<FunctionId, Vec<FunctionId>>,
        now: TimePoint,
    ) {
        // Replaced first, because provisions are built from the new set.
        let mut renewed = BTreeSet::new();
        for (callee, callers) in changed {
            let before = match callers.is_empty() {
                true => self.callers.remove(&callee),
                false => self.callers.insert(callee.clone(), callers),
            };
            if before.as_ref() != self.callers.get(&callee) {
                renewed.insert(callee);
            }
        }
        self.revoked_callers
            .retain(|caller, _| self.callers.values().flatten().any(|known| known == caller));
        let names = self.names_where(|instance| renewed.contains(&instance.function));
        names
            .iter()
            .for_each(|name| self.send_provision(name, Vec::new(), now));
    }

    /// Replaces the authorities of other nodes that an instance trusts.
    pub(crate) fn update_foreign(
        &mut self,
        name: &str,
        foreign: Vec<ForeignAuthority>,
        now: TimePoint,
    ) {
        if let Some(instance) = self.instances.get_mut(name) {
            instance.foreign = foreign;
            self.send_provision(name, Vec::new(), now);
        }
    }

    /// Returns the certificate of the authority.
    pub(crate) fn authority(&self) -> Arc<[u8]> {
        self.authority.certificate().as_ref().into()
    }

    /// Returns the configuration with which another instance makes a session with `callee`.
    pub(crate) fn worker_setup(&self, callee: &str, now: TimePoint) -> Option<WorkerSetup> {
        let instance = self.instances.get(callee)?;
        worker_setup(instance, &self.provision(instance, now)).ok()
    }

    /// Sends an instance the entries of sessions that other instances made with it.
    pub(crate) fn deliver_entries(
        &mut self,
        callee: &str,
        entries: Vec<SessionEntry>,
        now: TimePoint,
    ) {
        self.send_provision(callee, entries, now);
    }

    /// Sends an instance its current provision.
    fn send_provision(&mut self, name: &str, entries: Vec<SessionEntry>, now: TimePoint) {
        let Some(instance) = self.instances.get(name) else {
            return;
        };
        let provision = Provision {
            sessions: entries,
            ..self.provision(instance, now)
        };
        if instance.frames.try_send(provision.encode()).is_err() {
            // Its queue is full. A renewal sends everything again, so an early one repairs the
            // loss.
            self.renewals.schedule(
                RenewalTarget::Instance(name.to_owned()),
                self.retry_time(now),
            );
        }
    }

    /// Revokes and forgets instances that have ended.
    pub(crate) fn revoke(&mut self, names: Vec<String>, now: TimePoint) {
        let mut callers = BTreeSet::new();
        for name in names {
            // First, so that an unknown instance leaves no due time behind either.
            self.renewals.remove(&RenewalTarget::Instance(name.clone()));
            let Some(instance) = self.instances.remove(&name) else {
                continue;
            };
            self.gateway.forget(&name);
            if let Some(pending) = &self.pending_gateway {
                pending.gateway.forget(&name);
            }
            let expiry = instance.credentials.not_after;
            self.revocations.add(name.clone(), expiry);
            if self
                .callers
                .values()
                .flatten()
                .any(|caller| *caller == instance.function)
            {
                self.revoked_callers
                    .entry(instance.function.clone())
                    .or_default()
                    .add(name, expiry);
                callers.insert(instance.function);
            }
        }
        self.notify_callees_of(&callers, now);
        // Once for all names: building the set costs time in proportion to its size.
        self.trust = self.trust.with_revoked(self.revocations.prune(now.wall));
        self.publish_gateway();
    }

    /// Sends the revocations to every instance that these functions may call.
    fn notify_callees_of(&mut self, callers: &BTreeSet<FunctionId>, now: TimePoint) {
        let is_callee = |instance: &IssuedInstance| {
            let mut permitted = self.callers.get(&instance.function).into_iter().flatten();
            permitted.any(|caller| callers.contains(caller))
        };
        let names = self.names_where(is_callee);
        names
            .iter()
            .for_each(|name| self.send_provision(name, Vec::new(), now));
    }

    fn names_where(&self, wanted: impl Fn(&IssuedInstance) -> bool) -> Vec<String> {
        self.instances
            .iter()
            .filter(|(_, instance)| wanted(instance))
            .map(|(name, _)| name.clone())
            .collect()
    }

    fn publish_gateway(&mut self) {
        self.gateway.caller = self.gateway.caller.with_trust(self.trust.clone());
        self.caller.send_replace(self.gateway.caller.clone());
    }
}

/// An instance's end of a connection, with a register of its own for this session's entry.
fn worker_setup(instance: &IssuedInstance, provision: &Provision) -> Result<WorkerSetup, BoxError> {
    let register = Arc::new(WorkerSessions::new(None));
    let config = config::worker_config(
        &instance.credentials,
        &provision.worker_trust()?,
        Arc::clone(&register),
        &instance.key,
    )?;
    Ok((Arc::new(config), register))
}

/// Creates a key and its certificate. The key never leaves this process but in the provision of its
/// owner.
fn sign(
    authority: &Authority,
    id: SpiffeId,
    name: String,
    now: TimePoint,
    lifetime: Duration,
) -> Result<Credentials, BoxError> {
    let request = CertificateRequest::new()?;
    let issued = authority.issue(request.csr(), &id, &name, now.wall, lifetime)?;
    Ok(request.into_credentials(id, name, issued))
}

#[cfg(test)]
mod tests;
