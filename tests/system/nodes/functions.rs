//! Functions of the tests between nodes.

use super::machines::Machines;

/// Handler that reports each call, waits as long as its path says, and answers.
const COUNTED_HANDLER: &str = r#"import http.server, os, time
log = os.open("PIPE", os.O_WRONLY)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        path, _, number = self.path.partition("?")
        if number:
            os.write(log, (number + "\n").encode())
        if path.startswith("/wait/"):
            time.sleep(float(path[6:]))
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    do_POST = do_GET
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
Server(("127.0.0.1", 5000), Handler).serve_forever()
"#;

/// Writes the handler of functions that report their calls, in the folder `task`.
pub(super) fn write_handler(machines: &Machines) {
    let pipe = machines.executions.pipe.to_str().unwrap();
    machines.write("task/server.py", &COUNTED_HANDLER.replace("PIPE", pipe));
}

/// Writes a stack file with a function `task` on these nodes.
pub(super) fn write_counted(machines: &Machines, nodes: &[&str]) {
    write_handler(machines);
    let nodes = format!("nodes: [{}],", nodes.join(", "));
    machines.write(
        "stack.yml",
        &format!("functions:\n{}", counted("task", &nodes)),
    );
}

/// Entry of a function that reports its calls.
pub(super) fn counted(name: &str, more: &str) -> String {
    function_entry(name, "./task", more)
}

/// Entry of a function with an HTTP server in a stack file.
pub(super) fn function_entry(name: &str, handler: &str, more: &str) -> String {
    format!(
        "  {name}: {{handler: {handler}, fprocess: python3 server.py, {more} \
         environment: {{mode: http, upstream_url: \"http://127.0.0.1:5000\"}}}}\n"
    )
}
