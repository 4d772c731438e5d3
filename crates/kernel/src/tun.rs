//! TUN devices: a program reads and writes the IP packets of a network namespace
//! (`Documentation/networking/tuntap.rst`).
//!
//! Each packet starts with a header of [`VNET_HEADER_LEN`] octets (`struct virtio_net_hdr`). The
//! header describes outstanding work: a partial checksum, and the cutting into segments. A packet
//! may be written to another device with its header. The work is skipped while the packet stays on
//! this machine.
#![expect(
    unsafe_code,
    reason = "the requests of the TUN driver are ioctls, which no safe library here wraps"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::ioctl::{IntegerSetter, Updater, ioctl, opcode};

/// Length of the header before each packet.
pub const VNET_HEADER_LEN: usize = 10;
/// Maximum length of a packet with its header.
pub const MAX_PACKET_LEN: usize = VNET_HEADER_LEN + 65_535;

const TUNSETIFF: rustix::ioctl::Opcode = opcode::write::<i32>(b'T', 202); // linux/if_tun.h
const TUNSETOFFLOAD: rustix::ioctl::Opcode = opcode::write::<u32>(b'T', 208); // linux/if_tun.h
/// Device type: IP packets (`IFF_TUN`), without a protocol prefix (`IFF_NO_PI`), with the header
/// (`IFF_VNET_HDR`).
#[expect(
    clippy::cast_possible_truncation,
    reason = "the three flags are in the low 16 bits, as the field is"
)]
const DEVICE_FLAGS: i16 = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;

/// Work that the kernel may leave to the reader. Linux completes it where packets leave the
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunOffload {
    /// Partial checksums. Packets are within the device's MTU.
    Checksums,
    /// Also up to 64 KB of TCP or UDP segments in one packet.
    Segments,
}

/// A TUN device. Dropping it removes the device.
#[derive(Debug)]
pub struct TunDevice(File);

/// `struct ifreq`, as `TUNSETIFF` reads and writes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

impl TunDevice {
    /// Creates a device in the calling thread's network namespace. The device is down and has no
    /// address. Reads and writes never block.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN` there, without `/dev/net/tun`, or when `name` is in use or
    /// longer than 15 octets.
    pub fn create(name: &str, offload: TunOffload) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open("/dev/net/tun")?;
        let mut request = InterfaceRequest {
            name: terminated_name(name)?,
            flags: DEVICE_FLAGS,
            rest: [0; 22],
        };
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, 40 octets on every 64-bit Linux,
        // which `InterfaceRequest` is; all bit patterns of its fields are valid.
        unsafe {
            ioctl(
                &file,
                Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request),
            )
        }?;
        let tun = Self(file);
        tun.set_offload(offload)?;
        Ok(tun)
    }

    /// Sets the work that the kernel leaves to the reader.
    ///
    /// # Errors
    /// Fails before Linux 6.2, which cannot keep UDP segments together.
    pub fn set_offload(&self, offload: TunOffload) -> io::Result<()> {
        let segments = libc::TUN_F_TSO4
            | libc::TUN_F_TSO6
            | libc::TUN_F_TSO_ECN
            | libc::TUN_F_USO4
            | libc::TUN_F_USO6;
        let flags = match offload {
            TunOffload::Checksums => libc::TUN_F_CSUM,
            TunOffload::Segments => libc::TUN_F_CSUM | segments,
        };
        // SAFETY: the argument of TUNSETOFFLOAD is a number; the kernel reads and writes no memory.
        unsafe {
            ioctl(
                &self.0,
                IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags as usize),
            )
        }?;
        Ok(())
    }

    /// Reads the next packet, header first, into `buffer` of [`MAX_PACKET_LEN`] octets. Returns
    /// `None` if there is none.
    ///
    /// # Errors
    /// Fails when the device is removed.
    pub fn read_packet(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a packet, header first. The namespace's network stack has processed it on return.
    ///
    /// # Errors
    /// Fails when the device is down or removed, or the packet is malformed.
    pub fn write_packet(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn terminated_name(name: &str) -> io::Result<[u8; 16]> {
    let fits = !name.is_empty() && name.len() < 16;
    let mut field = [0; 16];
    if !fits {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("device name {name:?} is invalid: use 1 to 15 octets"),
        ));
    }
    field[..name.len()].copy_from_slice(name.as_bytes());
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_matches_the_kernel_abi() {
        assert_eq!(size_of::<InterfaceRequest>(), size_of::<libc::ifreq>());
        assert_eq!(
            (TUNSETIFF, TUNSETOFFLOAD),
            (0x4004_54ca, 0x4004_54d0),
            "linux/if_tun.h"
        );
    }

    #[test]
    fn names_over_15_octets_are_refused() {
        assert!(terminated_name("fifteen-octets-").is_ok());
        assert!(terminated_name("sixteen-octets--").is_err());
        assert!(terminated_name("").is_err());
    }
}
