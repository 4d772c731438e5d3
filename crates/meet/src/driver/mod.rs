//! Sockets under the punching machine.
