//! Certificate info: the function shakes hands with a TLS server on its own machine and reads its certificate.

use nearpath_testkit::lab::LabNode;
use tempfile::TempDir;

use super::need::{Python, examples};
use super::{App, Aside, Calls, Case, Function};
use crate::remote::Error;
use crate::remote::call::Call;
use crate::remote::worker::{Machine, Process, started};

/// The server, whose keys are in the folder.
struct Server {
    _process: Process,
    _folder: TempDir,
}

impl Aside for Server {}

/// `node` is what `machine` is in.
pub(super) fn start(python: Python, node: &LabNode, machine: &Machine) -> Result<App, Error> {
    let (example, folder, port) = (
        examples()?.join("certinfo"),
        tempfile::tempdir()?,
        machine.ports(1).to_string(),
    );
    let mut command = python.run(&example.join("tests/authority.py"));
    let process = started(node, command.arg(folder.path()).arg(&port))?;
    let authority = folder.path().join("ca.pem").display().to_string();
    let function = Function::new("certinfo", example.join("handler/certinfo.py"));
    let functions = vec![function.with("TLS_PORT", port).with("CA_FILE", authority)];
    let call = Call::post("/?output=json", "localhost", "\"trusted\": true");
    let cases = vec![Case {
        name: "",
        function: "certinfo",
        calls: Calls::Same(call),
    }];
    Ok(App {
        python,
        functions,
        cases,
        aside: Box::new(Server {
            _process: process,
            _folder: folder,
        }),
    })
}
