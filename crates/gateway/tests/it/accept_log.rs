//! Log lines of failed accepts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::tracing::field::{Field, Visit};
use ::tracing::{Event, Metadata, Subscriber, span};
use nearpath_testkit::eventually;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpStream;

use crate::fixture::{TestGateway, millis};

/// Counts the lines about failed accepts.
#[derive(Default, Clone)]
struct AcceptLines(Arc<AtomicUsize>);

impl Visit for AcceptLines {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").starts_with("accept failed") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Subscriber for AcceptLines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns the lowest free file descriptor.
fn next_fd() -> u64 {
    use std::os::fd::AsRawFd;
    let (file, _writer) = std::io::pipe().unwrap();
    file.as_raw_fd().try_into().unwrap()
}

#[tokio::test]
async fn failed_accepts_between_others_write_a_line_a_minute() {
    let lines = AcceptLines::default();
    ::tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let fixture = TestGateway::start();
    let failures = || {
        let metrics = fixture.encode_metrics();
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("nearpath_accept_errors_total "));
        line.unwrap().parse::<usize>().unwrap()
    };
    // The first call may open files.
    drop(TcpStream::connect(fixture.public).await.unwrap());
    let limits = getrlimit(Resource::Nofile);
    for _ in 0..12 {
        let (before, mut clients) = (failures(), Vec::new());
        let one_fails = async || {
            let mut lowered = limits;
            setrlimit(Resource::Nofile, limits).unwrap();
            // For the client alone. The gateway may free others meanwhile: then one more is tried.
            lowered.current = Some(next_fd() + 1);
            setrlimit(Resource::Nofile, lowered).unwrap();
            clients.push(TcpStream::connect(fixture.public).await.ok());
            let fails = async {
                while failures() == before {
                    tokio::time::sleep(millis(1)).await;
                }
            };
            tokio::time::timeout(millis(500), fails).await.is_ok()
        };
        eventually("an accept fails", one_fails).await;
        drop(clients);
        setrlimit(Resource::Nofile, limits).unwrap();
        let accepted = "GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        crate::fixture::send_raw(fixture.public, accepted.as_bytes()).await;
    }
    let (written, threads) = (lines.0.load(Ordering::Relaxed), 2);
    assert!((1..=threads).contains(&written), "{written} lines");
}
