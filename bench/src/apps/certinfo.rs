//! Certificate info: the function opens a TLS connection to a server on its machine and reads its
//! certificate.

use nearpath_testkit::lab::LabNode;
use tempfile::TempDir;

use super::requirements::{PythonEnv, examples_folder};
use super::{AppCase, AppFunction, AppService, CaseCalls, ExampleApp};
use crate::remote::BenchError;
use crate::remote::call::RemoteCall;
use crate::remote::worker::{KilledProcess, WorkerMachine, start_ready};

/// The TLS server and the folder with its keys.
struct AuthorityServer {
    _process: KilledProcess,
    _folder: TempDir,
}

impl AppService for AuthorityServer {}

/// Starts the TLS server on `machine`, which is in `node`.
pub(super) fn start_app(
    python: PythonEnv,
    node: &LabNode,
    machine: &WorkerMachine,
) -> Result<ExampleApp, BenchError> {
    let (example, folder, port) = (
        examples_folder()?.join("certinfo"),
        tempfile::tempdir()?,
        machine.allocate_ports(1).to_string(),
    );
    let mut command = python.script_command(&example.join("tests/authority.py"));
    let process = start_ready(node, command.arg(folder.path()).arg(&port))?;
    let authority = folder.path().join("ca.pem").display().to_string();
    let function = AppFunction::new("certinfo", example.join("handler/certinfo.py"));
    let functions = vec![
        function
            .with_variable("TLS_PORT", port)
            .with_variable("CA_FILE", authority),
    ];
    let call = RemoteCall::for_post("/?output=json", "localhost", "\"trusted\": true");
    let cases = vec![AppCase {
        name: "",
        function: "certinfo",
        calls: CaseCalls::Same(call),
    }];
    Ok(ExampleApp {
        python,
        functions,
        cases,
        service: Box::new(AuthorityServer {
            _process: process,
            _folder: folder,
        }),
    })
}
