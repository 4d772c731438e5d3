//! How fast calls go within a domain: `cargo run --release -p nearpath-domain --features tokio
//! --example pace`.
//!
//! A process with one thread per endpoint: a caller that waits for each answer, and a gateway
//! thread with 32 calls in flight. Says what the machinery around the rings costs;
//! `nearpath-bench ring` measures the rings alone, between processes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::endpoint::{self, blocking, polled};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_domain::{CallDestination, CallRequest, CallResponse, UnsentReason, packet};
use nearpath_types::{FunctionId, InstanceId};

const CALLS: u32 = 100_000;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let (hub, _faults) =
        runtime.block_on(async { DomainHandle::start(DomainSettings::named("pace")) })?;
    let (caller, echo): (FunctionId, FunctionId) = ("caller".parse()?, "echo".parse()?);
    hub.declare_edges([(caller.clone(), echo.clone())]);
    let server = endpoint(&hub, 2, &echo)?;
    std::thread::spawn(move || {
        let serving =
            blocking::BlockingEndpoint::join(server, endpoint::EndpointSettings::default());
        serving.map(|mut endpoint| {
            endpoint.serve_calls(|_, incoming| CallResponse::ok(std::mem::take(&mut incoming.body)))
        })
    });
    one_at_a_time(endpoint(&hub, 1, &caller)?, &echo)?;
    many_at_once(hub.gateway_socket()?, &echo)?;
    runtime.block_on(hub.stop());
    Ok(())
}

fn endpoint(
    hub: &DomainHandle,
    instance: u64,
    function: &FunctionId,
) -> std::io::Result<std::os::fd::OwnedFd> {
    let (ours, theirs) = packet::socket_pair()?;
    hub.admit_instance(
        InstanceId(instance),
        function.clone(),
        EndpointSocket::Connected(ours),
    );
    Ok(theirs)
}

fn hello() -> CallRequest<'static> {
    CallRequest {
        body: Bytes::from_static(&[7; 100]),
        ..CallRequest::default()
    }
}

fn one_at_a_time(socket: std::os::fd::OwnedFd, echo: &FunctionId) -> Outcome {
    let settings = endpoint::EndpointSettings {
        serves: false,
        ..endpoint::EndpointSettings::default()
    };
    let mut endpoint = blocking::BlockingEndpoint::join(socket, settings)?;
    while !endpoint.callable_functions().contains(echo) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut took = Vec::with_capacity(CALLS as usize);
    for _ in 0..CALLS {
        let start = Instant::now();
        endpoint.call(CallDestination::Function(echo), &hello())?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    println!(
        "one at a time: p50 {:?}, p99 {:?}",
        took[took.len() / 2],
        took[took.len() * 99 / 100]
    );
    Ok(())
}

fn many_at_once(socket: std::os::fd::OwnedFd, echo: &FunctionId) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (endpoint, driver) = polled::AsyncEndpoint::join(
            socket,
            endpoint::EndpointSettings {
                serves: false,
                ..Default::default()
            },
        )
        .await?;
        tokio::task::spawn_local(driver);
        while !endpoint.has_function(echo) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let start = Instant::now();
        let workers: Vec<_> = (0..32)
            .map(|_| tokio::task::spawn_local(work(endpoint.clone(), echo.clone())))
            .collect();
        for worker in workers {
            worker.await??;
        }
        println!(
            "32 in flight, event loop: {:.0} calls/s",
            f64::from(CALLS) / start.elapsed().as_secs_f64()
        );
        Ok(())
    })
}

async fn work(
    endpoint: polled::AsyncEndpoint,
    echo: FunctionId,
) -> Result<(), nearpath_domain::CallError> {
    for _ in 0..CALLS / 32 {
        let call = loop {
            match endpoint.call(CallDestination::Function(&echo), &hello()) {
                Err(UnsentReason::NoCredit) => tokio::task::yield_now().await,
                sent => break sent?,
            }
        };
        call.await?;
    }
    Ok(())
}
