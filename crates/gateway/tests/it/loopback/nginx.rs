//! nginx as a function's own server. It asks the kernel for the number of bytes that have come (FIONREAD), keeps
//! connections after early responses, and may accept connections only with their first bytes.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use nearpath_testkit::free_addr;
use tempfile::TempDir;

use super::*;

/// A running nginx, killed at its end.
struct Nginx {
    addr: SocketAddr,
    process: Child,
    _folder: TempDir,
}

impl Nginx {
    /// Starts nginx with these parameters of `listen`. `None`: it is not installed.
    fn start(parameters: &str) -> Option<Self> {
        let (folder, addr) = (tempfile::tempdir().unwrap(), free_addr());
        let path = folder.path().display();
        let config = format!(
            "daemon off; master_process off; pid {path}/pid; error_log stderr;
            events {{ }}
            http {{
                access_log off; client_body_temp_path {path}/body; large_client_header_buffers 4 32k;
                proxy_temp_path {path}/1; fastcgi_temp_path {path}/2; uwsgi_temp_path {path}/3; scgi_temp_path {path}/4;
                server {{
                    listen {addr} {parameters};
                    location / {{ return 200 ok; }}
                    location /early {{ return 401 no; }}
                }}
            }}"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
            .args(["-c", file.to_str().unwrap()])
            .stdin(Stdio::null());
        let process = command.spawn().ok()?;
        Some(Self {
            addr,
            process,
            _folder: folder,
        })
    }

    async fn wait_ready(&self) {
        let is_ready = async || TcpStream::connect(self.addr).await.is_ok();
        nearpath_testkit::eventually("nginx listens", is_ready).await;
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Publishes nginx as the own server of the function; returns a caller's connection.
async fn connect_to(nginx: &Nginx, function: &ScriptedFunction) -> TcpStream {
    nginx.wait_ready().await;
    function.publish_server_at(nginx.addr);
    TcpStream::connect(function.fixture.public).await.unwrap()
}

/// Sends a request and returns its status line.
async fn status_of(caller: &mut TcpStream, request: &str, body_bytes: usize) -> String {
    caller.write_all(request.as_bytes()).await.unwrap();
    let (head, _) = read_response(caller, body_bytes).await;
    head.lines().next().unwrap().to_owned()
}

/// Returns a request with a head longer than nginx reads at once.
fn request_with_long_head() -> String {
    let cookie = "c".repeat(3_000);
    format!("GET /function/echo HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\r\n")
}

macro_rules! start_nginx {
    ($parameters:expr) => {
        match Nginx::start($parameters) {
            Some(nginx) => nginx,
            None => nearpath_testkit::skip!("nginx is not installed"),
        }
    };
}

test_both_deliveries! {
    long_heads_reach_nginx,
    nginx_answers_early_and_goes_on,
    a_deferred_listener_is_served,
}

async fn long_heads_reach_nginx(delivery: LoopbackDelivery) {
    let nginx = start_nginx!("");
    let function = ScriptedFunction::start(Caller::NEW.with_delivery(delivery), &[]).await;
    let mut caller = connect_to(&nginx, &function).await;
    // In all more than sockmap redirects on one connection.
    let request = request_with_long_head();
    for number in 0..400 {
        let status = status_of(&mut caller, &request, 2).await;
        assert_eq!(status, "HTTP/1.1 200 OK", "{number}");
    }
    let is_by_sockmap = delivery == LoopbackDelivery::Sockmap;
    assert_eq!(function.network.redirected_messages() >= 800, is_by_sockmap);
}

async fn nginx_answers_early_and_goes_on(delivery: LoopbackDelivery) {
    let nginx = start_nginx!("");
    let function = ScriptedFunction::start(Caller::NEW.with_delivery(delivery), &[]).await;
    let mut caller = connect_to(&nginx, &function).await;
    // Longer requests are not plain, and go to the watchdog.
    for length in [1_000, 12_000, 16_200] {
        let body = "b".repeat(length);
        let post = format!(
            "POST /function/echo/early HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        for _ in 0..20 {
            let status = status_of(&mut caller, &post, 2).await;
            assert_eq!(status, "HTTP/1.1 401 Unauthorized", "{length}");
            let status = status_of(&mut caller, REQUEST, 2).await;
            assert_eq!(status, "HTTP/1.1 200 OK", "after {length}");
        }
    }
}

async fn a_deferred_listener_is_served(delivery: LoopbackDelivery) {
    let nginx = start_nginx!("deferred");
    let function = ScriptedFunction::start(Caller::NEW.with_delivery(delivery), &[]).await;
    let mut caller = connect_to(&nginx, &function).await;
    let request = request_with_long_head();
    for number in 0..50 {
        let status = status_of(&mut caller, &request, 2).await;
        assert_eq!(status, "HTTP/1.1 200 OK", "{number}");
    }
    // The server's end comes with the first request, which went over TCP.
    assert_eq!(function.network.redirected_messages(), 0);
}
