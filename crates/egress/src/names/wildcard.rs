//! The names below a declared one (`*.example.com`) that an instance has asked for, and the addresses that stand for them in that instance. Pure: time
//! is an argument.
//!
//! Whoever picks the names decides how many there are, often somebody far away. So there are as many addresses as there are and no more; the name that
//! was used least lately gives its own back, but not while a program may still remember it: it would connect to one name and reach another.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::addresses::WILDCARD_NETWORK;

/// Names at a time: the hosts of a network of 24 bits.
pub(crate) const MOST: usize = 254;
/// How long a program may remember an answer.
pub(crate) const MAX_ANSWER_AGE: Duration = Duration::from_secs(30);
/// How long an address of a name that nobody uses stays its own. Many programs remember longer than they may.
pub(crate) const REASSIGN_GRACE: Duration = Duration::from_secs(10 * 60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WildcardNames {
    slots: Vec<NameSlot>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct NameSlot {
    name: String,
    last_used: Instant,
}

/// What stands for a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AssignedAddress {
    pub(crate) address: Ipv4Addr,
    /// Whether it is new to the name.
    pub(crate) is_new: bool,
    /// Whether it stood for another one before.
    pub(crate) was_reassigned: bool,
}

impl WildcardNames {
    /// The address that stands for a name from now on; `NoConnection`: all do for others that may still be in use.
    pub(crate) fn assign_address(&mut self, now: Instant, name: &str) -> Option<AssignedAddress> {
        if let Some(number) = self.by_name.get(name).copied() {
            self.slots[number].last_used = now;
            return Some(AssignedAddress {
                address: slot_address(number),
                is_new: false,
                was_reassigned: false,
            });
        }
        let seat = NameSlot {
            name: name.to_owned(),
            last_used: now,
        };
        let emptied = self.slots.len() == MOST;
        let number = if emptied {
            self.oldest_reusable(now)?
        } else {
            self.slots.len()
        };
        if emptied {
            let before = std::mem::replace(&mut self.slots[number], seat);
            self.by_name.remove(&before.name);
        } else {
            self.slots.push(seat);
        }
        self.by_name.insert(name.to_owned(), number);
        Some(AssignedAddress {
            address: slot_address(number),
            is_new: true,
            was_reassigned: emptied,
        })
    }

    /// The name that an address stands for. Somebody connects there: it is in use.
    pub(crate) fn name_of(&mut self, now: Instant, at: Ipv4Addr) -> Option<&str> {
        let number = at.to_bits().checked_sub(slot_address(0).to_bits())?;
        let seat = self.slots.get_mut(number as usize)?;
        seat.last_used = now;
        Some(&seat.name)
    }

    /// All addresses that stand for a name.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.slots.len()).map(slot_address)
    }

    fn oldest_reusable(&self, now: Instant) -> Option<usize> {
        let (number, seat) = self
            .slots
            .iter()
            .enumerate()
            .min_by_key(|(_, seat)| seat.last_used)?;
        (now.saturating_duration_since(seat.last_used) >= REASSIGN_GRACE).then_some(number)
    }
}

fn slot_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(WILDCARD_NETWORK.0.to_bits() + 1 + number as u32)
}

/// Whether a name, in small letters, is below another: `a.example.com` and `a.b.example.com` are below `example.com`, which is not below itself.
pub(crate) fn is_subdomain(name: &str, base: &str) -> bool {
    let label = |label: &str| {
        let letter = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
        };
        (1..=63).contains(&label.len()) && label.bytes().all(letter)
    };
    let before = name
        .strip_suffix(base)
        .and_then(|rest| rest.strip_suffix('.'));
    name.len() <= 253 && before.is_some_and(|labels| labels.split('.').all(label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn subdomains_are_recognized() {
        for name in [
            "a.example.com",
            "a.b.example.com",
            "_x.a-b.example.com",
            "0.example.com",
        ] {
            assert!(is_subdomain(name, "example.com"), "{name}");
        }
        let long = format!("{}.example.com", ["a"; 130].join("."));
        for name in [
            "example.com",
            ".example.com",
            "aexample.com",
            "a..example.com",
            "a.example.org",
            "",
            "A.example.com",
        ] {
            assert!(!is_subdomain(name, "example.com"), "{name}");
        }
        for name in [
            long.as_str(),
            "a b.example.com",
            "a\0.example.com",
            "é.example.com",
            "a\\.b.example.com",
        ] {
            assert!(!is_subdomain(name, "example.com"), "{name}");
        }
    }

    #[test]
    fn when_all_slots_are_taken_the_least_recently_used_is_reassigned() {
        let (mut below, start) = (WildcardNames::default(), Instant::now());
        for number in 0..MOST {
            assert!(
                below
                    .assign_address(start, &format!("n{number}"))
                    .unwrap()
                    .is_new
            );
        }
        let (_, size) = WILDCARD_NETWORK;
        assert_eq!(
            (MOST, below.addresses().count()),
            ((1 << (32 - size)) - 2, MOST)
        );
        assert!(
            below
                .assign_address(start + REASSIGN_GRACE - MAX_ANSWER_AGE, "one more")
                .is_none(),
            "programs may remember all of them"
        );
        let at = below.assign_address(start, "n0").unwrap().address;
        assert_eq!(below.name_of(start + MAX_ANSWER_AGE, at), Some("n0"));
        let more = below
            .assign_address(start + REASSIGN_GRACE, "one more")
            .unwrap();
        assert!(
            more.was_reassigned && more.address != at,
            "n0 was used later than the others"
        );
        assert_eq!(
            below.name_of(start + REASSIGN_GRACE, more.address),
            Some("one more")
        );
        assert_eq!(below.name_of(start, WILDCARD_NETWORK.0), None);
        assert_eq!(below.name_of(start, Ipv4Addr::BROADCAST), None);
    }

    proptest! {
        #[test]
        fn who_remembers_an_address_for_as_long_as_he_may_reaches_what_he_asked_for(
            steps in prop::collection::vec((0usize..400, 0u64..90, any::<bool>()), 0..900),
        ) {
            let (mut below, mut now) = (WildcardNames::default(), Instant::now());
            let mut remembered: BTreeMap<Ipv4Addr, (String, Instant)> = BTreeMap::new();
            for (name, seconds, connects) in steps {
                now += Duration::from_secs(seconds) / 8;
                let name = format!("n{name}");
                if let Some(AssignedAddress { address, .. }) = below.assign_address(now, &name) {
                    if let Some((before, asked)) = remembered.get(&address) {
                        prop_assert!(*before == name || now - *asked >= REASSIGN_GRACE);
                    }
                    remembered.insert(address, (name, now));
                }
                if connects && let Some((address, (name, asked))) = remembered.iter().next() && now - *asked < MAX_ANSWER_AGE {
                    prop_assert_eq!(below.name_of(now, *address), Some(name.as_str()));
                }
                prop_assert!(below.addresses().count() <= MOST && below.by_name.len() == below.slots.len());
            }
        }
    }
}
