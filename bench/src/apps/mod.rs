//! Applications of `examples/`: their functions, other processes and calls.
//!
//! This module does not depend on machines or transports: the measurement decides where functions
//! start. A [`requirements::MissingRequirement`] is a dependency that this machine does not have,
//! so that a comparison can continue without it.

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
    /// The functions, callees before callers.
    pub(crate) functions: Vec<AppFunction>,
    pub(crate) cases: Vec<AppCase>,
    /// Process that runs as long as the application.
    service: Box<dyn AppService>,
}

/// A function: a program and its settings.
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
    /// Name in tables, without the application.
    pub(crate) name: &'static str,
    pub(crate) function: &'static str,
    pub(crate) calls: CaseCalls,
}

/// The calls of a measurement.
#[derive(Debug, Clone)]
pub(crate) enum CaseCalls {
    /// The same call, repeated.
    Same(RemoteCall),
    /// [`retail::acquire_calls`]: each call ends its own assignment.
    Acquire,
}

/// Processes and data of an application besides its functions.
trait AppService: Send + Sync {
    /// Restores the data that calls have changed.
    fn restore_data(&self) -> Result<(), BenchError> {
        Ok(())
    }
}

impl AppKind {
    /// All applications.
    pub(crate) const ALL: [Self; 3] = [Self::Certinfo, Self::Resizer, Self::Retail];

    /// Name of the folder in `examples/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Certinfo => "certinfo",
            Self::Resizer => "resizer",
            Self::Retail => "retail",
        }
    }

    /// Starts the other processes, on the machine of the functions without callees.
    ///
    /// # Errors
    /// [`requirements::MissingRequirement`] when this machine has not all dependencies.
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

    /// Restores the data that calls have changed.
    ///
    /// # Errors
    /// When another process of the application does not respond.
    pub(crate) fn restore_data(&self) -> Result<(), BenchError> {
        self.service.restore_data()
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
