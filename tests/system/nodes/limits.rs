//! A limit of concurrent calls holds over all gateways.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use nearpath_testkit::need_root;

use super::functions::function_entry;
use super::machines::Machines;

/// Calls, and how many of them are open at a time.
const CALLS: usize = 600;
const OPEN_CALLS: usize = 30;

/// Handler that fails a call if another one is open.
const EXCLUSIVE_HANDLER: &str = r#"import http.server, threading, time
alone = threading.Lock()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        is_alone = alone.acquire(blocking=False)
        time.sleep(0.002)
        if is_alone:
            alone.release()
        self.send_response(200 if is_alone else 418)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
Server(("127.0.0.1", 5000), Handler).serve_forever()
"#;

/// Calls a function with this limit through three gateways. Returns how many calls were not alone.
async fn overlapping_calls(limit: usize) -> usize {
    let mut machines = Machines::new(&["a", "b", "c"]);
    machines.write("task/server.py", EXCLUSIVE_HANDLER);
    let more = format!("nodes: [c], annotations: {{nearpath.io/max-inflight: \"{limit}\"}},");
    let function = function_entry("task", "./task", &more);
    machines.write("stack.yml", &format!("functions:\n{function}"));
    machines.start_all().await;
    for at in 0..3 {
        machines.wait_answered(at, "/function/task").await;
    }
    let (overlapping, all) = (AtomicUsize::new(0), &machines);
    let count = &overlapping;
    stream::iter(0..CALLS)
        .for_each_concurrent(OPEN_CALLS, |number| async move {
            let answer = all.get(number % 3, "/function/task").await;
            match answer.status().as_u16() {
                200 => {}
                418 => drop(count.fetch_add(1, Ordering::SeqCst)),
                other => panic!("{other}: {:?}\n{}", answer.body(), all.logs()),
            }
        })
        .await;
    overlapping.into_inner()
}

#[tokio::test]
async fn three_gateways_keep_a_limit_of_one() {
    need_root!();
    assert_eq!(overlapping_calls(1).await, 0);
}

/// Control: with a limit of eight, calls overlap.
#[tokio::test]
async fn control_a_larger_limit_lets_calls_overlap() {
    need_root!();
    assert!(overlapping_calls(8).await > 0);
}
