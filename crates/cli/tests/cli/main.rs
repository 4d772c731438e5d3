//! The real program against a gateway that is a fake: what it asks, what it prints, how it ends.

mod calls;
mod deploy;
mod fake;
mod invoke;
mod usage;
