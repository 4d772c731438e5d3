//! Streams whose relay opens late, breaks, or never opens. The tests control the clock.

mod fixture;
mod opening;
mod resuming;
