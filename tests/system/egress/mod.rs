//! Functions with egress: to declared destinations, and to no others. The machine is a network
//! namespace of the test's own.

mod destinations;
mod endings;
mod settings;
mod sockets;

use std::path::Path;

use http::Method;
use serde_json::{Value, json};

use crate::test_server::{TestServer, http_function};

/// Handler that runs the Python code in its body; the variable `said` is its response.
const RUN_BODY: &str = r#"import socket, errno, threading, select, subprocess, signal
said = {}
try:
    exec(body.decode(), {"socket": socket, "select": select, "os": os, "time": time, "subprocess": subprocess, "sys": sys, "signal": signal}, said)
    self.answer(200, str(said.get("said")).encode())
except OSError as error:
    self.answer(200, errno.errorcode.get(error.errno, str(error)).encode())
except Exception as error:
    self.answer(200, repr(error).encode())"#;

/// A function that runs the code in its body, with the egress declaration `egress`.
pub(crate) fn runner_function(folder: &Path, name: &str, egress: &str) -> Value {
    let mut spec = http_function(folder, name, RUN_BODY);
    spec["annotations"] = json!({ "nearpath.io/egress": egress });
    spec
}

/// Runs Python code in a function.
pub(crate) async fn run_code(server: &TestServer, function: &str, code: &str) -> String {
    let answer = server
        .send_request(
            Method::POST,
            &format!("/function/{function}"),
            code.to_owned(),
        )
        .await;
    String::from_utf8_lossy(answer.body()).into_owned()
}

/// Python code that sends a line to an address and returns the response.
pub(crate) fn hello_code(to: impl std::fmt::Display, port: u16) -> String {
    format!(
        "s = socket.create_connection(('{to}', {port}), 20)\ns.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.close()"
    )
}

/// Returns true for the error of a reset connection, at any step.
pub(crate) fn is_reset_error(reply: &str) -> bool {
    ["ECONNRESET", "ECONNREFUSED", "EPIPE", "ENOTCONN"].contains(&reply)
}
