//! Log lines for denied connections. The kernel tells of one per caller and second at most.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nearpath_kernel::bpf::{DenialEvent, DenialEvents};
use nearpath_types::Reason;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::switch_report::{OTHER_DESTINATIONS, SwitchReport};

/// Registers the events with the runtime, which asks for a raw descriptor.
struct EventSource(DenialEvents);

impl AsRawFd for EventSource {
    fn as_raw_fd(&self) -> RawFd {
        use std::os::fd::AsFd;
        self.0.as_fd().as_raw_fd()
    }
}

/// Logs denied connections as long as the runtime lives.
///
/// # Errors
/// Fails when the events cannot be registered with the runtime.
pub(crate) async fn log_denials(events: DenialEvents, report: SwitchReport) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for descriptors of unknown safety; this one is owned"
    )]
    let mut events = AsyncFd::with_interest(EventSource(events), Interest::READABLE)?;
    loop {
        let mut ready = events.readable_mut().await?;
        while let Some(event) = ready.get_inner_mut().0.next_event() {
            log_denial(&event, &report);
        }
        ready.clear_ready();
    }
}

fn log_denial(event: &DenialEvent, report: &SwitchReport) {
    let name = |address| report.name_of(address).map(|id| id.to_string());
    let caller = name(event.edge.caller).unwrap_or_else(|| event.edge.caller.to_string());
    let callee = name(event.edge.callee).unwrap_or_else(|| OTHER_DESTINATIONS.to_owned());
    let protocol = if event.is_udp { "udp" } else { "tcp" };
    let (destination, reason) = (event.destination, Reason::NotAllowed.name());
    tracing::warn!(%caller, %callee, %destination, protocol, reason, "a connection between functions was denied: declare the edge in `chains` (nearpath.io/calls)");
}
