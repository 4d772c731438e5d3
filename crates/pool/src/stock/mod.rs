//! What is kept open: a pure state machine. No socket, no clock: time is an argument.
