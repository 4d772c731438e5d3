//! Which instance gets a request: of two drawn at random the one with fewer requests at it.

use std::sync::Arc;

use crate::function::{Endpoint, Function, Permit, Route};

/// A request's place at one instance. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Place {
    permit: Option<Permit>,
    /// The instance.
    pub endpoint: Arc<Endpoint>,
}

impl Place {
    /// Gives the place up, but keeps the permit. `None`: the instance was withdrawn and the permit with it.
    pub(crate) fn leave(mut self) -> Option<Permit> {
        let permit = self.permit.take();
        self.release(permit)
    }

    fn release(&self, permit: Option<Permit>) -> Option<Permit> {
        match self.endpoint.release() {
            true => permit,
            false => {
                drop(permit.and_then(Permit::forget));
                None
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            drop(self.release(Some(permit)));
        }
    }
}

/// Takes a place at an instance that is not in `tried`. `random` is any number.
///
/// # Errors
/// The permit back, when no instance has room.
pub(crate) fn pick(route: &Route, permit: Permit, tried: &[u64], random: u64) -> Result<Place, Permit> {
    let limit = route.policy.max_inflight.unwrap_or(u32::MAX >> 1);
    let ready = &route.ready;
    let fresh = |endpoint: &&Arc<Endpoint>| !tried.contains(&endpoint.serial);
    let drawn = draw(ready.len(), random).map(|(a, b)| lighter(&ready[a], &ready[b]));
    let any = || ready.iter().filter(fresh).find(|endpoint| endpoint.take(limit));
    match drawn.filter(fresh).filter(|endpoint| endpoint.take(limit)).or_else(any) {
        Some(endpoint) => Ok(Place { permit: Some(permit), endpoint: endpoint.clone() }),
        None => Err(permit),
    }
}

/// Whether `pick` could find an instance that was not tried.
pub(super) fn all_tried(function: &Function, tried: &[u64]) -> bool {
    let route = function.route();
    !route.ready.is_empty() && route.ready.iter().all(|endpoint| tried.contains(&endpoint.serial))
}

/// Two different numbers below `n`, or twice 0 when there is only one.
fn draw(n: usize, random: u64) -> Option<(usize, usize)> {
    if n < 2 {
        return (n == 1).then_some((0, 0));
    }
    let a = (random >> 32) as usize % n;
    let b = random as u32 as usize % (n - 1);
    Some((a, if b >= a { b + 1 } else { b }))
}

fn lighter<'a>(a: &'a Arc<Endpoint>, b: &'a Arc<Endpoint>) -> &'a Arc<Endpoint> {
    let load = |endpoint: &Endpoint| endpoint.load().unwrap_or(u32::MAX);
    if load(b) < load(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn two_different_ones_are_drawn(n in 2usize..1_000, random in any::<u64>()) {
            let (a, b) = draw(n, random).unwrap();
            prop_assert!(a != b && a < n && b < n);
        }
    }

    #[test]
    fn every_pair_can_be_drawn() {
        let pairs: std::collections::HashSet<_> =
            (0..3u64).flat_map(|a| (0..2u64).map(move |b| draw(3, a << 32 | b).unwrap())).collect();
        assert_eq!(pairs.len(), 6);
        assert_eq!((draw(0, 7), draw(1, 7)), (None, Some((0, 0))));
    }
}
