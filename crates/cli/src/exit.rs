//! How the program ends. Scripts rely on these numbers: one is never used for something else.

use std::fmt;
use std::process::ExitCode;

/// Exit codes with meaning; `docs/reference/cli.md` holds the same table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// The operation failed.
    Failed = 1,
    /// The command line is not understood.
    Usage = 2,
    /// No gateway answers.
    Unreachable = 3,
    /// No such function.
    NotFound = 4,
    /// The credentials are missing or wrong.
    Unauthorised = 5,
    /// The stack file is invalid: nothing was sent.
    BadStack = 6,
    /// It was accepted and did not become ready.
    NotReady = 7,
    /// The function was called and answered with an error status.
    FunctionError = 8,
}

impl Exit {
    /// Every code with its meaning, for the help text and the documents.
    pub const TABLE: &'static [(Exit, &'static str)] = &[
        (Exit::Ok, "done"),
        (Exit::Failed, "the operation failed"),
        (Exit::Usage, "the command line is not understood"),
        (Exit::Unreachable, "no gateway answers at that address"),
        (Exit::NotFound, "no such function"),
        (Exit::Unauthorised, "the credentials are missing or wrong"),
        (Exit::BadStack, "the stack file is invalid; nothing was sent"),
        (Exit::NotReady, "accepted, but not ready in time or crashed at start"),
        (Exit::FunctionError, "the called function answered with an error status"),
    ];
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An operation that did not work: how the program ends, and what a person reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How the program ends.
    pub exit: Exit,
    /// What happened, who caused it, what to do. Empty when it has all been said.
    pub text: String,
}

impl Failure {
    /// A failure with a text.
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    /// One about which everything has been said already.
    pub fn told(exit: Exit) -> Self {
        Self::new(exit, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What every command ends in.
pub type Outcome = Result<Exit, Failure>;
