//! Applications of `examples/`, as they are: their functions, what runs beside them, and what they are asked.
//!
//! Nothing here knows machines or transports: who measures starts the functions where it wants them. What an application needs and
//! this machine lacks is a [`need::Missing`], so that a comparison can go on without it.

mod certinfo;
pub(crate) mod need;
mod resizer;
pub(crate) mod retail;

use std::path::PathBuf;

use nearpath_testkit::lab::LabNode;

use crate::remote::Error;
use crate::remote::call::Call;
use crate::remote::worker::{Code, Machine};
use need::Python;

/// Which application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Certinfo,
    Resizer,
    Retail,
}

/// One that can be started.
pub(crate) struct App {
    python: Python,
    /// Callees before callers.
    pub(crate) functions: Vec<Function>,
    pub(crate) cases: Vec<Case>,
    /// Runs as long as this.
    aside: Box<dyn Aside>,
}

/// A function: a program, and what it is told.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    script: PathBuf,
    /// It calls others.
    pub(crate) calls: bool,
    /// Where it listens, if that has to be known beforehand.
    port: Option<u16>,
    variables: Vec<(String, String)>,
}

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// As tables have it, without the application.
    pub(crate) name: &'static str,
    pub(crate) function: &'static str,
    pub(crate) calls: Calls,
}

/// The calls of a measurement.
#[derive(Debug, Clone)]
pub(crate) enum Calls {
    /// The same again and again.
    Same(Call),
    /// [`retail::acquire`]: each one ends an assignment of its own.
    Acquire,
}

/// What an application has beside its functions.
trait Aside: Send + Sync {
    /// Whatever calls have changed is as it was.
    fn reset(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Certinfo, Self::Resizer, Self::Retail];

    /// As in `examples/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Certinfo => "certinfo",
            Self::Resizer => "resizer",
            Self::Retail => "retail",
        }
    }

    /// Starts what runs beside the functions, on the machine that those are on that call nobody.
    ///
    /// # Errors
    /// [`need::Missing`] when this machine lacks something.
    pub(crate) fn start(
        self,
        python: Python,
        node: &LabNode,
        machine: &Machine,
    ) -> Result<App, Error> {
        match self {
            Self::Certinfo => certinfo::start(python, node, machine),
            Self::Resizer => resizer::start(python, machine),
            Self::Retail => retail::start(python, node),
        }
    }
}

impl App {
    /// How to start a function on that machine; those that call others do so at `gateway`.
    pub(crate) fn code(&self, function: &Function, machine: &Machine, gateway: &str) -> Code {
        let port = function.port.unwrap_or_else(|| machine.ports(1));
        let own = [
            ("PORT", port.to_string()),
            ("gateway_url", gateway.to_owned()),
            ("OPENFAAS_NAME", function.name.to_owned()),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let variables = own
            .chain(self.python.variables())
            .chain(function.variables.iter().cloned())
            .collect();
        Code {
            port,
            fprocess: self.python.command(&function.script),
            variables,
        }
    }

    /// Undoes what calls have changed.
    ///
    /// # Errors
    /// When what runs beside the functions does not answer.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        self.aside.reset()
    }
}

impl Function {
    fn new(name: &'static str, script: PathBuf) -> Self {
        Self {
            name,
            script,
            calls: false,
            port: None,
            variables: Vec::new(),
        }
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }
}

impl Aside for () {}
