//! Two workers from their tickets to bytes between them: rendezvous, relay, punching and TLS together.
