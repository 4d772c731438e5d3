//! What the names of destinations mean: as the node's machine sees it, remembered for a short time.
//!
//! Whoever runs the name server of a declared name must not thereby reach what only this machine reaches: an answer that means the machine itself, its
//! link or the node's own network is passed over. The machine's own file of names may say so, and one name always does: [`THIS_MACHINE`].
//!
//! A name moves when another server takes over. Who finds nobody at an address asks again at once, and what is kept open to an address that its name no
//! longer means ([`NameBinding`]) is not handed out.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::spawn_local;

/// The node's machine, for a function that is to reach what listens on its loopback.
pub const THIS_MACHINE: &str = "host.nearpath.internal";

/// How long an answer is good: the system's resolver does not tell how long it may be.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(5);
/// How long one is used when no newer one can be had.
const MAX_STALE_AGE: Duration = Duration::from_secs(300);
/// Names that are remembered.
const MAX_CACHED_NAMES: usize = 4_096;
/// Names that this machine's operator has given.
const HOSTS: &str = "/etc/hosts";

/// The names that were asked for lately.
#[derive(Debug, Default)]
pub struct NameResolver(RefCell<HashMap<String, Rc<CachedName>>>);

/// One name.
#[derive(Debug, Default)]
pub(super) struct CachedName {
    /// Who asks while somebody asks waits for that answer.
    query_lock: Mutex<()>,
    answered_at: Cell<Option<Instant>>,
    /// The last answer there was.
    addresses: RefCell<Vec<IpAddr>>,
}

/// Where a connection goes whose destination has a name.
#[derive(Debug)]
pub(super) struct NameBinding {
    name: String,
    cached: Rc<CachedName>,
    address: IpAddr,
}

impl NameBinding {
    /// Whether the name still means that address, as far as is known. When that has not been asked for a while it is, for who wants to know next.
    pub(super) fn is_current(&self) -> bool {
        if !self.cached.has_answer(is_fresh) && self.cached.query_lock.try_lock().is_ok() {
            let (name, known) = (self.name.clone(), Rc::clone(&self.cached));
            spawn_local(async move { known.resolve(&name, is_fresh).await.map(drop) });
        }
        self.cached.has_address(self.address)
    }
}

impl CachedName {
    /// What it means; `good` says whether an answer will do, by when it was asked for.
    async fn resolve(&self, name: &str, good: impl Fn(Instant) -> bool) -> io::Result<Vec<IpAddr>> {
        let _asking = self.query_lock.lock().await;
        if self.has_answer(good) {
            return Ok(self.addresses.borrow().clone());
        }
        let now = Instant::now();
        match query_system(name).await {
            Ok(addresses) => {
                self.answered_at.set(Some(now));
                self.addresses.replace(addresses.clone());
                Ok(addresses)
            }
            Err(_) if self.has_answer(|asked| asked.elapsed() < MAX_STALE_AGE) => {
                Ok(self.addresses.borrow().clone())
            }
            Err(error) => Err(error),
        }
    }

    fn has_answer(&self, good: impl Fn(Instant) -> bool) -> bool {
        self.answered_at.get().is_some_and(good)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.answered_at.get().is_none() || self.addresses.borrow().contains(&address)
    }
}

impl NameResolver {
    /// The addresses of a name, those first that the system puts first.
    pub async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.resolve_since(name, is_fresh).await
    }

    /// What a name means since `begun`, when nobody was found where it meant before; `NoConnection`: the same.
    pub(super) async fn resolve_moved(
        &self,
        name: &str,
        before: &[IpAddr],
        begun: Instant,
    ) -> Option<Vec<IpAddr>> {
        let now = self
            .resolve_since(name, |asked| asked >= begun)
            .await
            .ok()?;
        (now != before).then_some(now)
    }

    /// Where a connection is at home that goes to this address of a name.
    pub(super) fn bind_name(&self, name: &str, address: IpAddr) -> Option<NameBinding> {
        let home = || NameBinding {
            name: name.to_owned(),
            cached: self.cached_name(name),
            address: address.to_canonical(),
        };
        (name != THIS_MACHINE).then(home)
    }

    async fn resolve_since(
        &self,
        name: &str,
        good: impl Fn(Instant) -> bool,
    ) -> io::Result<Vec<IpAddr>> {
        if name == THIS_MACHINE {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        self.cached_name(name).resolve(name, good).await
    }

    fn cached_name(&self, name: &str) -> Rc<CachedName> {
        let mut all = self.0.borrow_mut();
        if all.len() >= MAX_CACHED_NAMES {
            all.retain(|_, known| Rc::strong_count(known) > 1);
        }
        Rc::clone(all.entry(name.to_owned()).or_default())
    }
}

fn is_fresh(asked: Instant) -> bool {
    asked.elapsed() < MAX_ANSWER_AGE
}

async fn query_system(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((name, 0)).await;
    let found: Vec<_> = found
        .map_err(|error| lookup_error(name, &error))?
        .map(|address| address.ip())
        .collect();
    let may: Vec<_> = found
        .iter()
        .copied()
        .filter(|address| is_allowed_answer(*address))
        .collect();
    match (may.is_empty(), found.first()) {
        (false, _) => Ok(may),
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
                "{name} is {inside}, which means this machine or its node; declare {THIS_MACHINE}, or name it in the machine's {HOSTS}"
            ),
        )),
        (true, None) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{name} has no address"),
        )),
    }
}

fn lookup_error(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("the node cannot find {name}: {error}"),
    )
}

async fn read_hosts_file() -> Option<String> {
    tokio::fs::read_to_string(HOSTS).await.ok()
}

/// Whether a file of names (`man 5 hosts`) has this one.
fn hosts_file_has(text: &str, name: &str) -> bool {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines
        .flat_map(|line| line.split_whitespace().skip(1))
        .any(|word| word.eq_ignore_ascii_case(name))
}

/// Whether an address is one that others may name.
fn is_allowed_answer(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let inside = v4.is_loopback() || v4.is_link_local() || a == 0 || a >= 224;
            !inside && ![[10, 61], [10, 62]].contains(&[a, b])
        }
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
        let names = NameResolver::default();
        let (old, new) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let home = names
            .bind_name("db.shop.invalid", "::ffff:10.0.0.1".parse().unwrap())
            .unwrap();
        let begun = Instant::now();
        home.cached.answered_at.set(Some(begun));
        home.cached.addresses.replace(vec![new, old]);
        assert!(home.is_current());
        home.cached.addresses.replace(vec![new]);
        assert!(!home.is_current());
        assert_eq!(
            names.resolve_moved("db.shop.invalid", &[old], begun).await,
            Some(vec![new])
        );
        assert_eq!(
            names.resolve_moved("db.shop.invalid", &[new], begun).await,
            None
        );
        assert!(
            names
                .bind_name(THIS_MACHINE, Ipv4Addr::LOCALHOST.into())
                .is_none()
        );
    }

    #[tokio::test]
    async fn this_machine_has_a_name_and_others_cannot_take_it() {
        let names = NameResolver::default();
        assert!(
            names
                .resolve(THIS_MACHINE)
                .await
                .unwrap()
                .contains(&Ipv4Addr::LOCALHOST.into())
        );
        let error = names.resolve("no-such-name.invalid").await.unwrap_err();
        assert!(
            error.to_string().contains("no-such-name.invalid"),
            "{error}"
        );
    }
}
