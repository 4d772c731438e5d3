//! The names below a declared one (`*.example.com`) that an instance has asked for, and the addresses that stand for them in that instance. Pure: time
//! is an argument.
//!
//! Whoever picks the names decides how many there are, often somebody far away. So there are as many addresses as there are and no more; the name that
//! was used least lately gives its own back, but not while a program may still remember it: it would connect to one name and reach another.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::addresses::BELOW;

/// Names at a time: the hosts of a network of 24 bits.
pub(crate) const MOST: usize = 254;
/// How long a program may remember an answer.
pub(crate) const GOOD: Duration = Duration::from_secs(30);
/// How long an address of a name that nobody uses stays its own. Many programs remember longer than they may.
pub(crate) const REST: Duration = Duration::from_secs(10 * 60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Below {
    seats: Vec<Seat>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Seat {
    name: String,
    used: Instant,
}

/// What stands for a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub(crate) address: Ipv4Addr,
    /// Whether it is new to the name.
    pub(crate) new: bool,
    /// Whether it stood for another one before.
    pub(crate) emptied: bool,
}

impl Below {
    /// The address that stands for a name from now on; `None`: all do for others that may still be in use.
    pub(crate) fn seat(&mut self, now: Instant, name: &str) -> Option<Seated> {
        if let Some(number) = self.by_name.get(name).copied() {
            self.seats[number].used = now;
            return Some(Seated { address: address(number), new: false, emptied: false });
        }
        let seat = Seat { name: name.to_owned(), used: now };
        let emptied = self.seats.len() == MOST;
        let number = if emptied { self.oldest(now)? } else { self.seats.len() };
        if emptied {
            let before = std::mem::replace(&mut self.seats[number], seat);
            self.by_name.remove(&before.name);
        } else {
            self.seats.push(seat);
        }
        self.by_name.insert(name.to_owned(), number);
        Some(Seated { address: address(number), new: true, emptied })
    }

    /// The name that an address stands for. Somebody connects there: it is in use.
    pub(crate) fn name_at(&mut self, now: Instant, at: Ipv4Addr) -> Option<&str> {
        let number = at.to_bits().checked_sub(address(0).to_bits())?;
        let seat = self.seats.get_mut(number as usize)?;
        seat.used = now;
        Some(&seat.name)
    }

    /// All addresses that stand for a name.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.seats.len()).map(address)
    }

    fn oldest(&self, now: Instant) -> Option<usize> {
        let (number, seat) = self.seats.iter().enumerate().min_by_key(|(_, seat)| seat.used)?;
        (now.saturating_duration_since(seat.used) >= REST).then_some(number)
    }
}

fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(BELOW.0.to_bits() + 1 + number as u32)
}

/// Whether a name, in small letters, is below another: `a.example.com` and `a.b.example.com` are below `example.com`, which is not below itself.
pub(crate) fn is_below(name: &str, base: &str) -> bool {
    let label = |label: &str| {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(letter)
    };
    let before = name.strip_suffix(base).and_then(|rest| rest.strip_suffix('.'));
    name.len() <= 253 && before.is_some_and(|labels| labels.split('.').all(label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn names_below_a_name() {
        for name in ["a.example.com", "a.b.example.com", "_x.a-b.example.com", "0.example.com"] {
            assert!(is_below(name, "example.com"), "{name}");
        }
        let long = format!("{}.example.com", ["a"; 130].join("."));
        for name in
            ["example.com", ".example.com", "aexample.com", "a..example.com", "a.example.org", "", "A.example.com"]
        {
            assert!(!is_below(name, "example.com"), "{name}");
        }
        for name in [long.as_str(), "a b.example.com", "a\0.example.com", "é.example.com", "a\\.b.example.com"] {
            assert!(!is_below(name, "example.com"), "{name}");
        }
    }

    #[test]
    fn when_all_are_taken_the_one_that_rests_longest_gives_its_own() {
        let (mut below, start) = (Below::default(), Instant::now());
        for number in 0..MOST {
            assert!(below.seat(start, &format!("n{number}")).unwrap().new);
        }
        let (_, size) = BELOW;
        assert_eq!((MOST, below.addresses().count()), ((1 << (32 - size)) - 2, MOST));
        assert!(below.seat(start + REST - GOOD, "one more").is_none(), "programs may remember all of them");
        let at = below.seat(start, "n0").unwrap().address;
        assert_eq!(below.name_at(start + GOOD, at), Some("n0"));
        let more = below.seat(start + REST, "one more").unwrap();
        assert!(more.emptied && more.address != at, "n0 was used later than the others");
        assert_eq!(below.name_at(start + REST, more.address), Some("one more"));
        assert_eq!(below.name_at(start, BELOW.0), None);
        assert_eq!(below.name_at(start, Ipv4Addr::BROADCAST), None);
    }

    proptest! {
        #[test]
        fn who_remembers_an_address_for_as_long_as_he_may_reaches_what_he_asked_for(
            steps in prop::collection::vec((0usize..400, 0u64..90, any::<bool>()), 0..900),
        ) {
            let (mut below, mut now) = (Below::default(), Instant::now());
            let mut remembered: BTreeMap<Ipv4Addr, (String, Instant)> = BTreeMap::new();
            for (name, seconds, connects) in steps {
                now += Duration::from_secs(seconds) / 8;
                let name = format!("n{name}");
                if let Some(Seated { address, .. }) = below.seat(now, &name) {
                    if let Some((before, asked)) = remembered.get(&address) {
                        prop_assert!(*before == name || now - *asked >= REST);
                    }
                    remembered.insert(address, (name, now));
                }
                if connects && let Some((address, (name, asked))) = remembered.iter().next() && now - *asked < GOOD {
                    prop_assert_eq!(below.name_at(now, *address), Some(name.as_str()));
                }
                prop_assert!(below.addresses().count() <= MOST && below.by_name.len() == below.seats.len());
            }
        }
    }
}
