//! UDP sockets for QUIC: buffers for bursts, and datagrams in batches.

use nearpath_wire::quic::udp::{SOCKET_BUFFER_BYTES, UdpCapabilities, probe_capabilities};

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    match probe_capabilities() {
        Ok(capabilities) => checks_of(&capabilities),
        Err(error) => {
            let effect = "calls between machines use TCP";
            vec![Check::warn(
                "UDP",
                error.to_string(),
                effect,
                "allow UDP sockets on loopback, and IPv4",
            )]
        }
    }
}

fn checks_of(capabilities: &UdpCapabilities) -> Vec<Check> {
    vec![
        buffer_check(
            "UDP receive buffer",
            capabilities.receive_buffer,
            "net.core.rmem_max",
            "bursts of QUIC calls are lost and sent again",
        ),
        buffer_check(
            "UDP send buffer",
            capabilities.send_buffer,
            "net.core.wmem_max",
            "large responses over QUIC leave in smaller batches",
        ),
        batch_check(
            "UDP GSO",
            capabilities.max_send_batch,
            "large bodies over QUIC cost a system call per datagram",
        ),
        batch_check(
            "UDP GRO",
            capabilities.max_receive_batch,
            "large bodies over QUIC are read datagram by datagram",
        ),
    ]
}

fn buffer_check(name: &str, bytes: usize, setting: &str, effect: &str) -> Check {
    // The kernel caps a request at rmem_max and wmem_max without an error, so it is measured.
    let found = format!("{} KiB of {} KiB", bytes >> 10, SOCKET_BUFFER_BYTES >> 10);
    match bytes >= SOCKET_BUFFER_BYTES {
        true => Check::ok(name, found),
        false => {
            let remedy = format!(
                "`sysctl -w {setting}={SOCKET_BUFFER_BYTES}` as root; a file in /etc/sysctl.d makes it permanent"
            );
            Check::warn(name, found, effect, &remedy)
        }
    }
}

fn batch_check(name: &str, datagrams: usize, effect: &str) -> Check {
    match datagrams > 1 {
        true => Check::ok(name, format!("{datagrams} datagrams at a time")),
        // UDP_SEGMENT came with Linux 4.18, UDP_GRO with 5.0.
        false => Check::warn(name, "not available", effect, "use Linux 5.0 or newer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckStatus;

    #[test]
    fn small_buffers_come_with_the_command_that_fixes_them() {
        // 212992 is the kernel's default.
        let small = UdpCapabilities {
            receive_buffer: 212_992,
            send_buffer: SOCKET_BUFFER_BYTES,
            max_send_batch: 64,
            max_receive_batch: 1,
        };
        let [receive, send, out, back] = &checks_of(&small)[..] else {
            panic!("four checks")
        };
        assert_eq!(
            (receive.status, receive.found.as_str()),
            (CheckStatus::Warn, "208 KiB of 4096 KiB")
        );
        assert!(
            receive
                .remedy
                .as_ref()
                .unwrap()
                .contains("`sysctl -w net.core.rmem_max=4194304`")
        );
        assert!(receive.effect.is_some() && !receive.fatal);
        assert_eq!(
            (send.status, out.status, back.status),
            (CheckStatus::Ok, CheckStatus::Ok, CheckStatus::Warn)
        );
        let none = UdpCapabilities {
            send_buffer: 0,
            ..small
        };
        assert!(
            checks_of(&none)[1]
                .remedy
                .as_ref()
                .unwrap()
                .contains("net.core.wmem_max")
        );
    }
}
