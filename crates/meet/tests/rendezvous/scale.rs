//! How many workers one process bears.
