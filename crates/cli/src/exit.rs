//! Exit codes and errors of commands. Scripts rely on the codes: a number never changes its
//! meaning.

use std::fmt;
use std::process::ExitCode;

/// The exit code of a command; `docs/reference/cli.md` has the same table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Success.
    Ok = 0,
    /// The operation failed.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// There is no gateway at the address.
    Unreachable = 3,
    /// No such function.
    NotFound = 4,
    /// The credentials are missing or wrong.
    Unauthorised = 5,
    /// The stack file is invalid: nothing was sent.
    BadStack = 6,
    /// The change was accepted, but the function did not become ready.
    NotReady = 7,
    /// The called function returned an error status.
    FunctionError = 8,
}

impl ExitStatus {
    /// Every code with its meaning, for the help text and the documents.
    pub const TABLE: &'static [(ExitStatus, &'static str)] = &[
        (ExitStatus::Ok, "success"),
        (ExitStatus::Failed, "the operation failed"),
        (ExitStatus::Usage, "invalid command line"),
        (ExitStatus::Unreachable, "no gateway at that address"),
        (ExitStatus::NotFound, "no such function"),
        (ExitStatus::Unauthorised, "missing or wrong credentials"),
        (
            ExitStatus::BadStack,
            "the stack file is invalid; nothing was sent",
        ),
        (
            ExitStatus::NotReady,
            "deployed, but not ready in time or failed to start",
        ),
        (
            ExitStatus::FunctionError,
            "the called function returned an error status",
        ),
    ];
}

impl From<ExitStatus> for ExitCode {
    fn from(exit: ExitStatus) -> Self {
        // The discriminants are the codes: `repr(u8)` makes the cast lossless.
        Self::from(exit as u8)
    }
}

/// A failed command: its exit code, and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandError {
    /// The exit code.
    pub exit: ExitStatus,
    /// The event, the cause, and the remedy. Empty if everything has been printed already.
    pub text: String,
}

impl CommandError {
    /// Creates an error with a text.
    pub fn new(exit: ExitStatus, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
        }
    }

    /// Creates an error that prints nothing.
    pub fn silent(exit: ExitStatus) -> Self {
        Self::new(exit, "")
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The result of a command.
pub type CommandResult = Result<ExitStatus, CommandError>;
