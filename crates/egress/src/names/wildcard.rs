//! Names below a wildcard (`*.example.com`) that an instance has resolved, and their addresses in
//! that instance. Pure: time is an argument.
//!
//! The names often come from a remote party, so their number is bounded by the addresses. A new
//! name takes the address of the least recently used one. It waits until no program may still cache
//! that address: otherwise it would connect to the wrong host.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::addresses::WILDCARD_NETWORK;

/// Maximum names at a time: the hosts of a /24 network.
pub(crate) const MAX_WILDCARD_NAMES: usize = 254;
/// Time that a program may cache an answer, the TTL of replies.
pub(crate) const MAX_ANSWER_AGE: Duration = Duration::from_secs(30);
/// Time without use after which an address may be reassigned. Many programs cache answers for
/// longer than their TTL.
pub(crate) const REASSIGN_GRACE: Duration = Duration::from_secs(10 * 60);

/// Assigned names of one instance.
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

/// The address assigned to a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AssignedAddress {
    pub(crate) address: Ipv4Addr,
    /// True if the name did not have it before.
    pub(crate) is_new: bool,
    /// True if another name had it before.
    pub(crate) was_reassigned: bool,
}

impl WildcardNames {
    /// Assigns an address to a name. Returns `None` if all addresses belong to names in use.
    pub(crate) fn assign_address(&mut self, now: Instant, name: &str) -> Option<AssignedAddress> {
        if let Some(number) = self.by_name.get(name).copied() {
            self.slots[number].last_used = now;
            return Some(AssignedAddress {
                address: slot_address(number),
                is_new: false,
                was_reassigned: false,
            });
        }
        let slot = NameSlot {
            name: name.to_owned(),
            last_used: now,
        };
        let is_full = self.slots.len() == MAX_WILDCARD_NAMES;
        // All addresses are assigned: only one unused for long enough may change its name.
        let number = if is_full {
            self.oldest_reusable(now)?
        } else {
            self.slots.len()
        };
        if is_full {
            let before = std::mem::replace(&mut self.slots[number], slot);
            self.by_name.remove(&before.name);
        } else {
            self.slots.push(slot);
        }
        self.by_name.insert(name.to_owned(), number);
        Some(AssignedAddress {
            address: slot_address(number),
            is_new: true,
            was_reassigned: is_full,
        })
    }

    /// Returns true if a name has an address.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the name that an address is assigned to, and marks it as used: a connection goes
    /// there.
    pub(crate) fn name_of(&mut self, now: Instant, at: Ipv4Addr) -> Option<&str> {
        let number = at.to_bits().checked_sub(slot_address(0).to_bits())?;
        let slot = self.slots.get_mut(number as usize)?;
        slot.last_used = now;
        Some(&slot.name)
    }

    /// Returns all assigned addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.slots.len()).map(slot_address)
    }

    fn oldest_reusable(&self, now: Instant) -> Option<usize> {
        let (number, slot) = self
            .slots
            .iter()
            .enumerate()
            .min_by_key(|(_, slot)| slot.last_used)?;
        (now.saturating_duration_since(slot.last_used) >= REASSIGN_GRACE).then_some(number)
    }
}

fn slot_address(number: usize) -> Ipv4Addr {
    // Host numbers start at 1: the network's own address is no host.
    Ipv4Addr::from_bits(WILDCARD_NETWORK.0.to_bits() + 1 + number as u32)
}

/// Returns true if a lower-case name is below another: `a.example.com` and `a.b.example.com` are
/// below `example.com`, which is not below itself.
pub(crate) fn is_subdomain(name: &str, base: &str) -> bool {
    // Hostname labels plus the underscore of service names (RFC 2782): 63 bytes each, 253 in all
    // (RFC 1035).
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
        let (mut names, start) = (WildcardNames::default(), Instant::now());
        for number in 0..MAX_WILDCARD_NAMES {
            assert!(
                names
                    .assign_address(start, &format!("n{number}"))
                    .unwrap()
                    .is_new
            );
        }
        let (_, size) = WILDCARD_NETWORK;
        assert_eq!(
            (MAX_WILDCARD_NAMES, names.addresses().count()),
            ((1 << (32 - size)) - 2, MAX_WILDCARD_NAMES)
        );
        assert!(
            names
                .assign_address(start + REASSIGN_GRACE - MAX_ANSWER_AGE, "one more")
                .is_none(),
            "programs may cache all of them"
        );
        let at = names.assign_address(start, "n0").unwrap().address;
        assert_eq!(names.name_of(start + MAX_ANSWER_AGE, at), Some("n0"));
        let reassigned = names
            .assign_address(start + REASSIGN_GRACE, "one more")
            .unwrap();
        assert!(
            reassigned.was_reassigned && reassigned.address != at,
            "n0 was used later than the others"
        );
        assert_eq!(
            names.name_of(start + REASSIGN_GRACE, reassigned.address),
            Some("one more")
        );
        assert_eq!(names.name_of(start, WILDCARD_NETWORK.0), None);
        assert_eq!(names.name_of(start, Ipv4Addr::BROADCAST), None);
    }

    proptest! {
        #[test]
        fn an_address_keeps_its_name_while_programs_may_cache_it(
            steps in prop::collection::vec((0usize..400, 0u64..90, any::<bool>()), 0..900),
        ) {
            let (mut names, mut now) = (WildcardNames::default(), Instant::now());
            let mut remembered: BTreeMap<Ipv4Addr, (String, Instant)> = BTreeMap::new();
            for (name, seconds, connects) in steps {
                now += Duration::from_secs(seconds) / 8;
                let name = format!("n{name}");
                if let Some(AssignedAddress { address, .. }) = names.assign_address(now, &name) {
                    if let Some((before, asked)) = remembered.get(&address) {
                        prop_assert!(*before == name || now - *asked >= REASSIGN_GRACE);
                    }
                    remembered.insert(address, (name, now));
                }
                if connects && let Some((address, (name, asked))) = remembered.iter().next() && now - *asked < MAX_ANSWER_AGE {
                    prop_assert_eq!(names.name_of(now, *address), Some(name.as_str()));
                }
                prop_assert!(names.addresses().count() <= MAX_WILDCARD_NAMES && names.by_name.len() == names.slots.len());
            }
        }
    }
}
