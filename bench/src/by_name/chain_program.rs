//! Programs of chains: examples/nested in Python, and the compiled handler in Go.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::nodes::app_folder::function_entry;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};

/// Script of examples/nested.
const NESTED_SCRIPT: &str = "examples/nested/handler/nested.py";
/// Address at which the script listens, and the one for a machine without nearpath.
const LISTEN_ADDRESSES: [&str; 2] = ["127.0.0.1", "0.0.0.0"];
/// Port of a function in its instance.
const FUNCTION_PORT: u16 = 5000;

/// A program whose calls take the next function's URL.
pub(crate) enum ChainProgram {
    /// f(n) calls f(n - 1): two functions that call each other.
    Nested(TempDir),
    /// Three functions in Go, each of which calls the next one.
    Compiled(PlainHandler),
}

impl ChainProgram {
    /// Copies the script of examples/nested.
    ///
    /// # Errors
    /// When the script is missing: the comparison runs in the root of the repository.
    pub(crate) fn nested() -> io::Result<Self> {
        let (folder, [own, all]) = (tempfile::tempdir()?, LISTEN_ADDRESSES);
        let missing =
            |error: io::Error| io::Error::new(error.kind(), format!("{NESTED_SCRIPT}: {error}"));
        let text = fs::read_to_string(NESTED_SCRIPT).map_err(missing)?;
        // nginx reaches a program of another machine only at all addresses.
        fs::write(folder.path().join("nested.py"), text.replace(own, all))?;
        Ok(Self::Nested(folder))
    }

    /// Builds the handler.
    ///
    /// # Errors
    /// Without Go.
    pub(crate) fn compiled() -> io::Result<Self> {
        PlainHandler::build(HandlerLanguage::Go).map(Self::Compiled)
    }

    /// Returns the number of functions.
    pub(crate) fn function_count(&self) -> usize {
        match self {
            Self::Nested(_) => 2,
            Self::Compiled(_) => 3,
        }
    }

    /// Returns the function that a function calls.
    pub(crate) fn next_place(&self, place: usize) -> Option<usize> {
        match self {
            // In turn for ever: n in the query ends the chain.
            Self::Nested(_) => Some(1 - place),
            Self::Compiled(_) => Some(place + 1).filter(|next| *next < self.function_count()),
        }
    }

    /// Returns the query of a call that starts a chain of this length.
    pub(crate) fn query(&self, length: usize) -> String {
        match self {
            Self::Nested(_) => format!("?n={length}"),
            Self::Compiled(_) => String::new(),
        }
    }

    /// Returns the beginning of the command line, by which processes are found.
    pub(crate) fn process_name(&self) -> &'static str {
        match self {
            Self::Nested(_) => "python3 nested.py",
            Self::Compiled(_) => "./bench-handler",
        }
    }

    /// Returns the entry of a function that calls the URL `next`, on a node.
    pub(crate) fn entry(&self, next: Option<&str>, node: &str) -> Value {
        let command = match self {
            Self::Nested(_) => self.process_name().to_owned(),
            Self::Compiled(handler) => {
                // The handler in Go takes the URL as its argument.
                let command = handler.command_line(FUNCTION_PORT);
                format!("{command} {}", next.unwrap_or_default())
            }
        };
        let mut entry = function_entry(self.folder(), command.trim(), FUNCTION_PORT, &[node]);
        if matches!(self, Self::Nested(_)) {
            // The script adds /function/nested to it, which its callee ignores.
            entry["environment"]["gateway_url"] = json!(next);
        }
        entry
    }

    /// Returns the command of the script without nearpath, at a port of all addresses.
    pub(crate) fn plain_command(&self, addr: SocketAddr, next: &str) -> Command {
        let mut command = Command::new("python3");
        command.arg("nested.py").current_dir(self.folder());
        command.env("PORT", addr.port().to_string());
        command.env("gateway_url", next);
        // A line for each request would cost CPU time that instances do not have.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Nested(folder) => folder.path(),
            Self::Compiled(handler) => handler.folder(),
        }
    }
}
