//! Waiting of a child until a forwarder is attached to its veth pair, so that no tenant code sees
//! the network before.
//!
//! Child and node share a socket pair. The child reports that its pair exists; the node answers
//! `ok`, or an error that ends the child. Each end sees the other's death as end of stream.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::network::device_name;
use super::spec::{InstanceNetwork, SandboxSpec};

/// Maximum time that a child has to build its network, which takes milliseconds. A slower child
/// fails.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
const PAIR_READY: u8 = b'+';
const ATTACHED: &str = "ok";

/// The child's side: reports that the pair exists, and waits for the forwarder.
pub(super) fn wait_attached(socket: OwnedFd) -> io::Result<()> {
    let mut socket = UnixStream::from(socket);
    let mut answer = String::new();
    socket.write_all(&[PAIR_READY])?;
    // The node closes the stream after its answer, so an empty one means that it gave up.
    socket.read_to_string(&mut answer)?;
    match answer.as_str() {
        ATTACHED => Ok(()),
        "" => Err(io::Error::other(
            "the node did not attach the forwarder in time",
        )),
        why => Err(io::Error::other(why)),
    }
}

/// The node's side: waits for the pair and attaches the forwarder. The child reports failures in a
/// note.
pub(super) fn attach_when_ready(socket: OwnedFd, spec: &SandboxSpec) {
    let mut socket = UnixStream::from(socket);
    let mut ready = [0];
    let reported = socket
        .set_read_timeout(Some(ATTACH_TIMEOUT))
        .and_then(|()| socket.read_exact(&mut ready));
    if let (Ok(()), Some(network)) = (reported, &spec.network) {
        let attached = attach_forwarder(network, &device_name(spec.instance));
        let answer = attached.map_or_else(
            |error| format!("forwarder not attached: {error}"),
            |()| ATTACHED.to_owned(),
        );
        let _ = socket.write_all(answer.as_bytes()); // the child may have died
    }
}

fn attach_forwarder(network: &InstanceNetwork, device: &str) -> io::Result<()> {
    let (Some(forwarder), Some(hub)) = (&network.forwarder, &network.hub) else {
        return Ok(());
    };
    forwarder.attach_device(hub, network.eip, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the child's side against `node`, and returns its result.
    fn child_result(node: impl FnOnce(UnixStream) + Send + 'static) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let node = std::thread::spawn(move || node(ours));
        let answer = wait_attached(theirs.into());
        node.join().unwrap();
        answer
    }

    fn answer_ready_child(mut node: UnixStream, answer: &str) {
        let mut ready = [0];
        node.read_exact(&mut ready).unwrap();
        assert_eq!(ready, [PAIR_READY]);
        node.write_all(answer.as_bytes()).unwrap();
    }

    #[test]
    fn a_child_continues_only_after_the_forwarder_is_attached() {
        child_result(|node| answer_ready_child(node, ATTACHED)).unwrap();
        assert!(
            child_result(|node| answer_ready_child(node, ""))
                .unwrap_err()
                .to_string()
                .contains("in time")
        );
        let why = child_result(|node| answer_ready_child(node, "forwarder not attached: full"))
            .unwrap_err();
        assert_eq!(why.to_string(), "forwarder not attached: full");
    }

    #[test]
    fn a_dead_child_does_not_block_the_node() {
        use crate::sandbox::IsolationLevel;
        use nearpath_types::InstanceId;
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        attach_when_ready(
            ours.into(),
            &SandboxSpec::new(InstanceId(1), IsolationLevel::Root, "/bin/true".into()),
        );
    }

    #[test]
    fn a_child_fails_without_its_forwarder() {
        use crate::bpf::{self, Forwarder};
        use crate::hub_netns::HubNetns;
        use nearpath_types::{Eip, InstanceId};
        use std::sync::Arc;
        nearpath_testkit::need_root!();
        if let Err(why) = bpf::check_forwarding_support() {
            nearpath_testkit::skip!("forwarding is unavailable: {why}");
        }
        let gateway = [10, 62, 0, 1].into();
        let (hub, forwarder) = (
            HubNetns::create(gateway).unwrap(),
            Forwarder::load_program().unwrap(),
        );
        let mut spec = SandboxSpec::new(
            InstanceId(1),
            crate::sandbox::IsolationLevel::Root,
            "/bin/true".into(),
        );
        let (hub, forwarder) = (Some(Arc::new(hub)), Some(Arc::new(forwarder)));
        spec.network = Some(InstanceNetwork {
            forwarder,
            ..InstanceNetwork::new(Eip([10, 62, 0, 2].into()), gateway, hub)
        });
        // without a child there is no pair to attach to
        let why = child_result(move |node| attach_when_ready(node.into(), &spec)).unwrap_err();
        assert!(
            why.to_string().starts_with("forwarder not attached: "),
            "{why}"
        );
    }
}
