//! Nodes with certificates from files: their checks, handshakes between them, and renewals.

mod files;
mod fixture;
mod handshakes;
mod refusals;
mod rotation;
mod watcher;
