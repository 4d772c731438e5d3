//! Addresses of destinations' names, as the node's machine resolves them, cached for a short time.
//!
//! The operator of a declared name's DNS must not gain access to what only this machine can reach.
//! So answers that mean the machine itself, its link or the node's own network are dropped
//! (`answer_policy`). Only the machine's hosts file may say so, and the name [`THIS_MACHINE`] always
//! does. Cached answers are checked at each use, because the machine's addresses change.
//!
//! A name moves when another server takes over. A failed connect resolves it again at once. A
//! connection to an address that the name has lost is not handed out (`NameBinding`).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::answer_policy::{AnswerOrigin, permitted_addresses};

/// Name of the node's machine, for functions that use services on its loopback.
pub const THIS_MACHINE: &str = "host.nearpath.internal";

/// Maximum age of an answer. `getaddrinfo` does not report the TTL, so a short one is assumed.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(5);
/// Maximum age of an answer that is used while no newer one can be had.
const MAX_STALE_AGE: Duration = Duration::from_secs(300);
/// Maximum number of cached names.
const MAX_CACHED_NAMES: usize = 4_096;
/// Names that the machine's operator has set.
pub(super) const HOSTS_FILE: &str = "/etc/hosts";

/// Names that were resolved recently.
#[derive(Debug, Default)]
pub struct NameResolver(RefCell<HashMap<String, Rc<CachedName>>>);

/// Cached answer of one name.
#[derive(Debug, Default)]
pub(super) struct CachedName {
    /// Serializes queries: concurrent callers wait for one answer.
    query_lock: Mutex<()>,
    answered_at: Cell<Option<Instant>>,
    /// The last answer.
    answer: RefCell<NameAnswer>,
}

/// Addresses of a name, as the machine resolved it.
#[derive(Debug, Default, Clone)]
struct NameAnswer {
    addresses: Vec<IpAddr>,
    origin: AnswerOrigin,
}

/// Name and address that a connection was opened for.
#[derive(Debug)]
pub(super) struct NameBinding {
    name: String,
    cached: Rc<CachedName>,
    address: IpAddr,
}

impl NameBinding {
    /// Returns true if the name still resolves to the address, as far as is known. An old answer is
    /// refreshed in the background for the next caller.
    pub(super) fn is_current(&self) -> bool {
        // Not while a query runs, which refreshes the answer anyway.
        if !self.cached.has_answer(is_fresh) && self.cached.query_lock.try_lock().is_ok() {
            let (name, cached) = (self.name.clone(), Rc::clone(&self.cached));
            spawn_local(async move { cached.resolve(&name, is_fresh).await.map(drop) });
        }
        self.cached.has_address(self.address)
    }
}

impl CachedName {
    /// Resolves the name. `is_good_enough` decides by its time whether the cached answer will do.
    async fn resolve(
        &self,
        name: &str,
        is_good_enough: impl Fn(Instant) -> bool,
    ) -> io::Result<Vec<IpAddr>> {
        // Held over the query, so that waiting callers find its answer.
        let _query = self.query_lock.lock().await;
        if self.has_answer(is_good_enough) {
            return self.permitted_answer(name);
        }
        // The time before the query: the answer may be that old.
        let now = Instant::now();
        match query_system(name).await {
            Ok(answer) => {
                self.answered_at.set(Some(now));
                self.answer.replace(answer);
                self.permitted_answer(name)
            }
            // A name server that is down must not stop connections to addresses that still work.
            Err(_) if self.has_answer(|answered_at| answered_at.elapsed() < MAX_STALE_AGE) => {
                self.permitted_answer(name)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the addresses of the last answer that may be connected to now.
    fn permitted_answer(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let NameAnswer { addresses, origin } = &*self.answer.borrow();
        permitted_addresses(name, addresses, *origin)
    }

    fn has_answer(&self, is_good_enough: impl Fn(Instant) -> bool) -> bool {
        self.answered_at.get().is_some_and(is_good_enough)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        // Without any answer the binding cannot be checked and counts as current.
        self.answered_at.get().is_none() || self.answer.borrow().addresses.contains(&address)
    }
}

impl NameResolver {
    /// Returns the addresses of a name in the order of the system's resolver.
    pub async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.resolve_since(name, is_fresh).await
    }

    /// Resolves a name again after `started`, when all addresses in `before` failed; `None` if the
    /// answer is the same.
    pub(super) async fn resolve_moved(
        &self,
        name: &str,
        before: &[IpAddr],
        started: Instant,
    ) -> Option<Vec<IpAddr>> {
        let now = self
            .resolve_since(name, |answered_at| answered_at >= started)
            .await
            .ok()?;
        (now != before).then_some(now)
    }

    /// Binds a connection to a name and to the address that it goes to.
    pub(super) fn bind_name(&self, name: &str, address: IpAddr) -> Option<NameBinding> {
        let binding = || NameBinding {
            name: name.to_owned(),
            cached: self.cached_name(name),
            // The peer of an `AF_INET6` socket may be a mapped address.
            address: address.to_canonical(),
        };
        // This name never moves.
        (name != THIS_MACHINE).then(binding)
    }

    async fn resolve_since(
        &self,
        name: &str,
        is_good_enough: impl Fn(Instant) -> bool,
    ) -> io::Result<Vec<IpAddr>> {
        // Destinations are dialled from the machine's own namespace, so loopback is the machine.
        if name == THIS_MACHINE {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        self.cached_name(name).resolve(name, is_good_enough).await
    }

    fn cached_name(&self, name: &str) -> Rc<CachedName> {
        let mut all = self.0.borrow_mut();
        if all.len() >= MAX_CACHED_NAMES {
            // Entries of open connections stay, because their bindings share them.
            all.retain(|_, cached| Rc::strong_count(cached) > 1);
        }
        Rc::clone(all.entry(name.to_owned()).or_default())
    }
}

fn is_fresh(answered_at: Instant) -> bool {
    answered_at.elapsed() < MAX_ANSWER_AGE
}

async fn query_system(name: &str) -> io::Result<NameAnswer> {
    // The port is required by the interface and not used.
    let found = tokio::net::lookup_host((name, 0)).await;
    let addresses: Vec<_> = found
        .map_err(|error| lookup_error(name, &error))?
        .map(|address| address.ip())
        .collect();
    if addresses.is_empty() {
        let why = format!("{name} has no address");
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let origin = match read_hosts_file().await {
        Some(text) if hosts_file_has(&text, name) => AnswerOrigin::HostsFile,
        _ => AnswerOrigin::NameServer,
    };
    Ok(NameAnswer { addresses, origin })
}

fn lookup_error(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot resolve {name}: {error}"))
}

async fn read_hosts_file() -> Option<String> {
    tokio::fs::read_to_string(HOSTS_FILE).await.ok()
}

/// Returns true if a hosts file (hosts(5)) has this name.
fn hosts_file_has(text: &str, name: &str) -> bool {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines
        .flat_map(|line| line.split_whitespace().skip(1))
        .any(|word| word.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_kernel::devices::NetworkDevices;
    use nearpath_kernel::namespace::create_netns;

    /// Index of the loopback device, the first one of every network namespace.
    const LOOPBACK: u32 = 1;

    #[test]
    fn a_file_of_names_is_read_as_the_system_reads_it() {
        let text = "127.0.0.1 localhost\n10.0.0.5\tdb.shop  Db # old.shop\n# 10.0.0.6 gone\n";
        assert!(
            hosts_file_has(text, "db.shop")
                && hosts_file_has(text, "DB")
                && hosts_file_has(text, "localhost")
        );
        for none in ["old.shop", "gone", "10.0.0.5", "shop", ""] {
            assert!(!hosts_file_has(text, none), "{none}");
        }
    }

    #[tokio::test]
    async fn a_binding_is_current_while_its_name_means_its_address() {
        let resolver = NameResolver::default();
        let (old, new) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let binding = resolver
            .bind_name("db.shop.invalid", "::ffff:10.0.0.1".parse().unwrap())
            .unwrap();
        let started = Instant::now();
        binding.cached.answered_at.set(Some(started));
        let answer = |addresses| binding.cached.answer.borrow_mut().addresses = addresses;
        answer(vec![new, old]);
        assert!(binding.is_current());
        answer(vec![new]);
        assert!(!binding.is_current());
        assert_eq!(
            resolver
                .resolve_moved("db.shop.invalid", &[old], started)
                .await,
            Some(vec![new])
        );
        assert_eq!(
            resolver
                .resolve_moved("db.shop.invalid", &[new], started)
                .await,
            None
        );
        assert!(
            resolver
                .bind_name(THIS_MACHINE, Ipv4Addr::LOCALHOST.into())
                .is_none()
        );
    }

    #[test]
    fn a_cached_address_is_dropped_once_the_machine_has_it() {
        nearpath_testkit::need_root!();
        let lan: IpAddr = [192, 0, 2, 7].into();
        let checked = create_netns(|| {
            let cached = CachedName::default();
            cached.answered_at.set(Some(Instant::now()));
            cached.answer.borrow_mut().addresses = vec![lan];
            assert_eq!(cached.permitted_answer("lan.example")?, [lan]);
            NetworkDevices::open()?.add_address(LOOPBACK, (lan, 24))?;
            let error = cached.permitted_answer("lan.example").unwrap_err();
            assert!(error.to_string().contains("192.0.2.7"), "{error}");
            cached.answer.borrow_mut().origin = AnswerOrigin::HostsFile;
            assert_eq!(cached.permitted_answer("lan.example")?, [lan]);
            Ok(())
        });
        checked.unwrap();
    }

    #[tokio::test]
    async fn this_machine_has_a_name_and_others_cannot_take_it() {
        let resolver = NameResolver::default();
        assert!(
            resolver
                .resolve(THIS_MACHINE)
                .await
                .unwrap()
                .contains(&Ipv4Addr::LOCALHOST.into())
        );
        let error = resolver.resolve("no-such-name.invalid").await.unwrap_err();
        assert!(
            error.to_string().contains("no-such-name.invalid"),
            "{error}"
        );
    }
}
