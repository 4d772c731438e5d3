//! Names of instances whose certificates are revoked but have not expired yet. Pure.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::SystemTime;

/// Upper bound of remembered names; the oldest are dropped first.
///
/// A dropped name stays harmless as far as a name is never used for a second instance.
const MAX_NAMES: usize = 16 * 1024;

/// Revoked names with the end of their certificates' validity.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    ends: BTreeMap<String, SystemTime>,
    order: VecDeque<String>,
}

impl Revocations {
    /// Revokes the certificate of `name`, which is valid until `end`.
    pub(crate) fn add(&mut self, name: String, end: SystemTime) {
        while self.ends.len() >= MAX_NAMES
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
        // A name revoked twice keeps its place, so that `order` has each name once.
        if self.ends.insert(name.clone(), end).is_none() {
            self.order.push_back(name);
        }
    }

    /// Names whose certificates would still be valid at `now`.
    pub(crate) fn current(&self, now: SystemTime) -> impl Iterator<Item = &str> {
        self.ends
            .iter()
            .filter(move |(_, end)| **end > now)
            .map(|(name, _)| name.as_str())
    }

    /// Drops expired names and returns the others.
    pub(crate) fn prune(&mut self, now: SystemTime) -> HashSet<String> {
        self.ends.retain(|_, end| *end > now);
        // Both must agree, or a dropped name would free no space in `ends`.
        self.order.retain(|name| self.ends.contains_key(name));
        self.ends.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_are_kept_until_their_certificates_expire_and_are_bounded() {
        let (now, mut revocations) = (SystemTime::now(), Revocations::default());
        let later = now + Duration::from_secs(10);
        revocations.add("a".to_owned(), later);
        revocations.add("b".to_owned(), later + Duration::from_secs(1));
        assert_eq!(revocations.prune(now).len(), 2);
        assert_eq!(revocations.prune(later), ["b".to_owned()].into());
        for number in 0..MAX_NAMES + 1 {
            revocations.add(number.to_string(), later + Duration::from_secs(1));
        }
        let names = revocations.prune(now);
        assert!(
            names.len() == MAX_NAMES
                && !names.contains("b")
                && !names.contains("0")
                && names.contains("1")
        );
    }
}
