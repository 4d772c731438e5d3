//! The security domains of this node, one per chain, with the sockets through which instances join.
//!
//! A [`DomainHandle`] runs each domain. This module decides which functions share one and which
//! edges it has, and reports instances that come and go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_domain::node_side::{
    self, DomainHandle, DomainSettings, EndpointSocket, InstanceFault,
};
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::policy::{ChainDelivery, ChainIsolation, ChainPages};
use nearpath_types::{FunctionId, FunctionPolicy, InstanceId};
use tokio::sync::mpsc;

use crate::chains::{ChainIndex, PolicyChanges};
use crate::domain_stats::DomainStats;
use crate::edges::{self, ChainEdges};
use crate::pages;
use crate::remote_subscribers::RemoteSubscribers;
use crate::sockmap_routers::SockmapRouters;

/// The node's domains by name.
pub(crate) struct DomainRegistry {
    /// Folder of the instances' sockets.
    folder: PathBuf,
    entries: BTreeMap<String, DomainEntry>,
    /// Functions that share domains.
    chains: ChainIndex,
    /// Functions of other nodes to which the gateway sends events of those domains.
    remote_subscribers: RemoteSubscribers,
    /// Functions that ended lately: what still reports on them is forgotten with the next change.
    removed: BTreeSet<FunctionId>,
    /// Domain of each instance.
    members: HashMap<InstanceId, String>,
    /// Sockets of instances whose watchdog does not run yet.
    starting: HashMap<InstanceId, (FunctionId, EndpointSocket)>,
    /// Counters of all domains.
    stats: DomainStats,
    /// Gateway threads; each gets a socket for every domain.
    gateway_threads: Vec<mpsc::UnboundedSender<OwnedFd>>,
    routers: SockmapRouters,
    /// Chains whose inconsistency was already logged.
    inconsistent: BTreeSet<String>,
}

/// A domain and its memory settings.
struct DomainEntry {
    hub: DomainHandle,
    asked_pages: ChainPages,
    has_huge_pages: bool,
}

/// Settings that all functions of a domain share.
#[derive(Default, Clone, Copy)]
struct DomainModes {
    delivery: ChainDelivery,
    isolation: ChainIsolation,
}

impl DomainModes {
    fn of(policy: &FunctionPolicy) -> Self {
        Self {
            delivery: policy.delivery,
            isolation: policy.isolation,
        }
    }
}

impl DomainRegistry {
    /// Creates an empty registry. The caller empties `folder`, whose sockets belong to an earlier
    /// run.
    pub(crate) fn new(folder: PathBuf, stats: DomainStats, routers: SockmapRouters) -> Self {
        Self {
            folder,
            entries: BTreeMap::new(),
            chains: ChainIndex::default(),
            remote_subscribers: RemoteSubscribers::default(),
            removed: BTreeSet::new(),
            members: HashMap::new(),
            starting: HashMap::new(),
            stats,
            gateway_threads: Vec::new(),
            routers,
            inconsistent: BTreeSet::new(),
        }
    }

    /// Returns the functions that share domains.
    pub(crate) fn chains(&self) -> &ChainIndex {
        &self.chains
    }

    /// Applies new policies and their edges. Domains without functions end.
    pub(crate) fn apply_changes(&mut self, changes: &PolicyChanges) {
        self.forget_removed(changes);
        let touched = self.chains.apply_changes(changes);
        for chain in &touched.chains {
            self.check_consistency(chain);
        }
        // Before new ones start, so that their memory is free again.
        for domain in &touched.domains {
            self.end_if_unused(domain);
        }
        for domain in touched.domains {
            self.declare_edges(&domain);
        }
    }

    /// Applies new policies of functions that run only on other nodes.
    pub(crate) fn apply_remote_changes(&mut self, changes: &PolicyChanges) {
        for domain in self.remote_subscribers.apply_changes(changes) {
            self.declare_edges(&domain);
        }
    }

    fn domain_edges(&self, domain: &str) -> ChainEdges {
        let remote = self.remote_subscribers.in_domain(domain);
        edges::domain_edges(self.chains.in_domain(domain), &remote)
    }

    fn declare_edges(&mut self, domain: &str) {
        let Some((_, policy)) = self.chains.in_domain(domain).next() else {
            return;
        };
        let modes = DomainModes::of(policy);
        let edges = self.domain_edges(domain);
        match self.entry(domain, modes) {
            Ok(entry) => entry.hub.declare_edges_with(edges),
            Err(error) => {
                tracing::warn!(domain, %error, "shared memory is unavailable for this chain; its calls go over HTTP")
            }
        }
    }

    /// Forgets the calls of functions that are gone.
    fn forget_removed(&mut self, changes: &PolicyChanges) {
        let is_removed = |id: &&FunctionId| changes.get(*id).is_some_and(Option::is_none);
        let removed: BTreeSet<_> = changes.keys().filter(is_removed).cloned().collect();
        // The last ones too: a domain closes the channels of an instance after the instance is gone.
        let mut forgotten = mem::replace(&mut self.removed, removed.clone());
        forgotten.retain(|id| !changes.contains_key(id));
        forgotten.extend(removed);
        if !forgotten.is_empty() {
            self.stats.retain_functions(|id| !forgotten.contains(id));
        }
    }

    fn check_consistency(&mut self, chain: &str) {
        let disagreement = disagreement_in(self.chains.in_chain(chain));
        let is_new = match &disagreement {
            Some(_) => self.inconsistent.insert(chain.to_owned()),
            None => !self.inconsistent.remove(chain),
        };
        if let Some(disagreement) = disagreement.filter(|_| is_new) {
            tracing::warn!(
                chain,
                "functions disagree on nearpath.io/delivery or nearpath.io/isolation ({disagreement}): calls between them go over HTTP"
            );
        }
    }

    /// Ends a domain without functions and instances.
    fn end_if_unused(&mut self, domain: &str) {
        let is_used =
            self.chains.has_domain(domain) || self.members.values().any(|used| used == domain);
        if !is_used {
            self.entries.remove(domain);
        }
    }

    fn entry(&mut self, domain: &str, modes: DomainModes) -> io::Result<&DomainEntry> {
        let functions = self.chains.in_domain(domain);
        let wanted = pages::least_pages(functions.map(|(_, policy)| policy.pages));
        if !self.entries.contains_key(domain) {
            let delivery = match modes.delivery {
                ChainDelivery::Ring => node_side::DescriptorDelivery::Ring,
                ChainDelivery::Poll => node_side::DescriptorDelivery::Poll,
                ChainDelivery::Sockmap => {
                    node_side::DescriptorDelivery::Sockmap(self.routers.open_router()?)
                }
            };
            let settings = match modes.isolation {
                ChainIsolation::Shared => DomainSettings::named(domain),
                ChainIsolation::Strict => DomainSettings::named(domain).into_strict(),
            };
            let (ledger, settings) = (
                self.stats.stats_of(domain),
                DomainSettings {
                    delivery,
                    ..settings
                },
            );
            let (hub, faults) =
                DomainHandle::start_with(pages::with_pages(settings, wanted), &ledger)?;
            let huge = pages::has_huge_pages(domain, wanted, &ledger);
            // Also for a domain that could not start when its functions were deployed.
            hub.declare_edges_with(self.domain_edges(domain));
            // The hub does not wait for a reader of its faults.
            tokio::spawn(log_faults(domain.to_owned(), faults));
            // A closed channel shows a thread that has ended.
            // Each thread joins as an endpoint of its own, so that threads share no locks.
            self.gateway_threads.retain(|gateway| {
                hub.gateway_socket()
                    .is_ok_and(|socket| gateway.send(socket).is_ok())
            });
            self.entries.insert(
                domain.to_owned(),
                DomainEntry {
                    hub,
                    asked_pages: wanted,
                    has_huge_pages: huge,
                },
            );
        }
        let entry = self
            .entries
            .get_mut(domain)
            .ok_or(io::ErrorKind::NotFound)?;
        if entry.asked_pages != wanted {
            entry.asked_pages = wanted; // log it only once
            tracing::warn!(domain, pages = ?wanted, "page size of the chain's memory changes only after all its functions were removed");
        }
        Ok(entry)
    }

    /// Opens the socket for an instance that is about to start as the user `uid`; `None` for a function without a
    /// chain.
    ///
    /// # Errors
    /// Fails when the socket cannot be created; the instance works without it.
    pub(crate) fn admit_instance(
        &mut self,
        (instance, uid): (InstanceId, u32),
        function: &FunctionId,
        policy: &FunctionPolicy,
    ) -> io::Result<Option<PathBuf>> {
        let Some(domain) = policy.domain(function) else {
            return Ok(None);
        };
        // Checked before the socket exists: an instance that cannot join must not see one.
        if self.entry(&domain, DomainModes::of(policy))?.has_huge_pages
            && policy.pages == ChainPages::Small
        {
            let why = "the chain's memory has huge pages, but this function requires small ones (nearpath.io/pages)";
            tracing::warn!(%function, domain, "function is called over HTTP: {why}");
            return Ok(None);
        }
        // Ids are never reused, so neither is a path.
        let path = self.folder.join(instance.to_string());
        fs::create_dir_all(&self.folder)?;
        let listener = EndpointSocket::listen_for_user(&path, uid)?;
        self.starting.insert(instance, (function.clone(), listener));
        self.members.insert(instance, domain);
        Ok(Some(path))
    }

    /// Accepts the endpoints of an instance whose watchdog has started as the process `pid`.
    /// Earlier ones wait in the socket's backlog: the domain must tell the watchdog, which may
    /// respond for the platform, from the tenant's own endpoints.
    pub(crate) fn accept_endpoints(&mut self, instance: InstanceId, pid: u32) {
        let entry = self
            .members
            .get(&instance)
            .and_then(|domain| self.entries.get(domain));
        let Some((entry, (function, listener))) = entry.zip(self.starting.remove(&instance)) else {
            return;
        };
        entry
            .hub
            .admit_with_watchdog(instance, function, pid, listener);
    }

    /// Stops new calls to an instance through memory. The future ends when its open calls have
    /// ended.
    pub(crate) fn withdraw_instance(&self, instance: InstanceId) -> BoxFuture<'static, ()> {
        let hub = self
            .members
            .get(&instance)
            .and_then(|domain| self.entries.get(domain))
            .map(|entry| entry.hub.clone());
        async move {
            if let Some(hub) = hub {
                hub.withdraw_instance(instance).await;
            }
        }
        .boxed()
    }

    /// Lets calls to a withdrawn instance through memory go on.
    pub(crate) fn readmit_instance(&self, instance: InstanceId) {
        let domain = self.members.get(&instance);
        if let Some(entry) = domain.and_then(|domain| self.entries.get(domain)) {
            entry.hub.readmit_instance(instance);
        }
    }

    /// Removes an instance that is gone.
    pub(crate) fn remove_instance(&mut self, instance: InstanceId) {
        self.starting.remove(&instance);
        let Some(domain) = self.members.remove(&instance) else {
            return;
        };
        // The next start empties the folder.
        let _ = fs::remove_file(self.folder.join(instance.to_string()));
        if let Some(DomainEntry { hub, .. }) = self.entries.get(&domain) {
            hub.remove_instance(instance);
        }
        self.end_if_unused(&domain);
    }

    /// Adds a gateway thread, which gets a socket for every present and future domain.
    pub(crate) fn add_gateway_thread(&mut self, gateway: mpsc::UnboundedSender<OwnedFd>) {
        for DomainEntry { hub, .. } in self.entries.values() {
            // The thread may have ended.
            let _ = hub.gateway_socket().map(|socket| gateway.send(socket));
        }
        self.gateway_threads.push(gateway);
    }
}

/// Describes how the functions of a chain disagree on delivery or isolation.
///
/// A stack is deployed function by function, so this state is normal until the last one has
/// arrived.
fn disagreement_in<'a>(
    functions: impl Iterator<Item = (&'a FunctionId, &'a FunctionPolicy)>,
) -> Option<String> {
    let mut modes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, policy) in functions {
        let mode = format!("{}, {}", policy.delivery, policy.isolation);
        modes.entry(mode).or_default().push(id.name.to_string());
    }
    let texts = modes
        .iter()
        .map(|(mode, names)| format!("{mode}: {}", names.join(", ")));
    (modes.len() > 1).then(|| texts.collect::<Vec<_>>().join("; "))
}

/// Logs endpoints that broke the protocol, a line a minute for each instance. They were
/// disconnected; their calls go over HTTP.
async fn log_faults(domain: String, mut faults: mpsc::UnboundedReceiver<InstanceFault>) {
    // A tenant can connect and break the protocol as often as it likes.
    let mut limiter = LogLimiter::default();
    while let Some(InstanceFault {
        instance,
        reason: fault,
    }) = faults.recv().await
    {
        let Some(suppressed) = limiter.take_due(instance, Instant::now()) else {
            continue;
        };
        tracing::warn!(
            domain,
            suppressed,
            instance = instance.map(tracing::field::display),
            "endpoint was disconnected from shared memory: {fault}"
        );
    }
}

#[cfg(test)]
mod tests {
    use nearpath_daemon::metrics::MetricsRegistry;

    use super::*;
    use std::sync::Arc;

    fn deployed(id: &FunctionId, policy: &FunctionPolicy) -> PolicyChanges {
        PolicyChanges::from([(id.clone(), Some(Arc::new(policy.clone())))])
    }

    #[tokio::test]
    async fn an_unused_domain_ends_with_its_last_instance() {
        let (folder, stats) = (tempfile::tempdir().unwrap(), DomainStats::default());
        let routers = SockmapRouters::new(&MetricsRegistry::default());
        let mut domains = DomainRegistry::new(folder.path().to_owned(), stats.clone(), routers);
        let id: FunctionId = "cart".parse().unwrap();
        let policy = FunctionPolicy {
            chain: Some("shop".into()),
            ..FunctionPolicy::default()
        };
        domains.apply_changes(&deployed(&id, &policy));
        domains
            .admit_instance((InstanceId(1), 1), &id, &policy)
            .unwrap();
        domains.apply_changes(&PolicyChanges::from([(id, None)]));
        assert_eq!(
            stats.memory_status().len(),
            1,
            "an instance may still respond"
        );
        domains.remove_instance(InstanceId(1));
        nearpath_testkit::eventually("the domain's memory is released", async || {
            stats.memory_status().is_empty()
        })
        .await;
    }

    /// Connects, breaks the protocol, and waits for the end of the connection.
    fn break_protocol(path: &std::path::Path) {
        use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::send(&socket, b"no hello", SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; 64];
        let ended = rustix::net::recv(&socket, &mut answer, RecvFlags::empty());
        assert!(matches!(ended, Ok((_, 0)) | Err(_)), "{ended:?}");
    }

    #[tokio::test]
    async fn a_tenant_that_floods_its_dispatch_socket_gets_one_log_line() {
        let (folder, stats) = (tempfile::tempdir().unwrap(), DomainStats::default());
        let routers = SockmapRouters::new(&MetricsRegistry::default());
        let mut domains = DomainRegistry::new(folder.path().to_owned(), stats, routers);
        let id: FunctionId = "cart".parse().unwrap();
        let policy = FunctionPolicy {
            chain: Some("shop".into()),
            ..FunctionPolicy::default()
        };
        domains.apply_changes(&deployed(&id, &policy));
        let uid = rustix::process::geteuid().as_raw();
        let socket = domains.admit_instance((InstanceId(1), uid), &id, &policy);
        let path = socket.unwrap().unwrap();
        domains.accept_endpoints(InstanceId(1), std::process::id());
        let warnings = nearpath_testkit::CapturedWarnings::start();
        let flood =
            tokio::task::spawn_blocking(move || (0..50).for_each(|_| break_protocol(&path)));
        nearpath_testkit::within(flood).await.unwrap();
        nearpath_testkit::eventually("the first line", async || !warnings.lines().is_empty()).await;
        let lines = warnings.lines();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("endpoint was disconnected"), "{lines:?}");
    }

    #[test]
    fn functions_of_a_chain_disagree_until_the_last_one_has_arrived() {
        let policy = |delivery| FunctionPolicy {
            chain: Some("shop".into()),
            delivery,
            ..FunctionPolicy::default()
        };
        let (ring, sockmap) = (policy(ChainDelivery::Ring), policy(ChainDelivery::Sockmap));
        let [a, b]: [FunctionId; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let between = |all: [(&FunctionId, &FunctionPolicy); 2]| {
            disagreement_in(all.map(|(id, policy)| (id, policy)).into_iter())
        };
        assert_eq!(between([(&a, &ring), (&b, &ring)]), None);
        let half = between([(&a, &ring), (&b, &sockmap)]).unwrap();
        assert!(
            half.contains("ring, shared: a; sockmap, shared: b"),
            "{half}"
        );
        let strict = FunctionPolicy {
            isolation: ChainIsolation::Strict,
            ..ring.clone()
        };
        assert!(between([(&a, &ring), (&b, &strict)]).is_some());
    }
}
