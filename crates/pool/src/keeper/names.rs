//! What the names of destinations mean: as the node's machine sees it, remembered for a short time.
//!
//! Whoever runs the name server of a declared name must not thereby reach what only this machine reaches: an answer that means the machine itself, its
//! link or the node's own network is passed over. The machine's own file of names may say so, and one name always does: [`THIS_MACHINE`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

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

/// One name: who asks while somebody asks waits for that answer.
type Entry = Rc<Mutex<Option<(Instant, Vec<IpAddr>)>>>;

/// The names that were asked for lately.
#[derive(Debug, Default)]
pub(crate) struct Names(RefCell<HashMap<String, Entry>>);

impl Names {
    /// The addresses of a name, those first that the system puts first.
    pub(crate) async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        if name == THIS_MACHINE {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let entry = self.entry(name);
        let mut known = entry.lock().await;
        let age = known.as_ref().map(|(asked, _)| asked.elapsed());
        match (&*known, age) {
            (Some((_, addresses)), Some(age)) if age < GOOD => return Ok(addresses.clone()),
            _ => {}
        }
        match ask(name).await {
            Ok(addresses) => {
                *known = Some((Instant::now(), addresses.clone()));
                Ok(addresses)
            }
            Err(error) => match (&*known, age) {
                (Some((_, addresses)), Some(age)) if age < STALE => Ok(addresses.clone()),
                _ => Err(error),
            },
        }
    }

    fn entry(&self, name: &str) -> Entry {
        let mut all = self.0.borrow_mut();
        if all.len() >= MOST {
            all.retain(|_, entry| Rc::strong_count(entry) > 1);
        }
        Rc::clone(all.entry(name.to_owned()).or_default())
    }
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
    async fn this_machine_has_a_name_and_others_cannot_take_it() {
        let names = Names::default();
        assert!(names.addresses(THIS_MACHINE).await.unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        let error = names.addresses("no-such-name.invalid").await.unwrap_err();
        assert!(error.to_string().contains("no-such-name.invalid"), "{error}");
    }
}
