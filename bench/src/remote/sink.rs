//! A worker without a handler, in a separate process: it measures QUIC alone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use nearpath_wire::quic::{QuicWorker, ServedCall};
use nearpath_wire::zero_rtt::Provision;
use tokio::task::LocalSet;

use super::BenchError;

/// Options of `quic-sink`. Standard input has its provision; the process ends with its input.
#[derive(clap::Args)]
pub(crate) struct QuicSinkArgs {
    /// Accept this number of connections
    #[arg(long)]
    connections: usize,
}

/// Returns each body as the response; prints its address when it serves.
pub(crate) async fn run(args: QuicSinkArgs) -> Result<ExitCode, BenchError> {
    let mut input = std::io::stdin();
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    input.read_exact(&mut frame)?;
    let provision = Provision::decode(&frame)?;
    let serving = async {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let worker = QuicWorker::start(socket, provision, echo_call)?;
        // The default limit is far below the number that `mint` keeps open.
        worker.set_max_connections(args.connections);
        println!("{}", worker.local_addr()?);
        let ended =
            // The end of standard input is the parent's end, also when it is killed.
            tokio::task::spawn_blocking(move || std::io::copy(&mut input, &mut std::io::sink()));
        ended.await??;
        Ok::<_, BenchError>(ExitCode::SUCCESS)
    };
    LocalSet::new().run_until(serving).await
}

async fn echo_call(call: ServedCall) -> Response<Full<Bytes>> {
    let body = call.request.into_body().collect().await;
    Response::new(Full::new(
        body.map(|body| body.to_bytes()).unwrap_or_default(),
    ))
}

/// The process; dropping it stops it.
pub(crate) struct SinkProcess {
    process: Child,
    _input: ChildStdin,
    pub(crate) addr: SocketAddr,
}

impl SinkProcess {
    /// Starts the process and returns when it serves.
    pub(crate) fn start(provision: &Provision, connections: usize) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["quic-sink", "--connections", &connections.to_string()]);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = process.stdin.take().ok_or("no pipe")?;
        // By a pipe: keys are no arguments, which other processes can read.
        input.write_all(&provision.encode())?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        let addr = line.trim_end().parse()?;
        Ok(Self {
            process,
            _input: input,
            addr,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for SinkProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
