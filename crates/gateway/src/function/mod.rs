//! Functions as all threads share them: their instances, their limits, and what they did.
//!
//! A snapshot brings a [`Function`] into the [`Table`] and replaces its [`Route`]. What lives longer than a snapshot is beside it: the
//! [`Gate`], the counters, and the state of each instance.

mod endpoint;
mod gate;
mod state;
mod table;
mod tally;
mod udp_reachability;
mod wake_throttle;

pub(crate) use endpoint::Endpoint;
pub(crate) use gate::{Closed, Entry, Gate, Permit, Waiter};
pub(crate) use state::{Function, Route};
pub(crate) use table::Table;
pub(crate) use tally::{BOUNDS_US, Refusals, Times};
pub(crate) use udp_reachability::millis;
pub(crate) use wake_throttle::RING;
