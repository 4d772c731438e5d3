//! Applications of `examples/`, as they are: their functions, what runs beside them, and what they
//! are asked.
//!
//! Nothing here knows machines or transports: who measures starts the functions where it wants
//! them. What an application needs and this machine lacks is a [`requirements::MissingRequirement`], so that a
//! comparison can go on without it.

mod certinfo;
pub(crate) mod requirements;
mod resizer;
pub(crate) mod retail;

use std::path::PathBuf;

use nearpath_testkit::lab::LabNode;

use crate::remote::BenchError;
use crate::remote::call::RemoteCall;
use crate::remote::worker::{TenantCode, WorkerMachine};
use requirements::PythonEnv;

/// Applications of `examples/` that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AppKind {
    Certinfo,
    Resizer,
    Retail,
}

/// Application that can be started.
pub(crate) struct ExampleApp {
    python: PythonEnv,
    /// Callees before callers.
    pub(crate) functions: Vec<AppFunction>,
    pub(crate) cases: Vec<AppCase>,
    /// Runs as long as this.
    aside: Box<dyn AppService>,
}

/// A function: a program, and what it is told.
#[derive(Debug, Clone)]
pub(crate) struct AppFunction {
    pub(crate) name: &'static str,
    script: PathBuf,
    /// True if the function calls other functions.
    pub(crate) calls: bool,
    /// Port of the function, if others must know it beforehand.
    port: Option<u16>,
    variables: Vec<(String, String)>,
}

/// Measured setup.
#[derive(Debug, Clone)]
pub(crate) struct AppCase {
    /// As tables have it, without the application.
    pub(crate) name: &'static str,
    pub(crate) function: &'static str,
    pub(crate) calls: CaseCalls,
}

/// The calls of a measurement.
#[derive(Debug, Clone)]
pub(crate) enum CaseCalls {
    /// The same again and again.
    Same(RemoteCall),
    /// [`retail::acquire_calls`]: each one ends an assignment of its own.
    Acquire,
}

/// Processes and data that an application needs beside its functions.
trait AppService: Send + Sync {
    /// Whatever calls have changed is as it was.
    fn restore_data(&self) -> Result<(), BenchError> {
        Ok(())
    }
}

impl AppKind {
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

    /// Starts what runs beside the functions, on the machine of the functions without callees.
    ///
    /// # Errors
    /// [`requirements::MissingRequirement`] when this machine lacks something.
    pub(crate) fn start_app(
        self,
        python: PythonEnv,
        node: &LabNode,
        machine: &WorkerMachine,
    ) -> Result<ExampleApp, BenchError> {
        match self {
            Self::Certinfo => certinfo::start_app(python, node, machine),
            Self::Resizer => resizer::start_app(python, machine),
            Self::Retail => retail::start_app(python, node),
        }
    }
}

impl ExampleApp {
    /// Command that starts a function on a machine; callers reach their callees at `gateway`.
    pub(crate) fn function_code(
        &self,
        function: &AppFunction,
        machine: &WorkerMachine,
        gateway: &str,
    ) -> TenantCode {
        // A fixed port is one that another function's arguments name.
        let port = function.port.unwrap_or_else(|| machine.allocate_ports(1));
        let own = [
            ("PORT", port.to_string()),
            ("gateway_url", gateway.to_owned()),
            // OpenFaaS's variable; the example's functions name their database sessions by it.
            ("OPENFAAS_NAME", function.name.to_owned()),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let variables = own
            .chain(self.python.env_variables())
            .chain(function.variables.iter().cloned())
            .collect();
        TenantCode {
            port,
            fprocess: self.python.command_line(&function.script),
            variables,
        }
    }

    /// Undoes what calls have changed.
    ///
    /// # Errors
    /// When what runs beside the functions does not answer.
    pub(crate) fn restore_data(&self) -> Result<(), BenchError> {
        self.aside.restore_data()
    }
}

impl AppFunction {
    fn new(name: &'static str, script: PathBuf) -> Self {
        Self {
            name,
            script,
            calls: false,
            port: None,
            variables: Vec::new(),
        }
    }

    fn with_variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }
}

impl AppService for () {}
