//! The way out: listeners in the switch, at the addresses of declared destinations.
