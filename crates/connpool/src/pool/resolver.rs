//! What the names of destinations mean: as the node's machine sees it, remembered for a short time.
//!
//! Whoever runs the name server of a declared name must not thereby reach what only this machine reaches: an answer that means the machine itself, its
//! link or the node's own network is passed over. The machine's own file of names may say so, and one name always does: [`THIS_MACHINE`].
//!
//! A name moves when another server takes over. Who finds nobody at an address asks again at once, and what is kept open to an address that its name no
//! longer means ([`Home`]) is not handed out.

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
const GOOD: Duration = Duration::from_secs(5);
/// How long one is used when no newer one can be had.
const STALE: Duration = Duration::from_secs(300);
/// Names that are remembered.
const MOST: usize = 4_096;
/// Names that this machine's operator has given.
const HOSTS: &str = "/etc/hosts";

/// The names that were asked for lately.
#[derive(Debug, Default)]
pub struct Names(RefCell<HashMap<String, Rc<Name>>>);

/// One name.
#[derive(Debug, Default)]
pub(super) struct Name {
    /// Who asks while somebody asks waits for that answer.
    asking: Mutex<()>,
    asked: Cell<Option<Instant>>,
    /// The last answer there was.
    means: RefCell<Vec<IpAddr>>,
}

/// Where a connection goes whose destination has a name.
#[derive(Debug)]
pub(super) struct Home {
    name: String,
    known: Rc<Name>,
    address: IpAddr,
}

impl Home {
    /// Whether the name still means that address, as far as is known. When that has not been asked for a while it is, for who wants to know next.
    pub(super) fn is_there(&self) -> bool {
        if !self.known.is_known(is_young) && self.known.asking.try_lock().is_ok() {
            let (name, known) = (self.name.clone(), Rc::clone(&self.known));
            spawn_local(async move { known.addresses(&name, is_young).await.map(drop) });
        }
        self.known.gives(self.address)
    }
}

impl Name {
    /// What it means; `good` says whether an answer will do, by when it was asked for.
    async fn addresses(&self, name: &str, good: impl Fn(Instant) -> bool) -> io::Result<Vec<IpAddr>> {
        let _asking = self.asking.lock().await;
        if self.is_known(good) {
            return Ok(self.means.borrow().clone());
        }
        let now = Instant::now();
        match ask(name).await {
            Ok(addresses) => {
                self.asked.set(Some(now));
                self.means.replace(addresses.clone());
                Ok(addresses)
            }
            Err(_) if self.is_known(|asked| asked.elapsed() < STALE) => Ok(self.means.borrow().clone()),
            Err(error) => Err(error),
        }
    }

    fn is_known(&self, good: impl Fn(Instant) -> bool) -> bool {
        self.asked.get().is_some_and(good)
    }

    fn gives(&self, address: IpAddr) -> bool {
        self.asked.get().is_none() || self.means.borrow().contains(&address)
    }
}

impl Names {
    /// The addresses of a name, those first that the system puts first.
    pub async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.answer(name, is_young).await
    }

    /// What a name means since `begun`, when nobody was found where it meant before; `None`: the same.
    pub(super) async fn moved(&self, name: &str, before: &[IpAddr], begun: Instant) -> Option<Vec<IpAddr>> {
        let now = self.answer(name, |asked| asked >= begun).await.ok()?;
        (now != before).then_some(now)
    }

    /// Where a connection is at home that goes to this address of a name.
    pub(super) fn home(&self, name: &str, address: IpAddr) -> Option<Home> {
        let home = || Home { name: name.to_owned(), known: self.known(name), address: address.to_canonical() };
        (name != THIS_MACHINE).then(home)
    }

    async fn answer(&self, name: &str, good: impl Fn(Instant) -> bool) -> io::Result<Vec<IpAddr>> {
        if name == THIS_MACHINE {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        self.known(name).addresses(name, good).await
    }

    fn known(&self, name: &str) -> Rc<Name> {
        let mut all = self.0.borrow_mut();
        if all.len() >= MOST {
            all.retain(|_, known| Rc::strong_count(known) > 1);
        }
        Rc::clone(all.entry(name.to_owned()).or_default())
    }
}

fn is_young(asked: Instant) -> bool {
    asked.elapsed() < GOOD
}

async fn ask(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((name, 0)).await;
    let found: Vec<_> = found.map_err(|error| named(name, &error))?.map(|address| address.ip()).collect();
    let may: Vec<_> = found.iter().copied().filter(|address| is_outside(*address)).collect();
    match (may.is_empty(), found.first()) {
        (false, _) => Ok(may),
        (true, Some(_)) if own_names().await.is_some_and(|text| gives(&text, name)) => Ok(found),
        (true, Some(inside)) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{name} is {inside}, which means this machine or its node; declare {THIS_MACHINE}, or name it in the machine's {HOSTS}"
            ),
        )),
        (true, None) => Err(io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address"))),
    }
}

fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the node cannot find {name}: {error}"))
}

async fn own_names() -> Option<String> {
    tokio::fs::read_to_string(HOSTS).await.ok()
}

/// Whether a file of names (`man 5 hosts`) has this one.
fn gives(text: &str, name: &str) -> bool {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split_whitespace().skip(1)).any(|word| word.eq_ignore_ascii_case(name))
}

/// Whether an address is one that others may name.
fn is_outside(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let inside = v4.is_loopback() || v4.is_link_local() || a == 0 || a >= 224;
            !inside && ![[10, 61], [10, 62]].contains(&[a, b])
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_outside(v4.into()),
            None => !(v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() || v6.is_multicast()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_mean_this_machine_are_told_apart() {
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
            assert!(!is_outside(inside.parse().unwrap()), "{inside}");
        }
        for inside in ["::1", "::", "fe80::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"] {
            assert!(!is_outside(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "fd00::1", "::ffff:8.8.8.8"] {
            assert!(is_outside(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn a_file_of_names_is_read_as_the_system_reads_it() {
        let text = "127.0.0.1 localhost\n10.0.0.5\tdb.shop  Db # old.shop\n# 10.0.0.6 gone\n";
        assert!(gives(text, "db.shop") && gives(text, "DB") && gives(text, "localhost"));
        for none in ["old.shop", "gone", "10.0.0.5", "shop", ""] {
            assert!(!gives(text, none), "{none}");
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_at_home_while_its_name_means_its_address() {
        let names = Names::default();
        let (old, new) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let home = names.home("db.shop.invalid", "::ffff:10.0.0.1".parse().unwrap()).unwrap();
        let begun = Instant::now();
        home.known.asked.set(Some(begun));
        home.known.means.replace(vec![new, old]);
        assert!(home.is_there());
        home.known.means.replace(vec![new]);
        assert!(!home.is_there());
        assert_eq!(names.moved("db.shop.invalid", &[old], begun).await, Some(vec![new]));
        assert_eq!(names.moved("db.shop.invalid", &[new], begun).await, None);
        assert!(names.home(THIS_MACHINE, Ipv4Addr::LOCALHOST.into()).is_none());
    }

    #[tokio::test]
    async fn this_machine_has_a_name_and_others_cannot_take_it() {
        let names = Names::default();
        assert!(names.addresses(THIS_MACHINE).await.unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        let error = names.addresses("no-such-name.invalid").await.unwrap_err();
        assert!(error.to_string().contains("no-such-name.invalid"), "{error}");
    }
}
