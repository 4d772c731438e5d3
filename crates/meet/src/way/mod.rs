//! A byte stream to a peer that begins on the relay and moves to a direct connection.
