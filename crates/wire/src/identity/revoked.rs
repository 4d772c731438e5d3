//! Names of incarnations whose certificates were taken back, for as long as those would be good. Pure.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::SystemTime;

/// Names that are kept; more push the oldest out. What remains then is that a name is never used twice.
const MOST: usize = 16 * 1024;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Revoked {
    ends: BTreeMap<String, SystemTime>,
    order: VecDeque<String>,
}

impl Revoked {
    /// Takes back the certificate of `name`, which ends at `end`.
    pub fn add(&mut self, name: String, end: SystemTime) {
        while self.ends.len() >= MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
        if self.ends.insert(name.clone(), end).is_none() {
            self.order.push_back(name);
        }
    }

    /// Those whose certificates are still good at `now`.
    pub fn current(&self, now: SystemTime) -> impl Iterator<Item = &str> {
        self.ends.iter().filter(move |(_, end)| **end > now).map(|(name, _)| name.as_str())
    }

    /// Those whose certificates are still good at `now`; the others are forgotten.
    pub fn names(&mut self, now: SystemTime) -> HashSet<String> {
        self.ends.retain(|_, end| *end > now);
        self.order.retain(|name| self.ends.contains_key(name));
        self.ends.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_are_kept_until_their_certificates_end_and_are_bounded() {
        let (now, mut revoked) = (SystemTime::now(), Revoked::default());
        let later = now + Duration::from_secs(10);
        revoked.add("a".to_owned(), later);
        revoked.add("b".to_owned(), later + Duration::from_secs(1));
        assert_eq!(revoked.names(now).len(), 2);
        assert_eq!(revoked.names(later), ["b".to_owned()].into());
        for number in 0..MOST + 1 {
            revoked.add(number.to_string(), later + Duration::from_secs(1));
        }
        let names = revoked.names(now);
        assert!(names.len() == MOST && !names.contains("b") && !names.contains("0") && names.contains("1"));
    }
}
