//! The security domains of this node: one for each chain, with the doors through which its instances come in.
//!
//! Everything within a domain is the matter of its [`Hub`]; here it is decided which functions share one, which edges it
//! has, and who is told when an instance comes and goes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_domain::hub::{self, Door, Fault, Hub, Settings};
use nearpath_types::policy::{Delivery, Isolation, Pages};
use nearpath_types::{FunctionId, InstanceId, Policy};
use tokio::sync::mpsc;

use crate::books::Books;
use crate::exchanges::Exchanges;
use crate::{edges, pages};

/// The node's domains by name.
pub(crate) struct Domains {
    /// Where the doors are.
    folder: PathBuf,
    hubs: BTreeMap<String, Made>,
    /// What the functions of each domain ask for.
    pages: BTreeMap<String, Pages>,
    /// Those that functions belong to.
    declared: BTreeSet<String>,
    /// In which domain an instance is.
    members: HashMap<InstanceId, String>,
    /// What the domains write down.
    books: Books,
    /// The gateway's threads: each gets a socket for each domain.
    gateways: Vec<mpsc::UnboundedSender<OwnedFd>>,
    exchanges: Exchanges,
    /// Chains of which it has been said that they do not agree with themselves.
    at_odds: BTreeSet<String>,
}

/// A domain, and what its memory was made of.
struct Made {
    hub: Hub,
    asked: Pages,
    huge: bool,
}

/// What all functions of a domain agree on.
#[derive(Default, Clone, Copy)]
struct Ways {
    delivery: Delivery,
    isolation: Isolation,
}

impl Ways {
    fn of(policy: &Policy) -> Self {
        Self { delivery: policy.delivery, isolation: policy.isolation }
    }
}

impl Domains {
    /// None yet. `folder` is emptied: its doors led into an earlier run.
    pub(crate) fn new(folder: PathBuf, books: Books, exchanges: Exchanges) -> Self {
        Self {
            folder,
            hubs: BTreeMap::new(),
            pages: BTreeMap::new(),
            declared: BTreeSet::new(),
            members: HashMap::new(),
            books,
            gateways: Vec::new(),
            exchanges,
            at_odds: BTreeSet::new(),
        }
    }

    /// The edges as they are from now on. Domains without functions end.
    pub(crate) fn declare<'a>(&mut self, functions: impl Iterator<Item = (&'a FunctionId, &'a Policy)>) {
        let (mut there, mut all) = (BTreeSet::new(), Vec::new());
        for (id, policy) in functions {
            there.insert(id);
            all.extend(policy.chain.is_some().then_some((id, policy)));
        }
        self.books.retain(|id| there.contains(id));
        self.at_odds = at_odds(all.iter().copied(), &self.at_odds);
        let ways: HashMap<_, _> =
            all.iter().filter_map(|(id, policy)| Some((policy.domain(id)?, Ways::of(policy)))).collect();
        let paged: Vec<_> = all.iter().filter_map(|(id, policy)| Some((policy.domain(id)?, policy.pages))).collect();
        self.pages = pages::by_domain(paged.iter().map(|(domain, pages)| (domain.as_str(), *pages)));
        let edges = edges::of(all.into_iter());
        self.declared = edges.keys().cloned().collect();
        self.end_unused();
        for (domain, edges) in edges {
            match self.hub(&domain, ways.get(&domain).copied().unwrap_or_default()) {
                Ok(made) => made.hub.declare_with(edges),
                Err(error) => tracing::warn!(domain, %error, "no shared memory for this chain; its calls go over HTTP"),
            }
        }
    }

    /// Ends domains to which no function belongs, and of which no instance is left.
    fn end_unused(&mut self) {
        let used: BTreeSet<&String> = self.members.values().chain(&self.declared).collect();
        self.hubs.retain(|name, _| used.contains(name));
    }

    fn hub(&mut self, domain: &str, ways: Ways) -> io::Result<&Made> {
        let wanted = self.pages.get(domain).copied().unwrap_or_default();
        if !self.hubs.contains_key(domain) {
            let delivery = match ways.delivery {
                Delivery::Ring => hub::Delivery::Ring,
                Delivery::Poll => hub::Delivery::Poll,
                Delivery::Sockmap => hub::Delivery::Sockmap(self.exchanges.open()?),
            };
            let settings = match ways.isolation {
                Isolation::Shared => Settings::named(domain),
                Isolation::Strict => Settings::named(domain).strict(),
            };
            let (ledger, settings) = (self.books.of(domain), Settings { delivery, ..settings });
            let (hub, faults) = Hub::start_with(pages::chosen(settings, wanted), &ledger)?;
            let huge = pages::are_huge(domain, wanted, &ledger);
            tokio::spawn(complain(domain.to_owned(), faults));
            self.gateways.retain(|gateway| hub.gateway_socket().is_ok_and(|socket| gateway.send(socket).is_ok()));
            self.hubs.insert(domain.to_owned(), Made { hub, asked: wanted, huge });
        }
        let made = self.hubs.get_mut(domain).ok_or(io::ErrorKind::NotFound)?;
        if made.asked != wanted {
            made.asked = wanted; // told once
            tracing::warn!(domain, pages = ?wanted, "the chain's memory stays as it is until all its functions have been removed");
        }
        Ok(made)
    }

    /// Makes the door for an instance that is about to start; `None`: its function belongs to no chain.
    ///
    /// # Errors
    /// When there can be no door; the instance can do without.
    pub(crate) fn admit(
        &mut self,
        instance: InstanceId,
        function: &FunctionId,
        policy: &Policy,
    ) -> io::Result<Option<PathBuf>> {
        let Some(domain) = policy.domain(function) else { return Ok(None) };
        if self.hub(&domain, Ways::of(policy))?.huge && policy.pages == Pages::Small {
            let why = "the chain's memory has huge pages, to which it did not agree (nearpath.io/pages)";
            tracing::warn!(%function, domain, "it is called over HTTP: {why}");
            return Ok(None);
        }
        let path = self.folder.join(instance.to_string());
        let door = door(&self.folder, &path)?;
        self.hub(&domain, Ways::of(policy))?.hub.admit(instance, function.clone(), door);
        self.members.insert(instance, domain);
        Ok(Some(path))
    }

    /// An instance gets no new calls through memory. The future ends when those that are open have ended.
    pub(crate) fn withdraw(&self, instance: InstanceId) -> BoxFuture<'static, ()> {
        let hub = self.members.get(&instance).and_then(|domain| self.hubs.get(domain)).map(|made| made.hub.clone());
        async move {
            if let Some(hub) = hub {
                hub.withdraw(instance).await;
            }
        }
        .boxed()
    }

    /// Nothing is left of an instance.
    pub(crate) fn gone(&mut self, instance: InstanceId) {
        let Some(domain) = self.members.remove(&instance) else { return };
        let _ = fs::remove_file(self.folder.join(instance.to_string())); // the next start empties the folder
        if let Some(Made { hub, .. }) = self.hubs.get(&domain) {
            hub.gone(instance);
        }
        self.end_unused();
    }

    /// Lets a thread of the gateway in: a socket for every domain, those to come as well.
    pub(crate) fn let_gateway_in(&mut self, gateway: mpsc::UnboundedSender<OwnedFd>) {
        for Made { hub, .. } in self.hubs.values() {
            let _ = hub.gateway_socket().map(|socket| gateway.send(socket)); // it may have left
        }
        self.gateways.push(gateway);
    }
}

/// Chains whose functions do not agree on delivery and isolation, with a word about those that are new. A stack is deployed one function
/// after another, so this is no reason to refuse one: it passes when the last has come.
fn at_odds<'a>(
    functions: impl Iterator<Item = (&'a FunctionId, &'a Policy)>,
    known: &BTreeSet<String>,
) -> BTreeSet<String> {
    let mut chains: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (id, policy) in functions {
        let chain = format!("{}.{}", policy.chain.as_deref().unwrap_or_default(), id.namespace);
        let ways = chains.entry(chain).or_default();
        ways.entry(format!("{}, {}", policy.delivery, policy.isolation)).or_default().push(id.name.to_string());
    }
    chains.retain(|_, ways| ways.len() > 1);
    for (chain, ways) in chains.iter().filter(|(chain, _)| !known.contains(*chain)) {
        let who = ways.iter().map(|(way, names)| format!("{way}: {}", names.join(", "))).collect::<Vec<_>>().join("; ");
        tracing::warn!(
            chain,
            "functions do not agree on nearpath.io/delivery and nearpath.io/isolation ({who}): between them calls go over HTTP"
        );
    }
    chains.into_keys().collect()
}

/// A door at `path` that every user may knock at: who can see the path is the instance.
fn door(folder: &Path, path: &Path) -> io::Result<Door> {
    fs::create_dir_all(folder)?;
    let door = Door::at(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(door)
}

/// A party that breaks the protocol has been disconnected; its calls go over HTTP from then on.
async fn complain(domain: String, mut faults: mpsc::UnboundedReceiver<Fault>) {
    while let Some(Fault { instance, what }) = faults.recv().await {
        tracing::warn!(domain, instance = instance.map(tracing::field::display), "shared memory: {what}");
    }
}

#[cfg(test)]
mod tests {
    use nearpath_daemon::metrics::Registry;

    use super::*;

    #[tokio::test]
    async fn a_domain_ends_with_its_last_instance_when_no_function_belongs_to_it() {
        let (folder, books) = (tempfile::tempdir().unwrap(), Books::default());
        let exchanges = Exchanges::new(&Registry::default());
        let mut domains = Domains::new(folder.path().to_owned(), books.clone(), exchanges);
        let id: FunctionId = "cart".parse().unwrap();
        let policy = Policy { chain: Some("shop".into()), ..Policy::default() };
        domains.declare([(&id, &policy)].into_iter());
        domains.admit(InstanceId(1), &id, &policy).unwrap();
        domains.declare([].into_iter());
        assert_eq!(books.memory().len(), 1, "its instance may still answer");
        domains.gone(InstanceId(1));
        nearpath_testkit::eventually("its memory is let go of", async || books.memory().is_empty()).await;
    }

    #[test]
    fn chains_that_do_not_agree_are_told_once_and_forgotten_when_they_do() {
        let policy = |delivery| Policy { chain: Some("shop".into()), delivery, ..Policy::default() };
        let (ring, sockmap) = (policy(Delivery::Ring), policy(Delivery::Sockmap));
        let [a, b]: [FunctionId; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let other: FunctionId = "a.other".parse().unwrap();
        let none = BTreeSet::new();
        let agree = [(&a, &ring), (&b, &ring), (&other, &sockmap)];
        assert_eq!(at_odds(agree.into_iter(), &none), none, "a chain is a matter of its namespace");
        let half = at_odds([(&a, &ring), (&b, &sockmap)].into_iter(), &none);
        assert_eq!(half, BTreeSet::from(["shop.openfaas-fn".to_owned()]));
        assert_eq!(at_odds([(&a, &sockmap), (&b, &sockmap)].into_iter(), &half), none);
        let strict = Policy { isolation: Isolation::Strict, ..ring.clone() };
        assert_eq!(at_odds([(&a, &ring), (&b, &strict)].into_iter(), &none), half);
    }
}
