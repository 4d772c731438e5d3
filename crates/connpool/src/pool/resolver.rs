//! Addresses of destinations' names, as the node's machine resolves them, cached for a short time.
//!
//! The operator of a declared name's DNS must not gain access to what only this machine can reach.
//! So answers that mean the machine itself, its link or the node's own network are dropped. Only
//! the machine's hosts file may say so, and the name [`THIS_MACHINE`] always does.
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

/// Name of the node's machine, for functions that use services on its loopback.
pub const THIS_MACHINE: &str = "host.nearpath.internal";

/// Maximum age of an answer. `getaddrinfo` does not report the TTL, so a short one is assumed.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(5);
/// Maximum age of an answer that is used while no newer one can be had.
const MAX_STALE_AGE: Duration = Duration::from_secs(300);
/// Maximum number of cached names.
const MAX_CACHED_NAMES: usize = 4_096;
/// Names that the machine's operator has set.
const HOSTS_FILE: &str = "/etc/hosts";

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
    addresses: RefCell<Vec<IpAddr>>,
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
            return Ok(self.addresses.borrow().clone());
        }
        // The time before the query: the answer may be that old.
        let now = Instant::now();
        match query_system(name).await {
            Ok(addresses) => {
                self.answered_at.set(Some(now));
                self.addresses.replace(addresses.clone());
                Ok(addresses)
            }
            // A name server that is down must not stop connections to addresses that still work.
            Err(_) if self.has_answer(|answered_at| answered_at.elapsed() < MAX_STALE_AGE) => {
                Ok(self.addresses.borrow().clone())
            }
            Err(error) => Err(error),
        }
    }

    fn has_answer(&self, is_good_enough: impl Fn(Instant) -> bool) -> bool {
        self.answered_at.get().is_some_and(is_good_enough)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        // Without any answer the binding cannot be checked and counts as current.
        self.answered_at.get().is_none() || self.addresses.borrow().contains(&address)
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

async fn query_system(name: &str) -> io::Result<Vec<IpAddr>> {
    // The port is required by the interface and not used.
    let found = tokio::net::lookup_host((name, 0)).await;
    let found: Vec<_> = found
        .map_err(|error| lookup_error(name, &error))?
        .map(|address| address.ip())
        .collect();
    let allowed: Vec<_> = found
        .iter()
        .copied()
        .filter(|address| is_allowed_answer(*address))
        .collect();
    match (allowed.is_empty(), found.first()) {
        (false, _) => Ok(allowed),
        // The operator's hosts file is trusted; a name server is not.
        (true, Some(_))
            if read_hosts_file()
                .await
                .is_some_and(|text| hosts_file_has(&text, name)) =>
        {
            Ok(found)
        }
        (true, Some(inside)) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{name} resolves to {inside}, an address of this machine or its node: declare {THIS_MACHINE}, or add the name to the machine's {HOSTS_FILE}"
            ),
        )),
        (true, None) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{name} has no address"),
        )),
    }
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

/// Returns true for addresses that a name server may return.
fn is_allowed_answer(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            // 169.254.0.0/16 has the metadata services of clouds; multicast and reserved networks
            // start at 224.
            let inside = v4.is_loopback() || v4.is_link_local() || a == 0 || a >= 224;
            // 10.61.0.0/16 and 10.62.0.0/16 are the node's own networks.
            !inside && ![[10, 61], [10, 62]].contains(&[a, b])
        }
        // A mapped address reaches the IPv4 one, so the same rules apply.
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_allowed_answer(v4.into()),
            None => {
                !(v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_unicast_link_local()
                    || v6.is_multicast())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_mean_this_machine_are_not_allowed() {
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "10.62.0.1",
            "10.61.0.9",
        ] {
            assert!(!is_allowed_answer(inside.parse().unwrap()), "{inside}");
        }
        for inside in [
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            assert!(!is_allowed_answer(inside.parse().unwrap()), "{inside}");
        }
        for outside in [
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "2001:db8::1",
            "fd00::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_allowed_answer(outside.parse().unwrap()), "{outside}");
        }
    }

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
        binding.cached.addresses.replace(vec![new, old]);
        assert!(binding.is_current());
        binding.cached.addresses.replace(vec![new]);
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
